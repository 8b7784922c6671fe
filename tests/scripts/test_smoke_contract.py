"""Where the contract comes from, and every way in which it does not."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from infra.core import contract
from local import toolchain
from local.toolchain import Found
from scripts import command, embedded
from scripts.command import CommandError
from scripts.smoke import __main__ as smoke
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
        (
            json.dumps(replace(planned()[1], version=contract.VERSION + 1).to_dict()),
            f"contract version {contract.VERSION + 1}",
        ),
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


def test_a_machine_without_pulumi_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "find", lambda names: {name: Found(name, None, "missing") for name in names})
    with pytest.raises(CommandError, match=r"pulumi is not on PATH: .*make toolchain"):
        source.from_stack("local", {"PATH": str(tmp_path)})


def test_a_pulumi_of_the_toolchain_serves_where_there_is_none_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pulumi(tmp_path, out=json.dumps(planned()[1].to_dict()))
    built = Found("pulumi", tmp_path / "pulumi", "ours")
    monkeypatch.setattr(toolchain, "find", lambda _names: {"pulumi": built})
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "cat").symlink_to("/bin/cat")
    assert source.from_stack("local", {"PATH": str(tmp_path / "without")}) == planned()[1]


def test_the_stack_of_the_embedded_cluster_without_one_names_make_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(embedded, "exists", lambda: False)
    monkeypatch.setattr(sys, "argv", ["smoke"])
    assert command.run(smoke.main) == 1
    assert capsys.readouterr().err.startswith("error: there is no embedded cluster: make up ")
