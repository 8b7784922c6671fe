"""Tables and progress, for terminals and for logs."""

import re
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


#: A row as `make up` and `make plan` print it: names and a URL that nobody can use in two pieces.
_URL = "http://127.0.0.1:30080/v1/embeddings"
_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
_WIDE = Table(
    "What runs",
    ("workload", "stand-in", "model", "status", "URL", "why"),
    [("embed", True, _MODEL, "passed", _URL, "a reason of several words that goes on over the end of a line " * 2)],
)


def _drawn(table: Table, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    console.show(table)
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()


@pytest.mark.parametrize("width", [50, 80, 120, 160, 200, 300])
def test_a_terminal_of_any_width_gets_urls_and_names_in_one_piece(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = _drawn(_WIDE, width, monkeypatch, capsys)
    assert max(map(len, lines)) <= width
    for whole in (_URL, _MODEL, "several"):
        assert any(whole in line for line in lines), whole


def test_a_table_too_wide_for_the_terminal_becomes_lines_of_column_and_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _drawn(_WIDE, 80, monkeypatch, capsys) == [
        "What runs",
        f"embed   stand-in: yes   model: {_MODEL}",
        f"  status: passed   URL: {_URL}",
        "  why: a reason of several words that goes on over the end of a line a reason of",
        "    several words that goes on over the end of a line",
    ]
    assert "│" in _drawn(_WIDE, 160, monkeypatch, capsys)[-2]


def test_a_word_longer_than_the_line_is_left_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"    {_MODEL}" in _drawn(_WIDE, 30, monkeypatch, capsys)


def test_a_sentence_is_wrapped_at_words_in_a_terminal_and_left_whole_in_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = f"recommended: a server for {_MODEL} that answers at {_URL}"
    console.say(sentence)
    assert capsys.readouterr().out == f"{sentence}\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    console.say(sentence)
    assert capsys.readouterr().out == (f"recommended: a server for {_MODEL} that answers at\n  {_URL}\n")


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
