"""What a person sees: tables and progress in a terminal, plain lines in a log."""

import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table as RichTable
from rich.text import Text

from local.report import PlainReporter, Reporter


@dataclass(frozen=True)
class Table:
    """Rows under column names. Cells are shown as they are; markup in them has no meaning."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]


#: Columns narrower than this are hard to read as prose.
_PROSE = 16
#: What a table's borders and padding take per column; one more closes the row.
_BORDERS = 3
_INDENT = "  "
_GAP = "   "

#: Words that stand out in a terminal.
_STYLES = {
    "passed": "green",
    "failed": "bold red",
    "not proven": "yellow",
    "running": "green",
    "healthy": "green",
    "not running": "bold red",
}


def show(table: Table) -> None:
    """Prints to stdout, aligned; in a terminal with borders and wrapped at words, so that URLs and names stay whole.

    Where a terminal is too narrow for that, each row becomes lines of ``column: cell``.
    """
    console = Console(highlight=False)
    if console.is_terminal:
        title = Text(table.title, style="bold")
        widths = _widths(table, console.width)
        if widths is None:
            _print_lines(console, [title, *_records(table, console.width)])
            return
        rich = RichTable(title=title, title_justify="left", show_lines=False)
        for column, width in zip(table.columns, widths, strict=True):
            rich.add_column(Text(column), width=width)
        for row in table.rows:
            rich.add_row(*(_styled(_text(cell)) for cell in row))
        console.print(rich)
        return
    lines = [table.columns, *(tuple(_text(cell) for cell in row) for row in table.rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.columns))]
    print(f"{table.title}:")
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def say(text: str) -> None:
    """Prints a sentence to stdout; in a terminal wrapped at words."""
    console = Console(highlight=False)
    if console.is_terminal:
        _print_lines(console, [Text(line) for line in _wrapped(text, console.width)])
    else:
        print(text)


def _widths(table: Table, width: int) -> list[int] | None:
    """Widths of the columns in a table of ``width`` with borders; None: not all longest words and some prose fit."""
    cells = [[column, *(_text(row[at]) for row in table.rows)] for at, column in enumerate(table.columns)]
    longest = [max(map(len, column)) for column in cells]
    words = [max((len(word) for cell in column for word in cell.split()), default=0) for column in cells]
    widths = [max(word, min(whole, _PROSE)) for word, whole in zip(words, longest, strict=True)]
    spare = width - sum(widths) - _BORDERS * len(widths) - 1
    if spare < 0:
        return None
    # Columns that miss little get all of it, the others equal parts of the rest.
    by_lack = sorted(range(len(widths)), key=lambda at: longest[at] - widths[at])
    for done, at in enumerate(by_lack):
        more = min(longest[at] - widths[at], spare // (len(widths) - done))
        widths[at] += more
        spare -= more
    return widths


def _records(table: Table, width: int) -> Iterator[Text]:
    """Each row as its first cell and ``column: cell`` of the others, as many to a line as fit."""
    for first, *others in table.rows:
        line = Text(_text(first), style="bold")
        for column, cell in zip(table.columns[1:], others, strict=True):
            if not (text := _text(cell)):
                continue
            pair = Text.assemble(f"{column}: ", _styled(text))
            if len(line) + len(_GAP) + len(pair) <= width:
                line = Text.assemble(line, _GAP, pair)
                continue
            yield line
            *full, last = _wrapped(pair.plain, width - len(_INDENT)) if len(_INDENT) + len(pair) > width else [pair]
            yield from (Text.assemble(_INDENT, part) for part in full)
            line = Text.assemble(_INDENT, last)
        yield line


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of ``text``, broken at spaces only: a word longer than a line stays whole."""
    return textwrap.wrap(text, width, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)


def _print_lines(console: Console, lines: Iterable[Text]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)


def _styled(text: str) -> Text:
    return Text(text, style=_STYLES.get(text, ""))


def _text(cell: object) -> str:
    match cell:
        case None:
            return "-"
        case bool():
            return "yes" if cell else "no"
        case _:
            return str(cell)


class TerminalReporter:
    """The running step with a spinner and its time, finished steps above it. On stderr, as the plain one is."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._running = _Running()

    def step(self, text: str) -> None:
        """A piece of work begins, or a running one has news."""
        if self._live is None:
            self._running = _Running()
            self._live = Live(self._running, console=self._console, transient=True, refresh_per_second=4)
            self._live.start()
        self._running.text = text

    def done(self, text: str, seconds: float) -> None:
        """A piece of work has ended after ``seconds``."""
        self.close()
        self._console.print(Text.assemble(("  ok  ", "green"), f"{text} ({seconds:.1f} s)"))

    def close(self) -> None:
        """Leaves the terminal to whoever prints next."""
        if self._live is not None:
            self._live.stop()
            self._live = None


class _Running:
    """A step and how long it has been running, drawn anew at every refresh."""

    def __init__(self) -> None:
        self.text = ""
        self._spinner = Spinner("dots")
        self._started = time.monotonic()

    def __rich__(self) -> Spinner:
        self._spinner.update(text=Text(f"{self.text}  {time.monotonic() - self._started:.0f} s"))
        return self._spinner


@contextmanager
def reporter() -> Iterator[Reporter]:
    """The reporter for where stderr goes."""
    if not sys.stderr.isatty():
        yield PlainReporter()
        return
    terminal = TerminalReporter()
    try:
        yield terminal
    finally:
        terminal.close()
