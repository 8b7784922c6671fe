"""The pid, mount, network, ipc and uts namespaces that hold one embedded cluster, and the processes in them.

The process table is the only record: the cluster's init carries a marker with the cluster's id in its command line,
and every part carries its name in its environment. Nothing written to disk has to be true for a crash to be handled.
"""

import ctypes
import hashlib
import http.client
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from local.cluster import init
from local.cluster.errors import ClusterError, PartFailedError

CLONE_NEWNET = 0x40000000
INIT_TIMEOUT = 20.0  # seconds until mounts and network are prepared
STOP_TIMEOUT = 30.0  # seconds until every process is gone after init was killed
PART_VARIABLE = "EMBEDDING_SERVING_CLUSTER_PART"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

T = TypeVar("T")

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Process:
    """A process of the cluster, with its pid as the host sees it and its age in seconds."""

    pid: int
    age: float
    part: str
    spec: str
    part_program: str
    program: str


@dataclass(frozen=True)
class Part:
    """One supervised program of the cluster. ``files`` are configuration that needs a restart when it changes."""

    name: str
    command: tuple[str, ...]
    files: tuple[Path, ...] = ()

    def spec(self) -> str:
        """Changes when the command line or a configuration file does."""
        digest = hashlib.sha256("\0".join(self.command).encode())
        for file in self.files:
            digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


def marker(cluster_id: str) -> str:
    """The last argument of the cluster's init: how it is found."""
    return f"embedding-serving-cluster={cluster_id}"


def search_path(programs: Iterable[Path]) -> str:
    """PATH with the directories of ``programs`` before the system's."""
    own = dict.fromkeys(str(program.parent) for program in programs)
    return ":".join([*own, SYSTEM_PATH])


