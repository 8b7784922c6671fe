"""What is true of NIM releases: names of variables, paths, ports, models, tags and GPUs. Data files hold the facts.

NIMs here are those for text embedding and reranking (NeMo Retriever). They come one model per image; tags of the
embedding and of the reranking NIMs are counted apart. NIMs for LLMs have other variables and are out of scope.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from infra.core import catalogue
from infra.core.catalogue import Gpu, ModelKind, Row

REGISTRY = "nvcr.io"
#: The user name of that registry, to the letter; the password is the key.
REGISTRY_USER = "$oauthtoken"

LIVE_PATH = "/v1/health/live"
READY_PATH = "/v1/health/ready"
HTTP_PORT = 8000
#: Inside the container, and what the NIM operator runs it with (docs.nvidia.com/nim-operator, air-gap).
USER, FS_GROUP = 1000, 2000
#: Startup probe of the NIM operator: period 10 s, 120 failures. 300 s were too short (k8s-nim-operator, PR 589).
LEAST_STARTUP_SECONDS = 1200
#: From `docker run --shm-size` of every getting-started page.
SHARED_MEMORY_MIB = 16384
#: Support matrices from 1.5 on: an x86 processor with at least this many cores.
LEAST_CORES = 8
#: Hosts that weights come from, by provider.
DOWNLOAD_HOSTS = {"ngc": ("api.ngc.nvidia.com",), "huggingFace": ("huggingface.co",)}

Version = tuple[int, int, int]


class Role(StrEnum):
    """Kinds of NIM; each counts its releases for itself."""

    EMBEDDING = "embedding"
    RERANKING = "reranking"


def parse(tag: str) -> Version | None:
    """The numbers of a release tag, 1.10.1 or 2.3; None for anything else, such as latest."""
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", tag):
        return None
    major, minor, patch = (*map(int, tag.split(".")), 0)[:3]
    return major, minor, patch


class _Range(Row):
    """A row that holds for some releases: from ``first`` on, and not any more from ``before`` on."""

    first: str
    before: str | None = None

    @field_validator("first", "before")
    @classmethod
    def _is_release(cls, tag: str | None) -> str | None:
        if tag is not None and parse(tag) is None:
            raise ValueError(f"{tag} is no release")
        return tag

    def holds(self, version: Version) -> bool:
        return _numbers(self.first) <= version and (self.before is None or version < _numbers(self.before))


def _numbers(tag: str) -> Version:
    found = parse(tag)
    if found is None:
        raise ValueError(f"{tag} is no release")
    return found


class Variable(_Range):
    """An environment variable. ``purpose`` is the same for all names that it had."""

    purpose: str
    name: str
    roles: tuple[Role, ...] = (Role.EMBEDDING, Role.RERANKING)


class Endpoint(BaseModel):
    """Where Prometheus finds metrics."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    port: int
    path: str


class Generation(Row):
    """What all releases of a major version share."""

    major: int
    weights_path: str
    runtime_path: str | None = None
    metrics: tuple[Endpoint, ...]
    #: Where weights can come from; the first is the container's default.
    providers: tuple[Literal["ngc", "huggingFace"], ...]
    #: HTTP status of a request that finds the queue full; None: no page says.
    overload_status: int | None


class Nim(_Range):
    """A NIM of the catalogue's model ``id``."""

    id: str
    #: What it is called in later releases.
    later: str | None = None
    #: Clients may ask for shorter vectors.
    dynamic_dimensions: bool = False

    @property
    def repository(self) -> str:
        """Image repository below REGISTRY."""
        return f"nim/{self.id}"

    @property
    def role(self) -> Role:
        kind = catalogue.models()[self.id].kind
        return Role.EMBEDDING if kind is ModelKind.EMBEDDING else Role.RERANKING

    def tags(self) -> tuple[str, ...]:
        """Release tags that were seen, oldest first."""
        rows = (row.tag for row in catalogue.images() if row.image == f"{REGISTRY}/{self.repository}")
        return tuple(sorted((tag for tag in rows if parse(tag)), key=_numbers))


class GpuSupport(_Range):
    """On which GPUs some releases run."""

    models: tuple[str, ...] | None = None
    optimized: tuple[str, ...] = Field(default=())
    dropped: tuple[str, ...] = Field(default=())
    others: Literal["generic", "refused"]


@cache
def variables() -> tuple[Variable, ...]:
    """All rows of variables.yaml."""
    return tuple(Variable.model_validate(row) for row in catalogue.rows("variables", __package__))


@cache
def nims() -> Mapping[str, Nim]:
    """All NIMs by the id of their model."""
    return {row["id"]: Nim.model_validate(row) for row in catalogue.rows("models", __package__)}


@cache
def generation(major: int) -> Generation | None:
    """What releases of this major version share; None when it is not known."""
    found = (Generation.model_validate(row) for row in catalogue.rows("generations", __package__))
    return next((row for row in found if row.major == major), None)


@cache
def gpu_support() -> tuple[GpuSupport, ...]:
    """All rows of gpus.yaml, in the order in which they count."""
    return tuple(GpuSupport.model_validate(row) for row in catalogue.rows("gpus", __package__))


def name_of(purpose: str, version: Version, role: Role) -> str | None:
    """The variable that a release reads for ``purpose``; None when it has none."""
    return next(
        (row.name for row in variables() if row.purpose == purpose and role in row.roles and row.holds(version)), None
    )


def support(nim: Nim, version: Version) -> GpuSupport:
    """The row of gpus.yaml that counts. Raises LookupError when there is none."""
    for row in gpu_support():
        if row.holds(version) and (row.models is None or nim.id in row.models):
            return row
    raise LookupError(f"no row of gpus.yaml for {nim.id} {version}")


def runs_on(nim: Nim, version: Version, gpu: Gpu) -> Literal["optimized", "generic"] | None:
    """What profile a release has for ``gpu``; None when it does not run there, or nobody says so."""
    row = support(nim, version)
    if gpu.name in row.optimized:
        return "optimized"
    return "generic" if row.others == "generic" and gpu.name not in row.dropped else None
