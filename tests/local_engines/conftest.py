"""Model directories and the recorded server configurations."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from local.engines import weights
from tests.local_engines import model_files
from tests.local_engines.engine import Engine


@pytest.fixture(scope="session")
def weights_directory() -> Path:
    """What STAND_IN_MODELS names: the parent of the real MiniLM files."""
    return weights.models_directory()


@pytest.fixture(scope="session")
def models(weights_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of the recordings; servers run in this directory, so that `--model-id` is the relative path it was."""
    directory = tmp_path_factory.mktemp("models")
    model_files.build(directory, weights_directory / weights.MODEL_DIRECTORY)
    return directory


@pytest.fixture(scope="session")
def small_models(models: Path, weights_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `models`, but with small random weights for MiniLM."""
    directory = tmp_path_factory.mktemp("small-models")
    for path in models.iterdir():
        if path.name != "all-minilm-l6-v2":
            (directory / path.name).symlink_to(path)
    model_files.build_small_minilm(directory, weights_directory / weights.MODEL_DIRECTORY)
    return directory


@pytest.fixture(scope="module")
def minilm(models: Path) -> Iterator[Engine]:
    with Engine(["--model-id", "all-minilm-l6-v2", "--dtype", "float32"], models) as engine:
        yield engine.wait_until_ready()


@pytest.fixture(scope="module")
def slow(models: Path) -> Iterator[Engine]:
    with Engine(["--model-id", "embed-slow", "--dtype", "float32"], models) as engine:
        yield engine.wait_until_ready()
