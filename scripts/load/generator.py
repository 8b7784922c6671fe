"""Sends the requests of a schedule and takes down what came of each."""

import asyncio
import collections
import contextlib
import errno
import itertools
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp

from scripts.command import CommandError
from scripts.load import tei
from scripts.load.results import Kind, Recorder, Result
from scripts.load.shapes import MOST_REQUESTS, Closed, Open, Shape
from scripts.load.target import Target

#: A client of a closed load waits this long after an error, so that a dead server is not asked in a busy loop.
PAUSE_AFTER_ERROR_SECONDS = 0.1
#: Files that a process has open beside its sockets.
_OTHER_FILES = 64
#: The schedule of an open load that is late lets answers in after this many requests.
_BURST = 16


async def run(target: Target, shapes: Shape | Sequence[Shape], stop: asyncio.Event | None = None) -> Result:
    """Runs ``shapes`` one after the other and returns when the last request has ended.

    The next shape begins when the time of the one before is over, not when its last request is answered. ``stop``
    ends the load early: what is in flight is given up, and the result holds what was measured.

    Raises CommandError for a load that cannot be run as asked.
    """
    schedule = (shapes,) if isinstance(shapes, Closed | Open) else tuple(shapes)
    if not schedule:
        raise CommandError("the load has no shapes: give clients or a rate")
    due = sum(shape.due if isinstance(shape, Open) else shape.requests or 0 for shape in schedule)
    if due > MOST_REQUESTS:
        raise CommandError(f"{due:,} requests; allowed: {MOST_REQUESTS:,}, because all latencies are kept")
    clients = sum(shape.clients for shape in schedule if isinstance(shape, Closed))
    _files_for(clients + max((shape.max_in_flight for shape in schedule if isinstance(shape, Open)), default=0))
    load = _Load(target)
    started = time.time()
    work = asyncio.ensure_future(load.run(schedule))
    stopped = asyncio.ensure_future((stop or asyncio.Event()).wait())
    try:
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        interrupted = not work.done()
        work.cancel()
        stopped.cancel()
        await asyncio.gather(work, stopped, return_exceptions=True)
    if not interrupted:
        work.result()
    return load.result(started, "interrupted" if interrupted else None)


@dataclass
class _Lane:
    """A session of one connection, and how many more requests that one is for."""

    session: aiohttp.ClientSession
    left: int


class _Lanes:
    """Connections by turns. Each is closed after as many requests as the target says."""

    def __init__(self, target: Target, connected: Callable[..., Awaitable[None]]) -> None:
        self._target = target
        self._idle: collections.deque[_Lane] = collections.deque()
        self._all: set[aiohttp.ClientSession] = set()
        self._trace = aiohttp.TraceConfig()
        self._trace.on_connection_create_end.append(connected)
        self._trace.on_connection_reuseconn.append(_reused)
        self._headers = {"Content-Type": "application/json", "User-Agent": "embedding-serving-load"}
        if target.api_key:
            self._headers["Authorization"] = f"Bearer {target.api_key}"

    def take(self) -> _Lane:
        if self._idle:
            return self._idle.popleft()
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=3600),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            # Above its threshold aiohttp rounds timeouts up to whole seconds.
            timeout=aiohttp.ClientTimeout(total=self._target.timeout_seconds, ceil_threshold=float("inf")),
            trace_configs=[self._trace],
        )
        self._all.add(session)
        return _Lane(session, self._target.requests_per_connection)

    async def give_back(self, lane: _Lane) -> None:
        lane.left -= 1
        if lane.left > 0:
            self._idle.append(lane)
        else:
            self._all.discard(lane.session)
            await lane.session.close()

    async def aclose(self) -> None:
        for session in self._all:
            await session.close()


