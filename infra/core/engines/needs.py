"""A workload's need, asked of the capacity planner; what it refuses is placed where the stack file says it."""

import math
from dataclasses import dataclass, replace

from infra.core.capacity import Request, Sizing, size
from infra.core.capacity.need import SECONDS_PER_MONTH, rounded
from infra.core.errors import Refusal
from infra.core.settings import MOST_REPLICAS


@dataclass(frozen=True)
class Place:
    """Where the parts of the question stand in the stack file. Paths start with ``stack.``."""

    workload: str
    pool: str
    #: What says how big a node is: instanceType, allocatable, or the pool where neither is given.
    node: str
    #: How messages call the model.
    model: str


def meet(request: Request, place: Place) -> Sizing | tuple[Refusal, ...]:
    """Sizes for ``request``, or why there are none."""
    request = replace(request, path=f"{place.workload}.need")
    answer = size(request)
    if isinstance(answer, Sizing):
        refusals: list[Refusal] = []
        reached: Sizing | None = answer
    else:
        refusals = [_placed(refusal, request, place) for refusal in answer.refusals]
        reached = answer.remedy
    if reached and reached.replicas > MOST_REPLICAS:
        # More replicas or nodes are no way out.
        ways = {f"{place.workload}.replicas", f"{place.pool}.nodes"}
        refusals = [refusal for refusal in refusals if refusal.path not in ways]
        refusals.append(_too_much(reached, place))
    elif isinstance(answer, Sizing):
        return answer
    asked = f"Asked by {place.workload}.need of the {place.model} on {place.pool}."
    return tuple(replace(refusal, why=f"{refusal.why} {asked}") for refusal in refusals)


def _placed(refusal: Refusal, request: Request, place: Place) -> Refusal:
    key = refusal.path.removeprefix(f"{place.workload}.")
    if key == "nodes":
        return replace(refusal, path=f"{place.pool}.nodes")
    if key == "gpu":
        follows = "" if request.node_kinds is None else f", with {place.node} to match"
        return replace(refusal, path=f"{place.pool}.gpu", allowed=refusal.allowed + follows)
    if key in {"instanceType", "resources"}:
        why = f"{refusal.why} What it asks for is in {place.workload}.resources."
        if key == "resources" or place.node.endswith(".instanceType"):
            return replace(refusal, path=place.node if key == "instanceType" else refusal.path, why=why)
        allowed = f"a bigger node, such as instanceType {refusal.allowed} in its place"
        return replace(refusal, path=place.node, allowed=allowed, why=why)
    return refusal


def _too_much(sizing: Sizing, place: Place) -> Refusal:
    need = sizing.request.need
    most = MOST_REPLICAS * sizing.per_replica * need.usable
    key, given = "documentsPerSecond", need.documents_per_second
    if given is None:
        key, given, most = "documentsPerMonth", need.documents_per_month, most * SECONDS_PER_MONTH
    return Refusal(
        f"{place.workload}.need.{key}",
        f"{given:g}",
        f"{_cut(most)} or less, or a faster GPU",
        f"{rounded(need.load)} documents/s take {sizing.replicas:,} replicas on {sizing.request.gpu.name}; a workload "
        f"has {MOST_REPLICAS} at most.",
    )


def _cut(value: float) -> str:
    """``value`` cut to three significant digits, as YAML reads it."""
    digits = 2 - math.floor(math.log10(value))
    return f"{math.floor(value * 10.0**digits) / 10.0**digits:.{max(0, digits)}f}"
