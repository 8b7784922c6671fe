"""Small stacks for the tests of the core."""

from typing import Any

from infra.core import plan, settings
from infra.core.errors import RefusedError
from infra.core.plan import Plan, Workload

#: Big enough for every model of the catalogue.
BIG_NODE = {"cpu": "32", "memory": "256Gi"}


def stack(
    gpu: str | None = "L4",
    *,
    pool: dict[str, Any] | None = None,
    changes: dict[str, Any] | None = None,
    **workload: Any,
) -> dict[str, Any]:
    """One workload on one pool; ``workload`` are keys of it, ``changes`` keys of the stack."""
    node_pool: dict[str, Any] = {"name": "pool", **(pool or {})}
    if gpu:
        node_pool["gpu"] = gpu
    return {
        "environment": "dev",
        "cluster": {"provider": "existing"},
        "nodePools": [node_pool],
        "serving": [{"name": "embed", "engine": "tei", "model": "BAAI/bge-large-en-v1.5", "pool": "pool", **workload}],
        **(changes or {}),
    }


def made(given: object, secrets: tuple[str, ...] = ()) -> Plan:
    """The plan of a stack file's object."""
    return plan.make(settings.load(given), name="test", secrets=secrets)


def workload(gpu: str | None = "L4", **keys: Any) -> Workload:
    """The only workload of `stack`."""
    [only] = made(stack(gpu, **keys)).workloads
    return only


def refused(given: object, secrets: tuple[str, ...] = ()) -> list[str]:
    """The lines of the refusal; none when there is a plan."""
    try:
        made(given, secrets)
    except RefusedError as error:
        return str(error).splitlines()
    return []


def refused_at(given: object, path: str, secrets: tuple[str, ...] = ()) -> str:
    """The line that refuses ``path`` (without the leading ``stack.``); fails the test when there is not exactly one."""
    lines = refused(given, secrets)
    found = [line for line in lines if line.startswith(f"stack.{path}: ")]
    assert len(found) == 1, lines or "there is a plan"
    assert found[0].count("; allowed: ") == 1
    return found[0]


def env(planned: Workload) -> dict[str, str | None]:
    """Plain environment of the engine."""
    return {variable.name: variable.value for variable in planned.engine.env}
