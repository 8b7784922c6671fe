"""Engines in the cluster: one component per topology."""

from infra.program.serving.centralized import CentralizedWorkload
from infra.program.serving.sidecar import SidecarWorkload
from infra.program.serving.workload import ServedWorkload

__all__ = ["TOPOLOGIES", "CentralizedWorkload", "ServedWorkload", "SidecarWorkload"]

#: Component by topology of the plan.
TOPOLOGIES: dict[str, type[ServedWorkload]] = {"centralized": CentralizedWorkload, "sidecar": SidecarWorkload}
