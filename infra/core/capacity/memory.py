"""What has to lie in GPU memory when TEI warms up: weights, activations of a full batch, workspace."""

import math
from dataclasses import dataclass

from infra.core.capacity.physics import Precision
from infra.core.catalogue import Gpu, Model

#: Driver and error correction keep a part: nvidia-smi shows 15360 MiB of EC2's 16384 MiB for a T4.
_USABLE = 0.93
#: CUDA context, cuBLAS workspaces and the allocator's slack, in MiB. An assumption; contexts alone take 300-500 MiB.
_WORKSPACE_MIB = 1024
#: Tensors of the hidden width that live at once per token: input, residual, q, k, v, attention output, and the four
#: times wider feed-forward twice, with copies. An assumption on the large side.
_TENSORS = 20
_ACTIVATION_BYTES = 2
#: Below this compute capability TEI runs without flash attention and keeps the score matrices: T4 (7.5).
_FLASH_ATTENTION = 80
_HEAD_WIDTH = 64
_MIB = 2**20


@dataclass(frozen=True)
class Memory:
    """MiB of one replica on its GPU. ``usable`` is its part of the GPU where several share it."""

    weights: int
    activations: int
    workspace: int
    usable: int

    @property
    def total(self) -> int:
        """MiB that have to fit."""
        return self.weights + self.activations + self.workspace

    @property
    def fits(self) -> bool:
        """Whether the warm-up passes."""
        return self.total <= self.usable


def bytes_per_token(model: Model, gpu: Gpu) -> float:
    """Activation bytes of each token of a batch; TEI warms up with the longest texts the model takes."""
    width = model.hidden * _TENSORS * _ACTIVATION_BYTES
    if gpu.capability < _FLASH_ATTENTION:
        # Scores and their softmax: heads x tokens for every token of a text.
        width += 2 * _ACTIVATION_BYTES * math.ceil(model.hidden / _HEAD_WIDTH) * model.max_tokens
    if model.pooling == "splade" and model.dimension:
        # Logits over the vocabulary and their copy.
        width += 2 * _ACTIVATION_BYTES * model.dimension
    return width


def needed(model: Model, gpu: Gpu, batch_tokens: int, precision: Precision, shares: int = 1) -> Memory:
    """Memory of a replica whose batches hold ``batch_tokens`` tokens, on one of ``shares`` parts of a GPU."""
    weight_bytes = 1 if precision == "int8" else 2
    return Memory(
        weights=math.ceil(model.parameters_m * 1e6 * weight_bytes / _MIB),
        activations=math.ceil(batch_tokens * bytes_per_token(model, gpu) / _MIB),
        workspace=_WORKSPACE_MIB,
        usable=math.floor(gpu.memory_mib * _USABLE / shares),
    )


def largest_batch(model: Model, gpu: Gpu, precision: Precision, shares: int = 1) -> int:
    """Most tokens a batch may hold for the warm-up to pass; 0 or less: not even the weights fit."""
    empty = needed(model, gpu, 0, precision, shares)
    return math.floor((empty.usable - empty.total) * _MIB / bytes_per_token(model, gpu))
