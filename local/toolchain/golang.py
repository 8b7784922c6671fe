"""Programs built from pinned Go modules.

The folders in go/ hold go.mod and go.sum; everything is built from a copy of them, so that the checkout may be
read-only and stays clean. Go's own build cache is used as it is: an interrupted build goes on where it stopped.
"""

import functools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from local.report import Reporter
from local.toolchain.cache import Entry, content_key, folder_parts
from local.toolchain.errors import ToolchainError
from local.toolchain.process import run_logged

MODULES = Path(__file__).parent / "go"

#: No paths of this machine in the programs, and no version control stamp: the same sources give the same program.
_GOFLAGS = "-trimpath -buildvcs=false"

_SERVER = "the Go module proxy"

_GOARCH = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True)
class GoProgram:
    """A program compiled from a package of a module folder.

    ``ldflags`` may name ``{version}`` (``v1.2.3``), ``{major}`` and ``{minor}``: those of ``version_of`` in go.mod,
    or ``version`` where the module's own version is not the one that the program should say.
    """

    name: str
    folder: Path
    package: str
    version_of: str = ""
    version: str = ""
    ldflags: str = ""
    #: Build tags, separated by spaces.
    tags: str = ""
    #: Cold, two cores, in the order of the table: what an earlier one of the same folder compiled is there already.
    usual_seconds: int = 60
    #: Writes files into the copied module folder that are needed to compile; called with it, the environment and a log.
    prepare: Callable[[Path, dict[str, str], Path], None] | None = None

    @property
    def pinned(self) -> str:
        """Version without ``v``, or "" for a program of this project."""
        return (self.version or required_version(self.folder, self.version_of)).removeprefix("v")

    def entry(self) -> Entry:
        prepare = getattr(self.prepare, "__name__", "")
        return _entry(self.name, self.folder, self.package, self._ldflags(), prepare, *self._tags())

    def path(self) -> Path:
        return self.entry().path / self.name

    def build(self, reporter: Reporter) -> None:
        """Compile it unless it is there. Raises ToolchainError."""
        entry = self.entry()

        def produce(work: Path, out: Path) -> None:
            source = _copy_module(self.folder, work)
            env = go_environment(source)
            if self.prepare:
                self.prepare(source, env, entry.log)
            flags = ["-ldflags", self._ldflags(), *self._tags()]
            argv = ["go", "build", *flags, "-o", os.fspath(out / self.name), self.package]
            run_logged(argv, what=f"building {self.name}", log=entry.log, server=_SERVER, cwd=source, env=env)

        entry.obtain(reporter, produce)

    def _tags(self) -> list[str]:
        return ["-tags", self.tags] if self.tags else []

    def _ldflags(self) -> str:
        version = self.pinned
        major, minor = ([*version.split("."), "", ""])[:2]
        return f"-s -w {self.ldflags}".strip().format(version=version, major=major, minor=minor)


@dataclass(frozen=True)
class GoModuleFile:
    """A script that lies in a Go module and is used as it is."""

    name: str
    folder: Path
    module: str
    file: str
    usual_seconds: int = 5

    @property
    def pinned(self) -> str:
        return required_version(self.folder, self.module).removeprefix("v")

    def entry(self) -> Entry:
        return _entry(self.name, self.folder, self.module, self.file)

    def path(self) -> Path:
        return self.entry().path / self.name

    def build(self, reporter: Reporter) -> None:
        """Copy it out of the module unless it is there. Raises ToolchainError."""
        entry = self.entry()

        def produce(work: Path, out: Path) -> None:
            source = _copy_module(self.folder, work)
            target = out / self.name
            shutil.copyfile(module_dir(self.module, source, go_environment(source), entry.log) / self.file, target)
            target.chmod(0o755)

        entry.obtain(reporter, produce)


