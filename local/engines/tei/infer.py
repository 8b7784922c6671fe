"""Permits, queue, batches and backend thread, arranged as in TEI (core/src/{infer,queue}.rs, backends/src/lib.rs).

What follows from the arrangement, and was recorded: one batch in inference and one prefetched lie outside te_queue_size
(queue/); a list needs as many permits as inputs (overload/); health checks wait behind the running batch, and more than
the channel holds can abort the process (health/).
"""

import asyncio
import contextlib
import os
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from local.engines.tei.bert import Floats, InferenceError, TokenizedInput
from local.engines.tei.logs import CORE_INFER, Log, Span
from local.engines.tei.metrics import Metrics
from local.engines.tei.tokenization import Text, Tokenization, ValidationError

CHANNEL_SLOTS = 8
#: Largest batch of TEI's CPU backend (recording startup/log-text.txt: "Backend does not support a batch size > 4").
CPU_MAX_BATCH_REQUESTS = 4

Forward = Callable[[Sequence[TokenizedInput]], list[Floats]]


class OverloadedError(Exception):
    """No permit is free: 429."""

    def __init__(self) -> None:
        super().__init__("Model is overloaded")


class BackendError(Exception):
    """The model cannot do this, or its forward pass failed: 424."""

    def __init__(self, message: str) -> None:
        super().__init__(f"Backend error: {message}")
        self.message = message


def abort(panic: str, location: str, thread: str) -> NoReturn:
    """End as a Rust panic does under `panic = "abort"`: the text on stderr, then SIGABRT."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout.flush()
    sys.stderr.write(f"\nthread '{thread}' ({threading.get_native_id()}) panicked at {location}:\n{panic}\n")
    sys.stderr.flush()
    os.abort()


@dataclass(frozen=True)
class _Command:
    """A batch to run, or a health check (no batch). `done` receives the result on the event loop."""

    batch: Sequence[TokenizedInput] | None
    done: "asyncio.Future[Any]"


class Backend:
    """One thread that runs commands in order from a channel with eight slots.

    A health check waits for a free slot; a batch does not, and finding the channel full is the panic that was recorded
    under floods of health checks. Whether a flood meets it is a race, here as there.
    """

    def __init__(self, forward: Forward, loop: asyncio.AbstractEventLoop) -> None:
        self._forward = forward
        self._loop = loop
        self._lock = threading.Lock()
        self._not_empty = threading.Condition(self._lock)
        self._channel: deque[_Command] = deque()
        self._waiting_senders: deque[_Command] = deque()
        self._healthy = True
        threading.Thread(target=self._run, name="backend", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._not_empty:
                while not self._channel:
                    self._not_empty.wait()
                command = self._channel.popleft()
                if self._waiting_senders:
                    self._channel.append(self._waiting_senders.popleft())
            self._answer(command)

    def _answer(self, command: _Command) -> None:
        started = time.perf_counter()
        result: tuple[list[Floats], float] | BackendError
        if command.batch is None:
            result = ([], 0.0)
        else:
            try:
                result = (self._forward(command.batch), time.perf_counter() - started)
                self._healthy = True
            except InferenceError as error:
                result = BackendError(str(error))
                self._healthy = False
        # The loop is closed when the process ends while a batch still runs.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_settle, command.done, result)

    @property
    def healthy(self) -> bool:
        """False from a failed batch to the next one that works."""
        return self._healthy

    async def run(self, batch: Sequence[TokenizedInput]) -> tuple[list[Floats], float]:
        """Results of a batch and the seconds that it took.

        Raises:
            BackendError: the forward pass failed.
        """
        command = _Command(batch, self._loop.create_future())
        with self._not_empty:
            if len(self._channel) >= CHANNEL_SLOTS:
                abort(
                    'No backend receiver. This is a bug.: "Full(..)"',
                    "backends/src/lib.rs:346:14",
                    "tokio-runtime-worker",
                )
            self._channel.append(command)
            self._not_empty.notify()
        result: tuple[list[Floats], float] = await command.done
        return result

    async def health(self) -> bool:
        """True when the backend works: it answers a command, or after a failure computes one token."""
        if not self._healthy:
            try:
                await self.run([TokenizedInput([0], [0])])
            except BackendError:
                return False
            return True
        command = _Command(None, self._loop.create_future())
        with self._not_empty:
            if len(self._channel) < CHANNEL_SLOTS:
                self._channel.append(command)
                self._not_empty.notify()
            else:
                self._waiting_senders.append(command)
        try:
            await command.done
        except asyncio.CancelledError:
            # Only a check that did not get a slot disappears with its client.
            with self._lock, contextlib.suppress(ValueError):
                self._waiting_senders.remove(command)
            raise
        return True


def _settle(future: "asyncio.Future[Any]", result: object) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


@dataclass(frozen=True)
class Timings:
    """Seconds that one input spent in each step, and its number of tokens."""

    tokens: int
    tokenization: float
    queue: float
    inference: float


@dataclass
class _Entry:
    encoding: TokenizedInput
    tokenization: float
    answer: "asyncio.Future[tuple[Floats, Timings]]"
    queued_at: float = field(default_factory=time.perf_counter)


class _Notify:
    """tokio's Notify: wakes one waiter, or lets the next one through; never more than one."""

    def __init__(self) -> None:
        self._permit = False
        self._waiters: deque[asyncio.Future[None]] = deque()

    def one(self) -> None:
        if self._waiters:
            self._waiters.popleft().set_result(None)
        else:
            self._permit = True

    async def notified(self) -> None:
        if self._permit:
            self._permit = False
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter


