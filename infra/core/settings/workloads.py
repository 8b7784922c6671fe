"""Parts of a stack file about one workload: an engine with its model, and how it runs."""

from typing import Annotated, Literal

from pydantic import Field

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


class TeiWorkload(Section):
    """Text Embeddings Inference behind a Service, or in the pods of an app."""

    name: Name
    engine: Literal["tei"] = Field(description="tei, Text Embeddings Inference, is the only engine that exists today")
    model: HubId = Field(description="Hub id: a model of the catalogue or of `models`")
    pool: Name
    topology: Literal["centralized", "sidecar"] = Field(
        default="centralized", description="sidecar: in each pod of `app`; needs Kubernetes 1.29"
    )
    app: App | None = Field(default=None, description="With topology: sidecar, the app that the engine serves")
    version: Token = Field(default="1.9.3", description="TEI release with its patch number")
    protocol: Literal["http", "grpc"] = Field(default="http", description="grpc: images that speak gRPC and no HTTP")
    revision: Revision | None = Field(default=None, description="Commit, tag or branch of the weights")
    dtype: Literal["float16", "float32"] | None = None
    pooling: Literal["cls", "mean", "last-token", "splade"] | None = None
    served_model_name: Token | None = Field(default=None, description="Model name that clients send")
    need: Need | None = Field(
        default=None, description="Load, text lengths and latency, from which replicas, batches and limits follow"
    )
    replicas: int | None = Field(
        default=None, ge=0, le=MOST_REPLICAS, description="Default: what `need` asks for, else 1"
    )
    scaling: Scaling | None = Field(default=None, description="Absent: `replicas` pods, always")
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
    top_k: int | None = Field(default=None, ge=1, le=65_536, description="Rerankers: texts per request")
    auto_truncate: bool | None = Field(default=None, description="true: cut long texts; false: refuse them")
    payload_limit: int | None = Field(default=None, ge=1, le=2**30, description="Largest request body in bytes")
    tokenization_workers: int | None = Field(default=None, ge=1, le=64)
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
    digest: Annotated[str, Text("sha256:[0-9a-f]{64}", "sha256: and 64 hexadecimal digits", 71)] | None = Field(
        default=None, description="Digest of the image"
    )
