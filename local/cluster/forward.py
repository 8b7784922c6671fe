"""Forwards connections from a listening socket on standard input to one address. A script, standard library only.

Started inside the cluster's namespaces with a socket that was bound outside: a socket keeps the network namespace it
was made in, so connections arrive on the host's loopback and leave in the cluster's network.
Usage: ``forward.py HOST PORT``.
"""

import asyncio
import contextlib
import socket
import sys

CHUNK = 64 * 1024
#: An ended direction gives the other one this long (seconds) to end too, should a peer never close.
LINGER = 60.0


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def main(host: str, port: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target_reader, target_writer = await asyncio.open_connection(host, port)
        except OSError as error:
            print(f"{host}:{port}: {error}", flush=True)
            writer.transport.abort()
            return
        both = [asyncio.create_task(pump(reader, target_writer)), asyncio.create_task(pump(target_reader, writer))]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        _, late = await asyncio.wait(both, timeout=LINGER)
        for task in late:
            task.cancel()
        for end in (writer, target_writer):
            end.close()

    listener = socket.socket(fileno=sys.stdin.fileno())
    server = await asyncio.start_server(connected, sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
