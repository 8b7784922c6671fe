"""Parts of a stack file about one workload: an engine with its model, and how it runs."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from infra.core.capacity.need import Need, TokenLengths
from infra.core.settings.texts import (
    MOST_REPLICAS,
    AppImage,
    Bytes,
    Cpu,
    EnvName,
    EnvValue,
    HttpPath,
    HubId,
    Labels,
    Name,
    NamespaceName,
    ObjectName,
    Revision,
    Section,
    Text,
    Token,
)


class Resources(Section):
    """What a pod asks for: memory is request and limit, CPU too."""

    cpu: Cpu | None = None
    memory: Bytes | None = None
    ephemeral_storage: Bytes | None = None


class Scaling(Section):
    """Scaling on queue depth and refused requests, by KEDA."""

    min: int = Field(default=1, ge=0, le=MOST_REPLICAS, description="Replicas in quiet hours")
    max: int | None = Field(
        default=None, ge=1, le=MOST_REPLICAS, description="Replicas at most; default: what `need` asks for"
    )
    queue_threshold: int | None = Field(
        default=None, ge=1, le=65_536, description="Waiting texts per replica that ask for another replica"
    )
    overload_per_second: float | None = Field(
        default=None, ge=0.001, le=10_000, description="Refused requests per replica and second that do the same"
    )
    scale_up_period_seconds: int | None = Field(
        default=None, ge=15, le=1800, description="Replicas may double once per period"
    )
    scale_down_stabilization_seconds: int | None = Field(
        default=None, ge=0, le=3600, description="A replica goes when it was not needed for so long"
    )


class Client(Section):
    """Pods that may send requests."""

    namespace: NamespaceName | None = Field(default=None, description="Their namespace; default: that of the stack")
    pod_labels: Labels = Field(default_factory=dict, description="Their labels; absent: every pod of the namespace")


class Cache(Section):
    """Where weights are kept. The default is a directory of the pod's node that lives as long as the pod."""

    existing_claim: ObjectName | None = Field(default=None, description="PersistentVolumeClaim that is there already")
    size: Bytes | None = Field(default=None, description="Limit of the directory; default: what the weights need")


class Rollout(Section):
    """How pods are replaced. The default needs no spare GPU: one old pod ends before a new one starts."""

    max_surge: int = Field(default=0, ge=0, le=100)
    max_unavailable: int = Field(default=1, ge=0, le=100)


class App(Section):
    """The app whose pods an engine runs in, with topology: sidecar. The workload's Service leads to it."""

    image: AppImage = Field(description="Image with its registry host and a version or digest")
    port: int = Field(ge=1024, le=65_535, description="Port that the app listens on; the Service leads to it")
    command: tuple[EnvValue, ...] = Field(default=(), description="In place of the image's entrypoint")
    args: tuple[EnvValue, ...] = Field(default=(), description="In place of the image's arguments")
    env: dict[EnvName, EnvValue] = Field(
        default_factory=dict, description="Environment variables; none that the plan sets itself"
    )
    resources: Resources = Field(default_factory=Resources)
    gpus: int = Field(default=0, ge=0, le=16, description="GPUs of the app, beside those of the engine")
    readiness_path: HttpPath | None = Field(
        default=None, description="Path that answers 200 when the app can serve; absent: its port has to be open"
    )
    liveness_path: HttpPath | None = Field(
        default=None, description="Path that answers 200 unless a restart would help; absent: nobody asks"
    )
    startup_seconds: int = Field(
        default=60, ge=1, le=3600, description="What the app may take to start; the engine is ready by then"
    )
    longest_request_seconds: int | None = Field(
        default=None, ge=1, le=3600, description="What a request to the app may take; default: that of the engine"
    )


Digest = Annotated[str, Text("sha256:[0-9a-f]{64}", "sha256: and 64 hexadecimal digits", 71)]


