"""Notes whose number and text the configuration chooses, for the policy pack to judge."""

import pulumi

config = pulumi.Config()


class Note(pulumi.CustomResource):
    def __init__(self, name: str, text: str) -> None:
        super().__init__("note:index:Note", name, {"text": text})


for number in range(config.require_int("notes")):
    Note(f"note-{number}", config.require("text"))
