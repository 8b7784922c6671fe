"""What a person sees: tables and progress in a terminal, plain lines in a log."""

import sys
import time
from collections.abc import Iterator, Sequence
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
    """Prints to stdout, aligned; in a terminal with borders and wrapped to its width."""
    console = Console()
    if console.is_terminal:
        rich = RichTable(title=Text(table.title, style="bold"), title_justify="left", show_lines=False)
        for column in table.columns:
            rich.add_column(column, overflow="fold")
        for row in table.rows:
            rich.add_row(*(Text(_text(cell), style=_STYLES.get(_text(cell), "")) for cell in row))
        console.print(rich)
        return
    lines = [table.columns, *(tuple(_text(cell) for cell in row) for row in table.rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.columns))]
    print(f"{table.title}:")
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


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