def required_version(folder: Path, module: str) -> str:
    """Version of ``module`` in a folder's go.mod, with its ``v``; "" if no module is asked for."""
    if not module:
        return ""
    found = re.search(rf"^(?:require )?\s*{re.escape(module)} (v\S+)", (folder / "go.mod").read_text(), re.MULTILINE)
    if not found:
        raise ToolchainError(f"{folder / 'go.mod'}: no require line for {module}")
    return found[1]


def module_dir(module: str, source: Path, env: dict[str, str], log: Path) -> Path:
    """Where Go keeps the pinned version of ``module``, downloaded if necessary and checked against go.sum."""
    answer = source.parent / "download.json"
    run_logged(
        # The shell separates the answer from the messages, which belong in the log.
        ["sh", "-c", 'exec go mod download -json "$1" >"$2"', "sh", module, answer],
        what=f"fetching the Go module {module}",
        log=log,
        server=_SERVER,
        cwd=source,
        env=env,
    )
    return Path(json.loads(answer.read_text())["Dir"])


def go_environment(source: Path) -> dict[str, str]:
    """The user's environment (proxy settings and caches included) with what decides about the result fixed.

    ``source`` is a folder with go.mod. Raises ToolchainError, in one line, if Go is missing or too old for it.
    """
    goos, goarch = target()
    env = os.environ | {
        "CGO_ENABLED": "0",
        "GOFLAGS": _GOFLAGS,
        "GOOS": goos,
        "GOARCH": goarch,
        "GOWORK": "off",
    }
    needed = re.search(r"^go (\S+)", (source / "go.mod").read_text(), re.MULTILINE)
    wanted = f"Go {needed[1]} or newer" if needed else "Go"
    if not shutil.which("go"):
        raise ToolchainError(f"{wanted} is needed and `go` is not on PATH; install it from https://go.dev/dl/")
    # Reads go.mod and nothing else; fails if that asks for a newer Go than there is and than may be fetched.
    probe = subprocess.run(["go", "list", "-m"], cwd=source, env=env, capture_output=True, text=True, check=False)
    if probe.returncode:
        reason = " ".join(probe.stderr.split())
        raise ToolchainError(f"{wanted} is needed; install it from https://go.dev/dl/ ({reason})")
    return env


def target() -> tuple[str, str]:
    """GOOS and GOARCH of this machine."""
    machine = platform.machine().lower()
    if machine not in _GOARCH:
        raise ToolchainError(f"processor {machine!r} is not supported; supported are amd64 and arm64")
    return ("darwin" if sys.platform == "darwin" else "linux"), _GOARCH[machine]


def go_version() -> str:
    """Version of the installed Go, ``go1.26.8``, or "" without one.

    Read from the VERSION file of its installation, because starting `go` costs more than all of a warm check; asked of
    `go` itself where it is a wrapper.
    """
    found = shutil.which("go")
    return _go_version(found) if found else ""


@functools.cache
def _go_version(go: str) -> str:
    stamp = Path(go).resolve().parent.parent / "VERSION"
    if stamp.is_file() and (words := stamp.read_text().split()) and words[0].startswith("go"):
        return words[0]
    return subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout.strip()


def _entry(name: str, folder: Path, *settings: str) -> Entry:
    sources = content_key([*folder_parts(folder, skip=("generated",)), _GOFLAGS, *target(), *settings])
    if not (version := go_version()):
        # Without Go (sudo's PATH often lacks it) whatever an earlier one built from these sources will do.
        built = sorted(Entry(name, sources).path.parent.glob(f"{name}-{sources}-go*"), key=lambda p: p.stat().st_mtime)
        version = built[-1].name.rpartition("-")[2] if built else "go"
    return Entry(name, f"{sources}-{version}")


def _copy_module(folder: Path, work: Path) -> Path:
    source = work / "source"
    shutil.copytree(folder, source, ignore=shutil.ignore_patterns("generated"))
    source.chmod(0o755)  # the copy of a read-only checkout has to be writable
    return source