class Infer:
    """Tokenizes, queues and runs inputs.

    Args:
        max_batch_tokens: padded tokens of a batch (longest input times inputs).
    """

    def __init__(
        self,
        *,
        backend: Backend,
        tokenization: Tokenization,
        metrics: Metrics,
        log: Log,
        max_concurrent_requests: int,
        max_batch_tokens: int,
    ) -> None:
        self.backend = backend
        self.tokenization = tokenization
        self.metrics = metrics
        self._log = log
        self._permits = max_concurrent_requests
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._max_batch_tokens = max_batch_tokens
        self._queue: deque[_Entry] = deque()
        self._notify = _Notify()
        self._backend_task = asyncio.Lock()
        # Two tasks, so that one prefetches a batch while the batch of the other runs.
        self._tasks = [asyncio.create_task(self._batching()) for _ in range(2)]

    @contextlib.contextmanager
    def permit(self, span: str) -> Iterator[None]:
        """Holds one permit.

        Raises:
            OverloadedError: none is free.
        """
        self.take_permits(1, span)
        try:
            yield
        finally:
            self.return_permit()

    def take_permits(self, count: int, span: str) -> None:
        """Takes permits one by one; the caller returns each once its input is done.

        Raises:
            OverloadedError: fewer are free; those taken were returned.
        """
        if self._permits < count:
            self.metrics.failure("overloaded")
            spans = (Span(span), Span("try_acquire_permit"))
            self._log.error(CORE_INFER, "core/src/infer.rs:102", "no permits available", *spans)
            raise OverloadedError
        self._permits -= count

    def return_permit(self) -> None:
        """Hands the permit to the first who waits for one, as tokio's semaphore does."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._permits += 1

    async def wait_for_permit(self) -> None:
        """Takes one permit as soon as one is free, in the order of calls; the caller returns it."""
        if self._permits:
            self._permits -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.return_permit()
            raise

    async def infer(
        self, text: Text, *, truncate: bool, direction: str, prompt_name: str | None, context: Sequence[Span]
    ) -> tuple[Floats, Timings]:
        """The raw result of one input: hidden states of an embedding model, logits of a classifier.

        Raises:
            ValidationError: refused by the tokenization.
            BackendError: the forward pass failed.
        """
        started = time.perf_counter()
        try:
            encoding = await self.tokenization.encode(
                text, truncate=truncate, direction=direction, prompt_name=prompt_name
            )
        except ValidationError as error:
            self.metrics.failure("tokenization")
            self._log.error(CORE_INFER, "core/src/infer.rs:356", str(error), *context)
            raise
        answer = asyncio.get_running_loop().create_future()
        self._queue.append(_Entry(encoding, time.perf_counter() - started, answer))
        self.metrics.add("te_queue_size", 1)
        self._notify.one()
        try:
            result: tuple[Floats, Timings] = await answer
        except BackendError as error:
            self.metrics.failure("inference")
            self._log.error(CORE_INFER, "core/src/infer.rs:384", error.message, *context)
            raise
        return result

    def _next_batch(self) -> list[_Entry]:
        batch: list[_Entry] = []
        longest = 0
        tokens = 0
        while self._queue:
            entry = self._queue.popleft()
            if entry.answer.cancelled():
                self.metrics.failure("dropped")
                continue
            length = len(entry.encoding.ids)
            if max(longest, length) * (len(batch) + 1) > self._max_batch_tokens:
                self._queue.appendleft(entry)
                break
            longest = max(longest, length)
            tokens += length
            batch.append(entry)
            if len(batch) == CPU_MAX_BATCH_REQUESTS:
                break
        self.metrics.observe("te_batch_next_size", len(batch))
        self.metrics.observe("te_batch_next_tokens", tokens)
        self.metrics.set("te_queue_size", len(self._queue))
        return batch

    async def _batching(self) -> None:
        while True:
            await self._notify.notified()
            while batch := self._next_batch():
                await self._run(batch)

    async def _run(self, batch: list[_Entry]) -> None:
        # The router's backend task sends one batch at a time: a prefetched batch waits outside the channel.
        async with self._backend_task:
            try:
                results, seconds = await self.backend.run([entry.encoding for entry in batch])
            except BackendError as error:
                for entry in batch:
                    _settle(entry.answer, error)
                return
        now = time.perf_counter()
        for entry, result in zip(batch, results, strict=True):
            waited = now - entry.queued_at - seconds
            _settle(entry.answer, (result, Timings(len(entry.encoding.ids), entry.tokenization, waited, seconds)))
