"""What a user may write under ``embedding-serving:stack``. Unknown keys are refused with their path.

The file that users see is camelCase, as Pulumi and Kubernetes are; ``stacks/schema.json`` is generated from these
models. Choices are made in the plan, not here: an absent value stays None and the plan says what it became and why.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

from infra.core import credentials, quantities
from infra.core.capacity.need import Need, TokenLengths
from infra.core.catalogue import ModelKind
from infra.core.errors import Refusal, RefusedError, quoted


@dataclass(frozen=True)
class Text:
    """Text that matches ``pattern`` as a whole; ``words`` say in an error what is allowed."""

    pattern: str
    words: str
    longest: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^{self.pattern}$", "maxLength": self.longest}

    def _check(self, text: str) -> str:
        if len(text) > self.longest or not re.fullmatch(self.pattern, text):
            raise ValueError(f"{self.words}, {self.longest} characters at most")
        return text


def _written(value: object) -> object:
    """YAML reads `cpu: 2` as a number where Kubernetes takes both."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


_PART = "[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
#: By the rule of container images: without a dot, a port or the name localhost it would be a folder of Docker Hub.
_HOST = r"([a-z0-9][a-z0-9-]*(\.[a-z0-9][a-z0-9-]*)+(:[0-9]{1,5})?|[a-z0-9][a-z0-9-]*:[0-9]{1,5}|localhost)"
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_FOLDERS = r"(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*"

