"""Parts of a stack file about the cluster: where it is, what its nodes are, what it has installed."""

from typing import Annotated, Literal

from pydantic import Field

from infra.core.catalogue import ModelKind
from infra.core.settings.texts import (
    DOMAIN,
    LABEL,
    PORT,
    AddonMode,
    Bytes,
    Cpu,
    Host,
    HubId,
    LabelKey,
    Labels,
    LabelValue,
    Name,
    NamespaceName,
    ObjectName,
    Printable,
    Repository,
    Revision,
    Section,
    Text,
    Token,
)


class Cluster(Section):
    """Where to deploy."""

    provider: Literal["existing"] = Field(description="existing: a cluster that is already there, found by kubeconfig")
    context: Printable | None = Field(default=None, description="Context of the kubeconfig; default: current")


class Namespace(Section):
    """The namespace that holds all workloads of the stack."""

    name: Name = "embedding-serving"
    create: bool = Field(default=True, description="false: it exists and belongs to someone else")


class Allocatable(Section):
    """What one node of a pool offers to pods, as `kubectl describe node` prints under Allocatable."""

    cpu: Cpu
    memory: Bytes
    gpus: int = Field(default=0, ge=0, le=16)
    ephemeral_storage: Bytes | None = Field(default=None, description="ephemeral-storage; with it the plan checks it")


class Taint(Section):
    """A taint of the pool's nodes that pods have to tolerate."""

    key: LabelKey
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class NodePool(Section):
    """Nodes of one kind. On an existing cluster it describes nodes that are there."""

    name: Name
    gpu: Printable | None = Field(default=None, description="GPU model (L4, A10G, ...); absent: CPU nodes")
    arch: Literal["amd64", "arm64"] | None = Field(
        default=None, description="CPU architecture of the nodes; default: that of instanceType, else amd64"
    )
    instance_type: Printable | None = Field(default=None, description="EC2 instance type; gives allocatable resources")
    allocatable: Allocatable | None = Field(default=None, description="What a node offers, where no instanceType says")
    nodes: int | None = Field(default=None, ge=1, le=1000, description="Nodes at most; with it the plan checks the fit")
    node_selector: Labels = Field(default_factory=dict, description="Labels that pods of this pool select")
    taints: tuple[Taint, ...] = ()
    image_pull_seconds: int | None = Field(
        default=None, ge=0, le=3600, description="Budget to pull an engine image on a node that lacks it"
    )


class Images(Section):
    """Where images come from."""

    mirrors: dict[Host, Repository] = Field(
        default_factory=dict, description="Registry host to mirror prefix, e.g. ghcr.io: registry.acme.com/ghcr"
    )
    stand_in_registry: Host | None = Field(
        default=None,
        description="Registry whose engine images are local stand-ins; the contract and the smoke test say so",
    )
    pull_secrets: tuple[ObjectName, ...] = Field(default=(), description="Existing Secrets of type dockerconfigjson")


class CustomModel(Section):
    """A model that the catalogue does not know."""

    id: HubId
    kind: Annotated[ModelKind, Field(strict=False)]
    architecture: Token = Field(description="model_type of its config.json: bert, xlm-roberta, mistral, qwen2, ...")
    parameters_m: float = Field(gt=0, le=1_000_000, allow_inf_nan=False, description="Parameters in millions")
    bytes_per_parameter: Literal[2, 4] = Field(default=4, description="In the published files: 2 for float16, bfloat16")
    layers: int = Field(ge=1, le=1000)
    hidden: int = Field(ge=1, le=65_536)
    max_tokens: int = Field(ge=1, le=1_000_000, description="Longest input in tokens")
    dimension: int | None = Field(default=None, ge=1, le=1_000_000, description="Length of a vector")
    pooling: Literal["cls", "mean", "last-token", "splade"] | None = None
    revision: Revision | None = Field(default=None, description="Commit, tag or branch of the weights")
    gated: bool = Field(default=False, description="The hub wants a token: secret config key huggingFaceToken")


class SecretSource(Section):
    """Where one secret comes from instead of Pulumi's configuration: an existing Secret, or External Secrets."""

    secret_name: ObjectName | None = Field(default=None, description="Existing Secret in the stack's namespace")
    key: Annotated[str, Text("[-._a-zA-Z0-9]+", "letters, digits, -, _ and .", 253)] | None = Field(
        default=None, description="Its key"
    )
    store_name: ObjectName | None = Field(
        default=None, description="Store of External Secrets that holds it; storeKind says which kind"
    )
    store_kind: Literal["ClusterSecretStore", "SecretStore"] = "ClusterSecretStore"
    remote_key: Printable | None = Field(default=None, description="Its name in the store")
    property: Printable | None = Field(default=None, description="Field of a JSON secret; absent: the whole secret")
    version: Token = Field(
        default="1", description="Any text; pods roll to the value of today when it changes, and at no other time"
    )


class Secrets(Section):
    """Secrets that do not come from Pulumi's configuration. Absent: pulumi config set --secret embedding-serving:…"""

    api_key: SecretSource | None = None
    hugging_face_token: SecretSource | None = None
    ngc_api_key: SecretSource | None = None


class Addons(Section):
    """Operators of the cluster. install: this stack installs the pinned version; existing: somebody else did."""

    keda: AddonMode | None = Field(default=None, description="KEDA: scales workloads with `scaling`")
    prometheus: AddonMode | None = Field(
        default=None, description="prometheus-operator and a Prometheus; existing: `monitoring` says where it is"
    )
    metrics_server: AddonMode | None = Field(default=None, description="metrics-server: kubectl top")
    external_secrets: AddonMode | None = Field(
        default=None, description="External Secrets: for `secrets` with a storeName"
    )


class Monitoring(Section):
    """The Prometheus that scrapes the engines and that KEDA asks."""

    address: (
        Annotated[
            str,
            Text(
                rf"http://{LABEL}\.{LABEL}\.svc(\.{DOMAIN})?(:{PORT})?(/[A-Za-z0-9._/-]*)?",
                "a URL with service and namespace, such as http://prometheus-operated.monitoring.svc.cluster.local:9090",
                253,
            ),
        ]
        | None
    ) = Field(default=None, description="URL inside the cluster; only with addons.prometheus: existing")
    namespace: NamespaceName | None = Field(
        default=None, description="Namespace of its pods; only with addons.prometheus: existing"
    )
    pod_labels: Labels = Field(
        default_factory=dict, description="Labels of its pods; only with addons.prometheus: existing"
    )
    labels: Labels | None = Field(
        default=None,
        description="By which it selects ServiceMonitors, {}: it takes all; only with addons.prometheus: existing",
    )
    scrape_seconds: int = Field(default=15, ge=5, le=60, description="How often engines are scraped")
