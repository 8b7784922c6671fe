"""Files out of Debian packages, and packages of the system.

What the cluster runs itself (containerd, runc, CNI plugins) is unpacked into the cache and never installed: installing
containerd would start a service. The few programs that need their own files in the system (debootstrap, iptables) are
installed. Mirrors come from apt's own configuration.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from local.paths import cache_dir
from local.report import Reporter
from local.toolchain.cache import Entry, content_key
from local.toolchain.errors import ToolchainError
from local.toolchain.process import run_logged

_SERVER = "the package mirror in apt's configuration"

#: The package lists are missing, or older than what the mirror still has.
_STALE_LISTS = re.compile(
    r"Unable to locate|has no installation candidate|No candidate version|404|Can't find a source"
)


@dataclass(frozen=True)
class DebianFiles:
    """Programs taken out of one package. ``files`` maps a program's name to its path in the package.

    The version is the suite's: a suite changes it for security only. The key therefore holds the suite.
    """

    package: str
    files: dict[str, str]
    usual_seconds: int = 5

    def entry(self) -> Entry:
        return Entry(f"deb-{self.package}", content_key([self.package, *sorted(self.files.values()), *suite()]))

    def path(self, program: str) -> Path:
        return self.entry().path / self.files[program]

    def build(self, reporter: Reporter) -> None:
        """Fetch and unpack the package unless it is there. Raises ToolchainError."""
        entry = self.entry()

        def produce(work: Path, out: Path) -> None:
            apt(["download", self.package], what=f"fetching the package {self.package}", log=entry.log, cwd=work)
            (archive,) = work.glob("*.deb")
            what = f"unpacking {archive.name}"
            run_logged(["dpkg-deb", "-x", archive, out], what=what, log=entry.log, server=_SERVER)
            if missing := [f for f in self.files.values() if not (out / f).exists()]:
                raise ToolchainError(f"{archive.name} holds no {missing[0]}; this release of the package is not known")

        entry.obtain(reporter, produce)


def apt(arguments: Sequence[str], *, what: str, log: Path, cwd: Path | None = None) -> None:
    """Run apt-get; where the system's package lists do not do, once more with fresh lists of our own.

    The system's lists stay as they are: refreshing them is the administrator's decision.
    """
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        run_logged(["apt-get", "-q", *arguments], what=what, log=log, server=_SERVER, cwd=cwd, env=env)
    except ToolchainError as error:
        if not any(_STALE_LISTS.search(line) for line in error.tail):
            raise
        lists = cache_dir() / "apt" / "lists"
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        own = ["-o", f"Dir::State::lists={lists}"]
        # A broken third-party source fails an update that brought all that is needed: the retry decides.
        subprocess.run(["apt-get", "-q", *own, "update"], check=False, capture_output=True, env=env)
        run_logged(["apt-get", "-q", *own, *arguments], what=what, log=log, server=_SERVER, cwd=cwd, env=env)


def install(packages: Sequence[str], log: Path) -> None:
    """Install packages into the system. Needs root; raises ToolchainError."""
    arguments = ["install", "-y", "--no-install-recommends", *packages]
    log.unlink(missing_ok=True)
    apt(arguments, what=f"installing {' '.join(packages)}", log=log)


def available() -> bool:
    """Whether this system has Debian's tools."""
    return all(shutil.which(tool) for tool in ("apt-get", "dpkg-deb"))


def suite() -> tuple[str, str, str]:
    """Distribution, release name and processor of this system: ``("debian", "bookworm", "x86_64")``."""
    try:
        release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    except FileNotFoundError:
        release = {}
    distribution, name = (release.get(k, "").strip('"') for k in ("ID", "VERSION_CODENAME"))
    return distribution, name, os.uname().machine


def mirror() -> str:
    """Address from which apt fetches this suite's main component. Raises ToolchainError if there is none."""
    _, name, _ = suite()
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Identifier: Packages"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    for line in targets.splitlines():
        release, component, address = line.split(" ", 2)
        if (release, component) == (name, "main"):
            return address
    raise ToolchainError(f"apt has no source for the main component of {name}; add one, then run again")
