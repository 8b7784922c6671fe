"""The embedded cluster's tools and environment, for the commands and for a person's shell."""

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from infra.core import catalogue
from infra.core.plan import Plan
from local import cluster, pulumi_host, toolchain
from local.cluster.lock import exclusive
from local.paths import state_dir
from scripts.access import Access
from scripts.command import CommandError

#: The stack that belongs to the embedded cluster.
STACK = "local"


def exists() -> bool:
    """Whether `make up` has made a cluster here that `make down` has not removed."""
    return cluster.kubeconfig_path().exists()


def going_up() -> contextlib.AbstractContextManager[None]:
    """One `make up` at a time, from the first part to the last test. Raises ClusterError while another one runs."""
    return exclusive(state_dir() / "up.lock")


def options(plan: Plan) -> cluster.Options:
    """The one node of the embedded cluster, with as many GPUs as the pools of ``plan`` say that their nodes have.

    Where a pool does not say it, the workloads' GPUs count. Raises CommandError for pools of different GPUs.
    """
    pools = [pool for pool in plan.pools if pool.gpu is not None]
    kinds = sorted({pool.gpu for pool in pools if pool.gpu is not None})
    if not kinds:
        return cluster.Options(gpus=0)
    if len(kinds) > 1:
        where = ", ".join(f"{pool.name} ({pool.gpu})" for pool in pools)
        raise CommandError(
            f"stack {plan.stack}: the embedded cluster is one node with one kind of GPU, and the node pools are "
            f"{where}; give all of them the same gpu, or deploy to a cluster that has these nodes"
        )
    gpus = sum(
        pool.gpus_wanted if pool.nodes is None or pool.gpus_per_node is None else pool.nodes * pool.gpus_per_node
        for pool in pools
    )
    return cluster.Options(gpus=gpus, gpu_product=catalogue.gpus()[kinds[0]].product_label)


def environment(programs: Mapping[str, Path] | None = None) -> dict[str, str]:
    """The caller's environment, with the pinned pulumi and kubectl on PATH, the local state and the kubeconfig.

    ``programs`` are paths by name, as the toolchain gives them; None: those that are there already. Raises
    CommandError when one is missing.
    """
    found = {name: item.path for name, item in toolchain.find(toolchain.CLIENT).items()} | dict(programs or {})
    if missing := [name for name, path in found.items() if path is None]:
        raise CommandError(f"{', '.join(missing)}: not built yet; run make toolchain, or make up")
    folder = state_dir() / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*toolchain.CLIENT, "pulumi-language-python"):
        link, path = folder / name, found.get(name)
        if link.is_symlink() and (path is None or link.readlink() != path):
            link.unlink()
        if path is not None and not link.is_symlink():
            link.symlink_to(path)
    return pulumi_host.environment(folder, state_dir()) | {"KUBECONFIG": str(cluster.kubeconfig_path())}


def remove() -> None:
    """Removes what `environment` has written. The state directory stays if something else is in it, as of a test."""
    for name in ("bin", "pulumi", "pulumi-home", "tmp"):
        shutil.rmtree(state_dir() / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        state_dir().rmdir()


def access() -> Access:
    """The way to the embedded cluster."""
    return Access(kubeconfig=cluster.kubeconfig_path(), kubectl=state_dir() / "bin" / "kubectl")
