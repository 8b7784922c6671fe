import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from local.pulumi_host.server import EXECUTOR
from tests.pulumi_host.cli import Pulumi


@pytest.fixture(scope="session")
def bin_dir() -> Path:
    """The directory of the real CLI: EMBEDDING_SERVING_TOOLCHAIN_BIN, or wherever PATH has `pulumi`."""
    if chosen := os.environ.get("EMBEDDING_SERVING_TOOLCHAIN_BIN"):
        directory = Path(chosen)
    elif found := shutil.which("pulumi"):
        directory = Path(found).parent
    else:
        pytest.fail("pulumi is not on PATH: run `make toolchain`", pytrace=False)
    missing = [name for name in ("pulumi", EXECUTOR) if not (directory / name).exists()]
    if missing:
        pytest.fail(f"{directory} lacks {', '.join(missing)}: run `make toolchain`", pytrace=False)
    return directory


@pytest.fixture
def pulumi(bin_dir: Path, tmp_path: Path) -> Callable[[str], Pulumi]:
    """Makes the CLI for one of the programs, with an empty stack `test`."""
    return lambda program: Pulumi.on(program, bin_dir, tmp_path)
