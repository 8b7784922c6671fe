"""Waits in the program or in the provider until it is cancelled, after it has announced itself on a named pipe."""

import threading
from pathlib import Path

import pulumi

config = pulumi.Config()


class Note(pulumi.CustomResource):
    def __init__(self, name: str, gate: str | None = None) -> None:
        super().__init__("note:index:Note", name, {"text": "kept"} | ({"gate": gate} if gate else {}))


def wait_in_program(_: str) -> None:
    # Left open: the reader sees the end of file when this process is gone.
    pipe = Path(config.require("gate")).open("w")  # noqa: SIM115
    print("waiting", file=pipe, flush=True)
    threading.Event().wait()


first = Note("first")
match config.get("wait"):
    case "program":
        if not pulumi.runtime.is_dry_run():
            first.id.apply(wait_in_program)
    case "provider":
        Note("second", config.require("gate"))
    case _:
        Note("second")
