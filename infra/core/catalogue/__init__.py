"""What is true of GPUs, instance types and models: data files with a source per row, and one loader.

Every row is checked when it is read, so a slip in a data file is found by the first test and not by a user.
"""

import json
import re
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field


class Row(BaseModel):
    """A line of the catalogue. ``source`` says where its facts were read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str


class Gpu(Row):
    """A GPU model as EC2 and NVIDIA name it."""

    name: str
    #: Names that users write and that mean this GPU, e.g. A10 for EC2's A10G.
    aliases: tuple[str, ...] = ()
    #: CUDA compute capability, ``8.9``.
    compute_capability: str = Field(pattern=r"^\d+\.\d$")
    #: Memory of one GPU in MiB as EC2 reports it; for a family with several sizes the smallest.
    memory_mib: int
    #: Dense FP16 tensor throughput with FP32 accumulation, TFLOP/s.
    fp16_tflops: float
    #: Dense INT8 (or FP8) throughput, TOP/s.
    int8_tops: float
    #: EC2 instance families with this GPU.
    families: tuple[str, ...]
    #: Value of the node label ``nvidia.com/gpu.product``, as GPU feature discovery writes it.
    product_label: str

    @property
    def capability(self) -> int:
        """Compute capability as the integer that engines print: 89 for 8.9."""
        return int(self.compute_capability.replace(".", ""))


class InstanceType(Row):
    """An EC2 instance type with what a pod can really have of it."""

    name: str
    arch: str
    gpu: str
    gpu_count: int
    gpu_memory_mib: int
    vcpu: int
    memory_mib: int
    allocatable_cpu_m: int
    allocatable_memory_mib: int
    max_pods: int
    local_nvme_gb: int
    #: On-demand USD per hour in us-east-1, at the date that ``source`` names; None where no price was found.
    price_usd_h: float | None


class Image(Row):
    """An engine image that was seen with this tag, and what to know before it is used."""

    engine: Literal["tei", "triton", "nim"]
    image: str
    tag: str
    #: TEI: compute capability that the image is built for, as an integer; None for CPU images and other engines.
    capability: int | None = None
    note: str = ""


class Addon(Row):
    """An operator of the cluster, as its project publishes it for this version."""

    name: str
    version: str
    #: Namespace of its pods.
    namespace: str
    license: str
    #: Images that its objects name.
    images: tuple[str, ...]


class ModelKind(StrEnum):
    """What a model answers."""

    EMBEDDING = "embedding"
    SPARSE = "sparse"
    RERANKER = "reranker"
    CLASSIFIER = "classifier"


class Model(Row):
    """A model on the Hugging Face Hub (or in NVIDIA's registry) that an engine can serve."""

    id: str
    kind: ModelKind
    #: Commit of the weights that was looked at; the deployed revision unless the stack file names another.
    revision: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    #: Family that decides which kernels an engine needs: bert, xlm-roberta, mistral, qwen2, gemma3, ...
    architecture: str
    #: All parameters, in millions.
    parameters_m: float
    #: Size of a parameter in the published files: 4 for float32, 2 for float16 and bfloat16.
    bytes_per_parameter: int = 4
    #: Parameters that cost time per token (without embedding tables), in millions.
    compute_parameters_m: float
    layers: int
    hidden: int
    #: Decoder-style attention looks back only, which halves the quadratic term.
    causal: bool = False
    #: Longest input in tokens that the model accepts.
    max_tokens: int
    #: Length of a vector; None for rerankers and classifiers.
    dimension: int | None = None
    #: How an embedding model turns token states into one vector: cls, mean, last-token or splade.
    pooling: str | None = None
    #: The hub asks for a token before it hands out the weights.
    gated: bool = False

    def flops_per_document(self, tokens: int) -> float:
        """FLOPs of one forward pass over ``tokens`` tokens: 2NT + 4LhT² (half the square for causal attention).

        N leaves out embedding tables, which are looked up and not multiplied. Checked against the published
        246.9 GOps of BERT-large at 384 tokens (OpenVINO model zoo, bert-large-uncased-whole-word-masking-squad).
        """
        square = 4.0 * self.layers * self.hidden * tokens**2
        return 2.0 * self.compute_parameters_m * 1e6 * tokens + (square / 2 if self.causal else square)


@cache
def rows(name: str, package: str = __package__) -> list[dict[str, Any]]:
    """The rows of the data file ``name``.yaml beside the modules of ``package``."""
    text = resources.files(package).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    return found


@cache
def gpus() -> dict[str, Gpu]:
    """All GPUs by name, in order of compute capability."""
    return {row["name"]: Gpu.model_validate(row) for row in rows("gpus")}


@cache
def instance_types() -> dict[str, InstanceType]:
    """All EC2 GPU instance types by name."""
    return {row["name"]: InstanceType.model_validate(row) for row in rows("instances")}


@cache
def images() -> tuple[Image, ...]:
    """All known images of engines, in the order of the file."""
    return tuple(Image.model_validate(row) for row in rows("images"))


@cache
def models() -> dict[str, Model]:
    """All models by id."""
    return {row["id"]: Model.model_validate(row) for row in rows("models")}


@cache
def addons() -> dict[str, Addon]:
    """All operators by name."""
    return {row["name"]: Addon.model_validate(row) for row in rows("addons")}


def addon_objects(name: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """CustomResourceDefinitions and all other objects of the operator ``name``, as its project publishes them."""
    folder = resources.files(__package__).joinpath("addons", name)
    crds: list[dict[str, Any]] = json.loads(folder.joinpath("crds.json").read_text(encoding="utf-8"))
    text = folder.joinpath("objects.yaml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return crds, [document for document in yaml.load_all(text, Loader=loader) if document]


def find_gpu(name: str) -> Gpu | None:
    """The GPU that a user means by ``name``, in any letter case and spacing and by alias; None when there is none."""
    return next(
        (gpu for gpu in gpus().values() if _plain(name) in {_plain(known) for known in (gpu.name, *gpu.aliases)}), None
    )


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).upper()
