"""How long-running local work tells a person what it is doing."""

import sys
from typing import Protocol


class Reporter(Protocol):
    """One step at a time: ``step`` says what begins, ``done`` that it ended."""

    def step(self, text: str) -> None:
        """A piece of work begins, or a running one has news."""

    def done(self, text: str, seconds: float) -> None:
        """A piece of work has ended after ``seconds``."""


class PlainReporter:
    """Lines on stderr, for logs and CI."""

    def step(self, text: str) -> None:
        print(f"  ... {text}", file=sys.stderr, flush=True)

    def done(self, text: str, seconds: float) -> None:
        print(f"  ok  {text} ({seconds:.1f} s)", file=sys.stderr, flush=True)
