"""What a user may write under ``embedding-serving:stack``. Unknown keys are refused with their path.

The file that users see is camelCase, as Pulumi and Kubernetes are; ``stacks/schema.json`` is generated from these
models. Choices are made in the plan, not here: an absent value stays None and the plan says what it became and why.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from infra.core import quantities
from infra.core.catalogue import ModelKind
from infra.core.errors import Refusal, RefusedError, quoted


def _quantity(text: str) -> str:
    quantities.parse(text)
    return text


_LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
#: A name that becomes a Kubernetes object name, with room for the suffixes that controllers add.
Name = Annotated[str, Field(pattern=_LABEL, max_length=40, description="Lower case letters, digits and -")]
Quantity = Annotated[str, AfterValidator(_quantity), Field(description="Kubernetes quantity: 500m, 2, 512Mi, 4Gi")]
#: A label key or value of Kubernetes; the API server has the last word.
Labels = dict[
    Annotated[str, Field(pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")],
    Annotated[str, Field(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")],
]


class Section(BaseModel):
    """A part of the stack file."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=False, strict=True
    )


class Cluster(Section):
    """Where to deploy."""

    provider: Literal["existing"] = Field(description="existing: a cluster that is already there, found by kubeconfig")
    context: str | None = Field(default=None, min_length=1, description="Context of the kubeconfig; default: current")


class Namespace(Section):
    """The namespace that holds all workloads of the stack."""

    name: Name = "embedding-serving"
    create: bool = Field(default=True, description="false: it exists and belongs to someone else")


class Allocatable(Section):
    """What one node of a pool offers to pods, as `kubectl describe node` prints under Allocatable."""

    cpu: Quantity
    memory: Quantity
    gpus: int = Field(default=0, ge=0, le=16)


class Taint(Section):
    """A taint of the pool's nodes that pods have to tolerate."""

    key: str = Field(min_length=1)
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class NodePool(Section):
    """Nodes of one kind. On an existing cluster it describes nodes that are there."""

    name: Name
    gpu: str | None = Field(default=None, min_length=1, description="GPU model (L4, A10G, ...); absent: CPU nodes")
    instance_type: str | None = Field(default=None, description="EC2 instance type; gives allocatable resources")
    allocatable: Allocatable | None = Field(default=None, description="What a node offers, where no instanceType says")
    nodes: int | None = Field(default=None, ge=1, le=1000, description="Nodes at most; with it the plan checks the fit")
    node_selector: Labels = Field(default_factory=dict, description="Labels that pods of this pool select")
    taints: tuple[Taint, ...] = ()
    image_pull_seconds: int | None = Field(
        default=None, ge=0, le=3600, description="Budget to pull an engine image on a node that lacks it"
    )


class Images(Section):
    """Where images come from."""

    mirrors: dict[str, str] = Field(
        default_factory=dict, description="Registry host to mirror prefix, e.g. ghcr.io: registry.acme.com/ghcr"
    )
    stand_in_registry: str | None = Field(
        default=None,
        min_length=1,
        description="Registry whose engine images are local stand-ins; the contract and the smoke test say so",
    )
    pull_secrets: tuple[Name, ...] = Field(default=(), description="Existing Secrets of type dockerconfigjson")


class CustomModel(Section):
    """A model that the catalogue does not know."""

    id: str = Field(min_length=1, pattern=r"^\S+$")
    kind: Annotated[ModelKind, Field(strict=False)]
    architecture: str = Field(description="model_type of its config.json: bert, xlm-roberta, mistral, qwen2, ...")
    parameters_m: float = Field(gt=0, description="Parameters in millions")
    layers: int = Field(ge=1)
    hidden: int = Field(ge=1)
    max_tokens: int = Field(ge=1)
    dimension: int | None = Field(default=None, ge=1)
    pooling: Literal["cls", "mean", "last-token", "splade"] | None = None
    revision: str | None = None
    gated: bool = False


class Tokens(Section):
    """Length of the texts in tokens."""

    p50: int = Field(ge=1)
    p95: int = Field(ge=1)
    max: int | None = Field(default=None, ge=1)


class Resources(Section):
    """What a pod asks for: memory is request and limit, CPU too."""

    cpu: Quantity | None = None
    memory: Quantity | None = None
    ephemeral_storage: Quantity | None = None


class Cache(Section):
    """Where weights are kept. The default is a directory of the pod's node that lives as long as the pod."""

    existing_claim: Name | None = Field(default=None, description="PersistentVolumeClaim that is there already")
    size: Quantity | None = Field(default=None, description="Limit of the directory; default: what the weights need")


class Rollout(Section):
    """How pods are replaced. The default needs no spare GPU: one old pod ends before a new one starts."""

    max_surge: int = Field(default=0, ge=0, le=100)
    max_unavailable: int = Field(default=1, ge=0, le=100)


