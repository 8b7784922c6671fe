"""Running other programs with their output in a log file."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from local.toolchain.errors import ToolchainError

#: What Go, apt, debootstrap and uv write when a server does not answer, as opposed to answering "no".
_NO_ANSWER = re.compile(
    r"dial tcp|no such host|i/o timeout|connection refused|TLS handshake timeout|proxyconnect|"
    r"Temporary failure resolving|Could not connect|Could not resolve|Connection timed out|"
    r"50[234] (Bad Gateway|Service|Gateway)|dns error|error sending request|unable to resolve host",
    re.IGNORECASE,
)

_TAIL_LINES = 8


def run_logged(
    argv: Sequence[str | os.PathLike[str]],
    *,
    what: str,
    log: Path,
    server: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run ``argv`` and append its output to ``log``.

    ``what`` says what is being done ("building etcd"), ``server`` what it downloads from ("the Go module proxy"), both
    for the error. Raises ToolchainError when it fails, with the last lines and the log's path.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        start = sink.tell()
        result = subprocess.run(
            [os.fspath(a) for a in argv],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if result.returncode == 0:
        return
    with log.open("rb") as source:
        source.seek(start)
        lines = source.read().decode(errors="replace").strip().splitlines()
    tail = tuple(lines[-_TAIL_LINES:])
    if any(_NO_ANSWER.search(line) for line in lines):
        raise ToolchainError(
            f"{what}: {server} did not answer; check the network, then run again. Log: {log}", tail, log
        )
    raise ToolchainError(f"{what} failed with exit code {result.returncode}. Log: {log}", tail, log)
