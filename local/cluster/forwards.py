"""Ports on the host's loopback that lead into the cluster's network."""

import hashlib
import json
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from local.cluster import forward
from local.cluster.namespaces import Part
from local.cluster.pki import write_private

API_SERVER = "kube-apiserver"
FIRST_PORT, PORTS = 20_000, 10_000  # below the range that Linux hands out by itself (32768 and up)


@dataclass(frozen=True)
class Forward:
    """``listen`` on 127.0.0.1 leads to ``address``:``port``. ``namespace`` and ``service`` are empty for the API."""

    name: str
    listen: int
    address: str
    port: int
    namespace: str = ""
    service: str = ""

    def part(self) -> Part:
        script = str(Path(forward.__file__).resolve())
        return Part(part_name(self.name), (sys.executable, "-I", script, self.address, str(self.port)))


def part_name(name: str) -> str:
    return f"forward-{name}"


class Forwards:
    """The record of forwards: it keeps ports the same over restarts."""

    def __init__(self, cluster_id: str, record: Path) -> None:
        self._cluster_id = cluster_id
        self._record = record

    def all(self) -> dict[str, Forward]:
        if not self._record.exists():
            return {}
        return {name: Forward(**fields) for name, fields in json.loads(self._record.read_text()).items()}

    def keep(self, entry: Forward) -> None:
        self._write(self.all() | {entry.name: entry})

    def forget(self, name: str) -> None:
        self._write({known: entry for known, entry in self.all().items() if known != name})

    def _write(self, entries: dict[str, Forward]) -> None:
        write_private(self._record, json.dumps({name: asdict(e) for name, e in entries.items()}, indent=1))

    def listener(self, name: str) -> socket.socket:
        """A listening socket on the recorded port, else on one that follows from the names, else on any free one."""
        recorded = self.all().get(name)
        usual = usual_port(self._cluster_id, name)
        for port in (recorded.listen if recorded else usual, usual, 0):
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                listener.close()
                continue
            listener.listen(512)
            return listener
        raise OSError("no free port on 127.0.0.1")


def usual_port(cluster_id: str, name: str) -> int:
    """The same port for the same checkout and name, so that a saved URL outlives `down` and `up`."""
    digest = hashlib.sha256(f"{cluster_id}/{name}".encode()).digest()
    return FIRST_PORT + int.from_bytes(digest[:4], "big") % PORTS
