"""What a load measured: every request's times are kept, so percentiles are exact."""

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from scripts.load.shapes import MOST_REQUESTS

#: Points that a picture needs at most; longer runs get longer intervals.
_POINTS = 1_000


class Kind(StrEnum):
    """Ways to fail. Other codes than these two are ``status 422`` and so on."""

    #: 429, TEI's answer when its places are taken.
    OVERLOADED = "overloaded (429)"
    UNAVAILABLE = "unavailable (503)"
    REFUSED = "connection refused"
    #: Other reasons for no connection; here are those of this machine too: ports, file descriptors.
    NOT_CONNECTED = "not connected"
    RESET = "connection reset"
    #: On a connection that had served a request before: the server may have closed it as the request went out.
    RESET_REUSED = "reused connection reset"
    TIMEOUT = "timeout"
    UNEXPECTED = "unexpected answer"

    @staticmethod
    def of_status(status: int) -> str:
        """The kind of an answer that is not 200."""
        return {429: Kind.OVERLOADED, 503: Kind.UNAVAILABLE}.get(status, f"status {status}")


@dataclass(frozen=True)
class Errors:
    """How often one kind of error came, and what the first of them said."""

    count: int
    example: str


@dataclass(frozen=True)
class Percentiles:
    """Milliseconds. Nearest rank, so each is a value that was measured."""

    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True)
class Summary:
    """One shape of the schedule, or all of it.

    ``seconds`` is the window: the shape's own time, without the wait for answers at the end (closed loads of a number
    of requests: until the last answer). ``requests`` were sent. ``not_started`` were due while too many were
    unanswered, ``unfinished`` were given up when the load was interrupted. ``latency_ms`` is of successes, in open
    loads from when the request was due. Rates are of successes that came within the window, whichever shape sent them.
    ``start_lag_ms`` (open loads) says how late the generator sent what was due: where it is not small against the
    latencies, this machine is the bottleneck.
    """

    shape: str
    seconds: float
    requests: int
    texts: int
    succeeded: int
    errors: dict[str, Errors]
    not_started: int
    unfinished: int
    latency_ms: Percentiles | None
    start_lag_ms: Percentiles | None
    requests_per_second: float
    texts_per_second: float

    @property
    def failed(self) -> int:
        """Requests that ended in an error of any kind."""
        return sum(error.count for error in self.errors.values())


@dataclass(frozen=True)
class Point:
    """One interval, from ``at`` seconds after the start: what was due in it, and what ended in it."""

    at: float
    started: int
    not_started: int
    succeeded: int
    errors: int
    p95_ms: float | None


@dataclass(frozen=True)
class Result:
    """A whole load. ``started`` is the time of the first request (Unix seconds)."""

    url: str
    kind: str
    model: str
    texts_per_request: int
    tokens: dict[str, int | None]
    requests_per_connection: int
    started: float
    connections: int
    shapes: tuple[Summary, ...]
    total: Summary
    interval_seconds: float
    timeline: tuple[Point, ...]
    #: Why it ended before the schedule did; None: it did not.
    ended_early: str | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def percentiles(milliseconds: Iterable[float]) -> Percentiles | None:
    """None of nothing."""
    ordered = sorted(milliseconds)
    if not ordered:
        return None
    return Percentiles(_rank(ordered, 0.5), _rank(ordered, 0.95), _rank(ordered, 0.99), ordered[-1])


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass
class _Window:
    """A shape of the schedule and when it ran, in seconds after the start."""

    name: str
    is_open: bool
    begin: float
    end: float = math.inf


_RUNNING, _SUCCEEDED = 0, 1


