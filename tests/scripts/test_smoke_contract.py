"""Where the contract comes from, and every way in which it does not."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from infra.core import contract
from scripts.command import CommandError
from scripts.smoke import source
from tests.scripts.conftest import planned

pytestmark = pytest.mark.core


def _save(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps(planned()[1].to_dict() | changes))
    return path


def _pulumi(folder: Path, *, out: str = "", err: str = "", code: int = 0) -> dict[str, str]:
    """A program called pulumi that says this and nothing else."""
    (folder / "out").write_text(out)
    (folder / "err").write_text(err)
    program = folder / "pulumi"
    program.write_text(f'#!/bin/sh\necho "$@" > {folder}/args\ncat {folder}/out\ncat {folder}/err >&2\nexit {code}\n')
    program.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def test_a_saved_contract_is_the_one_of_the_plan(tmp_path: Path) -> None:
    assert source.from_file(_save(tmp_path / "contract.json")) == planned()[1]


def test_the_output_of_a_stack_is_read(tmp_path: Path) -> None:
    environment = _pulumi(tmp_path, out=json.dumps(planned()[1].to_dict()))
    assert source.from_stack("local", environment) == planned()[1]
    assert "--stack local" in (tmp_path / "args").read_text()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("{", "no JSON"),
        ('"[secret]"', "pulumi up first"),
        (json.dumps(replace(planned()[1], version=contract.VERSION + 1).to_dict()), "contract version 2"),
        (json.dumps({"version": contract.VERSION}), "pulumi up"),
    ],
)
def test_a_contract_of_no_use_is_one_line_with_the_next_step(tmp_path: Path, content: str | None, says: str) -> None:
    path = tmp_path / "contract.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CommandError, match=says) as caught:
        source.from_file(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("err", "says"),
    [
        ("error: no stack named 'local' found\n", r"knows no stack local here \(stack files: .*local"),
        ("error: current stack does not have output property 'contract'\n", "was not deployed"),
        ("error: PULUMI_ACCESS_TOKEN must be set for login\n", "pulumi login"),
        (
            "warning: old\nerror: the passphrase is wrong\nmore\n",
            "pulumi stack output of local: the passphrase is wrong",
        ),
    ],
)
def test_what_pulumi_refuses_is_one_line_with_the_next_step(tmp_path: Path, err: str, says: str) -> None:
    with pytest.raises(CommandError, match=says) as caught:
        source.from_stack("local", _pulumi(tmp_path, err=err, code=255))
    assert "\n" not in str(caught.value)


def test_a_machine_without_pulumi_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="pulumi is not on PATH"):
        source.from_stack("local", {"PATH": str(tmp_path)})
