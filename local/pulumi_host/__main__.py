"""Entry point of `pulumi-language-python`: the engine starts it and reads the port from the first line of stdout."""

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from pulumi.runtime.proto import language_pb2_grpc

from local.pulumi_host.server import LanguageHost

# Every running program or policy pack holds a thread for its lifetime; threads start when they are needed.
MAX_CALLS = 64


def _interrupt_when_the_engine_is_gone() -> None:
    """The engine holds the other end of stdin and never writes, so end of file means that it died."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    # The engine stops a language host with SIGINT to its process group. Blocked, the signal waits for sigwait below
    # and is inherited as blocked by programs, which therefore end by our SIGTERM and print no KeyboardInterrupt.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    host = LanguageHost(engine_address=sys.argv[-1])
    server = grpc.server(ThreadPoolExecutor(MAX_CALLS))
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(host, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    threading.Thread(target=_interrupt_when_the_engine_is_gone, daemon=True).start()
    signal.sigwait({signal.SIGINT})
    host.end()
    server.stop(grace=None).wait()


if __name__ == "__main__":
    main()
