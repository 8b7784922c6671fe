"""Every mutation of the committed stack files gives a plan, or an error with a line that names what was mutated."""

import copy
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.core.errors import RefusedError
from tests import stacks
from tests.core.plans import BIG_NODE, made

pytestmark = pytest.mark.core

Path = tuple[str | int, ...]

_FILES = sorted(path.name.split(".")[1] for path in stacks.STACKS.glob("Pulumi.*.yaml"))


def _full() -> dict[str, Any]:
    """A stack with every section, so that keys which no committed file uses are mutated too."""
    return {
        "environment": "dev",
        "cluster": {"provider": "existing", "context": "acme"},
        "namespace": {"name": "rag", "create": True},
        "nodePools": [
            {
                "name": "l4",
                "gpu": "L4",
                "arch": "amd64",
                "allocatable": {**BIG_NODE, "gpus": 4, "ephemeralStorage": "100Gi"},
                "nodes": 4,
                "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
                "taints": [{"key": "team", "value": "rag", "effect": "NoSchedule"}],
                "imagePullSeconds": 60,
            },
            {"name": "a10g", "gpu": "A10G", "instanceType": "g5.2xlarge"},
            {"name": "cpu", "allocatable": BIG_NODE},
        ],
        "addons": {
            "keda": "install",
            "prometheus": "existing",
            "metricsServer": "install",
            "externalSecrets": "existing",
        },
        "monitoring": {
            "address": "http://prometheus-operated.monitoring.svc:9090",
            "namespace": "monitoring",
            "podLabels": {"app.kubernetes.io/name": "prometheus"},
            "labels": {"release": "kube-prometheus-stack"},
            "scrapeSeconds": 30,
        },
        "secrets": {
            "apiKey": {"secretName": "rag-keys", "key": "api-key", "version": "2"},
            "huggingFaceToken": {
                "storeName": "aws",
                "storeKind": "SecretStore",
                "remoteKey": "rag/hf",
                "property": "token",
            },
            "ngcApiKey": {"secretName": "ngc", "key": "NGC_API_KEY"},
        },
        "images": {"mirrors": {"ghcr.io": "registry.acme.com/ghcr"}, "pullSecrets": ["registry"]},
        "models": [
            {
                "id": "acme/model",
                "kind": "embedding",
                "architecture": "bert",
                "parametersM": 110,
                "bytesPerParameter": 4,
                "layers": 12,
                "hidden": 768,
                "maxTokens": 512,
                "dimension": 768,
                "pooling": "mean",
                "revision": "refs/pr/4",
                "gated": True,
            }
        ],
        "serving": [
            {
                "name": "embed",
                "engine": "tei",
                "model": "acme/model",
                "pool": "l4",
                "topology": "centralized",
                "version": "1.9.3",
                "revision": "main",
                "dtype": "float16",
                "pooling": "mean",
                "servedModelName": "embeddings",
                "replicas": 2,
                "tokens": {"p50": 100, "p95": 400, "max": 512},
                "maxBatchTokens": 16384,
                "maxBatchRequests": 64,
                "maxConcurrentRequests": 512,
                "maxClientBatchSize": 64,
                "autoTruncate": True,
                "payloadLimit": 2_000_000,
                "tokenizationWorkers": 4,
                "requireApiKey": True,
                "longestRequestSeconds": 60,
                "resources": {"cpu": "4", "memory": "8Gi", "ephemeralStorage": "8Gi"},
                "cache": {"size": "4Gi"},
                "rollout": {"maxSurge": 1, "maxUnavailable": 0},
                "serviceName": "vectors",
                "labels": {"team": "rag"},
                "podLabels": {"acme.com/cost": "rag"},
                "clients": [{"namespace": "rag", "podLabels": {"app": "rag-api"}}],
                "env": {"OTLP_ENDPOINT": "http://collector:4317"},
                "digest": "sha256:" + "0a" * 32,
            },
            {
                "name": "rerank",
                "engine": "tei",
                "model": "BAAI/bge-reranker-large",
                "pool": "a10g",
                "topK": 64,
                "need": {
                    "documentsPerSecond": 400,
                    "tokens": {"p50": 200, "p95": 400, "max": 512},
                    "latencyMs": 1000,
                    "headroom": 0.3,
                },
            },
            {
                "name": "small",
                "engine": "tei",
                "protocol": "grpc",
                "model": "BAAI/bge-small-en-v1.5",
                "pool": "cpu",
                "scaling": {
                    "min": 1,
                    "max": 3,
                    "queueThreshold": 8,
                    "overloadPerSecond": 0.5,
                    "scaleUpPeriodSeconds": 120,
                    "scaleDownStabilizationSeconds": 1800,
                },
            },
            {
                "name": "beside",
                "engine": "tei",
                "model": "BAAI/bge-small-en-v1.5",
                "pool": "l4",
                "topology": "sidecar",
                "app": {
                    "image": "docker.io/acme/rag-api:1.4.2",
                    "port": 8000,
                    "command": ["/rag-api"],
                    "args": ["--workers", "2"],
                    "env": {"TEAM": "rag"},
                    "resources": {"cpu": "1", "memory": "1Gi", "ephemeralStorage": "2Gi"},
                    "gpus": 1,
                    "readinessPath": "/ready",
                    "livenessPath": "/live",
                    "startupSeconds": 90,
                    "longestRequestSeconds": 45,
                },
                "resources": {"cpu": "2", "memory": "4Gi"},
            },
            {
                "name": "nemotron",
                "engine": "nim",
                "model": "nvidia/nemotron-3-embed-1b",
                "pool": "l4",
                "version": "2.2.2",
                "weights": "ngc",
                "maxBatchSize": 16,
                "maxQueueSize": 64,
                "performance": "latency",
                "startupSeconds": 2400,
            },
        ],
    }


