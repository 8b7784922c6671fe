"""What has to lie in GPU memory when an engine warms up: weights, activations of a full batch, workspace.

Also the size of published weights, which disk, download and host memory follow from.
"""

import math
from dataclasses import dataclass

from infra.core.capacity.physics import Dtype
from infra.core.catalogue import Gpu, Model, ModelKind

#: Driver and error correction keep a part: nvidia-smi shows 15360 MiB of EC2's 16384 MiB for a T4.
_USABLE = 0.93
#: CUDA context, cuBLAS workspaces and the allocator's slack, in MiB. An assumption; contexts alone take 300-500 MiB.
_WORKSPACE_MIB = 1024
#: Tensors of the hidden width that live at once per token: input, residual, q, k, v, attention output, and the four
#: times wider feed-forward twice, with copies. An assumption on the large side.
TENSORS = 20
HEAD_WIDTH = 64
#: Below this compute capability TEI runs without flash attention and keeps the score matrices: T4 (7.5).
FLASH_ATTENTION_CAPABILITY = 80
_WEIGHT_BYTES: dict[Dtype, int] = {"float32": 4, "float16": 2, "int8": 1}
MIB = 2**20


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


def weights_mib(model: Model) -> int:
    """Weights as they are published: what is downloaded, cached, and read on the way to a GPU."""
    return math.ceil(model.parameters_m * 1e6 * model.bytes_per_parameter / MIB)


def bytes_per_token(model: Model, gpu: Gpu, dtype: Dtype) -> float:
    """Activation bytes of each token of a batch; TEI warms up with the longest texts the model takes."""
    size = 4 if dtype == "float32" else 2
    width = model.hidden * TENSORS * size
    if gpu.capability < FLASH_ATTENTION_CAPABILITY or dtype == "float32":
        # Scores and their softmax: heads x tokens for every token of a text.
        width += 2 * size * math.ceil(model.hidden / HEAD_WIDTH) * model.max_tokens
    if model.kind is ModelKind.SPARSE and model.dimension:
        # Logits over the vocabulary and their copy.
        width += 2 * size * model.dimension
    return width


def needed(model: Model, gpu: Gpu, batch_tokens: int, dtype: Dtype, shares: int = 1) -> Memory:
    """Memory of a replica whose batches hold ``batch_tokens`` tokens, on one of ``shares`` parts of a GPU."""
    return Memory(
        weights=math.ceil(model.parameters_m * 1e6 * _WEIGHT_BYTES[dtype] / MIB),
        activations=math.ceil(batch_tokens * bytes_per_token(model, gpu, dtype) / MIB),
        workspace=_WORKSPACE_MIB,
        usable=math.floor(gpu.memory_mib * _USABLE / shares),
    )


def largest_batch(model: Model, gpu: Gpu, dtype: Dtype, shares: int = 1) -> int:
    """Most tokens a batch may hold for the warm-up to pass; 0 or less: not even the weights fit."""
    empty = needed(model, gpu, 0, dtype, shares)
    return math.floor((empty.usable - empty.total) * MIB / bytes_per_token(model, gpu, dtype))
