"""The embedded cluster of this checkout: a real single-node Kubernetes in namespaces of its own.

Needs Linux and root. `Cluster` is the same for any state directory; the functions here are for the checkout's own.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from local import paths
from local.cluster.cluster import Cluster, PartStatus, require_root_on_linux
from local.cluster.config import PROGRAMS, Options
from local.cluster.errors import ClusterError, PartFailedError
from local.report import Reporter

__all__ = [
    "PROGRAMS",
    "Cluster",
    "ClusterError",
    "Options",
    "PartFailedError",
    "PartStatus",
    "cluster_id",
    "down",
    "execute",
    "kubeconfig_path",
    "of_checkout",
    "publish",
    "require_root_on_linux",
    "status",
    "up",
]


def cluster_id(checkout: Path) -> str:
    """Follows from the checkout's path, so that two checkouts never share a name."""
    return hashlib.sha256(str(checkout.resolve()).encode()).hexdigest()[:8]


def of_checkout(options: Options | None = None) -> Cluster:
    return Cluster(paths.state_dir() / "cluster", cluster_id(paths.CHECKOUT), options)


def up(reporter: Reporter, options: Options | None = None) -> None:
    """Build or find what is needed and bring the cluster up. Raises ClusterError, ToolchainError."""
    from local import images, toolchain  # noqa: PLC0415 (commands that build nothing need neither)

    require_root_on_linux()
    programs = toolchain.ensure(PROGRAMS, reporter)
    of_checkout(options).up(reporter, programs, images.ensure(reporter))


def status() -> list[PartStatus]:
    return of_checkout().status()


def down(reporter: Reporter) -> bool:
    return of_checkout().down(reporter)


def publish(name: str, namespace: str, service: str, port: int) -> str:
    return of_checkout().publish(name, namespace, service, port)


def execute(command: Sequence[str]) -> int:
    return of_checkout().execute(command)


def kubeconfig_path() -> Path:
    """Where `up` writes the kubeconfig for the user's shell."""
    return of_checkout().layout.kubeconfig
