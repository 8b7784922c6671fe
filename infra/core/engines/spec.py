"""What an engine says about one workload. The plan turns it into objects; nothing here knows Kubernetes clients."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Reason:
    """A value that the plan chose, and why; ``make plan`` prints these."""

    field: str
    value: str
    why: str


@dataclass(frozen=True)
class SecretRef:
    """One key of a Secret."""

    secret: str
    key: str
    #: The program makes the Secret of secret configuration; it gets another name then.
    made: bool = False


@dataclass(frozen=True)
class EnvVar:
    """An environment variable: plain text or a key of a Secret, never both."""

    name: str
    value: str | None = None
    secret: SecretRef | None = None


@dataclass(frozen=True)
class Port:
    """A named container port."""

    name: str
    number: int


@dataclass(frozen=True)
class Probe:
    """An HTTP GET by the kubelet; without a path, a call of grpc.health.v1, or a connection. Seconds throughout."""

    path: str | None
    port: str
    period_seconds: int
    timeout_seconds: int
    failure_threshold: int
    #: What a call of grpc.health.v1 asks about.
    service: str | None = None
    #: Whether the port has to be open, and nothing else.
    connects: bool = False


@dataclass(frozen=True)
class Probes:
    """The three questions of the kubelet."""

    startup: Probe
    readiness: Probe
    liveness: Probe


@dataclass(frozen=True)
class Mount:
    """A directory of the container: an emptyDir with a limit, or a claim that exists."""

    name: str
    path: str
    size_mib: int | None = None
    claim: str | None = None
    in_memory: bool = False


@dataclass(frozen=True)
class Resources:
    """Requests and limits of a container, or of a pod."""

    cpu_millicores: int
    memory_mib: int
    ephemeral_storage_mib: int
    gpus: int

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(
            self.cpu_millicores + other.cpu_millicores,
            self.memory_mib + other.memory_mib,
            self.ephemeral_storage_mib + other.ephemeral_storage_mib,
            self.gpus + other.gpus,
        )


@dataclass(frozen=True)
class Beside:
    """What shares the pod with the engine: its app, or nothing."""

    resources: Resources = Resources(0, 0, 0, 0)
    #: Image pull and start of the app, which follow those of the engine.
    ready_seconds: int = 0
    #: Port of the app.
    port: int | None = None


@dataclass(frozen=True)
class Limits:
    """What the engine accepts from clients."""

    max_input_tokens: int
    max_client_batch_size: int
    max_batch_tokens: int
    max_concurrent_requests: int
    payload_bytes: int
    auto_truncate: bool


@dataclass(frozen=True)
class Metrics:
    """Where Prometheus finds metrics: the name of a port of the engine, and a path."""

    port: str
    path: str


@dataclass(frozen=True)
class Trigger:
    """A question that KEDA asks Prometheus; another replica is wanted per ``threshold`` of the answer."""

    name: str
    query: str
    threshold: str


@dataclass(frozen=True)
class Api:
    """What a client needs to know beside the URL and the names of models."""

    openai: bool
    api_key: bool
    #: HTTP status of a request that finds the queue full; None: nobody says.
    overload_status: int | None
    #: Words that an embedding request has to hold one of, as input_type; empty: none.
    input_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServedModel:
    """A model as its clients ask for it. ``max_tokens`` is the longest input in tokens."""

    id: str
    client_name: str
    kind: str
    dimension: int | None
    max_tokens: int
    #: Commit, tag or branch of the weights; None: the engine's release decides.
    revision: str | None


@dataclass(frozen=True)
class EngineSpec:
    """Everything one engine decides for one workload."""

    engine: str
    #: app.kubernetes.io/name of its objects.
    product: str
    version: str
    registry: str
    repository: str
    tag: str
    digest: str | None
    env: tuple[EnvVar, ...]
    #: http or grpc: what clients speak on the first port.
    protocol: str
    ports: tuple[Port, ...]
    probes: Probes
    mounts: tuple[Mount, ...]
    resources: Resources
    limits: Limits
    #: Where Prometheus finds metrics; the first are those of the engine itself.
    metrics: tuple[Metrics, ...]
    #: What it serves, in the order of the stack file.
    models: tuple[ServedModel, ...]
    api: Api
    #: User and group of the process; files of its volumes belong to the group.
    user: int
    group: int
    #: Weights + load + warm-up, after the image is there.
    startup_seconds: int
    #: Longest that a request may take once it was accepted.
    longest_request_seconds: int
    #: Hosts that pods have to reach at start.
    downloads_from: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = field(default=())

    @property
    def api_key_secret(self) -> SecretRef | None:
        """Where clients find the API key; None when they need none."""
        return next((found.secret for found in self.env if found.name == "API_KEY" and found.secret), None)