class Workload(Section):
    """What all engines have in common."""

    name: Name
    pool: Name
    topology: Literal["centralized", "sidecar"] = Field(
        default="centralized", description="sidecar: in each pod of `app`; needs Kubernetes 1.29"
    )
    app: App | None = Field(default=None, description="With topology: sidecar, the app that the engine serves")
    digest: Digest | None = Field(default=None, description="Digest of the image")
    need: Need | None = Field(
        default=None, description="Load, text lengths and latency, from which replicas, batches and limits follow"
    )
    replicas: int | None = Field(
        default=None, ge=0, le=MOST_REPLICAS, description="Default: what `need` asks for, else 1"
    )
    scaling: Scaling | None = Field(default=None, description="Absent: `replicas` pods, always")
    top_k: int | None = Field(default=None, ge=1, le=65_536, description="Rerankers: texts per request")
    require_api_key: bool = Field(default=False, description="Clients send the secret config key apiKey")
    clients: tuple[Client, ...] | None = Field(
        default=None, description="Pods that may send requests (NetworkPolicy); absent: whoever reaches them"
    )
    longest_request_seconds: int | None = Field(
        default=None, ge=1, le=3600, description="What a request may take; drain and probe budgets follow from it"
    )
    resources: Resources = Field(default_factory=Resources)
    cache: Cache = Field(default_factory=Cache)
    rollout: Rollout = Field(default_factory=Rollout)
    service_name: Name | None = Field(default=None, description="Name that clients expect; default: name")
    labels: Labels = Field(default_factory=dict, description="Further labels of every object of this workload")
    pod_labels: Labels = Field(default_factory=dict, description="Further labels of the pods; a change replaces them")
    env: dict[EnvName, EnvValue] = Field(
        default_factory=dict, description="Further environment variables; none that the plan sets itself"
    )

    @property
    @abstractmethod
    def model_ids(self) -> tuple[str, ...]:
        """Ids of the models that it serves."""

    @property
    def service(self) -> str:
        """Name of its Service."""
        return self.service_name or self.name


class TeiWorkload(Workload):
    """Text Embeddings Inference behind a Service, or in the pods of an app."""

    engine: Literal["tei"] = Field(description="Text Embeddings Inference: one model of the hub")
    model: HubId = Field(description="Hub id: a model of the catalogue or of `models`")
    version: Token = Field(default="1.9.3", description="TEI release with its patch number")
    protocol: Literal["http", "grpc"] = Field(default="http", description="grpc: images that speak gRPC and no HTTP")
    revision: Revision | None = Field(default=None, description="Commit, tag or branch of the weights")
    dtype: Literal["float16", "float32"] | None = None
    pooling: Literal["cls", "mean", "last-token", "splade"] | None = None
    served_model_name: Token | None = Field(default=None, description="Model name that clients send")
    tokens: TokenLengths | None = Field(default=None, description="Lengths of the texts, where there is no `need`")
    max_batch_tokens: int | None = Field(default=None, ge=1, le=1_048_576)
    max_batch_requests: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="Texts of a batch; default with `scaling` or `need`: planned, else none",
    )
    max_concurrent_requests: int | None = Field(default=None, ge=1, le=65_536)
    max_client_batch_size: int | None = Field(default=None, ge=1, le=65_536)
    auto_truncate: bool | None = Field(default=None, description="true: cut long texts; false: refuse them")
    payload_limit: int | None = Field(default=None, ge=1, le=2**30, description="Largest request body in bytes")
    tokenization_workers: int | None = Field(default=None, ge=1, le=64)

    @property
    def model_ids(self) -> tuple[str, ...]:
        return (self.model,)


class NimWorkload(Workload):
    """An NVIDIA NIM for text embedding or reranking. NIMs for LLMs are out of scope."""

    engine: Literal["nim"] = Field(description="NVIDIA NIM for text embedding or reranking")
    model: HubId = Field(description="Model that NVIDIA ships as a NIM, such as nvidia/nv-embedqa-e5-v5")
    version: Token | None = Field(default=None, description="Tag of this model's image; default: newest for the GPU")
    weights: Literal["ngc", "huggingFace"] = Field(
        default="ngc", description="Where 2.x downloads weights; decides which key the pods get"
    )
    served_model_name: Token | None = Field(default=None, description="Model name that clients send")
    performance: Literal["latency", "throughput"] | None = Field(default=None, description="Default: that of the image")
    max_batch_size: int | None = Field(default=None, ge=1, le=1024, description="Texts that a batch may hold")
    max_queue_size: int | None = Field(default=None, ge=1, le=65_536, description="2.x: waiting requests; more get 503")
    startup_seconds: int | None = Field(
        default=None, ge=1, le=7200, description="Download, engine build and load, after the image is there"
    )

    @property
    def model_ids(self) -> tuple[str, ...]:
        return (self.model,)


WORKLOADS: Mapping[str, type[Workload]] = {"tei": TeiWorkload, "nim": NimWorkload}


def _engine(workload: Any) -> str | None:
    """Which engine an entry of `serving` names, if it names one."""
    engine = workload.get("engine") if isinstance(workload, dict) else getattr(workload, "engine", None)
    return engine if isinstance(engine, str) else None


#: A workload of the engine that its key ``engine`` names.
AnyWorkload = Annotated[Annotated[TeiWorkload, Tag("tei")] | Annotated[NimWorkload, Tag("nim")], Discriminator(_engine)]
