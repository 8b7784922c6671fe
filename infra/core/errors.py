"""How the blueprint says no: one line per mistake, all of them at once."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

_LONGEST = 60


@dataclass(frozen=True)
class Refusal:
    """One thing that cannot be deployed.

    ``path`` is the place in the stack file (``stack.serving[0].dtype``), ``given`` what stands there, ``allowed`` what
    may stand there, ``why`` the reason in words, with its source where it is a fact about an engine or a GPU.
    """

    path: str
    given: str
    allowed: str
    why: str

    def __str__(self) -> str:
        # One mistake is one line, whatever characters a key or a value has.
        line = f"{self.path}: got {self.given}; allowed: {self.allowed}. {self.why}"
        return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)


class RefusedError(ValueError):
    """The stack cannot be deployed as written. ``refusals`` holds every reason found, in the order of the file."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals = tuple(refusals)
        super().__init__("\n".join(str(refusal) for refusal in self.refusals))


def quoted(value: object) -> str:
    """A value as a user would recognise it in an error; long ones are cut."""
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to print integers of more than 4300 digits.
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def nearest_first(given: str, known: Iterable[str]) -> str:
    """All of ``known`` for a message; first the one that ``given`` probably means, where one resembles it."""
    names = {name.lower(): name for name in known}
    near = [names.pop(name) for name in difflib.get_close_matches(given.lower(), names, n=1)]
    return ", ".join([*(f"{name} (nearest)" for name in near), *names.values()])


def counted(number: int, noun: str) -> str:
    """``number`` with ``noun`` in the right form: 1 node, 2 nodes."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
