"""`python -m local.engines.nim`: what the entry point of a NIM image does, without arguments."""

import asyncio
import os
import sys

from local.engines.nim.configuration import StartError, read

# BLAS threads spin while they wait; on the few cores of a local cluster one thread is faster than two.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main() -> int:
    """Serves until a signal; returns the exit code."""
    try:
        configuration = read(os.environ)
        # Late, so that a wrong environment is refused at once and numpy sees the variable above.
        from local.engines.nim.server import serve  # noqa: PLC0415

        asyncio.run(serve(configuration))
    except StartError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
