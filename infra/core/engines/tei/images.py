"""Which TEI image runs on which GPU.

Source: text-embeddings-inference, docs/source/en/supported_models.md, .github/workflows/matrix.json and
backends/candle/src/compute_cap.rs at 0d124dc (2026-07-24).
"""

from infra.core import catalogue
from infra.core.capacity.memory import FLASH_ATTENTION_CAPABILITY
from infra.core.catalogue import Gpu, Model

REGISTRY = "ghcr.io"
REPOSITORY = "huggingface/text-embeddings-inference"

#: Releases that this blueprint knows how to configure, newest last. 1.9 is the first to answer 429 for lists too.
VERSIONS = ("1.9.2", "1.9.3")

#: Compute capability -> tag prefix. An image starts on its own capability only, but for 8.x: see `runs`.
_PREFIXES = {75: "turing-", 80: "", 86: "86-", 89: "89-", 90: "hopper-", 100: "100-", 120: "120-", 121: "121-"}
#: Compile-time capability -> run-time capabilities that start with it.
_STARTS_ON = {80: range(80, 90), 86: range(86, 90), 120: range(120, 122)}
#: Images that upstream calls experimental.
_EXPERIMENTAL = {75, 90, 100, 120, 121}
#: The only GPU image that is built for arm64 (DGX Spark).
_ARM64 = {121}
#: Of the tags of images that speak gRPC; there is one beside every tag but those with `cuda-`.
GRPC_SUFFIX = "-grpc"
#: Architectures that TEI serves with flash attention 2 and float16 only.
FLASH_ATTENTION_ONLY = {"mistral", "qwen2"}
_CPU_PREFIXES = {"amd64": "cpu-", "arm64": "cpu-arm64-"}


def prefix_for(gpu: Gpu | None, arch: str = "amd64") -> str | None:
    """Tag prefix of the image made for ``gpu`` (None: CPU) on hosts of ``arch``; None when TEI has no image for it."""
    if gpu is None:
        return _CPU_PREFIXES.get(arch)
    if (gpu.capability in _ARM64) != (arch == "arm64"):
        return None
    return _PREFIXES.get(gpu.capability)


def experimental(gpu: Gpu | None) -> bool:
    """Whether upstream calls the image for this GPU experimental."""
    return gpu is not None and gpu.capability in _EXPERIMENTAL


def supported_gpus() -> str:
    """Names of the catalogue's GPUs that have an image for amd64 hosts, for messages."""
    return ", ".join(gpu.name for gpu in catalogue.gpus().values() if _on_amd64(gpu))


def serves(model: Model, gpu: Gpu) -> bool:
    """Whether TEI runs ``model`` on ``gpu`` in amd64 hosts: an image, and flash attention where the model needs it."""
    flash = model.architecture not in FLASH_ATTENTION_ONLY or gpu.capability >= FLASH_ATTENTION_CAPABILITY
    return flash and _on_amd64(gpu)


def _on_amd64(gpu: Gpu) -> bool:
    amd64 = {instance.gpu for instance in catalogue.instance_types().values() if instance.arch == "amd64"}
    return gpu.name in amd64 and prefix_for(gpu) is not None


def runs(prefix: str, gpu: Gpu | None) -> bool:
    """Whether an image with this tag prefix starts on ``gpu``; TEI compares run-time and compile-time capability."""
    if gpu is None:
        return prefix in _CPU_PREFIXES.values()
    if prefix == "cuda-":
        # Holds builds for 75, 80-89, 90, 100 and 120, and picks one when it starts.
        return gpu.capability in _PREFIXES and gpu.capability not in _ARM64
    compiled = next((capability for capability, known in _PREFIXES.items() if known == prefix), None)
    return compiled is not None and gpu.capability in _STARTS_ON.get(compiled, {compiled})
