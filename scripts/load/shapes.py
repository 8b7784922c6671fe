"""How requests arrive."""

import math
from dataclasses import dataclass

from scripts.command import CommandError

#: All latencies are kept, and this many of them take about 60 MB.
MOST_REQUESTS = 2_000_000
#: Each request in flight is an open socket.
MOST_IN_FLIGHT = 4_096
_MOST_SECONDS = 24 * 3600


@dataclass(frozen=True)
class Closed:
    """``clients`` that each send the next request when the last one is answered, for ``seconds`` or for ``requests``.

    A slow server gets fewer requests, so this measures how much it can do, and not how long callers wait who arrive
    on their own. Raises CommandError for what cannot be run.
    """

    clients: int
    seconds: float | None = None
    requests: int | None = None

    def __post_init__(self) -> None:
        _between("clients", self.clients, 1, MOST_IN_FLIGHT)
        if (self.seconds is None) == (self.requests is None):
            given = "neither" if self.seconds is None else "both"
            raise CommandError(f"a closed load ends after seconds or after requests: got {given}; give one of them")
        if self.seconds is not None:
            _seconds(self.seconds)
        if self.requests is not None:
            _between("requests", self.requests, 1, MOST_REQUESTS)

    def __str__(self) -> str:
        return "1 client" if self.clients == 1 else f"{self.clients} clients"


@dataclass(frozen=True)
class Open:
    """``rate`` requests per second at even distances for ``seconds``, whatever the server does.

    A request that is due while ``max_in_flight`` are unanswered is not sent, and counted as not started. Raises
    CommandError for what cannot be run.
    """

    rate: float
    seconds: float
    max_in_flight: int = 256

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate) and 0 < self.rate <= MOST_REQUESTS):
            raise CommandError(f"rate: got {self.rate:g}; allowed: more than 0 requests per second")
        _seconds(self.seconds)
        _between("max in flight", self.max_in_flight, 1, MOST_IN_FLIGHT)
        if self.rate * self.seconds > MOST_REQUESTS:
            raise CommandError(
                f"{self.rate:g} requests per second for {self.seconds:g} s are {self.rate * self.seconds:,.0f}; "
                f"allowed: {MOST_REQUESTS:,}, because all latencies are kept; give fewer seconds"
            )

    @property
    def due(self) -> int:
        """Requests of the schedule."""
        return max(1, round(self.rate * self.seconds))

    def __str__(self) -> str:
        return f"{self.rate:g} requests/s"


Shape = Closed | Open


def _seconds(value: float) -> None:
    # Not a number is neither above nor below anything.
    if not 0 < value <= _MOST_SECONDS:
        raise CommandError(f"seconds: got {value:g}; allowed: more than 0 and up to {_MOST_SECONDS}")


def _between(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise CommandError(f"{what}: got {value}; allowed: {least} to {most:,}")
