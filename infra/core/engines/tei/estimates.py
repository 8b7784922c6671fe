"""How long TEI takes and how much host memory it needs, as upper estimates for budgets, probes and limits.

Times are seconds, sizes MiB unless said. What a GPU does and holds is of infra.core.capacity.
"""

import math
from dataclasses import dataclass

from infra.core.capacity import physics
from infra.core.capacity.memory import HEAD_WIDTH, MIB, TENSORS, weights_mib
from infra.core.capacity.physics import Dtype
from infra.core.catalogue import Gpu, Model

#: Inputs that one batch holds on CPU, whatever is asked: upstream's cpu images try ONNX Runtime first
#: (backends/ort, OrtBackend::max_batch_size), where a model has no ONNX file Candle takes over with 4.
CPU_BATCH_INPUTS = 8
#: The build that was recorded has Candle only, and stand-ins are held to it (recordings, startup/start-cases).
STAND_IN_BATCH_INPUTS = 4
#: A text of normal length where nobody says better: chunks of documents are cut to 512 tokens or less.
USUAL_TOKENS = 512

#: FLOP/s of one CPU core: 4 x 512 tokens of BERT-base (387 GFLOP) took 5-9 s on 2 cores in the recordings.
_CPU_FLOPS_PER_CORE = 20e9
#: Bytes per second from the hub (100 Mbit/s, a slow office line) and from disk into memory.
_DOWNLOAD_RATE = 12.5e6
_LOAD_RATE = 250e6
_FLOAT32_BYTES = 4
_TOKENIZER_MIB = 100
_PROGRAM_MIB = 1024
#: Less than this and the process does not come up at all, whatever the model.
_LEAST_MIB = 256


@dataclass(frozen=True)
class Machine:
    """What computes. ``gpu`` None: the CPU, also for a stand-in that only counts GPUs."""

    gpu: Gpu | None
    cores: float
    dtype: Dtype = "float16"

    @property
    def flops(self) -> float:
        """FLOP/s at the slow end."""
        if self.gpu is None:
            return _CPU_FLOPS_PER_CORE * self.cores
        return physics.peak(self.gpu, self.dtype) * physics.SHORT_EFFICIENCY


def inputs_per_batch(gpu: Gpu | None, tokens: int, batch_tokens: int, *, stand_in: bool = False) -> int:
    """Texts of ``tokens`` tokens that one batch holds."""
    inputs = max(1, batch_tokens // tokens)
    return inputs if gpu else min(inputs, STAND_IN_BATCH_INPUTS if stand_in else CPU_BATCH_INPUTS)


def batch_seconds(model: Model, machine: Machine, tokens: int, inputs: int) -> float:
    """One forward pass over ``inputs`` texts of ``tokens`` tokens."""
    return model.flops_per_document(tokens) * inputs / machine.flops


def startup_seconds(model: Model, warm_up: float) -> float:
    """Download, load, and warm-up twice (TEI runs a short and a full batch)."""
    weights = weights_mib(model) * MIB
    return weights / _DOWNLOAD_RATE + weights / _LOAD_RATE + 2 * warm_up


def host_memory_mib(model: Model, gpu: Gpu | None, workers: int, tokens: int, inputs: int) -> int:
    """Host memory of the process with a batch of ``inputs`` texts of ``tokens`` tokens."""
    needed = _PROGRAM_MIB + 1.3 * _resident_mib(model, gpu) + _TOKENIZER_MIB * workers
    if gpu is None:
        linear = inputs * tokens * model.hidden * TENSORS * _FLOAT32_BYTES / MIB
        needed += linear + 2 * _scores_mib(model, tokens, inputs)
    return math.ceil(needed / 256) * 256


def least_host_memory_mib(model: Model, gpu: Gpu | None, tokens: int, inputs: int) -> int:
    """Below this the kernel kills the process at start. Weights that move on to a GPU are mapped and do not count."""
    if gpu:
        return _LEAST_MIB
    return math.ceil(_LEAST_MIB + _resident_mib(model, gpu) + _scores_mib(model, tokens, inputs))


def _resident_mib(model: Model, gpu: Gpu | None) -> int:
    """Weights in host memory: as published on their way to a GPU, as float32 on CPU."""
    return weights_mib(model) if gpu else math.ceil(model.parameters_m * 1e6 * _FLOAT32_BYTES / MIB)


def _scores_mib(model: Model, tokens: int, inputs: int) -> float:
    """Attention scores of one layer: without flash attention they are kept whole, heads x tokens x tokens."""
    return inputs * math.ceil(model.hidden / HEAD_WIDTH) * tokens**2 * _FLOAT32_BYTES / MIB