@dataclass
class Recorder:
    """Takes down requests as they happen. Times are seconds after the start of the load."""

    texts: int
    connections: int = 0
    ended_early: str | None = None
    _windows: list[_Window] = field(default_factory=list)
    _shape: "array[int]" = field(default_factory=lambda: array("H"))
    _due: "array[float]" = field(default_factory=lambda: array("d"))
    _sent: "array[float]" = field(default_factory=lambda: array("d"))
    _end: "array[float]" = field(default_factory=lambda: array("d"))
    #: Index into the outcomes below.
    _outcome: "array[int]" = field(default_factory=lambda: array("H"))
    _outcomes: list[str] = field(default_factory=lambda: ["running", "succeeded"])
    _examples: dict[tuple[int, int], str] = field(default_factory=dict)
    _skipped_shape: "array[int]" = field(default_factory=lambda: array("H"))
    _skipped_due: "array[float]" = field(default_factory=lambda: array("d"))

    @property
    def full(self) -> bool:
        """Whether no more requests can be kept."""
        return len(self._due) >= MOST_REQUESTS

    def begin(self, name: str, now: float, *, is_open: bool) -> int:
        """A shape begins; returns its number."""
        self._windows.append(_Window(name, is_open, now))
        return len(self._windows) - 1

    def end(self, now: float) -> None:
        """The time of the shape that began last is over."""
        self._windows[-1].end = now

    def skipped(self, shape: int, due: float) -> None:
        """A request was due and could not be sent."""
        self._skipped_shape.append(shape)
        self._skipped_due.append(due)

    def sent(self, shape: int, due: float, now: float) -> int:
        """A request goes out; returns its number."""
        self._shape.append(shape)
        self._due.append(due)
        self._sent.append(now)
        self._end.append(math.nan)
        self._outcome.append(_RUNNING)
        return len(self._due) - 1

    def succeeded(self, request: int, now: float) -> None:
        self._end[request] = now
        self._outcome[request] = _SUCCEEDED

    def failed(self, request: int, now: float, kind: str, example: str) -> None:
        if kind not in self._outcomes:
            self._outcomes.append(kind)
        outcome = self._outcomes.index(kind)
        self._end[request] = now
        self._outcome[request] = outcome
        self._examples.setdefault((self._shape[request], outcome), example)

    def summaries(self, now: float) -> tuple[Summary, ...]:
        """One per shape that began."""
        chosen: list[list[int]] = [[] for _ in self._windows]
        for request, shape in enumerate(self._shape):
            chosen[shape].append(request)
        skipped = Counter(self._skipped_shape)
        return tuple(
            self._summary(window, requests, skipped[number], now)
            for number, (window, requests) in enumerate(zip(self._windows, chosen, strict=True))
        )

    def total(self, now: float) -> Summary:
        """All shapes together."""
        is_open = any(window.is_open for window in self._windows)
        whole = _Window("all", is_open, 0.0, max((window.end for window in self._windows), default=now))
        return self._summary(whole, range(len(self._due)), len(self._skipped_due), now)

    def _summary(self, window: _Window, requests: Sequence[int], not_started: int, now: float) -> Summary:
        end = min(window.end, now)
        outcomes = Counter(self._outcome[request] for request in requests)
        answered = [request for request in requests if self._outcome[request] == _SUCCEEDED]
        within = sum(
            1
            for at, outcome in zip(self._end, self._outcome, strict=True)
            if outcome == _SUCCEEDED and window.begin <= at <= end
        )
        rate = within / (end - window.begin) if end > window.begin else 0.0
        errors = {
            self._outcomes[outcome]: Errors(count, self._example(outcome, requests))
            for outcome, count in outcomes.most_common()
            if outcome not in (_RUNNING, _SUCCEEDED)
        }
        return Summary(
            shape=window.name,
            seconds=end - window.begin,
            requests=len(requests),
            texts=len(requests) * self.texts,
            succeeded=len(answered),
            errors=errors,
            not_started=not_started,
            unfinished=outcomes[_RUNNING],
            latency_ms=percentiles((self._end[request] - self._due[request]) * 1000 for request in answered),
            start_lag_ms=percentiles(
                (self._sent[request] - self._due[request]) * 1000
                for request in requests
                if self._windows[self._shape[request]].is_open
            ),
            requests_per_second=rate,
            texts_per_second=rate * self.texts,
        )

    def _example(self, outcome: int, requests: Sequence[int]) -> str:
        first = next(request for request in requests if self._outcome[request] == outcome)
        return self._examples[self._shape[first], outcome]

    def timeline(self, now: float) -> tuple[float, tuple[Point, ...]]:
        """Length of an interval in seconds, and the intervals until the last answer."""
        interval = float(max(1, math.ceil(now / _POINTS)))
        count = int(now / interval) + 1
        started, skipped, errors = Counter[int](), Counter[int](), Counter[int]()
        latencies: list[list[float]] = [[] for _ in range(count)]
        for due, end, outcome in zip(self._due, self._end, self._outcome, strict=True):
            started[int(due / interval)] += 1
            if outcome == _SUCCEEDED:
                latencies[int(end / interval)].append((end - due) * 1000)
            elif outcome != _RUNNING:
                errors[int(end / interval)] += 1
        for due in self._skipped_due:
            skipped[int(due / interval)] += 1
        points = []
        for number, found in enumerate(latencies):
            measured = percentiles(found)
            points.append(
                Point(
                    at=number * interval,
                    started=started[number],
                    not_started=skipped[number],
                    succeeded=len(found),
                    errors=errors[number],
                    p95_ms=measured.p95 if measured else None,
                )
            )
        return interval, tuple(points)
