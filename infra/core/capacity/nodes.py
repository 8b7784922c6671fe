"""Where replicas run and what that costs: GPUs come in nodes of one, two, four or eight."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from infra.core import catalogue
from infra.core.capacity import data, memory
from infra.core.capacity.need import HOURS_PER_MONTH, SECONDS_PER_MONTH
from infra.core.catalogue import Gpu, InstanceType, Model

#: What DaemonSets of a node ask for (device plugin, exporters, log shipper, network): an assumption.
DAEMONS_CPU_M = 500
DAEMONS_MEMORY_MIB = 512
_DAEMONS_PODS = 8
#: EKS caps pods per node of managed node groups: 110 below 30 vCPU, else 250.
_EKS_PODS_SMALL, _EKS_PODS_LARGE, _EKS_SMALL_VCPU = 110, 250, 30


@dataclass(frozen=True)
class Pod:
    """What one engine pod requests beside its GPU."""

    cpu_m: int
    memory_mib: int


class Room(NamedTuple):
    """What one node has for pods, or what one pod takes of it."""

    gpus: int
    cpu_m: int
    memory_mib: int
    pods: int


@dataclass(frozen=True)
class Node:
    """What one node offers to pods, and its price in USD per hour where it has one."""

    name: str
    gpus: int
    cpu_m: int
    memory_mib: int
    max_pods: int
    price: float | None
    spot: float | None

    @property
    def room(self) -> Room:
        """What is left beside the DaemonSets."""
        return Room(
            self.gpus,
            self.cpu_m - DAEMONS_CPU_M,
            self.memory_mib - DAEMONS_MEMORY_MIB,
            self.max_pods - _DAEMONS_PODS,
        )

    def holds(self, pod: Pod, shares: int) -> int:
        """Pods of one replica each that fit beside the DaemonSets."""
        room = self.room
        return max(0, min(room.gpus * shares, room.cpu_m // pod.cpu_m, room.memory_mib // pod.memory_mib, room.pods))


@dataclass(frozen=True)
class Fleet:
    """Nodes of one kind that hold all replicas. Costs are USD per month of 730 h; None where no price is known."""

    node: Node
    nodes: int
    per_node: int
    on_demand: float | None
    spot: float | None


def pod_of(model: Model) -> Pod:
    """What an engine pod of ``model`` asks for if nobody says: two cores, the published weights, 1 GiB of program."""
    return Pod(cpu_m=2000, memory_mib=math.ceil((1024 + 1.3 * memory.weights_mib(model) + 200) / 256) * 256)


def node_of(instance: InstanceType) -> Node:
    """An EC2 instance type as a node, with its on-demand price and the highest Spot price that was seen."""
    cap = _EKS_PODS_SMALL if instance.vcpu < _EKS_SMALL_VCPU else _EKS_PODS_LARGE
    spot = data.spot_prices().get(instance.name)
    return Node(
        name=instance.name,
        gpus=instance.gpu_count,
        cpu_m=instance.allocatable_cpu_m,
        memory_mib=instance.allocatable_memory_mib,
        max_pods=min(cap, instance.max_pods),
        price=instance.price_usd_h,
        spot=spot.usd_h_high if spot else None,
    )


@cache
def nodes_of(gpu: str) -> tuple[Node, ...]:
    """All priced EC2 instance types with whole GPUs of this name."""
    return tuple(
        node_of(instance)
        for instance in catalogue.instance_types().values()
        if instance.gpu == gpu and instance.gpu_count and instance.price_usd_h is not None
    )


def cheapest(nodes: Iterable[Node], replicas: int, pod: Pod, shares: int) -> Fleet | None:
    """The fleet of one kind of node that costs least for ``replicas``; None when no kind holds a pod.

    Kinds without a price come last, then fewer nodes win.
    """
    fleets = []
    for node in nodes:
        per_node = node.holds(pod, shares)
        if per_node:
            count = math.ceil(replicas / per_node)
            fleets.append(
                Fleet(
                    node=node,
                    nodes=count,
                    per_node=per_node,
                    on_demand=None if node.price is None else count * node.price * HOURS_PER_MONTH,
                    spot=None if node.spot is None else count * node.spot * HOURS_PER_MONTH,
                )
            )
    return min(
        fleets,
        key=lambda fleet: (fleet.on_demand is None, fleet.on_demand or 0, fleet.nodes),
        default=None,
    )


def per_million(monthly: float | None, load: float) -> float | None:
    """USD per million texts when ``load`` texts per second come all month."""
    return None if monthly is None else monthly / (load * SECONDS_PER_MONTH) * 1e6


def gpu_hour(gpu: Gpu) -> float:
    """USD per hour of one GPU in its cheapest node, to compare GPUs; infinite where none is priced."""
    return min((node.price / node.gpus for node in nodes_of(gpu.name) if node.price), default=math.inf)
