import os
from collections.abc import Callable
from pathlib import Path

import pytest

from local import toolchain
from local.report import PlainReporter
from tests.pulumi_host.cli import Pulumi


@pytest.fixture(scope="session")
def bin_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the real CLI: EMBEDDING_SERVING_TOOLCHAIN_BIN, or links to what the toolchain has or builds."""
    if chosen := os.environ.get("EMBEDDING_SERVING_TOOLCHAIN_BIN"):
        return Path(chosen)
    found = toolchain.ensure(toolchain.CLIENT, PlainReporter())
    if host := found.get("pulumi-language-python"):
        pytest.skip(f"the official CLI runs its own language host: {host}")
    directory = tmp_path_factory.mktemp("bin")
    for name, path in found.items():
        (directory / name).symlink_to(path)
    return directory


@pytest.fixture
def pulumi(bin_dir: Path, tmp_path: Path) -> Callable[[str], Pulumi]:
    """Makes the CLI for one of the programs, with an empty stack `test`."""
    return lambda program: Pulumi.on(program, bin_dir, tmp_path)
