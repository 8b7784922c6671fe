"""`python -m local.engines.tei`: what the router's executable is in the real image of the HTTP build."""

import sys
from typing import TYPE_CHECKING

from local.engines.tei.command import leave, main

if TYPE_CHECKING:
    from local.engines.tei.startup import Serve


def _http() -> "Serve":
    from local.engines.tei.server import serve  # noqa: PLC0415

    return serve


if __name__ == "__main__":
    leave(main(sys.argv[1:], _http))
