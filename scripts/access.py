"""The way to a cluster: its kubeconfig and kubectl, which knows every way to log in."""

import os
import queue
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from local import toolchain
from scripts.command import CommandError

#: For one answer of the API server, and for a port-forward to stand.
_TIMEOUT = 30
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ->")
_UNREACHABLE = re.compile(r"Unable to connect|was refused|no such host|i/o timeout|deadline exceeded|handshake timeout")
_LOGGED_OUT = re.compile(r"Unauthorized|logged in|getting credentials|executable \S+ (not found|failed)")


class NotFoundError(Exception):
    """The object is not in the cluster."""


class ForbiddenError(CommandError):
    """This user may not read or do it; nothing is known of the rest."""


class ForwardError(Exception):
    """kubectl port-forward does not stand; the message is kubectl's."""


@dataclass(frozen=True)
class Access:
    """None stands for KUBECONFIG or ~/.kube/config, for the current context, and for the kubectl on PATH."""

    kubeconfig: Path | None = None
    context: str | None = None
    kubectl: Path | None = None

    def run(self, *arguments: str) -> str:
        """What kubectl prints on stdout.

        Raises NotFoundError for an object that is not there, and CommandError, one line with the next step, for a
        cluster that cannot be reached or does not let this user in.
        """
        command, environment = self._command(f"--request-timeout={_TIMEOUT}s", *arguments)
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=2 * _TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CommandError(
                f"kubectl {arguments[0]} gave no answer within {2 * _TIMEOUT} s: {self._hint()}"
            ) from None
        if done.returncode == 0:
            return done.stdout
        raise self._error(done.stderr)

    @contextmanager
    def forward(self, namespace: str, target: str, port: int) -> Iterator[str]:
        """URL on loopback that leads to one pod of ``target``, service/NAME or deployment/NAME; ends with the context.

        Raises ForwardError.
        """
        with self.forward_ports(namespace, target, port) as (url,):
            yield url

    @contextmanager
    def forward_ports(self, namespace: str, target: str, *ports: int) -> Iterator[list[str]]:
        """As forward, with a URL for each port of the target, all of the same pod."""
        command, environment = self._command(
            *("port-forward", "--namespace", namespace, "--address", "127.0.0.1", target),
            *(f":{port}" for port in ports),
        )
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True, env=environment
            )
            lines: queue.Queue[str] = queue.Queue()
            # kubectl prints a line per connection: somebody has to read them or it stops when the pipe is full.
            reader = threading.Thread(target=_read, args=(process, lines))
            reader.start()
            try:
                yield [f"http://127.0.0.1:{_port(lines, errors)}" for _ in ports]
            finally:
                process.terminate()
                process.wait()
                reader.join()
                if process.stdout:
                    process.stdout.close()

    def _command(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        kubectl = self.kubectl or shutil.which("kubectl") or toolchain.find(["kubectl"])["kubectl"].path
        if kubectl is None:
            raise CommandError("kubectl is not on PATH: install it, or let make toolchain build it, without root")
        files = self._kubeconfig()
        if not any(Path(file).exists() for file in files.split(os.pathsep)):
            raise CommandError(f"no kubeconfig at {files}: run make up, or set KUBECONFIG to that of your cluster")
        context = ["--context", self.context] if self.context else []
        return [str(kubectl), *context, *arguments], os.environ | {"KUBECONFIG": files}

    def _kubeconfig(self) -> str:
        return str(self.kubeconfig or os.environ.get("KUBECONFIG") or Path("~/.kube/config").expanduser())

    def _hint(self) -> str:
        return (
            f"is the cluster up (make status for the embedded one), and is {self.context or 'the current context'} of "
            f"{self._kubeconfig()} the right one?"
        )

    def _error(self, stderr: str) -> Exception:
        said = [line.strip() for line in stderr.splitlines() if line.strip()]
        line = said[-1].removeprefix("error: ").rstrip("?.") if said else "no message"
        if "(NotFound)" in line or "have a resource type" in line:
            return NotFoundError(line)
        if "(Forbidden)" in line:
            return ForbiddenError(f"{line}: use a user who may read it, or another --context")
        if re.search(r"context .*does not exist|context was not found", line):
            return CommandError(f"{line}: kubectl config get-contexts shows those of {self._kubeconfig()}")
        if _LOGGED_OUT.search(line):
            return CommandError(f"{line}: log in to the cluster again")
        if _UNREACHABLE.search(line):
            return CommandError(f"{line}: {self._hint()}")
        return CommandError(f"{line}: check {self._kubeconfig()} with kubectl config view")


def _read(process: "subprocess.Popen[str]", lines: "queue.Queue[str]") -> None:
    for line in process.stdout or ():
        lines.put(line)
    lines.put("")


def _port(lines: "queue.Queue[str]", errors: IO[bytes]) -> int:
    while True:
        try:
            line = lines.get(timeout=_TIMEOUT)
        except queue.Empty:
            raise ForwardError(f"no port-forward within {_TIMEOUT} s") from None
        if not line:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().splitlines()
            raise ForwardError(said[-1] if said else "kubectl port-forward ended without a message")
        if match := _FORWARDING.match(line):
            return int(match[1])
