"""`python -m local.engines.tei.grpc`: what the router's executable is in the real image of the gRPC build (`-grpc`)."""

import sys
from typing import TYPE_CHECKING

from local.engines.tei.command import leave, main

if TYPE_CHECKING:
    from local.engines.tei.startup import Serve


def _grpc() -> "Serve":
    from local.engines.tei.grpc_server import serve  # noqa: PLC0415

    return serve


if __name__ == "__main__":
    leave(main(sys.argv[1:], _grpc))
