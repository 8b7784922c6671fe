"""Fails in the way that the configuration asks for."""

import sys

import pulumi

SHOWN_TO_THE_USER = 32  # What Pulumi's own executor answers once it has shown the error.


class Note(pulumi.CustomResource):
    def __init__(self, name: str) -> None:
        super().__init__("note:index:Note", name, {"text": "kept"})


Note("note")
match pulumi.Config().get("fail"):
    case "exception":
        raise ValueError("no pool fits the model")
    case "run error":
        raise pulumi.RunError("workloads.search.model: unknown model")
    case "shown":
        pulumi.log.error("workloads.search.model: unknown model")
        sys.exit(SHOWN_TO_THE_USER)
    case "exit":
        sys.exit(3)
