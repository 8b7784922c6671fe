"""Structured configuration and a secret that reaches a resource and an output."""

import pulumi

config = pulumi.Config()
engine = config.require_object("engine")


class Note(pulumi.CustomResource):
    key: pulumi.Output[str]

    def __init__(self, name: str, text: str, key: pulumi.Output[str]) -> None:
        super().__init__("note:index:Note", name, {"text": text, "key": key})


note = Note("note", engine["model"], config.require_secret("key"))
pulumi.export("batch", engine["limits"]["batch"])
pulumi.export("key", note.key)