class Namespaces:
    """Finds, makes and ends the namespaces of one cluster, and runs programs in them."""

    def __init__(self, cluster_id: str, state: Path, programs: Mapping[str, Path]) -> None:
        self.cluster_id = cluster_id
        self.state = state
        self.programs = programs
        self.log = state / "logs" / "init.log"

    def program(self, name: str) -> str:
        return str(self.programs.get(name, name))

    def init_pid(self) -> int | None:
        """The host's pid of the cluster's init, or None."""
        wanted = marker(self.cluster_id).encode()
        for entry in _process_directories():
            arguments = _read(entry / "cmdline").split(b"\0")
            if len(arguments) > 2 and arguments[-2] == wanted and _is_namespace_init(entry):
                return int(entry.name)
        return None

    def ready(self, pid: int) -> bool:
        """Whether init has prepared mounts and network."""
        return Path(f"/proc/{pid}/root{init.READY}").exists()

    def start(self) -> int:
        """Make the namespaces and return init's pid.

        Raises:
            PartFailedError: a mount or the network could not be prepared.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [
            *(self.program("unshare"), "--pid", "--mount", "--net", "--ipc", "--uts", "--fork", "--mount-proc"),
            *("--propagation", "slave", sys.executable, "-I", str(Path(init.__file__).resolve())),
            *(str(self.state), marker(self.cluster_id)),
        ]
        with self.log.open("wb") as log:
            outer = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environment(),
            )
        deadline = time.monotonic() + INIT_TIMEOUT
        while time.monotonic() < deadline:
            pid = self.init_pid()
            if pid and self.ready(pid):
                return pid
            if outer.poll() is not None:
                break
            time.sleep(0.05)
        self.stop()
        raise PartFailedError("namespaces", "mounts or network could not be prepared", self.log)

    def stop(self) -> None:
        """End every process of the cluster; the kernel drops mounts, network and interfaces with the last one.

        Raises:
            ClusterError: processes are still there after STOP_TIMEOUT seconds.
        """
        deadline = time.monotonic() + STOP_TIMEOUT
        while pid := self.init_pid():
            os.kill(pid, signal.SIGKILL)
            while Path(f"/proc/{pid}").exists() and not _is_zombie(pid):
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"processes of the cluster still end {STOP_TIMEOUT:.0f} s after SIGKILL (init {pid})"
                    )
                time.sleep(0.05)

    def processes(self) -> list[Process]:
        """Every process in the cluster's pid namespace, containers' own processes excepted."""
        pid = self.init_pid()
        if pid is None:
            return []
        namespace = _link(Path(f"/proc/{pid}/ns/pid"))
        found = []
        for entry in _process_directories():
            if _link(entry / "ns" / "pid") == namespace and (process := _inspect(entry)):
                found.append(process)
        return found

    def parts(self) -> dict[str, Process]:
        """The running parts by name. Children inherit the name: a part is the oldest with it that runs its program."""
        found: dict[str, Process] = {}
        for process in sorted(self.processes(), key=lambda process: process.age):
            if process.part and process.program == process.part_program:
                found[process.part] = process
        return found

    def spawn(self, part: Part, log: Path, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Start a part, detached from this process and its terminal; the returned process ends when the part does."""
        environment = self._environment() | {PART_VARIABLE: f"{part.name}:{part.spec()}:{part.command[0]}"}
        with log.open("ab") as output:
            return subprocess.Popen(
                [*self._enter(), *part.command],
                stdin=stdin,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=environment,
            )

    def end(self, process: Process, grace: float = 10.0) -> None:
        """SIGTERM, then SIGKILL after ``grace`` seconds; returns when the process is gone."""
        for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, STOP_TIMEOUT)):
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                return
            deadline = time.monotonic() + patience
            while time.monotonic() < deadline:
                if not Path(f"/proc/{process.pid}").exists() or _is_zombie(process.pid):
                    return
                time.sleep(0.05)
        raise ClusterError(f"{process.part} (pid {process.pid}) does not end")

    def run(self, *command: str) -> str:
        """Run a program inside and return what it printed.

        Raises:
            ClusterError: it ended with another status than 0.
        """
        done = subprocess.run(
            [*self._enter(), *command], check=False, capture_output=True, text=True, env=self._environment()
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise ClusterError(f"{Path(command[0]).name} ended with status {done.returncode}: {said}")
        return done.stdout

    def interactive(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run a user's command inside, on the user's terminal and in the same directory; returns its exit status."""
        in_place = ["/bin/sh", "-c", 'cd "$0" 2>/dev/null || cd /; exec "$@"', str(Path.cwd()), *command]
        return subprocess.run([*self._enter(), *in_place], check=False, env={**os.environ, **environment}).returncode

    def request(
        self,
        port: int,
        path: str,
        tls: ssl.SSLContext | None = None,
        *,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ) -> tuple[int, bytes]:
        """An HTTP request to a port of the node's loopback: (status, body).

        Raises:
            OSError: nothing answers there, or the cluster is not running.
            http.client.HTTPException: what answers does not speak HTTP.
        """

        def exchange() -> tuple[int, bytes]:
            if tls:
                connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                    "127.0.0.1", port, context=tls, timeout=timeout
                )
            else:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
            try:
                connection.request(method, path, body=body, headers=dict(headers or {}))
                response = connection.getresponse()
                return response.status, response.read()
            finally:
                connection.close()

        return self.in_network(exchange)

    def in_network(self, work: Callable[[], T]) -> T:
        """Do ``work`` with the cluster's network: sockets it opens are in there.

        Raises:
            OSError: the cluster is not running, or from ``work``.
        """
        pid = self.init_pid()
        if pid is None:
            raise ConnectionRefusedError("the cluster is not running")

        def inside() -> T:
            _join_network(pid)
            return work()

        # A namespace belongs to a thread, and this one's ends with it.
        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(inside).result()

    def _enter(self) -> list[str]:
        pid = self.init_pid()
        if pid is None:
            raise ClusterError("the embedded cluster is not running: start it with `make up`")
        kinds = ("--pid", "--mount", "--net", "--ipc", "--uts")
        return [self.program("nsenter"), "--target", str(pid), *kinds, "--"]

    def search_path(self) -> str:
        """PATH with the cluster's own programs first."""
        return search_path(self.programs.values())

    def _environment(self) -> dict[str, str]:
        """What parts get to see: no proxy settings or credentials of the user's shell; temporary files in the state."""
        return {
            "PATH": self.search_path(),
            "HOME": init.STATE_INSIDE,
            "TMPDIR": init.STATE_INSIDE + "/tmp",  # noqa: S108 (in the private /run)
            "LANG": "C.UTF-8",
        }


def _join_network(pid: int) -> None:
    """Move the calling thread into the network namespace of ``pid``."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(descriptor, CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)


def _process_directories() -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _read(file: Path) -> bytes:
    """A file of /proc, empty when the process has gone meanwhile."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _link(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:
        return ""


def _is_namespace_init(entry: Path) -> bool:
    """Whether the process is pid 1 of a namespace below this one."""
    for line in _read(entry / "status").splitlines():
        if line.startswith(b"NSpid:"):
            pids = line.split()[1:]
            return len(pids) > 1 and pids[-1] == b"1"
    return False


def _is_zombie(pid: int) -> bool:
    return _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()[:1] == [b"Z"]


def _inspect(entry: Path) -> Process | None:
    variables = dict(line.split(b"=", 1) for line in _read(entry / "environ").split(b"\0") if b"=" in line)
    fields = _read(entry / "stat").rpartition(b")")[2].split()
    if len(fields) < 20 or fields[0] == b"Z":
        return None
    part, spec, part_program = [*variables.get(PART_VARIABLE.encode(), b"").decode().split(":", 2), "", ""][:3]
    program = _read(entry / "cmdline").split(b"\0")[0].decode(errors="replace")
    started = int(fields[19]) / CLOCK_TICKS  # seconds since boot
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    return Process(int(entry.name), age, part, spec, part_program, program)
