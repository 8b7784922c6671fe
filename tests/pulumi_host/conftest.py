import os
from collections.abc import Callable
from pathlib import Path

import pytest

from local import toolchain
from local.pulumi_host.server import EXECUTOR
from tests.pulumi_host.cli import Pulumi


@pytest.fixture(scope="session")
def bin_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the real CLI: EMBEDDING_SERVING_TOOLCHAIN_BIN, or links to what the toolchain has built."""
    if chosen := os.environ.get("EMBEDDING_SERVING_TOOLCHAIN_BIN"):
        return Path(chosen)
    found = toolchain.find(["pulumi", EXECUTOR])
    if host := found.get("pulumi-language-python"):
        pytest.skip(f"the official CLI runs its own language host: {host.path}")
    directory = tmp_path_factory.mktemp("bin")
    for name, item in found.items():
        if item.path is None:
            pytest.fail(f"{name} is not built yet: run `make toolchain`", pytrace=False)
        (directory / name).symlink_to(item.path)
    return directory


@pytest.fixture
def pulumi(bin_dir: Path, tmp_path: Path) -> Callable[[str], Pulumi]:
    """Makes the CLI for one of the programs, with an empty stack `test`."""
    return lambda program: Pulumi.on(program, bin_dir, tmp_path)
