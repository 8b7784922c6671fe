"""What the plan asks an engine, and what an engine answers. The same for all engines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from infra.core.capacity import Node, Scaling, Sizing
from infra.core.catalogue import Gpu, Model
from infra.core.engines.spec import Beside, EngineSpec, SecretRef, Trigger
from infra.core.errors import Refusal
from infra.core.settings import Allocatable, Workload

W = TypeVar("W", bound=Workload)

#: User and group of a process that its image lets choose: images run as root unless told, and Pod Security
#: `restricted` refuses that.
RUN_AS = 10001


@dataclass(frozen=True)
class KnownModel:
    """A model of the catalogue or of the stack file."""

    model: Model
    #: How messages call it: with its place where the stack file describes it.
    called: str
    #: Commit, tag or branch that the catalogue or the stack file names; None: nobody does.
    revision: str | None


@dataclass(frozen=True)
class Request(Generic[W]):
    """What the plan knows when it asks an engine. Paths start with ``stack.``."""

    path: str
    workload: W
    models: Mapping[str, KnownModel]
    #: Whether somebody has to name a revision.
    pinned: bool
    pool_path: str
    gpu: Gpu | None
    #: CPU architecture of the nodes.
    arch: str
    #: What one node offers, where it is known.
    node: Allocatable | None
    #: Kinds of node that a need may be met with; None: any EC2 type with this GPU.
    node_kinds: tuple[Node, ...] | None
    #: Where the stack file says how big a node is, e.g. stack.nodePools[0].instanceType.
    node_path: str
    #: Most nodes of the pool, where it is said.
    max_nodes: int | None
    image_pull_seconds: int
    #: What else is in the pod.
    beside: Beside
    #: The image is a local stand-in, which computes on the CPU whatever the node counts.
    stand_in: bool
    #: Registry hosts whose images come from a mirror.
    mirrored: frozenset[str]
    #: Secrets of type dockerconfigjson that the pods pull with.
    pull_secrets: tuple[str, ...]
    #: Secret config keys that are set (names only).
    secrets: frozenset[str]
    #: Name of the Kubernetes Secret that will hold this workload's keys.
    secret_name: str
    #: Where keys lie that come from elsewhere, by config key.
    secret_refs: Mapping[str, SecretRef]
    #: Where Prometheus finds the pods, for the questions of scaling.
    namespace: str
    service: str
    scrape_seconds: int


@dataclass(frozen=True)
class Description:
    """What an engine decides for one workload; only of use where ``refusals`` is empty."""

    #: None: no image was found.
    spec: EngineSpec | None
    #: In quiet hours, and at most: the same where the workload is not scaled.
    replicas: int
    max_replicas: int
    #: How the workload's need became sizes; None: it has none, or it is refused.
    sizing: Sizing | None
    #: When another replica is asked for, and by which questions; None and empty: the workload is not scaled.
    scaling: Scaling | None
    triggers: tuple[Trigger, ...]
    refusals: tuple[Refusal, ...]
