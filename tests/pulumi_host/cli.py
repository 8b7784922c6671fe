"""The real Pulumi CLI on a copy of the test programs, on a backend of its own."""

import json
import os
import select
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local.pulumi_host import environment

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_SECONDS = 120
"""When a wait counts as a hang. No test passes because of it."""


@dataclass(frozen=True)
class Result:
    """How one command ended; `output` is stdout and stderr together, as a user sees them."""

    code: int
    stdout: str
    output: str


@dataclass(frozen=True)
class Pulumi:
    """`pulumi` in the directory of one program; stack `test`."""

    project: Path
    variables: dict[str, str]

    @classmethod
    def on(cls, program: str, bin_dir: Path, directory: Path) -> "Pulumi":
        programs = directory / "programs"
        shutil.copytree(PROGRAMS, programs, ignore=shutil.ignore_patterns("__pycache__"))
        pulumi = cls(programs / program, environment(bin_dir, directory / "state"))
        pulumi("stack", "init", "test")
        return pulumi

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["pulumi", *arguments, "--non-interactive", "--color", "never"],
            cwd=self.project,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, process: subprocess.Popen[str]) -> Result:
        try:
            stdout, stderr = process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return Result(process.returncode, stdout, stdout + stderr)

    def attempt(self, *arguments: str) -> Result:
        return self.finish(self.start(*arguments))

    def __call__(self, *arguments: str) -> Result:
        result = self.attempt(*arguments)
        assert result.code == 0, f"pulumi {' '.join(arguments)} ended with {result.code}:\n{result.output}"
        return result

    def up(self) -> Result:
        return self("up", "--yes", "--skip-preview")

    def outputs(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("stack", "output", "--json", *arguments).stdout)
        return found

    def set(self, key: str, value: str) -> None:
        self("config", "set", "--path", key, value)

    def files(self) -> dict[Path, str]:
        """The text of everything that the backend and PULUMI_HOME hold."""
        state = Path(self.variables["PULUMI_HOME"]).parent
        found = (path for path in state.rglob("*") if path.is_file() and not path.is_symlink())
        return {path: path.read_text(errors="replace") for path in found}

    def locks(self) -> list[Path]:
        return [path for path in self.files() if "locks" in path.parts]

    def processes(self) -> dict[int, str]:
        """Pid and command line of everything that was started with this backend and is alive."""
        marker = f"PULUMI_HOME={self.variables['PULUMI_HOME']}".encode()
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if marker in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found


class Gate:
    """A named pipe on which a program announces that it waits; end of file says that the program is gone."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def read(self) -> bytes:
        """The next announcement, or b"" once the last writer is gone."""
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        assert poll.poll(PATIENCE_SECONDS * 1000), "nobody came to the gate"
        return os.read(self._file, 4096)


def wait_for_exit(handle: int) -> None:
    """Block until the process of a pidfd has ended, and close the pidfd."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    ended = poll.poll(PATIENCE_SECONDS * 1000)
    os.close(handle)
    assert ended, "a process did not end"
