"""The base of the engine images: a small Debian with Python, made by debootstrap.

An entry of the cache holds rootfs/ (to run its Python in while the layers above are made) and layer.tar. Its suite is
the machine's own, because that is what apt's mirror surely has; Python's version follows from it.
"""

import os
import shutil
import subprocess
from pathlib import Path

from local.images.oci import write_layer
from local.report import Reporter
from local.toolchain import ToolchainError, debian, ensure
from local.toolchain.cache import Entry, content_key
from local.toolchain.process import run_logged

_PACKAGES = ("python3", "ca-certificates", "libgomp1")

#: Not needed to run Python, or facts about the machine that built the image (its name, resolver and mirror).
_PRUNED = (
    "etc/apt",
    "etc/hostname",
    "etc/machine-id",
    "etc/resolv.conf",
    "usr/bin/apt*",
    "usr/bin/perl*",
    "usr/lib/*/gconv",
    "usr/lib/*/libapt*",
    "usr/lib/*/perl-base",
    "usr/lib/apt",
    "usr/lib/locale",
    "usr/share/bash-completion",
    "usr/share/doc",
    "usr/share/i18n",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/perl*",
    "usr/share/python3",
    "usr/share/zoneinfo",
    "var/cache/*",
    "var/lib/apt",
    "var/lib/dpkg/info",
    "var/log/*",
    # The runtime mounts these.
    "dev/*",
    "proc/*",
    "run/*",
    "sys/*",
    "tmp/*",
)

#: Where the layers above put everything; a mount point while they are compiled.
MOUNT_POINT = "opt/stand-in"

#: Prefix of a command whose mounts end with it, however it ends.
_OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private", "--")


def entry() -> Entry:
    """The base of this machine. Changing this file or the package list makes another one."""
    return Entry("image-base", content_key([*_PACKAGES, *_PRUNED, *debian.suite(), Path(__file__).read_bytes()]))


def build(reporter: Reporter) -> Path:
    """Make the base unless it is there. Needs root and Debian; raises ToolchainError."""
    base = entry()
    if base.complete:
        return base.path
    if os.geteuid() != 0:
        raise ToolchainError("images are built with debootstrap and chroot, which need root; run as root")
    if not debian.available():
        raise ToolchainError("images are built with debootstrap from apt's mirror, and this is not Debian or Ubuntu")
    debootstrap = ensure(["debootstrap"], reporter)["debootstrap"]
    _, suite, _ = debian.suite()

    def produce(_work: Path, out: Path) -> None:
        root = out / "rootfs"
        include = f"--include={','.join(_PACKAGES)}"
        run_logged(
            [*_OWN_MOUNTS, debootstrap, "--variant=minbase", include, suite, root, debian.mirror()],
            what=f"building the base image from {suite}",
            log=base.log,
            server="the package mirror in apt's configuration",
            env=os.environ | _proxy() | {"LC_ALL": "C"},
        )
        prune(root)
        (root / MOUNT_POINT).mkdir(parents=True)
        (root / "data").mkdir()
        compile_python(root, log=base.log)
        write_layer(root, out / "layer.tar")

    return base.obtain(reporter, produce, f"image: base with Python from {suite}")


def prune(root: Path) -> None:
    """Take away what _PRUNED lists, and byte code, which is compiled again so that it needs no matching times."""
    for pattern in (*_PRUNED, "**/__pycache__"):
        for path in list(root.glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def compile_python(root: Path, *, log: Path, mounted: Path | None = None) -> None:
    """Compile the standard library of a root file system with its own Python, or ``mounted``, at MOUNT_POINT.

    The byte code is not checked against its source: layers have no times, and a container's root is read-only.
    """
    folders = [MOUNT_POINT] if mounted else [str(p.relative_to(root)) for p in sorted(root.glob("usr/lib/python3*"))]
    run_in(
        root,
        # -B: what compileall imports would be written before it, with times, and then be skipped by it.
        [
            "python3",
            "-B",
            "-m",
            "compileall",
            "-q",
            "--invalidation-mode",
            "unchecked-hash",
            *(f"/{f}" for f in folders),
        ],
        what="compiling Python files for the image",
        log=log,
        mounted=mounted,
    )


def run_in(root: Path, argv: list[str], *, what: str, log: Path, mounted: Path | None = None) -> None:
    """Run a program of a root file system in it, with ``mounted`` at MOUNT_POINT. Raises ToolchainError."""
    script = 'if [ -n "$2" ]; then mount --bind "$2" "$1/$3"; fi && root=$1 && shift 3 && exec chroot "$root" "$@"'
    run_logged(
        [*_OWN_MOUNTS, "sh", "-c", script, "sh", root, mounted or "", MOUNT_POINT, *argv],
        what=what,
        log=log,
        server="a server",
        # PYTHONHASHSEED: the order of sets in byte code is part of the layer's bytes.
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"},
    )


def python_version(root: Path) -> str:
    """``3.11`` for a root file system whose /usr/bin/python3 is that."""
    return (root / "usr/bin/python3").readlink().name.removeprefix("python")


def _proxy() -> dict[str, str]:
    """apt's proxy, which debootstrap's downloader knows under another name."""
    found = subprocess.run(
        ["apt-config", "shell", "P", "Acquire::http::Proxy"], capture_output=True, text=True, check=False
    )
    value = found.stdout.strip().removeprefix("P=").strip("'")
    return {"http_proxy": value} if value else {}
