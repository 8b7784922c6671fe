"""`python -m local.engines.tei`: what the router's executable is in the real image."""

import os
import signal
import sys
from collections.abc import Sequence

from local.engines.tei import VERSION
from local.engines.tei.arguments import PROGRAM, UsageError, help_text, parse
from local.engines.tei.logs import Log

# BLAS threads spin while they wait; on the few cores of a local cluster one thread is faster than two.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main(argv: Sequence[str]) -> int:
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
    # Late, so that wrong arguments are refused at once and numpy sees the variable above.
    from local.engines.tei.startup import run  # noqa: PLC0415

    return run(arguments, Log(os.environ.get("LOG_LEVEL", "info"), json_output=arguments.json_output))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # The backend thread may still compute for a client that has gone; nothing waits for it.
    os._exit(code)
