"""What a build's server needs of its process: how a start fails, addresses as the router prints them, signals."""

import asyncio
import os
import signal

from local.engines.tei.logs import SHUTDOWN, Log


class StartError(Exception):
    """An end before Ready with exit code 1: the router's `Error:` line and its cause."""

    def __init__(self, message: str, cause: str | None = None) -> None:
        super().__init__(message + (f"\n\nCaused by:\n    {cause}" if cause else ""))


def os_error(error: OSError) -> str:
    """The error as Rust prints it."""
    return f"{os.strerror(error.errno or 0)} (os error {error.errno})"


def shown_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def signalled(log: Log) -> "asyncio.Task[bool]":
    """Ends with the first SIGTERM or SIGINT from now on.

    Called once the port is bound: before it, SIGTERM ends a process, and PID 1 of a container ignores it (recording
    shutdown/).
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if not stop.is_set():
            log.info(SHUTDOWN, "router/src/shutdown.rs:27", "signal received, starting graceful shutdown")
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return asyncio.create_task(stop.wait())