class TeiWorkload(Section):
    """Text Embeddings Inference behind a Service."""

    name: Name
    engine: Literal["tei"]
    model: str = Field(min_length=1, description="Hub id: a model of the catalogue or of `models`")
    pool: Name
    topology: Literal["centralized"] = "centralized"
    version: str = Field(default="1.9.3", pattern=r"^\d+\.\d+\.\d+$", description="TEI release with its patch number")
    revision: str | None = Field(default=None, min_length=1, description="Commit, tag or branch of the weights")
    dtype: Literal["float16", "float32"] | None = None
    pooling: Literal["cls", "mean", "last-token", "splade"] | None = None
    served_model_name: str | None = Field(default=None, min_length=1, description="Model name that clients send")
    replicas: int = Field(default=1, ge=0, le=1000)
    tokens: Tokens | None = Field(default=None, description="Token lengths of the texts, for the batch budget")
    max_batch_tokens: int | None = Field(default=None, ge=1)
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    max_client_batch_size: int | None = Field(default=None, ge=1)
    top_k: int | None = Field(default=None, ge=1, description="Rerankers: texts per request")
    auto_truncate: bool | None = Field(default=None, description="true: cut long texts; false: refuse them")
    payload_limit: int | None = Field(default=None, ge=1, description="Largest request body in bytes")
    tokenization_workers: int | None = Field(default=None, ge=1, le=64)
    require_api_key: bool = Field(default=False, description="Clients send the secret config key apiKey")
    longest_request_seconds: int | None = Field(
        default=None, ge=1, le=3600, description="What a request may take; drain and probe budgets follow from it"
    )
    json_logs: bool = True
    resources: Resources = Field(default_factory=Resources)
    cache: Cache = Field(default_factory=Cache)
    rollout: Rollout = Field(default_factory=Rollout)
    service_name: Name | None = Field(default=None, description="Name that the application expects; default: name")
    labels: Labels = Field(default_factory=dict, description="Further labels of every object of this workload")
    pod_labels: Labels = Field(default_factory=dict, description="Further labels of the pods; a change replaces them")
    env: dict[Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$")], str] = Field(
        default_factory=dict, description="Further environment variables; none that the plan sets itself"
    )
    digest: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$", description="Digest of the image")


class Stack(Section):
    """One environment."""

    environment: Literal["local", "dev", "staging", "prod"] = Field(description="Sets defaults, nothing else")
    cluster: Cluster
    namespace: Namespace = Field(default_factory=Namespace)
    node_pools: tuple[NodePool, ...] = Field(min_length=1)
    images: Images = Field(default_factory=Images)
    models: tuple[CustomModel, ...] = Field(default=(), description="Models that the catalogue does not know")
    serving: tuple[TeiWorkload, ...] = Field(min_length=1)


#: Names and shapes of credentials; a stack file is committed, so a value that looks like one is refused unread.
_SECRET_KEY = re.compile(r"(token|apikey|api_key|password|passwd|secretkey|accesskey|credential)s?$", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"^(hf_[A-Za-z0-9]{16,}|nvapi-\S+|AKIA[0-9A-Z]{16}|ghp_\w{20,}|sk-\S{16,})$")


def load(given: object) -> Stack:
    """Reads the structured object ``embedding-serving:stack``.

    ``given`` is what YAML holds: dicts, lists, strings, numbers. Raises RefusedError with one line per mistake.
    """
    if not isinstance(given, Mapping):
        raise RefusedError([Refusal("stack", quoted(given), "an object with environment, cluster, ...", "See README.")])
    secrets = list(_secrets(given, "stack"))
    if secrets:
        raise RefusedError(secrets)
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
    """JSON schema of the structured object, by which editors check stack files."""
    return Stack.model_json_schema(by_alias=True)


def _tuples(value: Any) -> Any:
    """Lists become tuples: strict validation wants the frozen form, YAML knows lists only."""
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_tuples(item) for item in value)
    return value


def _secrets(value: object, path: str) -> Any:
    if isinstance(value, Mapping):
        for key, item in value.items():
            here = f"{path}.{key}"
            if isinstance(item, str) and (_SECRET_KEY.search(str(key)) or _SECRET_VALUE.match(item)):
                yield Refusal(
                    here,
                    "a credential (not repeated here)",
                    "secret config keys of their own: pulumi config set --secret embedding-serving:<name>",
                    "Pulumi hands the values of a structured object to the program as plain text, and they land "
                    "readable in the state.",
                )
            elif isinstance(item, Mapping) and set(item) == {"secure"}:
                yield Refusal(
                    here,
                    "an encrypted value",
                    "secret config keys of their own: pulumi config set --secret embedding-serving:<name>",
                    "A secret nested in a structured object is decrypted into the state.",
                )
            else:
                yield from _secrets(item, here)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _secrets(item, f"{path}[{index}]")


def _path(location: tuple[int | str, ...]) -> str:
    path = "stack"
    for part in location:
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


def _section_in(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if found := _section_in(argument):
            return found
    return None


def _refusal(details: Any) -> Refusal:
    location, kind, given = details["loc"], details["type"], details["input"]
    path = _path(location)
    match kind:
        case "extra_forbidden":
            return Refusal(path, "an unknown key", ", ".join(_fields(location[:-1])), "Check the spelling.")
        case "too_short":
            return Refusal(path, "an empty list", "one entry or more", "Without one there is nothing to deploy.")
        case "missing":
            return Refusal(path, "nothing", "a value", "This key has no default.")
        case "model_type" | "model_attributes_type" | "dict_type":
            keys = ", ".join(_fields(location)) or "keys and values"
            return Refusal(path, quoted(_lists(given)), f"an object with {keys}", "A section is written with keys.")
    message = re.sub(r"^(Input should be|Value error,) ", "", details["msg"])
    message = message.replace("a valid tuple", "a list")
    if kind == "string_pattern_mismatch":
        message = f"text of the form {details['ctx']['pattern']}"
    return Refusal(path, quoted(_lists(given)), message, "The stack file says what the key means: stacks/schema.json.")


def _lists(value: Any) -> Any:
    """Back to YAML's own form for messages."""
    if isinstance(value, tuple):
        return [_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return value
