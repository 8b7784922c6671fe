"""The one error of this package."""

from pathlib import Path


class ToolchainError(Exception):
    """Something that a person has to do or know: ``str`` is one line, ``tail`` the end of the log it names."""

    def __init__(self, message: str, tail: tuple[str, ...] = (), log: Path | None = None) -> None:
        super().__init__(message)
        self.tail = tail
        self.log = log