#: A name that becomes a Kubernetes object name, with room for the suffixes that controllers add.
Name = Annotated[str, Text(r"[a-z]([-a-z0-9]*[a-z0-9])?", "a lower case letter, then letters, digits and -", 40)]
#: A namespace that is there, whoever named it.
NamespaceName = Annotated[str, Text(_LABEL, "lower case letters, digits and -", 63)]
ObjectName = Annotated[str, Text(_DOMAIN, "the name of a Kubernetes object: lower case letters, digits, - and .", 253)]
Cpu = Annotated[
    str, AfterValidator(quantities.check_cpu), BeforeValidator(_written, json_schema_input_type=int | float | str)
]
Bytes = Annotated[
    str, AfterValidator(quantities.check_memory), BeforeValidator(_written, json_schema_input_type=int | str)
]
LabelKey = Annotated[
    str, Text(rf"({_DOMAIN}/)?{_PART}", "a label key: an optional domain and /, then letters, digits, -, _ and .", 253)
]
LabelValue = Annotated[str, Text(rf"({_PART})?", "a label value: letters, digits, -, _ and .", 63)]
Labels = dict[LabelKey, LabelValue]
Printable = Annotated[str, Text(r"[^\x00-\x1f\x7f\ud800-\udfff]+", "text without control characters", 253)]
Token = Annotated[str, Text(r"[!-~]+", "printable ASCII without spaces", 253)]
HubId = Annotated[
    str,
    # An absolute path that does not exist is taken for a hub id and asked for at the hub (recordings, start cases).
    Text(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?", "a hub id such as BAAI/bge-m3, no path", 200),
]
Revision = Annotated[str, Text(r"[A-Za-z0-9][A-Za-z0-9._/-]*", "a commit, tag, branch or ref such as refs/pr/4", 200)]
Host = Annotated[str, Text(_HOST, "a registry host such as ghcr.io or localhost:5000, without https://", 253)]
Repository = Annotated[
    str, Text(_HOST + _FOLDERS, "a registry host and folders such as registry.acme.com/ghcr, without https://", 253)
]
AppImage = Annotated[
    str,
    Text(
        _HOST + _FOLDERS.removesuffix("*") + r"+(:[A-Za-z0-9_][A-Za-z0-9._-]*)?(@sha256:[0-9a-f]{64})?",
        "a registry host, a name and a version or digest, such as ghcr.io/acme/rag-api:1.4.2",
        400,
    ),
]
HttpPath = Annotated[str, Text(r"/[!-~]*", "a path such as /ready", 253)]
EnvName = Annotated[str, Text(r"[A-Z_][A-Z0-9_]*", "upper case letters, digits and _", 100)]
EnvValue = Annotated[
    str, Text(r"[^\x00-\x08\x0b-\x1f\x7f]*", "text without control characters; numbers and true in quotes", 4096)
]


AddonMode = Literal["install", "existing"]

#: Replicas that one workload may have.
MOST_REPLICAS = 1000


class Section(BaseModel):
    """A part of the stack file."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=False, strict=True
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


class Resources(Section):
    """What a pod asks for: memory is request and limit, CPU too."""

    cpu: Cpu | None = None
    memory: Bytes | None = None
    ephemeral_storage: Bytes | None = None


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
                rf"http://{_LABEL}\.{_LABEL}\.svc(\.{_DOMAIN})?(:{_PORT})?(/[A-Za-z0-9._/-]*)?",
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


class Stack(Section):
    """One environment."""

    environment: Literal["local", "dev", "staging", "prod"] = Field(
        description="Decides the level of the policies; stand-ins are for local only, staging and prod want revisions"
    )
    cluster: Cluster
    namespace: Namespace = Field(default_factory=Namespace)
    node_pools: tuple[NodePool, ...] = Field(min_length=1)
    images: Images = Field(default_factory=Images)
    addons: Addons = Field(default_factory=Addons)
    monitoring: Monitoring = Field(default_factory=Monitoring)
    secrets: Secrets = Field(default_factory=Secrets)
    models: tuple[CustomModel, ...] = Field(default=(), description="Models that the catalogue does not know")
    serving: tuple[TeiWorkload, ...] = Field(min_length=1)


#: A switch that is named after a credential and holds none.
_NO_SECRETS = {"requireApiKey"}
#: What people write for true and false, in an error shown even under the name of a credential.
_SWITCHES = {"true", "false", "yes", "no", "on", "off"}
#: What is allowed, by the kind of mistake that pydantic names: what an editor of YAML has to write.
_WRITTEN = {
    "bool_type": "true or false, without quotes",
    "int_type": "a whole number, without quotes",
    "float_type": "a number, without quotes",
}
_OWN_KEYS = "secret config keys of their own: pulumi config set --secret embedding-serving:<name>"
#: Real stack files have seven levels; a YAML anchor inside itself has no end.
_DEEPEST = 16
#: A section with more keys than this is not listed in an error.
_FEW_KEYS = 10


def load(given: object) -> Stack:
    """Reads the structured object ``embedding-serving:stack``.

    ``given`` is what YAML holds: dicts, lists, strings, numbers. Raises RefusedError with one line per mistake.
    """
    if not isinstance(given, dict):
        raise RefusedError(
            [
                Refusal(
                    "stack", quoted(given), "an object with environment, cluster, ...", "See stacks/Pulumi.local.yaml."
                )
            ]
        )
    unreadable = list(_unreadable(given, "stack", 0))
    if unreadable:
        raise RefusedError(unreadable)
    try:
        return Stack.model_validate(_tuples(given))
    except ValidationError as error:
        details = error.errors(include_url=False)
        places = [detail["loc"] for detail in details]
        # A list whose items were refused counts as too short as well: only the items' own mistakes say something.
        told = [
            detail
            for detail in details
            if detail["type"] != "too_short"
            or not any(
                len(place) > len(detail["loc"]) and place[: len(detail["loc"])] == detail["loc"] for place in places
            )
        ]
        raise RefusedError(_refusal(detail) for detail in told) from None


def schema() -> dict[str, Any]:
    """JSON schema of a stack file (stacks/Pulumi.<stack>.yaml), by which editors check it."""
    stack = Stack.model_json_schema(by_alias=True)
    definitions = stack.pop("$defs")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Stack file of the embedding-serving blueprint",
        "type": "object",
        "properties": {
            "config": {
                "type": "object",
                # Other keys belong to Pulumi's providers, and to the secrets of this project.
                "properties": {"embedding-serving:stack": {"$ref": "#/$defs/Stack"}},
                "required": ["embedding-serving:stack"],
            }
        },
        "required": ["config"],
        "$defs": {**definitions, "Stack": stack},
    }


def _tuples(value: Any) -> Any:
    """Lists become tuples: strict validation wants the frozen form, YAML knows lists only."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_tuples(item) for item in value)
    return value


def _unreadable(value: object, path: str, depth: int) -> Iterator[Refusal]:
    """What is refused before any value is looked at, so that no credential is repeated in an error."""
    if depth > _DEEPEST:
        yield Refusal(path, "one more level", f"{_DEEPEST} levels", "No section nests that deep; is it an anchor?")
    elif isinstance(value, dict):
        for key, item in value.items():
            here = f"{path}.{key if isinstance(key, str) else quoted(key)}"
            if not isinstance(key, str):
                yield Refusal(here, f"the key {quoted(key)}", "text as a key", "YAML reads on, yes and 80 otherwise.")
            elif isinstance(item, str | int | float) and not isinstance(item, bool) and credentials.NAME.search(key):
                if key not in _NO_SECRETS:
                    yield _credential(here)
            elif isinstance(item, dict) and set(item) == {"secure"}:
                yield Refusal(
                    here, "an encrypted value", _OWN_KEYS, "A secret nested in an object is decrypted into the state."
                )
            else:
                yield from _unreadable(item, here, depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _unreadable(item, f"{path}[{index}]", depth + 1)
    elif isinstance(value, str) and credentials.VALUE.search(value):
        yield _credential(path)


def _credential(path: str) -> Refusal:
    return Refusal(
        path,
        "a credential (not repeated here)",
        _OWN_KEYS,
        "Pulumi hands the values of a structured object to the program as plain text, and they land readable in the "
        "state.",
    )


def _path(location: tuple[int | str, ...]) -> str:
    path = "stack"
    for part in location:
        # Pydantic marks mistakes in the key itself; the key already says which.
        if part != "[key]":
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path


def _fields(location: tuple[int | str, ...]) -> list[str]:
    """The keys allowed at ``location``: that of the object that holds an unknown or missing key."""
    model: Any = Stack
    for part in location:
        if isinstance(part, int):
            continue
        by_alias = {field.alias: field for field in model.model_fields.values()}
        if part not in by_alias:
            return []
        model = _section_in(by_alias[part].annotation)
        if model is None:
            return []
    return [str(field.alias) for field in model.model_fields.values()]


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if found := _section_in(argument):
            return found
    return None


def _nearest(key: str, fields: list[str]) -> str:
    """The key that was probably meant, else all of a short list."""
    plain = {field.lower(): field for field in fields}
    near = difflib.get_close_matches(re.sub(r"[\s_-]", "", key).lower(), plain, n=1)
    if near:
        return plain[near[0]]
    return ", ".join(fields) if len(fields) <= _FEW_KEYS else "the keys in stacks/schema.json"


def _refusal(details: Any) -> Refusal:
    location, kind, given = details["loc"], details["type"], details["input"]
    path = _path(location)
    match kind:
        case "extra_forbidden":
            fields = _fields(location[:-1])
            return Refusal(path, "an unknown key", _nearest(str(location[-1]), fields), "Check the spelling.")
        case "too_short":
            return Refusal(path, "an empty list", "one entry or more", "Without one there is nothing to deploy.")
        case "missing":
            return Refusal(path, "nothing", "a value", "This key has no default.")
        case "model_type" | "model_attributes_type" | "dict_type":
            keys = _fields(location)
            listed = ", ".join(keys) if 0 < len(keys) <= _FEW_KEYS else "keys and values"
            return Refusal(path, quoted(_lists(given)), f"an object with {listed}", "A section is written with keys.")
    message = re.sub(r"^(Input should be|Value error,) ", "", details["msg"])
    hidden = credentials.NAME.search(path) and not (isinstance(given, str) and given.lower() in _SWITCHES)
    shown = f"{'neither true nor false' if kind == 'bool_type' else 'a value'} (not repeated here)"
    if not hidden:
        shown = quoted(_lists(given))
    message = _WRITTEN.get(kind, message)
    # A section's own check says why before it says what is allowed.
    why, _, allowed = message.rpartition("; allowed: ")
    return Refusal(path, shown, allowed.replace("a valid tuple", "a list"), f"{why}." if why else _meaning(location))


def _meaning(location: tuple[int | str, ...]) -> str:
    """What the key means, from its description."""
    model: Any = Stack
    meaning = "stacks/schema.json describes every key"
    for part in location:
        field = next((field for field in model.model_fields.values() if field.alias == part), None)
        if field is None:
            continue
        meaning = field.description or meaning
        model = _section_in(field.annotation)
        if model is None:
            break
    return f"{meaning}."


def _lists(value: Any) -> Any:
    """Back to YAML's own form for messages."""
    if isinstance(value, tuple):
        return [_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return value
