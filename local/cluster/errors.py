"""What goes wrong with the embedded cluster, in words for the person at the shell."""

from pathlib import Path

LOG_LINES_SHOWN = 12


class ClusterError(RuntimeError):
    """The embedded cluster cannot do what was asked; the message is all that a user should see."""


class PartFailedError(ClusterError):
    """One part failed; the message has its name, the end of its log and where the log is."""

    def __init__(self, part: str, what: str, log: Path) -> None:
        self.part = part
        self.log = log
        super().__init__("\n".join([f"{part}: {what}", *(f"  | {line}" for line in tail(log)), f"  log: {log}"]))


def tail(log: Path, lines: int = LOG_LINES_SHOWN) -> list[str]:
    """The last lines of a log, cut to a readable width; empty when there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 64 * 1024))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return [line[:240] for line in text.splitlines()[-lines:]]
