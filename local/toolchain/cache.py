"""The cache of built things: one directory per thing and content key, complete or absent.

built/<name>-<key>/   appears by one rename, so that it is never half written
tmp/<name>-<key>.*    what is being built; left behind by a killed build and removed by the next one
locks/<name>-<key>    held while building; a second build of the same thing waits and then finds it done
logs/<name>-<key>.log
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from local.paths import CHECKOUT, cache_dir
from local.report import Reporter
from local.toolchain.errors import ToolchainError


def content_key(parts: Iterable[str | bytes]) -> str:
    """Hash of a list of texts; the boundaries between them count."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()[:16]


def folder_parts(folder: Path, skip: tuple[str, ...] = ()) -> list[str | bytes]:
    """Paths and contents of all files of a folder in a fixed order, for content_key. ``skip`` names folders."""
    parts: list[str | bytes] = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not set(relative.parts) & set(skip):
            parts += [relative.as_posix(), path.read_bytes()]
    return parts


@dataclass(frozen=True)
class Entry:
    """One thing in the cache: ``name`` for people, ``key`` for its content."""

    name: str
    key: str

    @property
    def path(self) -> Path:
        return cache_dir() / "built" / f"{self.name}-{self.key}"

    @property
    def log(self) -> Path:
        return cache_dir() / "logs" / f"{self.name}-{self.key}.log"

    @property
    def complete(self) -> bool:
        return self.path.is_dir()

    def obtain(
        self, reporter: Reporter, produce: Callable[[Path, Path], None], announce: str = "", keep: int | None = None
    ) -> Path:
        """The entry's directory; ``produce(work, out)`` fills ``out`` if it is absent.

        ``work`` is an empty directory that is removed afterwards. Whatever ends ``produce`` early leaves no entry.
        ``announce`` is reported around it. ``keep`` is how many entries of this name stay, the last used ones: for
        what is made again at every edit.
        """
        if self.complete:
            with contextlib.suppress(PermissionError):  # another user's cache, read but not kept
                os.utime(self.path)
            return self.path
        with self._lock(reporter):
            if self.complete:  # the build that was waited for
                return self.path
            temporary = cache_dir() / "tmp"
            temporary.mkdir(parents=True, exist_ok=True)
            for left_behind in temporary.glob(f"{self.name}-{self.key}.*"):
                remove_tree(left_behind)
            work = Path(tempfile.mkdtemp(prefix=f"{self.name}-{self.key}.", dir=temporary))
            work.chmod(0o755)  # mkdtemp's 0700 would lock out what runs as another user in a root file system below
            try:
                self.log.unlink(missing_ok=True)
                out = work / "out"
                out.mkdir()
                started = time.monotonic()
                if announce:
                    reporter.step(f"{announce}; log: {self.log}")
                produce(work, out)
                self.path.parent.mkdir(parents=True, exist_ok=True)
                out.rename(self.path)
                os.utime(self.path)
                if announce:
                    reporter.done(announce, time.monotonic() - started)
            finally:
                remove_tree(work)
        if keep:
            self._forget_old(keep)
        return self.path

    def _forget_old(self, keep: int) -> None:
        # Another checkout may be doing the same: an entry may be gone at any moment.
        used: dict[Path, float] = {}
        for entry in self.path.parent.glob(f"{self.name}-*"):
            with contextlib.suppress(FileNotFoundError):
                used[entry] = entry.stat().st_mtime
        for old in sorted(used, key=used.__getitem__, reverse=True)[keep:]:
            shutil.rmtree(old, ignore_errors=True)

    @contextlib.contextmanager
    def _lock(self, reporter: Reporter) -> Iterator[None]:
        path = cache_dir() / "locks" / f"{self.name}-{self.key}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
            raise ToolchainError(
                f"cannot write to the cache ({reason}); choose another with EMBEDDING_SERVING_CACHE"
            ) from None
        with path.open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                holder = lock.read().strip() or "another process"
                started = time.monotonic()
                reporter.step(f"{self.name}: waiting for {holder}, which is building the same")
                fcntl.flock(lock, fcntl.LOCK_EX)
                reporter.done(f"{self.name}: waited for {holder}", time.monotonic() - started)
            lock.truncate(0)
            lock.seek(0)
            lock.write(f"process {os.getpid()} of {CHECKOUT}")
            lock.flush()
            yield


def remove_tree(path: Path) -> None:
    """Remove a directory, but never reach through a mount below it (debootstrap's proc, sys and dev).

    Raises ToolchainError if a mount cannot be taken away.
    """
    if not path.exists():
        return
    for mount in reversed(_mounts_below(path)):
        subprocess.run(["umount", mount], check=False, capture_output=True)
    if still := _mounts_below(path):
        raise ToolchainError(f"cannot clean up {path}: {still[0]} is still mounted; unmount it, then run again")
    # What an interrupted program still writes here is removed by the next build.
    shutil.rmtree(path, ignore_errors=True)


def _mounts_below(path: Path) -> list[str]:
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except FileNotFoundError:  # not Linux: nothing here mounts anything
        return []
    points = [line.split()[4] for line in lines]
    return [p for p in points if p.startswith(f"{path.resolve()}/")]
