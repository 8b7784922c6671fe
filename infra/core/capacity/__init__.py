"""Capacity planner: from a need (load, text lengths, latency) to GPUs, replicas, batch budget, thresholds and cost.

``size(Request(need, model, gpu))`` answers for one GPU, ``compare`` for all. Nothing here knows an engine's images or a
cluster; numbers come from the catalogue, from published measurements (published.yaml) and the
formulae of docs/capacity.md.
"""

from infra.core.capacity.compare import Comparison, Option, compare, crossover, topologies
from infra.core.capacity.need import Need, TokenLengths
from infra.core.capacity.nodes import Fleet, Node, Pod, Room, node_of
from infra.core.capacity.scaling import Scaling
from infra.core.capacity.sizing import Change, Cost, Latency, Request, Sizing, Unmet, size

__all__ = [
    "Change",
    "Comparison",
    "Cost",
    "Fleet",
    "Latency",
    "Need",
    "Node",
    "Option",
    "Pod",
    "Request",
    "Room",
    "Scaling",
    "Sizing",
    "TokenLengths",
    "Unmet",
    "compare",
    "crossover",
    "node_of",
    "size",
    "topologies",
]
