"""How every command begins, with --help and an example, and ends: an exit code, and for a user's mistake one line on
stderr instead of a traceback.
"""

import argparse
import signal
import sys
from collections.abc import Callable
from types import FrameType

from infra.core.errors import RefusedError
from local.cluster.errors import ClusterError
from local.toolchain.errors import ToolchainError


class CommandError(Exception):
    """Something that the person at the shell has to change; the message names the next step."""


def parser_of(module: str, description: str | None, example: str) -> argparse.ArgumentParser:
    """The parser of ``python -m module``; help prints ``description`` and ``example`` as they are written."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run(main: Callable[[], int]) -> int:
    """Exit code of ``main``; 1 for what a person can put right, 130 and 143 after Ctrl-C and SIGTERM."""
    # Without this SIGTERM would end Python without its `finally` blocks, and port-forwards would stay behind.
    signal.signal(signal.SIGTERM, _terminated)
    try:
        return main()
    except RefusedError as refused:
        for refusal in refused.refusals:
            print(f"error: {refusal}", file=sys.stderr)
        return 1
    except ToolchainError as error:
        for line in error.tail:
            print(f"  | {line}", file=sys.stderr)
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (CommandError, ClusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # `make plan | head`: the reader has seen enough.
        sys.stderr.close()
        return 0


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(143)
