"""python -m local.toolchain: build what is missing, say what is there."""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from local import images
from local.paths import cache_dir
from local.report import PlainReporter, Reporter
from local.toolchain import ALL, CLIENT, ToolchainError, ensure, find


class _Times:
    """Passes everything on and remembers how long each step took."""

    def __init__(self, inner: Reporter) -> None:
        self._inner = inner
        self.steps: list[tuple[str, float]] = []

    def step(self, text: str) -> None:
        self._inner.step(text)

    def done(self, text: str, seconds: float) -> None:
        self.steps.append((text, seconds))
        self._inner.done(text, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m local.toolchain", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build or fetch whatever is missing, images included")
    build.add_argument(
        "names", nargs="*", metavar="PROGRAM", help="only these programs (default: what this user can run)"
    )
    build.add_argument(
        "--cold",
        action="store_true",
        help="measure: build with empty caches in a temporary folder, print the time of each step, remove the folder",
    )
    commands.add_parser("check", help="say where each program is; exit code 1 if one is missing")
    commands.add_parser("list", help="say what the cache holds and how large it is")
    arguments = parser.parse_args()
    try:
        match arguments.command:
            case "build":
                return _build(tuple(arguments.names), arguments.cold)
            case "check":
                return _check()
            case _:
                return _list()
    except ToolchainError as error:
        for line in error.tail:
            print(f"  | {line}", file=sys.stderr)
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the next build goes on from here", file=sys.stderr)
        return 130


def _build(names: tuple[str, ...], cold: bool) -> int:
    times = _Times(PlainReporter())
    started = time.monotonic()
    if cold:
        with _empty_caches():
            _everything(names, times)
            _print_sizes()
    else:
        _everything(names, times)
    total = time.monotonic() - started
    if cold:
        print(f"cold build on {os.cpu_count()} cores, {platform.system()} {platform.machine()}:")
        for text, seconds in times.steps:
            print(f"  {seconds:7.1f} s  {text}")
    print(f"{total:.1f} s in all")
    return 0


def _everything(names: tuple[str, ...], reporter: Reporter) -> None:
    whole = _can_run_cluster()
    ensure(names or (ALL if whole else CLIENT), reporter)
    if names:
        return
    if whole:
        images.ensure(reporter)
    else:
        print("only what a deployment to an existing cluster needs: the embedded cluster runs as root on Linux")


def _can_run_cluster() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0


@contextmanager
def _empty_caches() -> Iterator[None]:
    """Every cache that a fresh machine lacks, empty and below the folder that TMPDIR names, for a while."""
    folder = Path(tempfile.mkdtemp(prefix="embedding-serving-cold-"))
    names = ("EMBEDDING_SERVING_CACHE", "GOCACHE", "GOMODCACHE", "UV_CACHE_DIR")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: os.fspath(folder / name.lower()) for name in names})
    try:
        yield
    finally:
        # Go writes its module cache read-only.
        if shutil.which("go"):
            subprocess.run(["go", "clean", "-modcache"], check=False)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        shutil.rmtree(folder)


def _print_sizes() -> None:
    for name in ("EMBEDDING_SERVING_CACHE", "GOCACHE", "GOMODCACHE"):
        print(f"{name}: {_mib(Path(os.environ[name]))} MiB")


def _check() -> int:
    found = find(ALL if _can_run_cluster() else CLIENT)
    for name, item in found.items():
        print(f"{name:28} {item.origin}: {item.path or 'MISSING, `python -m local.toolchain build` gets it'}")
    return 0 if all(item.path for item in found.values()) else 1


def _list() -> int:
    built = cache_dir() / "built"
    for entry in sorted(built.iterdir()) if built.is_dir() else []:
        print(f"{_mib(entry):6} MiB  {entry.name}")
    print(f"in {cache_dir()}; the folder may be removed at any time when nothing is being built or running")
    return 0


def _mib(folder: Path) -> int:
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink()) // 2**20


if __name__ == "__main__":
    sys.exit(main())
