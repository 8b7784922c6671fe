"""One `up` or `down` of a cluster at a time."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from local.cluster.errors import ClusterError


@contextlib.contextmanager
def exclusive(file: Path) -> Iterator[None]:
    """Hold a lock that ends with this process, however it ends; the file is removed afterwards.

    Raises:
        ClusterError: another process holds it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 20).decode() or "unknown"
            os.close(descriptor)
            message = f"another command is changing this cluster (pid {holder}); try again when it has ended"
            raise ClusterError(message) from error
        # The holder before may have removed the file between open and flock: then this lock excludes nobody.
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_ino == os.fstat(descriptor).st_ino:
                break
        os.close(descriptor)
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(descriptor)
