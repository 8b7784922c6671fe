"""All GPUs and both topologies side by side, and the point from which sharing a pool pays."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from infra.core import catalogue
from infra.core.capacity import nodes
from infra.core.capacity.sizing import ROUNDING, Request, Sizing, Unmet, size
from infra.core.errors import counted

CENTRALIZED, SIDECAR = "centralized", "sidecar"
#: A pool that several apps depend on keeps two replicas, so that a drained node is not an outage of all of them.
SHARED_MINIMUM = 2
#: Share of the recommended GPU's latency from which on the next GPU's is worth a word.
_MUCH_FASTER = 0.7


@dataclass(frozen=True)
class Option:
    """One GPU in one topology. ``unmet`` says why it cannot meet the need; the other values are None then."""

    gpu: str
    topology: str
    sizing: Sizing | None
    unmet: Unmet | None


@dataclass(frozen=True)
class Comparison:
    """All options, and the cheapest one that meets the need on demand, with the reason in words."""

    options: tuple[Option, ...]
    recommended: Option | None
    reason: str


@dataclass(frozen=True)
class Topologies:
    """GPUs that each topology takes for a number of app replicas; None where a sidecar cannot carry its app's load."""

    apps: int
    centralized: int
    sidecar: int | None


def replicas_of(topology: str, needed: int, apps: int) -> int:
    """Engine replicas where the load needs ``needed`` of them and ``apps`` app replicas run.

    A sidecar belongs to one app replica: there are as many as app replicas, and as many app replicas as the load needs
    sidecars. A pool is shared.
    """
    if topology == SIDECAR:
        return max(apps, needed)
    return max(needed, min(apps, SHARED_MINIMUM))


def compare(request: Request, *, apps: int) -> Comparison:
    """Every GPU of the catalogue with a price, in both topologies, for ``apps`` app replicas.

    GPUs on which the engine does not serve the model are left out. ``request.gpu`` is ignored.
    """
    options: list[Option] = []
    for gpu in catalogue.gpus().values():
        if not nodes.nodes_of(gpu.name) or not request.serves(request.model, gpu):
            continue
        answer = size(replace(request, gpu=gpu, node_kinds=None))
        for topology in (CENTRALIZED, SIDECAR):
            if isinstance(answer, Unmet):
                options.append(Option(gpu.name, topology, None, answer))
                continue
            replicas = replicas_of(topology, answer.replicas, apps)
            again = size(replace(request, gpu=gpu, node_kinds=None, replicas=replicas))
            if isinstance(again, Unmet):
                options.append(Option(gpu.name, topology, None, again))
            else:
                options.append(Option(gpu.name, topology, again, None))
    return _recommend(options)


def _recommend(options: Sequence[Option]) -> Comparison:
    priced = [
        (option.sizing.cost.on_demand_month, option, option.sizing)
        for option in options
        if option.sizing and option.sizing.cost.on_demand_month is not None
    ]
    if not priced:
        return Comparison(tuple(options), None, "No GPU meets the need as asked.")
    # The order of the catalogue and of the topologies decides between equals: a pool before sidecars.
    price, best, sizing = min(priced, key=lambda row: row[0])
    reason = (
        f"{best.topology} on {best.gpu} costs least: {counted(sizing.replicas, 'replica')} on {sizing.fleet.nodes} x "
        f"{sizing.fleet.node.name}, {price:,.0f} USD a month on demand"
    )
    others = [row for row in priced if row[1].gpu != best.gpu]
    if others:
        next_price, next_best, next_sizing = min(others, key=lambda row: row[0])
        reason += f"; the next GPU, {next_best.gpu}, costs {_more(next_price, price)}"
        here, there = sizing.latency.planned, next_sizing.latency.planned
        if there <= _MUCH_FASTER * here:
            reason += f" and answers within {there:,.0f} ms in place of {here:,.0f} ms"
    for twin_price, twin, _ in priced:
        if twin.gpu == best.gpu and twin.topology != best.topology:
            reason += f"; {twin.topology} on {twin.gpu} costs {_more(twin_price, price)}"
    if any(line.startswith("caution") for line in sizing.arithmetic):
        reason += "; it counts on more tokens per second from one server than anybody has published: measure first"
    return Comparison(tuple(options), best, f"{reason}.")


def _more(price: float, least: float) -> str:
    return f"{price - least:,.0f} USD more ({price:,.0f} USD)" if price > least else "the same"


def topologies(load_per_app: float, usable_per_replica: float, apps: Iterable[int] = range(1, 21)) -> list[Topologies]:
    """GPUs by topology when every app replica brings ``load_per_app`` texts/s.

    ``usable_per_replica`` is what one engine replica may do, headroom taken off.
    """
    rows = []
    for count in apps:
        needed = max(1, math.ceil(count * load_per_app / usable_per_replica - ROUNDING))
        alone = load_per_app <= usable_per_replica * (1 + ROUNDING)
        rows.append(Topologies(count, replicas_of(CENTRALIZED, needed, count), count if alone else None))
    return rows


def crossover(rows: Iterable[Topologies]) -> int | None:
    """Fewest app replicas from which on the pool takes fewer GPUs than sidecars; None: not within ``rows``.

    With u = load per app / usable throughput of a replica it is max(3, 1 / (1 - u)): a pool saves its first GPU as soon
    as the idle shares of all sidecars add up to one. The often quoted 5 holds for u between 0.75 and 0.8.
    """
    return next((row.apps for row in rows if row.sidecar is None or row.centralized < row.sidecar), None)
