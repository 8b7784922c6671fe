"""Fails in the way that the configuration asks for."""

import sys

import pulumi


class Note(pulumi.CustomResource):
    def __init__(self, name: str) -> None:
        super().__init__("note:index:Note", name, {"text": "kept"})


Note("note")
match pulumi.Config().get("fail"):
    case "exception":
        raise ValueError("no pool fits the model")
    case "user error":
        raise pulumi.RunError("workloads.search.model: unknown model")
    case "exit":
        sys.exit(3)
