"""Where the local machinery keeps what it builds and what it runs."""

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


def cache_dir() -> Path:
    """Built programs and images, shared by all checkouts of this user and keyed by content below this directory."""
    if chosen := os.environ.get("EMBEDDING_SERVING_CACHE"):
        # Some of what is made here is used with another working directory.
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "embedding-serving"


def state_dir() -> Path:
    """Everything that belongs to the embedded cluster of this checkout; `make down` removes it."""
    return CHECKOUT / ".state"
