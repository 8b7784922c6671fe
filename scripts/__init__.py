"""The commands. This file is run before the modules of a command are imported, which takes a second or more."""

import os
import sys
import time
from types import TracebackType

#: time.monotonic() when the command was started.
STARTED = time.monotonic()


def _quiet_interrupt(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Ends Ctrl-C during imports as `scripts.command.run` ends a later one."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    print("interrupted", file=sys.stderr, flush=True)
    os._exit(130)


sys.excepthook = _quiet_interrupt
