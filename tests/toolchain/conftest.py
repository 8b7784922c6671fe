"""A cache of its own and a tiny Go module for each test."""

import os
import shutil
from pathlib import Path

import pytest

from local.report import PlainReporter, Reporter
from local.toolchain.golang import GoProgram

TINY_MAIN = 'package main\n\nimport "os"\n\nfunc main() { os.Stdout.WriteString("tiny\\n") }\n'


@pytest.fixture
def reporter() -> Reporter:
    return PlainReporter()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("EMBEDDING_SERVING_CACHE", os.fspath(folder))
    return folder


@pytest.fixture
def tiny(tmp_path: Path, cache: Path) -> GoProgram:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "go.mod").write_text("module example.test/tiny\n\ngo 1.21\n")
    (folder / "go.sum").write_text("")
    (folder / "main.go").write_text(TINY_MAIN)
    return GoProgram("tiny", folder, ".")


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of everything else on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def write_script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def need_go() -> str:
    """Path of Go; skips the test without it."""
    return shutil.which("go") or pytest.skip("needs Go on PATH")
