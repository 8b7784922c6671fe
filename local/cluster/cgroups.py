"""The cgroup directories that pods of one cluster leave behind."""

import time
from collections.abc import Iterator
from pathlib import Path

from local.cluster.errors import ClusterError

POD_CONTROLLERS = ("cpu", "cpuset", "hugetlb", "io", "memory", "pids")
REMOVAL_TIMEOUT = 15.0  # seconds; a cgroup stays busy until the kernel has let go of its last process


def roots(mountinfo: str) -> list[Path]:
    """Mount points of cgroup hierarchies, v1 and v2, from the text of /proc/self/mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] in ("cgroup", "cgroup2"):
            found.append(Path(before.split()[4]))
    return found


def create(name: str) -> None:
    """Make the cgroup ``/name`` in every hierarchy; the kubelet refuses a root that is not there.

    On v2 the controllers that pods need are handed down from the root, where systemd may have left some out.
    """
    for root in roots(Path("/proc/self/mountinfo").read_text()):
        (root / name).mkdir(exist_ok=True)
        for directory in (root, root / name):
            offered = directory / "cgroup.controllers"
            if not offered.exists():
                continue  # v1
            handed_down = (directory / "cgroup.subtree_control").read_text().split()
            for controller in offered.read_text().split():
                if controller in POD_CONTROLLERS and controller not in handed_down:
                    (directory / "cgroup.subtree_control").write_text(f"+{controller}")


def existing(name: str) -> list[Path]:
    """The directories of the cgroup ``/name`` in every hierarchy that has it."""
    mountinfo = Path("/proc/self/mountinfo").read_text()
    return [root / name for root in roots(mountinfo) if (root / name).is_dir()]


def remove(name: str) -> None:
    """Remove the cgroup ``/name`` and all below it. Raises ClusterError when something in it still runs."""
    deadline = time.monotonic() + REMOVAL_TIMEOUT
    for top in existing(name):
        while top.is_dir():
            try:
                for directory in _bottom_up(top):
                    directory.rmdir()
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ClusterError(f"{error.filename} cannot be removed: {error.strerror}") from error
                time.sleep(0.05)


def _bottom_up(top: Path) -> Iterator[Path]:
    for child in top.iterdir():
        if child.is_dir():
            yield from _bottom_up(child)
    yield top