class _Load:
    def __init__(self, target: Target) -> None:
        self._target = target
        self._bodies = tei.bodies(target)
        self._check = tei.checker(target)
        self._url = target.url.rstrip("/") + tei.PATHS[target.kind]
        self._recorder = Recorder(target.texts)
        self._numbers = itertools.count()
        self._in_flight = 0
        self._lanes = _Lanes(target, self._connected)
        self._begun = time.monotonic()

    def _now(self) -> float:
        """Seconds after the start."""
        return time.monotonic() - self._begun

    async def run(self, schedule: Sequence[Shape]) -> None:
        """All shapes, then the wait for what is in flight."""
        async with contextlib.aclosing(self._lanes):
            self._begun = time.monotonic()
            at = 0.0
            async with asyncio.TaskGroup() as group:
                for shape in schedule:
                    number = self._recorder.begin(str(shape), at, is_open=isinstance(shape, Open))
                    if isinstance(shape, Open):
                        await self._open(group, shape, number, at)
                    else:
                        await self._closed(group, shape, number, at)
                    at = self._now() if shape.seconds is None or self._recorder.full else at + shape.seconds
                    self._recorder.end(at)
                    if self._recorder.full:
                        self._recorder.ended_early = f"{MOST_REQUESTS:,} requests, more are not kept"
                        break

    async def _closed(self, group: asyncio.TaskGroup, shape: Closed, number: int, begin: float) -> None:
        left = itertools.count(shape.requests or MOST_REQUESTS, -1)
        end = float("inf") if shape.seconds is None else begin + shape.seconds

        async def client() -> None:
            while self._now() < end and next(left) > 0 and not self._recorder.full:
                now = self._now()
                if not await self._send(number, now, now):
                    await asyncio.sleep(max(0.0, min(PAUSE_AFTER_ERROR_SECONDS, end - self._now())))

        clients = [group.create_task(client()) for _ in range(shape.clients)]
        # Those who wait for an answer when the time is over must not keep the next shape from beginning.
        await asyncio.wait(clients, timeout=None if shape.seconds is None else max(0.0, end - self._now()))

    async def _open(self, group: asyncio.TaskGroup, shape: Open, number: int, begin: float) -> None:
        for request in range(shape.due):
            due = begin + request / shape.rate
            if (early := due - self._now()) > 0:
                await asyncio.sleep(early)
            elif request % _BURST == 0:
                await asyncio.sleep(0)
            if self._recorder.full:
                return
            if self._in_flight >= shape.max_in_flight:
                self._recorder.skipped(number, due)
                continue
            self._in_flight += 1
            group.create_task(self._send_counted(number, due))
        await asyncio.sleep(max(0.0, begin + shape.seconds - self._now()))

    async def _send_counted(self, shape: int, due: float) -> None:
        try:
            await self._send(shape, due, self._now())
        finally:
            self._in_flight -= 1

    async def _send(self, shape: int, due: float, now: float) -> bool:
        """One request, once; whether it succeeded."""
        request = self._recorder.sent(shape, due, now)
        told = SimpleNamespace(reused=False)
        lane = self._lanes.take()
        try:
            # A POST: aiohttp repeats only idempotent methods when a kept connection turns out to be closed.
            async with lane.session.post(
                self._url,
                data=self._bodies[next(self._numbers) % len(self._bodies)],
                # Whoever closes first keeps the port busy for a while: let it be the server.
                headers={"Connection": "close"} if lane.left == 1 else None,
                allow_redirects=False,
                trace_request_ctx=told,
            ) as response:
                body = await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            kind, example = _kind_of(error, reused=told.reused)
            self._recorder.failed(request, self._now(), kind, self._target.shown(example))
            return False
        finally:
            await self._lanes.give_back(lane)
        if response.status != 200:
            example = self._target.shown(body[:1000].decode(errors="replace")) or "no text"
            self._recorder.failed(request, self._now(), Kind.of_status(response.status), example)
            return False
        now = self._now()
        if (wrong := self._check(body)) is not None:
            self._recorder.failed(request, now, Kind.UNEXPECTED, wrong)
            return False
        self._recorder.succeeded(request, now)
        return True

    async def _connected(self, *_: object) -> None:
        self._recorder.connections += 1

    def result(self, started: float, ended_early: str | None) -> Result:
        """What was measured until now."""
        now = self._now()
        target, recorder = self._target, self._recorder
        interval, timeline = recorder.timeline(now)
        return Result(
            url=target.url,
            kind=target.kind,
            model=target.model,
            texts_per_request=target.texts,
            tokens=target.tokens.model_dump(),
            requests_per_connection=target.requests_per_connection,
            started=started,
            connections=recorder.connections,
            shapes=recorder.summaries(now),
            total=recorder.total(now),
            interval_seconds=interval,
            timeline=timeline,
            ended_early=ended_early or recorder.ended_early,
        )


async def _reused(_session: aiohttp.ClientSession, context: SimpleNamespace, _parameters: object) -> None:
    context.trace_request_ctx.reused = True


def _kind_of(error: Exception, *, reused: bool) -> tuple[Kind, str]:
    match error:
        case TimeoutError():
            return Kind.TIMEOUT, "no answer in time"
        case aiohttp.ClientConnectorError() if error.os_error.errno == errno.ECONNREFUSED:
            return Kind.REFUSED, str(error.os_error)
        case aiohttp.ClientConnectorError():
            return Kind.NOT_CONNECTED, str(error.os_error)
        case aiohttp.ClientConnectionError() | aiohttp.ClientPayloadError() | OSError():
            return (Kind.RESET_REUSED if reused else Kind.RESET), str(error) or type(error).__name__
        case _:
            return Kind.UNEXPECTED, f"no HTTP: {error}"


def _files_for(sockets: int) -> None:
    """Raises the limit of open files where ``sockets`` need it, CommandError where it cannot be raised."""
    needed = sockets + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise CommandError(f"{sockets} requests in flight need {needed} open files, the limit (ulimit -Hn) is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
