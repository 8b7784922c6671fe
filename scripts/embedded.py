"""The embedded cluster's tools and environment, for the commands and for a person's shell."""

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from local import cluster, pulumi_host, toolchain
from local.paths import state_dir
from scripts.access import Access
from scripts.command import CommandError

#: The stack that belongs to the embedded cluster.
STACK = "local"


def exists() -> bool:
    """Whether `make up` has made a cluster here that `make down` has not removed."""
    return cluster.kubeconfig_path().exists()


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
    for name in ("bin", "pulumi", "pulumi-home"):
        shutil.rmtree(state_dir() / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        state_dir().rmdir()


def access() -> Access:
    """The way to the embedded cluster."""
    return Access(kubeconfig=cluster.kubeconfig_path(), kubectl=state_dir() / "bin" / "kubectl")
