"""Tables and progress, for terminals and for logs."""

import sys

import pytest

from scripts import console
from scripts.console import Table

pytestmark = pytest.mark.core

TABLE = Table("Title", ("name", "value"), [("one", None), ("second", True), ("[bold]x[/bold]", 3)])


def test_a_log_gets_aligned_lines_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    console.show(TABLE)
    assert capsys.readouterr().out == (
        "Title:\n  name            value\n  one             -\n  second          yes\n  [bold]x[/bold]  3\n"
    )


def test_a_terminal_gets_a_table_with_cells_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    console.show(TABLE)
    drawn = capsys.readouterr().out
    assert "│ second" in drawn
    assert "[bold]x[/bold]" in drawn


def test_a_log_gets_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    with console.reporter() as reporter:
        reporter.step("building x")
        reporter.done("building x", 1.25)
    assert capsys.readouterr().err == "  ... building x\n  ok  building x (1.2 s)\n"


def test_a_terminal_keeps_finished_steps_and_shows_the_cursor_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with console.reporter() as reporter:
        reporter.step("[1/2] building x")
        reporter.done("[1/2] building x", 1.25)
        reporter.step("[2/2] building y")
    drawn = capsys.readouterr().err
    assert "[1/2] building x (1.2 s)" in drawn
    assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h") == 2, "each hidden cursor is shown again"
