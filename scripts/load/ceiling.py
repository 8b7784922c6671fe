"""How many requests the generator itself can send: loads a server that answers at once with a fixed body.

The server is another process on this machine. Where a server under test gets close to these numbers, the generator is
what was measured.
"""

import argparse
import asyncio
import functools
import multiprocessing
import socket
import sys
from multiprocessing.connection import Connection

from infra.core.catalogue import ModelKind
from infra.core.errors import counted
from scripts import console
from scripts.command import parser_of, run
from scripts.console import Table
from scripts.load import Closed, Summary, Target
from scripts.load import run as run_load

_EXAMPLE = """example:
  python -m scripts.load.ceiling --seconds 5
"""
_DIMENSION = 1024
_TEXTS = (1, 32)
_KEPT = 1_000


def main() -> int:
    parser = parser_of("scripts.load.ceiling", __doc__, _EXAMPLE)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each load (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=32, help="closed load (default: %(default)s)")
    arguments = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
        server.start()
        try:
            ports: dict[int, int] = ours.recv()
            rows = [_measured(arguments, port, texts, kept) for texts, port in ports.items() for kept in (1, _KEPT)]
        finally:
            server.terminate()
            server.join()
    columns = ("texts per request", "requests per connection", "requests/s", "texts/s", "p50 ms", "p99 ms", "failed")
    console.show(Table(f"Ceiling of the generator, {counted(arguments.clients, 'client')}", columns, rows))
    return 0


def _measured(arguments: argparse.Namespace, port: int, texts: int, kept: int) -> tuple[object, ...]:
    target = Target(
        f"http://127.0.0.1:{port}",
        ModelKind.EMBEDDING,
        "a fixed answer",
        texts=texts,
        dimension=_DIMENSION,
        requests_per_connection=kept,
    )
    found = asyncio.run(run_load(target, Closed(arguments.clients, arguments.seconds))).total
    return (texts, kept, *_rates(found), found.failed)


def _rates(found: Summary) -> tuple[str, ...]:
    times = found.latency_ms
    return (
        *(f"{found.requests_per_second:.0f}", f"{found.texts_per_second:.0f}"),
        *((f"{times.p50:.1f}", f"{times.p99:.1f}") if times else ("-", "-")),
    )


def serve(told: Connection) -> None:
    """Serves until the process is ended; sends a port for each number of texts through ``told``."""
    listeners = {texts: socket.create_server(("127.0.0.1", 0), backlog=1024) for texts in _TEXTS}
    told.send({texts: listener.getsockname()[1] for texts, listener in listeners.items()})
    asyncio.run(_serve(listeners))


async def _serve(listeners: dict[int, socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    vector = "[" + ",".join(["0.01234567"] * _DIMENSION) + "]"
    for texts, listener in listeners.items():
        body = f"[{','.join([vector] * texts)}]".encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n".encode()
        await loop.create_server(functools.partial(_Fixed, head, body), sock=listener)
    await asyncio.Event().wait()


class _Fixed(asyncio.Protocol):
    """Reads as little of HTTP as it can: the end of the head and the length of the body."""

    def __init__(self, head: bytes, body: bytes) -> None:
        self._head, self._body = head, body
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._got += data
        while (end := self._got.find(b"\r\n\r\n")) >= 0:
            head = self._got[:end].lower()
            length = int(head.partition(b"content-length:")[2].split(None, 1)[0])
            if len(self._got) < end + 4 + length:
                return
            self._got = self._got[end + 4 + length :]
            last = b"connection: close" in head
            self._transport.write(self._head + (b"Connection: close\r\n\r\n" if last else b"\r\n") + self._body)
            if last:
                self._transport.close()
                return


if __name__ == "__main__":
    sys.exit(run(main))
