"""Imports OCI tars into the cluster's containerd, once each."""

import json
from collections.abc import Mapping
from pathlib import Path

from local.cluster.config import CONTAINERD_SOCKET
from local.cluster.errors import ClusterError
from local.cluster.namespaces import Namespaces
from local.cluster.pki import write_private


def named(images: Mapping[str, Path], what: str) -> str:
    """The image whose repository ends in ``what``. Raises ClusterError when there is none."""
    for name in images:
        if name.rpartition("/")[2].partition(":")[0] == what:
            return name
    raise ClusterError(f"no image called {what} was handed to the cluster; it has {', '.join(images) or 'none'}")


def fingerprint(tar: Path) -> str:
    """Tells one state of a file from the next without reading it."""
    stat = tar.stat()
    return f"{tar}:{stat.st_size}:{stat.st_mtime_ns}"


class ImageStore:
    """containerd's images, and which file each came from (``record``)."""

    def __init__(self, namespaces: Namespaces, record: Path) -> None:
        self._namespaces = namespaces
        self._record = record

    def missing(self, images: Mapping[str, Path]) -> dict[str, Path]:
        """What is not there, or came from another file than the one given now."""
        known, present = self._known(), self._present()
        return {n: tar for n, tar in images.items() if n not in present or known.get(n) != fingerprint(tar)}

    def load(self, images: Mapping[str, Path]) -> None:
        """Import each file once. Raises ClusterError when a name asked for is not in its file."""
        for tar in dict.fromkeys(images.values()):
            self._ctr("images", "import", str(tar))
            wanted = {name for name, file in images.items() if file == tar}
            if absent := wanted - self._present():
                raise ClusterError(f"{tar} does not hold the image {', '.join(sorted(absent))}")
            known = self._known() | {name: fingerprint(tar) for name in wanted}
            write_private(self._record, json.dumps(known, indent=1))

    def _present(self) -> set[str]:
        return set(self._ctr("images", "ls", "-q").splitlines())

    def _known(self) -> dict[str, str]:
        known: dict[str, str] = json.loads(self._record.read_text()) if self._record.exists() else {}
        return known

    def _ctr(self, *arguments: str) -> str:
        ctr = self._namespaces.program("ctr")
        return self._namespaces.run(ctr, "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io", *arguments)
