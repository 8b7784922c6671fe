"""Plain outputs of one resource and of the stack itself."""

import pulumi

TEXT = "first"


class Note(pulumi.CustomResource):
    text: pulumi.Output[str]

    def __init__(self, name: str, text: str) -> None:
        super().__init__("note:index:Note", name, {"text": text})


note = Note("note", TEXT)
pulumi.export("text", note.text)
pulumi.export("replicas", 2)
pulumi.export("stack", pulumi.get_stack())
