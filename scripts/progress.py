"""Pulumi's lines about a deployment, without those that say nothing new."""

import re
from dataclasses import dataclass, field

_LINE = re.compile(
    r"^ \S+\s+(?P<provider>[\w-]+):\S+:(?P<kind>\w+) (?P<name>\S+) (?P<state>\w+)(?: \((?P<seconds>\d+)s\))?"
    r"\s*(?P<message>.*?)\s*$"
)
_DONE = {"created", "updated", "replaced", "deleted"}
_GOING_ON = {"creating", "updating", "replacing", "deleting", "reading", "read"}
#: Objects of operators by the dozen; they are ready when they are there. One that fails is told of all the same.
_QUIET = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "Role",
    "RoleBinding",
    "ServiceAccount",
}
#: Stands before every message about an object that changes.
_DIFF = re.compile(r"^\[diff: [^\]]*\];?\s*")
#: What Pulumi says of every object on its way.
_EMPTY = re.compile(
    r"^(\[\d/\d\]|\[MinimumReplicasUnavailable\]|Waiting for app ReplicaSet|Has no \.status"
    r"|\w+ initialization complete)"
)


@dataclass
class Progress:
    """Keeps what was said last of each object."""

    _said: dict[tuple[str, str], str] = field(default_factory=dict)

    def line(self, text: str) -> str | None:
        """What a person should see of one line of Pulumi's output; None: nothing."""
        found = _LINE.match(text)
        if found is None or found["state"] not in _DONE | _GOING_ON:
            return text
        kind, name, state = found["kind"], found["name"], found["state"]
        message = _DIFF.sub("", found["message"]).removeprefix("warning: ")
        if found["provider"] != "kubernetes" and not message:
            return None
        seconds = f" ({found['seconds']} s)" if found["seconds"] else ""
        if state in _DONE:
            return None if kind in _QUIET else f"  ok  {kind} {name} {state}{seconds}"
        if not message or _EMPTY.match(message) or self._said.get((kind, name)) == message:
            return None
        self._said[kind, name] = message
        return f"  ... waiting for {kind} {name}{seconds}: {message}"