_ORIGINALS: dict[str, dict[str, Any]] = {**{name: stacks.committed(name) for name in _FILES}, "full": _full()}

#: Too long for Python to print, which hypothesis tries.
_HUGE = 16**5000
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 10**6, 10**40, _HUGE, 0.5, float("inf"), float("nan")),
    *("", " ", "x", "0", "名前", "a\nb", "\x00\x1b[2J", "x" * 5000, "true", "a" * 41, "\ud800"),
    *("V100", "float32", "splade", "kube-system", "BAAI/bge-m3", "../x"),
    *([], [None], {}, {"x": 1}, {1: 2}, ["x", "x"]),
)


def _nodes(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place of a stack file but its root."""
    items: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(value, dict):
        items = iter(value.items())
    elif isinstance(value, list):
        items = iter(enumerate(value))
    for key, item in items:
        yield (*path, key)
        yield from _nodes(item, (*path, key))


def _at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def _text(path: Path) -> str:
    return "stack" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def _names(line: str, path: Path) -> bool:
    """Whether ``line`` is about ``path``: its own place, one below, the object around it, or named in the reason."""
    if "need" in path[:-1] and _names(line, path[: path.index("need") + 1]):
        # A need is one question: what answers it names the need, whichever of its numbers is too high.
        return True
    place, parent, own = line.split(": got ", maxsplit=1)[0], _text(path[:-1]), _text(path)
    below = place.startswith((own + ".", own + "["))
    told = any(
        re.search(rf"(?<![\w./]){re.escape(name.removeprefix('stack.'))}(?![\w\[]{end})", line.replace("stack.", ""))
        # Of a section that was changed as a whole any key may be named.
        for name, end in ((own, ""), (parent, r"|\.\w"))
        if name != "stack"
    )
    if place in {own, parent} or below or told:
        return True
    # Inside one entry of a list a line may stand at the other of two keys that do not go together, and name this one.
    # The name of an entry stands for the entry: whoever refers to it gets another one.
    entry = path[: max((at for at, part in enumerate(path) if isinstance(part, int)), default=-1) + 1]
    key = ".".join(str(part) for part in path[len(entry) :])
    inside = place.startswith(_text(entry) + ".") and re.search(rf"\b{re.escape(key)}\b", line) is not None
    return bool(entry) and (inside or (key == "name" and _text(entry) in line))


def _check(stack: dict[str, Any], *paths: Path, what: str) -> str | None:
    """None for a plan; the refusal's text when one of its lines names one of ``paths``. All else fails the test."""
    try:
        made(stack)
    except RefusedError as error:
        text = str(error)
    else:
        return None
    lines = text.splitlines()
    assert lines, what
    assert all(re.match(r"stack\S*?.*: got .*; allowed: .*\. \S", line) for line in lines), f"{what}: {text}"
    assert all(line.isprintable() for line in lines), what
    assert any(_names(line, path) for line in lines for path in paths), f"{what}: {text}"
    return text


def _mutated(original: dict[str, Any], path: Path, change: Callable[[Any, Any], None]) -> dict[str, Any]:
    """A copy along ``path``; the rest is shared with the original, which nothing changes."""
    stack = copy.copy(original)
    parent: Any = stack
    for part in path[:-1]:
        parent[part] = copy.copy(parent[part])
        parent = parent[part]
    change(parent, path[-1])
    return stack


def _delete(parent: Any, key: Any) -> None:
    del parent[key]


def _replace(value: Any) -> Callable[[Any, Any], None]:
    def change(parent: Any, key: Any) -> None:
        parent[key] = copy.deepcopy(value)

    return change


@pytest.fixture(params=_ORIGINALS)
def original(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each committed stack file, and one with every key."""
    return _ORIGINALS[request.param]


def test_the_originals_have_plans(original: dict[str, Any]) -> None:
    assert made(original).workloads


def test_the_full_stack_has_every_key_of_the_settings() -> None:
    # existingClaim excludes size, standInRegistry excludes digest and a real environment, topK needs a reranker.
    # documentsPerMonth excludes documentsPerSecond.
    left_out = {"existingClaim", "standInRegistry", "documentsPerMonth"}
    from infra.core import settings as settings_of_stacks  # noqa: PLC0415

    definitions = settings_of_stacks.schema()["$defs"].values()
    keys = {key for definition in definitions for key in definition.get("properties", {})}
    written = {part for path in _nodes(_full()) for part in path}
    assert keys - written == left_out


def test_a_deleted_key_gives_a_plan_or_is_named(original: dict[str, Any]) -> None:
    for path in _nodes(original):
        _check(_mutated(original, path, _delete), path, what=f"without {_text(path)}")


def test_a_replaced_value_gives_a_plan_or_is_named(original: dict[str, Any]) -> None:
    refused = 0
    for path in _nodes(original):
        for value in _VALUES:
            stack = _mutated(original, path, _replace(value))
            shown = ascii(value)[:40] if not isinstance(value, int) or value < 2**64 else "huge"
            refused += _check(stack, path, what=f"{_text(path)} = {shown}") is not None
    assert refused > 500, "most of these values are wrong"


def test_an_unknown_key_is_named_in_every_section(original: dict[str, Any]) -> None:
    free = {"labels", "podLabels", "env", "nodeSelector", "mirrors"}
    for path in ((), *_nodes(original)):
        if isinstance(_at(original, path), dict) and not (path and path[-1] in free):
            for key in ("unknownKey", "名", "a b", "x\n"):
                stack = copy.deepcopy(original)
                _at(stack, path)[key] = 1
                assert _check(stack, (*path, key.replace("\n", "\\n")), what=f"{_text(path)} + {key!r}"), _text(path)


def test_a_duplicated_entry_gives_a_plan_or_is_named(original: dict[str, Any]) -> None:
    for path in _nodes(original):
        if isinstance(_at(original, path), list):
            stack = copy.deepcopy(original)
            entries = _at(stack, path)
            entries.append(copy.deepcopy(entries[0]))
            _check(stack, path, (*path, 0), what=f"{_text(path)}[0] twice")


def test_swapped_values_give_a_plan_or_one_is_named(original: dict[str, Any]) -> None:
    leaves = [path for path in _nodes(original) if not isinstance(_at(original, path), dict | list)]
    for one, other in itertools.combinations(leaves, 2):
        left, right = _at(original, one), _at(original, other)
        # Two keys of one section, or the same key of two entries: the slips that happen.
        if left != right and (one[:-1] == other[:-1] or one[-1] == other[-1]):
            stack = _mutated(_mutated(original, one, _replace(right)), other, _replace(left))
            _check(stack, one, other, what=f"{_text(one)} <-> {_text(other)}")


_ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([value for value in _VALUES if value != _HUGE]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.data())
def test_any_value_anywhere_gives_a_plan_or_is_named(data: st.DataObject) -> None:
    original = _ORIGINALS[data.draw(st.sampled_from(list(_ORIGINALS)))]
    path = data.draw(st.sampled_from(list(_nodes(original))))
    value = data.draw(_ANY)
    _check(_mutated(original, path, _replace(value)), path, what=f"{_text(path)} = {ascii(value)[:60]}")


@settings(deadline=None, derandomize=True, max_examples=80)
@given(st.data())
def test_several_mutations_at_once_give_a_plan_or_one_is_named(data: st.DataObject) -> None:
    stack = copy.deepcopy(_ORIGINALS[data.draw(st.sampled_from(list(_ORIGINALS)))])
    done: list[Path] = []
    for _ in range(data.draw(st.integers(2, 4))):
        nodes = [path for path in _nodes(stack) if all(isinstance(part, str | int) for part in path)]
        path = data.draw(st.sampled_from(nodes))
        parent = _at(stack, path[:-1])
        if data.draw(st.booleans()) and not isinstance(parent, list):
            _delete(parent, path[-1])
        else:
            parent[path[-1]] = copy.deepcopy(data.draw(_ANY))
        done.append(path)
        if not list(_nodes(stack)):
            break
    _check(stack, *done, what=", ".join(map(_text, done)))
