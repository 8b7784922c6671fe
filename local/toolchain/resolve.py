"""From names of programs to paths."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from local.paths import cache_dir, state_dir
from local.report import Reporter
from local.toolchain import debian
from local.toolchain.debian import DebianFiles
from local.toolchain.errors import ToolchainError
from local.toolchain.golang import GoModuleFile, GoProgram, go_environment
from local.toolchain.programs import (
    CNI_FOLDERS,
    CNI_PLUGINS,
    DEBIAN_FILES,
    GO_PROGRAMS,
    SYSTEM_PROGRAMS,
    OnPath,
    on_path_rules,
    search_path,
)

_GO = {p.name: p for p in GO_PROGRAMS}
_DEBIAN = {name: package for package in DEBIAN_FILES for name in package.files}

#: Every name that ensure knows.
ALL: tuple[str, ...] = (*_GO, *_DEBIAN, *SYSTEM_PROGRAMS)

#: What only the tests of rules and manifests run.
JUDGES: tuple[str, ...] = ("promtool", "kube-score")

#: What `make up` needs.
EMBEDDED: tuple[str, ...] = tuple(name for name in ALL if name not in JUDGES)

#: What a machine needs that deploys to somebody else's cluster. Builds on macOS and without root.
CLIENT: tuple[str, ...] = ("kubectl", "pulumi", "pulumi-language-python-exec", "pulumi-resource-kubernetes")

#: MiB that a build leaves in Go's caches and in ours, by folder: estimates whose sum is the 14 GB that Go's two caches
#: held after everything (docs/toolchain.md).
_NEEDED_MIB = {
    "kubernetes": 4500,
    "pulumi": 3500,
    "pulumi-kubernetes": 4500,
    "coredns": 1300,
    "pause": 200,
    "metrics-server": 900,
    "prometheus": 1500,
    "prometheus-operator": 1200,
    "keda": 4000,
    "external-secrets": 1200,
    "kube-score": 300,
}


@dataclass(frozen=True)
class Found:
    """Where a program is, or that it has to be built (``path`` is None). ``origin`` says it to a person."""

    name: str
    path: Path | None
    origin: str


def find(names: Sequence[str]) -> dict[str, Found]:
    """Look for programs without building, installing or downloading anything.

    Starts no process, except that a program on PATH is asked for its version the first time it is seen. Where the
    user's own `pulumi` is found, its language host comes with it as ``pulumi-language-python``.
    Raises ToolchainError for a name that the table does not hold.
    """
    if unknown := [n for n in names if n not in ALL]:
        raise ToolchainError(f"program {unknown[0]!r} is not known; known are {', '.join(ALL)}")
    found: dict[str, Found] = {}
    rules = on_path_rules()
    for name in names:
        rule = next((r for r in rules if name in r.programs), None)
        folder, reason = _own(rule) if rule else (None, "")
        if rule and folder:
            found[name] = Found(name, folder / name, f"yours, {reason}")
            if name == "pulumi":
                host = "pulumi-language-python"
                found[host] = Found(host, folder / host, f"yours, {reason}")
        else:
            found[name] = _ours(name, reason)
    return found


def ensure(names: Sequence[str], reporter: Reporter) -> dict[str, Path]:
    """Paths of programs, after building or installing those that are missing.

    The result has every name asked for, and ``pulumi-language-python`` where the user's own `pulumi` is used (its host
    belongs to it). ``cni-plugins`` is a folder. Raises ToolchainError, before anything is built if what is missing here
    (Go, root, disk space) can be known before.
    """
    found = find(names)
    missing = [n for n in found if found[n].path is None]
    for item in found.values():
        if item.origin.startswith("yours"):
            reporter.done(f"{item.name}: {item.path} ({item.origin})", 0.0)
    if missing:
        _build(missing, reporter)
        found |= find(missing)
    paths = {name: item.path for name, item in found.items() if item.path is not None}
    if lost := set(found) - set(paths):
        raise ToolchainError(f"{', '.join(sorted(lost))}: built, but not found afterwards; is the cache being removed?")
    return paths


def _build(missing: Sequence[str], reporter: Reporter) -> None:
    packages = list(dict.fromkeys(SYSTEM_PROGRAMS[n] for n in missing if n in SYSTEM_PROGRAMS))
    go = [p for p in GO_PROGRAMS if p.name in missing]
    debs = [d for d in DEBIAN_FILES if set(d.files) & set(missing)]
    _check_possible(packages, go, debs)
    steps = len(go) + len(debs) + bool(packages)
    number = 0
    if packages:
        number += 1
        log = cache_dir() / "logs" / "apt-install.log"
        text = f"installing {', '.join(packages)} with apt-get"
        reporter.step(f"[{number}/{steps}] {text}; log: {log}")
        started = time.monotonic()
        debian.install(packages, log)
        reporter.done(f"[{number}/{steps}] {text}", time.monotonic() - started)
    for item in (*debs, *go):
        number += 1
        text = _label(item)
        hint = f"usually {_duration(item.usual_seconds)} cold on 2 cores"
        reporter.step(f"[{number}/{steps}] {text} ({hint}); log: {item.entry().log}")
        started = time.monotonic()
        item.build(reporter)
        reporter.done(f"[{number}/{steps}] {text}", time.monotonic() - started)


def _label(item: GoProgram | GoModuleFile | DebianFiles) -> str:
    if isinstance(item, DebianFiles):
        return f"unpacking {item.package}"
    return f"building {item.name} {item.pinned}".rstrip()


def _duration(seconds: int) -> str:
    return f"{seconds} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _check_possible(
    packages: Sequence[str], go: Sequence[GoProgram | GoModuleFile], debs: Sequence[DebianFiles]
) -> None:
    if packages and not (os.geteuid() == 0 and debian.available()):
        reason = "as root" if debian.available() else "with this system's package manager"
        raise ToolchainError(f"install {', '.join(packages)} {reason}, then run again")
    if debs and not debian.available():
        programs = [n for d in debs for n in d.files]
        raise ToolchainError(
            f"{', '.join(programs)}: not on PATH in a sufficient version, and this is not Debian; "
            "install containerd 1.6 or 1.7, runc 1.1 and the CNI plugins, then run again"
        )
    if not go:
        return
    folders = {p.folder for p in go}
    environments = [go_environment(folder) for folder in sorted(folders)]
    needed = sum(_NEEDED_MIB[f.name] for f in folders)
    asked = subprocess.run(
        ["go", "env", "GOCACHE", "GOMODCACHE"], env=environments[0], capture_output=True, text=True, check=False
    )
    # Whatever lies on one file system counts once, and in full: which part goes where is not worth knowing.
    for place in [cache_dir(), *map(Path, asked.stdout.split("\n"))][:3]:
        existing = next(p for p in (place.absolute(), *place.absolute().parents) if p.exists())
        free = shutil.disk_usage(existing).free // 2**20
        if free < needed:
            raise ToolchainError(
                f"building {', '.join(p.name for p in go)} takes up to {needed} MiB below {existing}, {free} MiB are "
                "free; make room, or point EMBEDDING_SERVING_CACHE, GOCACHE and GOMODCACHE elsewhere"
            )


def _ours(name: str, reason: str) -> Found:
    because = f" ({reason})" if reason else ""
    if name in SYSTEM_PROGRAMS:
        own = shutil.which(name, path=f"{_search_path()}{os.pathsep}/usr/sbin{os.pathsep}/sbin")
        return Found(name, Path(own) if own else None, "the system's" if own else f"package {SYSTEM_PROGRAMS[name]}")
    if name == "cni-plugins":
        for folder in map(Path, CNI_FOLDERS):
            if all((folder / plugin).exists() for plugin in CNI_PLUGINS):
                return Found(name, folder, "the system's")
    if name in _DEBIAN:
        deb = _DEBIAN[name]
        return Found(
            name, deb.path(name) if deb.entry().complete else None, f"our copy of package {deb.package}{because}"
        )
    program = _GO[name]
    path = program.path() if program.entry().complete else None
    version = f" of {program.pinned}" if program.pinned else ""
    return Found(name, path, f"our build{version}{because}")


def _own(rule: OnPath) -> tuple[Path | None, str]:
    """Folder of the user's own programs if they are sufficient; and their version, or why they are not."""
    first = shutil.which(rule.programs[0], path=_search_path())
    if not first:
        return None, ""
    folder = Path(first).parent
    version = _version_of(Path(first), rule.arguments)
    text = ".".join(map(str, version)) or "of unknown version"
    if not rule.accepts(version):
        return None, f"{first} {text} is not in the range {_range(rule)}"
    if absent := [p for p in rule.programs if not os.access(folder / p, os.X_OK)]:
        return None, f"{first} has no {absent[0]} beside it"
    return folder, text


