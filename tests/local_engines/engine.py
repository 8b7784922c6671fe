"""A stand-in in a process of its own, and a plain client (http.client, one connection per request)."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

HOST = "127.0.0.1"
JSON_HEADERS = {"Content-Type": "application/json"}
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
#: Nothing here is a benchmark: this only ends a test that hangs.
HANG = 120.0
CHECKOUT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    sent_at: float
    answered_at: float

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    def json(self) -> Any:
        return json.loads(self.body)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def plain(line: str) -> str:
    """A log line without colours."""
    return _ANSI.sub("", line)


class Engine:
    """`python -m MODULE` with the given arguments; stdout and stderr are collected line by line."""

    def __init__(
        self,
        arguments: Sequence[str],
        directory: Path,
        *,
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
        hostname: str | None = HOST,
        prefix: Sequence[str] = (),
        module: str = "local.engines.tei",
    ) -> None:
        self.port = free_port() if port is None else port
        #: Of the HTTP server that has /metrics.
        self.http_port = self.port
        given = [*arguments]
        if hostname:
            given += ["--hostname", hostname]
        if port is None:
            given += ["--port", str(self.port)]
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "OPENBLAS_NUM_THREADS") if name in os.environ}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", module, *given],
            cwd=directory,
            env=kept | {"PYTHONPATH": str(CHECKOUT)} | dict(environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )
        self.lines: list[str] = []
        self._line_added = threading.Condition()
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._line_added:
                self.lines.append(line.rstrip("\n"))
                self._line_added.notify_all()
        with self._line_added:
            self._line_added.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(HANG)
        self._reader.join(HANG)
        if self.process.stdout is not None:
            self.process.stdout.close()

    @property
    def log(self) -> list[str]:
        return [plain(line) for line in self.lines]

    def wait_for_line(self, text: str) -> None:
        """Returns once a line with this text was printed; fails if the process ends without it."""

        def seen() -> bool:
            return any(text in line for line in self.lines) or not self._reader.is_alive()

        with self._line_added:
            while not seen():
                assert self._line_added.wait(HANG), f"no line with {text!r} in {self.log}"
        assert any(text in line for line in self.lines), self.log

    def wait_until_ready(self) -> Self:
        self.wait_for_line("Ready")
        return self

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        code = self.process.wait(HANG)
        self._reader.join(HANG)
        return code

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.exit_code()

    # -- client

    def request(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection(HOST, self.http_port, timeout=HANG)
        sent_at = time.monotonic()
        try:
            connection.request(method, path, body=body, headers=dict(headers or {}))
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        return Answer(response.status, response.getheaders(), content, sent_at, time.monotonic())

    def get(self, path: str) -> Answer:
        return self.request("GET", path)

    def post(self, path: str, body: object) -> Answer:
        return self.request("POST", path, headers=JSON_HEADERS, body=json.dumps(body).encode())

    def embed(self, inputs: object) -> Answer:
        return self.post("/embed", {"inputs": inputs})

    def metrics(self) -> dict[str, float]:
        """All series but buckets."""
        lines = self.get("/metrics").body.decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#") and "_bucket{" not in line)
        return {name: float(value) for name, value in pairs}

    def wait_for_metric(self, name: str, at_least: float) -> dict[str, float]:
        """Polls /metrics, which never waits for a batch."""
        deadline = time.monotonic() + HANG
        while (found := self.metrics()).get(name, 0) < at_least:
            assert time.monotonic() < deadline, f"{name} stays below {at_least}: {found}"
            time.sleep(0.01)
        return found


class Clients:
    """Requests at the same time, each in its own thread."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=count)
        self._sent: list[Future[Answer]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True)

    def embed(self, engine: Engine, inputs: object) -> Future[Answer]:
        return self._pool.submit(engine.embed, inputs)

    def get(self, engine: Engine, path: str) -> Future[Answer]:
        return self._pool.submit(engine.get, path)


def words(tokens: int) -> str:
    """A text of that many tokens, [CLS] and [SEP] included."""
    return " ".join(["word"] * (tokens - 2))
