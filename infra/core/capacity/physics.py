"""How fast a GPU can go through a model: work over peak throughput times an efficiency that somebody has measured."""

import math
from dataclasses import dataclass
from typing import Literal

from infra.core.capacity.need import TokenLengths
from infra.core.catalogue import Gpu, Model

#: Precision of the matrix products. TEI computes in float16 on GPUs; int8 is what TensorRT does (Triton).
Precision = Literal["float16", "int8"]
#: What weights and products may be kept in; nothing is sized for float32, but its memory and slowest time are known.
Dtype = Precision | Literal["float32"]

#: Shares of the dense peak, rounded down from the rows of published.yaml that calibrate them (a test compares).
#: One server over HTTP, long texts (row infinity-tei-l4).
TYPICAL = 0.33
#: Best published anywhere (row hf-tei-a10g; TensorRT on A100 reaches 0.63 without HTTP).
BEST = 0.62
#: The wall: nothing is faster than the peak.
WALL = 1.0
#: Short texts over HTTP leave the GPU waiting for tokenizer and sockets: about 15 % is reported, without a token
#: length. It is taken to hold at 64 tokens and below; between there and 449 tokens, where 33 % was measured, the
#: typical efficiency is interpolated on a log scale. An assumption, and on the safe side of the 33 %.
SHORT_EFFICIENCY = 0.15
_SHORT_TOKENS = 64
_LONG_TOKENS = 449
#: Float32 leaves the tensor cores: data sheets give a sixteenth of FP16 for A100 (19.5 of 312), an eighth for T4.
_FLOAT32_SHARE = 1 / 16
#: Below 1, so that a longer text always takes longer.
_EXPONENT = math.log(TYPICAL / SHORT_EFFICIENCY) / math.log(_LONG_TOKENS / _SHORT_TOKENS)
#: Tokens per second of the fastest published server over HTTP (row hf-tei-a10g: 450 x 512).
HTTP_TOKENS_PER_SECOND = 230_000
#: Seconds per layer and step that do not depend on the batch: kernel launches (row trt-a100-fp16-128-single).
LAUNCH_SECONDS_PER_LAYER = 51e-6


@dataclass(frozen=True)
class Rates:
    """Texts per second of one GPU: as typical HTTP serving gets, as the best published runs got, at 100 % of peak."""

    typical: float
    best: float
    wall: float


def peak(gpu: Gpu, dtype: Dtype) -> float:
    """Dense peak in FLOP/s (int8: OP/s); for float32 a lower estimate."""
    if dtype == "int8":
        return gpu.int8_tops * 1e12
    return gpu.fp16_tflops * 1e12 * (_FLOAT32_SHARE if dtype == "float32" else 1)


def typical_efficiency(tokens: float) -> float:
    """Share of peak that a server reaches over HTTP with texts of ``tokens`` tokens."""
    if tokens <= _SHORT_TOKENS:
        return SHORT_EFFICIENCY
    if tokens >= _LONG_TOKENS:
        return TYPICAL
    return SHORT_EFFICIENCY * math.pow(tokens / _SHORT_TOKENS, _EXPONENT)


def rates(model: Model, gpu: Gpu, tokens: int, precision: Precision = "float16") -> Rates:
    """Texts per second of one GPU in full batches of texts of ``tokens`` tokens."""
    per_second = peak(gpu, precision) / model.flops_per_document(tokens)
    return Rates(typical=per_second * typical_efficiency(tokens), best=per_second * BEST, wall=per_second * WALL)


def seconds_per_text(model: Model, gpu: Gpu, tokens: float, precision: Precision) -> float:
    """GPU seconds of one text of ``tokens`` tokens within a full batch, at typical efficiency."""
    return model.flops_per_document(round(tokens)) / (peak(gpu, precision) * typical_efficiency(tokens))


def mean_seconds_per_text(model: Model, gpu: Gpu, lengths: TokenLengths, precision: Precision) -> float:
    """The same for the mean text of a distribution."""
    sample = lengths.sample(model.max_tokens)
    return sum(share * seconds_per_text(model, gpu, tokens, precision) for share, tokens in sample)


def launch_seconds(model: Model) -> float:
    """What a step costs before the first text: one text alone takes this and its own work."""
    return model.layers * LAUNCH_SECONDS_PER_LAYER
