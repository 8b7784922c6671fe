from pathlib import Path

import pytest

from local import toolchain
from local.report import PlainReporter
from tests.promql.synthetic import Promtool


@pytest.fixture(scope="session")
def promtool_program() -> Path:
    return toolchain.ensure(["promtool"], PlainReporter())["promtool"]


@pytest.fixture
def promtool(promtool_program: Path, tmp_path: Path) -> Promtool:
    return Promtool(promtool_program, tmp_path)