def _range(rule: OnPath) -> str:
    return f"{'.'.join(map(str, rule.least))} <= version < {'.'.join(map(str, rule.below))}"


def _search_path() -> str:
    return search_path((cache_dir().absolute(), state_dir()))


def _version_of(program: Path, arguments: tuple[str, ...]) -> tuple[int, ...]:
    """First version number that a program prints; () if it prints none. Remembered until the file changes."""
    memory = cache_dir() / "versions.json"
    try:
        known: dict[str, list[str]] = json.loads(memory.read_text())
    except (OSError, ValueError):
        known = {}
    status = program.stat()  # follows links: an upgrade behind a link counts
    stamp = f"{program.resolve()} {status.st_size} {status.st_mtime_ns}"
    key = os.fspath(program)
    if known.get(key, ["", ""])[0] != stamp:
        try:
            answer = subprocess.run(
                [program, *arguments],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
                env=os.environ | {"PULUMI_SKIP_UPDATE_CHECK": "true"},
            ).stdout
        except (OSError, subprocess.TimeoutExpired):
            answer = ""
        number = re.search(r"(\d+\.\d+(?:\.\d+)?)", answer)
        known[key] = [stamp, number[1] if number else ""]
        with contextlib.suppress(OSError):  # an unusable cache is reported when something has to be built
            memory.parent.mkdir(parents=True, exist_ok=True)
            fresh = memory.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(known, indent=1, sort_keys=True))
            fresh.replace(memory)
    return tuple(int(part) for part in known[key][1].split(".") if part)
