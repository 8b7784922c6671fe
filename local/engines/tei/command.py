"""What the router's executable does with its arguments; `python -m` of a build calls it with that build's server."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from local.engines.tei import VERSION
from local.engines.tei.arguments import PROGRAM, UsageError, help_text, parse
from local.engines.tei.logs import Log

if TYPE_CHECKING:
    from local.engines.tei.startup import Serve

# BLAS threads spin while they wait; on the few cores of a local cluster one thread is faster than two.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main(argv: Sequence[str], build: "Callable[[], Serve]") -> int:
    """Serves until a signal; returns the exit code.

    Args:
        build: imports the server, late, so that wrong arguments are refused at once and numpy sees the variable above.
    """
    # SIGINT ends the process before Ready as it ends the router, without a KeyboardInterrupt.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if {"-h", "--help"} & set(argv):
        print(help_text())
        return 0
    if {"-V", "--version"} & set(argv):
        print(f"{PROGRAM} {VERSION}")
        return 0
    try:
        arguments = parse(argv, os.environ)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    from local.engines.tei.startup import run  # noqa: PLC0415

    return run(arguments, Log(os.environ.get("LOG_LEVEL", "info"), json_output=arguments.json_output), build())


def leave(code: int) -> NoReturn:
    """Ends the process: the backend thread may still compute for a client that has gone; nothing waits for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
