"""A server on loopback that does to each request what a test says, good manners or not."""

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

Behaviour = Callable[["Request", asyncio.StreamWriter], Awaitable[None]]
#: Vectors of two dimensions for two texts.
TWO_VECTORS = b"[[0.6,0.8],[0.8,-0.6]]"


@dataclass(frozen=True)
class Request:
    """``number`` counts from 0 in the order of arrival."""

    number: int
    head: str
    body: bytes


@dataclass
class Server:
    """``behave`` gets every request. The counts are of what arrived, so a repeated request is seen."""

    behave: Behaviour
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    in_work: int = 0
    most_in_work: int = 0
    url: str = ""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = head.lower().splitlines()
                length = next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)
                request = Request(len(self.requests), head, await reader.readexactly(length))
                self.requests.append(request)
                self.in_work += 1
                self.most_in_work = max(self.most_in_work, self.in_work)
                try:
                    await self.behave(request, writer)
                finally:
                    self.in_work -= 1
                if "connection: close" in head.lower():
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def answer(status: int, body: bytes) -> Behaviour:
    async def behave(_request: Request, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} Text\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    return behave


async def reset(_request: Request, writer: asyncio.StreamWriter) -> None:
    """A TCP reset, as of a process that was killed."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def hang_up(_request: Request, writer: asyncio.StreamWriter) -> None:
    """The end of the connection in place of an answer."""
    writer.close()


async def half_an_answer(_request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[[0.6,")
    await writer.drain()
    writer.close()


async def no_http(_request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example ESMTP\r\n\r\n")
    await writer.drain()
    writer.close()


async def never(_request: Request, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """Each request gets the next one; the last one stays."""

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        await behaviours[min(request.number, len(behaviours) - 1)](request, writer)

    return behave


@asynccontextmanager
async def serving(behave: Behaviour) -> AsyncIterator[Server]:
    """In the running event loop."""
    server = Server(behave)
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(server.connected(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        for task in [*tasks]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def serving_in_a_thread(behave: Behaviour) -> Iterator[Server]:
    """For clients that are other processes."""
    ready = threading.Event()
    found: list[Server] = []
    loop = asyncio.new_event_loop()
    end = asyncio.Event()

    async def run() -> None:
        async with serving(behave) as server:
            found.append(server)
            ready.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        ready.wait()
        yield found[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()
