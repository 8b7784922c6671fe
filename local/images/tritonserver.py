"""The layers of the Triton image: the real tritonserver for the CPU, out of a wheel that bundles it.

What differs from NVIDIA's image: no GPU, no backend but Python's, no clients, samples and tools. Paths, ports, entry
point and arguments are the same.

Stripped: the wheel's Python package, stubs of other Python versions, the library of Python 3.13, the response cache; of
onnxruntime the library for C programs and the tools, of numpy its tests.

An entry of the cache holds tree/ (to start the server in a test without a container runtime) and layer.tar.
"""

import os
import shutil
from pathlib import Path

from local.images import base
from local.images.engine import PACKAGES, install_locked
from local.images.oci import write_layer
from local.report import Reporter
from local.toolchain import ToolchainError
from local.toolchain.cache import Entry, content_key
from local.toolchain.debian import DebianFiles

_HERE = Path(__file__).parent

SERVER_LOCK = _HERE / "triton-server-requirements.lock"
PACKAGES_LOCK = _HERE / "triton-packages-requirements.lock"
TOKENIZER_LOCK = _HERE / "tokenizer-requirements.lock"

#: Where NVIDIA's image has it.
SERVER = "/opt/tritonserver"
LIBRARIES = f"{SERVER}/lib"
ENTRYPOINT = "/opt/nvidia/nvidia_entrypoint.sh"

ENVIRONMENT = {
    "PATH": f"{SERVER}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LD_LIBRARY_PATH": LIBRARIES,
}

_ENTRYPOINT_SCRIPT = """\
#!/bin/sh
echo "tritonserver 2.51 (24.10), built here: no GPU, Python backend only"
exec "$@"
"""

#: What the wheel asks for; the suites with one of _PYTHONS have it, but for Debian 11 and Ubuntu 20.04.
_SYSTEM = "manylinux_2_35"

#: Python versions that the wheel has a stub for (the process that runs a Python model), and numpy 1 is published for.
_PYTHONS = ("3.9", "3.10", "3.11", "3.12")

#: Parts of onnxruntime that sessions do not need: the library for C programs, and tools.
_NOT_FOR_SESSIONS = ("capi/libonnxruntime.so*", "datasets", "quantization", "tools", "transformers")


def server_layer(reporter: Reporter) -> Path:
    """Entry with the server, its Python backend and libraries (117 MB)."""
    entry = Entry("image-triton-server", content_key([SERVER_LOCK.read_bytes(), base.entry().key, _own_source()]))

    def produce(work: Path, out: Path) -> None:
        python = base.python_version(base.build(reporter) / "rootfs")
        if python not in _PYTHONS:
            raise ToolchainError(
                f"Triton's Python backend 24.10 does not work with Python {python} of this system's suite, only with "
                f"{_PYTHONS[0]} to {_PYTHONS[-1]}; make the image on a machine with such a suite"
            )
        wheel = work / "wheel"
        # The wheel holds programs for all versions; the number only has to fit its metadata.
        install_locked(SERVER_LOCK, wheel, "3.11", entry.log, system=_SYSTEM)
        _arrange(wheel, out / "tree", python)
        _add_libpython(out / "tree", python, reporter)
        write_layer(out / "tree", out / "layer.tar", owner=0)

    return entry.obtain(reporter, produce, "image: tritonserver")


def packages_layer(reporter: Reporter) -> Path:
    """Entry with numpy and onnxruntime for the base's Python (95 MB).

    A `.pth` file names their folder: Triton's Python processes ignore PYTHONPATH.
    """
    entry = Entry("image-triton-packages", content_key([PACKAGES_LOCK.read_bytes(), base.entry().key, _own_source()]))

    def produce(_work: Path, out: Path) -> None:
        root = base.build(reporter) / "rootfs"
        python = base.python_version(root)
        content = out / "tree" / base.MOUNT_POINT
        packages = content / Path(PACKAGES).name
        install_locked(PACKAGES_LOCK, packages, python, entry.log)
        for pattern in _NOT_FOR_SESSIONS:
            for path in list((packages / "onnxruntime").glob(pattern)):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for tests in list(packages.glob("numpy/**/tests")):
            shutil.rmtree(tests)
        base.compile_python(root, log=entry.log, mounted=content)
        site = out / "tree" / f"usr/local/lib/python{python}/dist-packages"
        site.mkdir(parents=True)
        (site / "triton.pth").write_text(f"{PACKAGES}\n")
        write_layer(out / "tree", out / "layer.tar", owner=0)

    return entry.obtain(reporter, produce, "image: Python packages of Triton's models")


def tokenizer_packages(reporter: Reporter) -> Path:
    """Folder with the package `tokenizers`, which a model repository brings along (12 MB)."""
    entry = Entry("triton-tokenizers", content_key([TOKENIZER_LOCK.read_bytes(), _own_source()]))

    def produce(_work: Path, out: Path) -> None:
        install_locked(TOKENIZER_LOCK, out, "3.10", entry.log)

    return entry.obtain(reporter, produce, "model repository: tokenizers")


def _arrange(wheel: Path, tree: Path, python: str) -> None:
    """Put the wheel's files where NVIDIA's image has them."""
    bundled = wheel / "pytriton" / "tritonserver"
    server = tree / SERVER.lstrip("/")
    backend = server / "backends" / "python"
    shutil.copytree(bundled / "bin", server / "bin")
    shutil.copytree(bundled / "backends" / "python", backend)
    shutil.copy(bundled / "python_backend_stubs" / python / "triton_python_backend_stub", backend)
    # The library of Python 3.13, 32 MB, is for the stub of that version only.
    shutil.copytree(wheel / "nvidia_pytriton.libs", server / "lib", ignore=shutil.ignore_patterns("libpython3*"))
    entrypoint = tree / ENTRYPOINT.lstrip("/")
    entrypoint.parent.mkdir(parents=True)
    entrypoint.write_text(_ENTRYPOINT_SCRIPT)
    # Installing from a wheel loses these modes.
    for program in (server / "bin" / "tritonserver", backend / "triton_python_backend_stub", entrypoint):
        program.chmod(0o755)


def _add_libpython(tree: Path, python: str, reporter: Reporter) -> None:
    """Debian's Python has its library in a package of its own."""
    library = f"libpython{python}.so.1.0"
    package = DebianFiles(f"libpython{python}", {library: f"usr/lib/{os.uname().machine}-linux-gnu/{library}"})
    package.build(reporter)
    shutil.copy(package.path(library), tree / LIBRARIES.lstrip("/") / library)


def _own_source() -> bytes:
    """How the layers are made is part of their content."""
    return Path(__file__).read_bytes()
