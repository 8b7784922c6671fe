"""Which TEI image runs on which GPU.

Source: text-embeddings-inference, docs/source/en/supported_models.md, .github/workflows/matrix.json and
backends/candle/src/compute_cap.rs at 0d124dc (2026-07-24).
"""

from infra.core.catalogue import Gpu

REGISTRY = "ghcr.io"
REPOSITORY = "huggingface/text-embeddings-inference"

#: Releases that this blueprint knows how to configure, newest last. 1.9 is the first to answer 429 for lists too.
VERSIONS = ("1.9.2", "1.9.3")

#: Compute capability -> tag prefix. An image starts on its own capability only, but for 8.x: see `runs`.
_PREFIXES = {75: "turing-", 80: "", 86: "86-", 89: "89-", 90: "hopper-", 100: "100-", 120: "120-", 121: "121-"}
#: Images that upstream calls experimental.
_EXPERIMENTAL = {75, 90, 100, 120, 121}
CPU_PREFIX = "cpu-"


def prefix_for(gpu: Gpu | None) -> str | None:
    """Tag prefix of the image made for ``gpu`` (None: CPU); None when TEI has no image for it."""
    return CPU_PREFIX if gpu is None else _PREFIXES.get(gpu.capability)


def experimental(gpu: Gpu | None) -> bool:
    """Whether upstream calls the image for this GPU experimental."""
    return gpu is not None and gpu.capability in _EXPERIMENTAL


def supported_gpus() -> str:
    """For messages."""
    return ", ".join(f"{capability // 10}.{capability % 10}" for capability in _PREFIXES)


def runs(prefix: str, gpu: Gpu | None) -> bool:
    """Whether an image with this tag prefix starts on ``gpu``; TEI compares run-time and compile-time capability."""
    if gpu is None or prefix == CPU_PREFIX:
        return gpu is None and prefix == CPU_PREFIX
    if prefix == "cuda-":
        return gpu.capability in _PREFIXES and gpu.capability != 121
    compiled = next((capability for capability, known in _PREFIXES.items() if known == prefix), None)
    match compiled:
        case None:
            return False
        case 80:
            return 80 <= gpu.capability <= 89
        case 86:
            return 86 <= gpu.capability <= 89
        case 120:
            return gpu.capability in {120, 121}
        case _:
            return gpu.capability == compiled
