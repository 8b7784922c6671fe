"""What a plan consists of: plain values, for components, tests and people."""

from dataclasses import asdict, dataclass
from typing import Any

from infra.core.capacity import Cost, Latency, Scaling
from infra.core.engines.spec import EngineSpec, EnvVar, Mount, Port, Probe, Reason, Resources, Trigger

#: Taint that GPU nodes carry by convention, with any value; the admission plugin of managed clusters adds the same.
GPU_RESOURCE = "nvidia.com/gpu"
GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"
SERVICE_PORT = 80
#: Of a Service whose other port leads to an app.
METRICS_PORT = "metrics"


@dataclass(frozen=True)
class Toleration:
    """A taint that the pod accepts."""

    key: str
    operator: str
    effect: str
    value: str | None = None


@dataclass(frozen=True)
class Budgets:
    """Seconds that each step may take; one number, one owner."""

    image_pull: int
    startup: int
    #: preStop wait, then the longest request, of the app before the engine where they share pods.
    pre_stop: int
    longest_request: int
    termination_grace: int
    #: Deployment's progressDeadlineSeconds: one step of a rollout.
    progress_deadline: int
    #: Pulumi's create and update timeout: all steps.
    rollout: int


@dataclass(frozen=True)
class PlannedSecret:
    """A Secret that the program creates from secret configuration: Kubernetes key -> config key. No values."""

    name: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class ExternalSecret:
    """An ExternalSecret and the Secret of the same name that it makes, once: what changes it changes the name."""

    name: str
    store_name: str
    store_kind: str
    #: Key of the Secret.
    key: str
    remote_key: str
    property: str | None


@dataclass(frozen=True)
class PlannedScaling:
    """The ScaledObject of a workload. Seconds throughout."""

    name: str
    min: int
    max: int
    server_address: str
    triggers: tuple[Trigger, ...]
    #: Failed questions in a row, 15 s apart, after which replicas stay as they are, and are no fewer than these.
    fallback_failures: int
    fallback_replicas: int
    scale_up_period: int
    scale_down_stabilization: int


@dataclass(frozen=True)
class PlannedMonitoring:
    """The Prometheus that scrapes the workloads and that KEDA asks."""

    address: str
    #: Namespace of its pods; None: nobody says.
    namespace: str | None
    #: Labels of its pods; none: every pod of the namespace.
    pod_labels: dict[str, str]
    #: Labels by which it selects ServiceMonitors.
    labels: dict[str, str]
    scrape_seconds: int


@dataclass(frozen=True)
class PlannedAddon:
    """An operator that this stack installs, from the objects of `infra.core.catalogue`."""

    name: str
    version: str
    namespace: str
    #: Image as its objects name it -> image to pull, where a mirror is set.
    images: dict[str, str]


@dataclass(frozen=True)
class PlannedClient:
    """Pods that may send requests; without labels every pod of the namespace."""

    namespace: str
    pod_labels: dict[str, str]


@dataclass(frozen=True)
class Capacity:
    """How a need became sizes, for people and for scaling."""

    #: As the stack file writes it.
    need: dict[str, Any]
    #: Share of the replicas' throughput that the load takes.
    utilisation: float
    latency: Latency
    cost: Cost
    scaling: Scaling
    #: Every number, as ``key: how it was computed``.
    arithmetic: tuple[str, ...]


@dataclass(frozen=True)
class PlannedClientSettings:
    """Environment variables by which an app knows its engine; names are the same in both topologies."""

    url_variable: str
    #: Over gRPC host:port.
    url: str
    #: None: clients need no key.
    api_key_variable: str | None


@dataclass(frozen=True)
class PlannedApp:
    """An app, in whose pods the engine runs."""

    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: tuple[EnvVar, ...]
    port: Port
    startup: Probe
    readiness: Probe
    liveness: Probe | None
    mounts: tuple[Mount, ...]
    resources: Resources
    #: After the image is there, and after the engine is ready.
    startup_seconds: int
    longest_request_seconds: int


@dataclass(frozen=True)
class Workload:
    """One engine, behind a Service of its own or in the pods of an app with one."""

    name: str
    topology: str
    pool: str
    gpu: str | None
    engine: EngineSpec
    #: None: the engine has pods of its own.
    app: PlannedApp | None
    #: What an app is told of the engine.
    client: PlannedClientSettings
    image: str
    stand_in: bool
    #: Pods in quiet hours, where the workload is scaled.
    replicas: int
    #: Pods at most: as many as ``replicas`` where it is not scaled.
    max_replicas: int
    #: Texts per request that a reranker is asked for, where the stack file says.
    top_k: int | None
    max_surge: int
    max_unavailable: int
    service: str
    labels: dict[str, str]
    pod_labels: dict[str, str]
    selector: dict[str, str]
    node_selector: dict[str, str]
    tolerations: tuple[Toleration, ...]
    #: Of secret configuration; None: no key comes from there.
    secret: PlannedSecret | None
    external_secrets: tuple[ExternalSecret, ...]
    #: Annotation of the pods that changes with the versions of existing Secrets, so that the pods roll; "": none.
    secret_versions: str
    #: None: always ``replicas`` pods.
    scaling: PlannedScaling | None
    #: None: whoever reaches the pods.
    clients: tuple[PlannedClient, ...] | None
    budgets: Budgets
    #: None where the stack file gives sizes in place of a need.
    capacity: Capacity | None
    reasons: tuple[Reason, ...]

    @property
    def metrics_ports(self) -> tuple[str, ...]:
        """Names of the Service's ports that lead to the engine's metrics, one for each of them."""
        names = [metrics.port for metrics in self.engine.metrics]
        if self.app:
            # The Service's own port leads to the app.
            names = [METRICS_PORT if name == self.engine.ports[0].name else name for name in names]
        return tuple(names)

    @property
    def pod_resources(self) -> Resources:
        """What one pod asks for: engine and app together."""
        return self.engine.resources + self.app.resources if self.app else self.engine.resources


@dataclass(frozen=True)
class PlannedPool:
    """How much of a pool the workloads ask for. ``nodes`` is None where the stack file does not say."""

    name: str
    gpu: str | None
    nodes: int | None
    gpus_per_node: int | None
    gpus_wanted: int


@dataclass(frozen=True)
class Plan:
    """A whole stack."""

    stack: str
    environment: str
    context: str | None
    namespace: str
    create_namespace: bool
    pull_secrets: tuple[str, ...]
    addons: tuple[PlannedAddon, ...]
    #: None: nothing is scraped.
    monitoring: PlannedMonitoring | None
    pools: tuple[PlannedPool, ...]
    workloads: tuple[Workload, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and for comparing two plans. Holds names of secrets, never their values."""
        return asdict(self)
