"""How long TEI takes and how much memory it needs, as upper estimates: budgets, probes and limits follow from them.

Times are seconds, sizes MiB unless said.
"""

import math
from dataclasses import dataclass

from infra.core.catalogue import Gpu, Model, ModelKind

#: On CPU TEI puts 4 inputs into a batch at most, whatever is asked (recordings, startup/start-cases).
CPU_BATCH_INPUTS = 4
#: A text of normal length where nobody says better: chunks of documents are cut to 512 tokens or less.
USUAL_TOKENS = 512

#: FLOP/s of one CPU core: 4 x 512 tokens of BERT-base (387 GFLOP) took 5-9 s on 2 cores in the recordings.
_CPU_FLOPS_PER_CORE = 20e9
#: Share of a GPU's dense peak that short texts over HTTP reach: 15 % at the slow end (performance-facts 1.3).
_SLOW_GPU_SHARE = 0.15
#: Float32 leaves the tensor cores: data sheets give a sixteenth of FP16 for A100 (19.5 of 312), an eighth for T4.
_FLOAT32_SHARE = 1 / 16
#: Bytes per second from the hub (100 Mbit/s, a slow office line) and from disk into memory.
_DOWNLOAD_RATE = 12.5e6
_LOAD_RATE = 250e6
_FLOAT32_BYTES = 4
#: Tensors of the hidden width that live at once per token: states, q, k, v, and the four times wider feed-forward.
_TENSORS = 20
_HEAD_WIDTH = 64
#: Below this compute capability TEI computes without flash attention and keeps the scores.
_FLASH_ATTENTION_CAPABILITY = 80
#: Driver and error correction keep a part of a GPU: nvidia-smi shows 15360 of 16384 MiB for a T4. CUDA's context and
#: workspaces take about 1 GiB more.
_USABLE_GPU_SHARE = 0.93
_CUDA_MIB = 1024
_TOKENIZER_MIB = 100
_PROGRAM_MIB = 1024
#: Less than this and the process does not come up at all, whatever the model.
_LEAST_MIB = 256


@dataclass(frozen=True)
class Machine:
    """What computes. ``gpu`` None: the CPU, also for a stand-in that only counts GPUs."""

    gpu: Gpu | None
    cores: float
    dtype: str = "float16"

    @property
    def flops(self) -> float:
        """FLOP/s at the slow end."""
        if self.gpu is None:
            return _CPU_FLOPS_PER_CORE * self.cores
        share = _FLOAT32_SHARE if self.dtype == "float32" else 1.0
        return self.gpu.fp16_tflops * 1e12 * _SLOW_GPU_SHARE * share


def inputs_per_batch(gpu: Gpu | None, tokens: int, batch_tokens: int) -> int:
    """Texts of ``tokens`` tokens that one batch holds."""
    inputs = max(1, batch_tokens // tokens)
    return inputs if gpu else min(inputs, CPU_BATCH_INPUTS)


def batch_seconds(model: Model, machine: Machine, tokens: int, inputs: int) -> float:
    """One forward pass over ``inputs`` texts of ``tokens`` tokens."""
    return model.flops_per_document(tokens) * inputs / machine.flops


def weights_mib(model: Model) -> int:
    """Weights as they are published: what is downloaded and cached."""
    return math.ceil(model.parameters_m * 1e6 * model.bytes_per_parameter / 2**20)


def startup_seconds(model: Model, warm_up: float) -> float:
    """Download, load, and warm-up twice (TEI runs a short and a full batch)."""
    weights = weights_mib(model) * 2**20
    return weights / _DOWNLOAD_RATE + weights / _LOAD_RATE + 2 * warm_up


def host_memory_mib(model: Model, gpu: Gpu | None, workers: int, tokens: int, inputs: int) -> int:
    """Host memory of the process with a batch of ``inputs`` texts of ``tokens`` tokens."""
    needed = _PROGRAM_MIB + 1.3 * _resident_mib(model, gpu) + _TOKENIZER_MIB * workers
    if gpu is None:
        linear = inputs * tokens * model.hidden * _TENSORS * _FLOAT32_BYTES / 2**20
        needed += linear + 2 * _scores_mib(model, tokens, inputs)
    return math.ceil(needed / 256) * 256


def least_host_memory_mib(model: Model, gpu: Gpu | None, tokens: int, inputs: int) -> int:
    """Below this the kernel kills the process at start. Weights that move on to a GPU are mapped and do not count."""
    if gpu:
        return _LEAST_MIB
    return math.ceil(_LEAST_MIB + _resident_mib(model, gpu) + _scores_mib(model, tokens, inputs))


def largest_gpu_batch(model: Model, gpu: Gpu, dtype: str) -> int:
    """Tokens of the largest batch of longest texts beside the weights; below 1 not even the weights fit."""
    size = 4 if dtype == "float32" else 2
    flash_attention = gpu.capability >= _FLASH_ATTENTION_CAPABILITY and dtype == "float16"
    per_token = model.hidden * _TENSORS * size
    if not flash_attention:
        # Scores and their softmax.
        per_token += 2 * math.ceil(model.hidden / _HEAD_WIDTH) * model.max_tokens * size
    if model.kind is ModelKind.SPARSE and model.dimension:
        # Logits over the vocabulary and their copy.
        per_token += 2 * model.dimension * size
    free = gpu.memory_mib * _USABLE_GPU_SHARE - _CUDA_MIB - model.parameters_m * 1e6 * size / 2**20
    return math.floor(free * 2**20 / per_token)


def _resident_mib(model: Model, gpu: Gpu | None) -> int:
    """Weights in host memory: as published on their way to a GPU, as float32 on CPU."""
    return weights_mib(model) if gpu else math.ceil(model.parameters_m * 1e6 * _FLOAT32_BYTES / 2**20)


def _scores_mib(model: Model, tokens: int, inputs: int) -> float:
    """Attention scores of one layer: without flash attention they are kept whole, heads x tokens x tokens."""
    return inputs * math.ceil(model.hidden / _HEAD_WIDTH) * tokens**2 * _FLOAT32_BYTES / 2**20
