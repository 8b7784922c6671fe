"""The real tritonserver of the image, started without a container runtime: its layers as root, on loopback."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Self

import requests

from local.images import base, names, tritonserver
from local.report import PlainReporter
from local.toolchain import debian
from tests.local_engines.engine import HANG, HOST, free_port

#: A pod's user.
_USER = "10001:10001"

#: $1 lower layers, $2 root to be made, $3 model repository; the rest runs in it. As in a pod: root file system
#: read-only, /tmp and /dev/shm writable.
_IN_ROOT = """
set -e
mount -t overlay overlay -o "ro,lowerdir=$1" "$2"
mount --bind -o ro "$3" "$2/data"
mount --rbind /dev "$2/dev"
mount -t proc proc "$2/proc"
mount -t tmpfs tmpfs "$2/tmp"
root=$2 && shift 3
exec chroot --userspec=USER "$root" "$@"
""".replace("USER", _USER)


class TritonServer:
    """tritonserver with one model repository. Needs root."""

    def __init__(self, repository: Path, work: Path, *arguments: str) -> None:
        self.http, self.grpc, self.metrics = free_port(), free_port(), free_port()
        reporter = PlainReporter()
        layers = [
            tritonserver.packages_layer(reporter) / "tree",
            tritonserver.server_layer(reporter) / "tree",
            base.build(reporter) / "rootfs",
        ]
        root = work / "root"
        root.mkdir()
        self._log = work / "log"
        ports = {"http": self.http, "grpc": self.grpc, "metrics": self.metrics}
        command: list[str | Path] = [
            *("unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _IN_ROOT, "sh"),
            *(":".join(map(str, layers)), root, repository),
            *(tritonserver.ENTRYPOINT, "tritonserver", "--model-repository=/data"),
            *(f"--{name}-port={port}" for name, port in ports.items()),
            *(f"--{name}-address={HOST}" for name in ports),
            *arguments,
        ]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=tritonserver.ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(HANG)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def get(self, path: str, port: int | None = None) -> requests.Response:
        return requests.get(f"http://{HOST}:{port or self.http}/{path}", timeout=HANG)

    def wait_until_ready(self) -> None:
        """Returns when /v2/health/ready answers 200; fails with the log if the process ends before."""
        limit = time.monotonic() + HANG
        while time.monotonic() < limit:
            assert self.process.poll() is None, self.log
            try:
                if self.get("v2/health/ready").status_code == 200:
                    return
            except requests.ConnectionError:
                pass
            time.sleep(0.05)
        raise AssertionError(self.log)

    def wait_for_end(self) -> int:
        return self.process.wait(HANG)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def counter(self, name: str, model: str) -> float:
        """A metric of one model."""
        line = f'{name}{{model="{model}",version="1"}} '
        text = self.get("metrics", self.metrics).text
        return float(next(row for row in text.splitlines() if row.startswith(line)).removeprefix(line))


def usable() -> str:
    """Why the server cannot be started here; empty when it can."""
    if os.geteuid() != 0 or not debian.available():
        return f"{names.TRITON} is built with debootstrap and started with chroot, as root on Debian"
    return ""
