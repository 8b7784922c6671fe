"""`make shell` and `make down` around what is there and what is not."""

import os
import platform
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from local import cluster, paths
from scripts import command, deploy, down, embedded, shell

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Commands set those of their own process, which is that of the tests here."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_shell_ends_well_whatever_its_last_line_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "my-shell"
    program.write_text('#!/bin/sh\necho "$MARK"\nexit 7\n')
    program.chmod(0o755)
    monkeypatch.setattr(embedded, "exists", lambda: True)
    monkeypatch.setattr(embedded, "environment", lambda: {"MARK": "of the cluster"})
    monkeypatch.setenv("SHELL", str(program))
    monkeypatch.setattr(sys, "argv", ["shell"])
    assert command.run(shell.main) == 0
    said = capfd.readouterr().out
    assert said.startswith("kubectl and pulumi speak to the embedded cluster")
    assert said.endswith("of the cluster\n")


def test_a_shell_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(embedded, "exists", lambda: True)
    monkeypatch.setattr(embedded, "environment", dict)
    monkeypatch.setenv("SHELL", "/nowhere/zsh")
    monkeypatch.setattr(sys, "argv", ["shell"])
    assert command.run(shell.main) == 1
    assert capsys.readouterr().err == "error: /nowhere/zsh cannot be started: No such file or directory\n"


def test_down_without_a_cluster_says_that_there_was_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    for module in (paths, deploy, embedded):
        monkeypatch.setattr(module, "state_dir", lambda: tmp_path / "state")
    monkeypatch.setattr(cluster, "cluster_id", lambda _checkout: "of-a-test")
    monkeypatch.setattr(sys, "argv", ["down"])
    assert command.run(down.main) == 0
    told = capsys.readouterr()
    assert told.out.startswith("There was no embedded cluster here.\n")
    assert "is gone" not in told.err


def test_a_relative_cache_is_found_from_every_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMBEDDING_SERVING_CACHE", "here")
    assert paths.cache_dir() == tmp_path / "here"
    monkeypatch.delenv("EMBEDDING_SERVING_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "there")
    assert paths.cache_dir() == tmp_path / "there" / "embedding-serving"
