"""How rules look at Kubernetes objects: plain dicts, in which a value may be unknown until something is created."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: A Kubernetes object or a part of one.
Object = Mapping[str, Any]


class Unknown:
    """The type of `UNKNOWN`."""

    def __repr__(self) -> str:
        return "UNKNOWN"


#: Stands for a value that Pulumi does not know before the resource that gives it exists.
UNKNOWN: Final = Unknown()


class UnknownValueError(Exception):
    """A rule needs a value that is not known yet; ``path`` says which."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class _Object(Mapping[str, Any]):
    """A dict that raises UnknownValueError where an unknown value is read. A null counts as absent."""

    def __init__(self, values: Mapping[str, Any], path: str) -> None:
        self._values = {key: value for key, value in values.items() if value is not None}
        self._path = path

    def __getitem__(self, key: str) -> Any:
        separator = "" if not self._path or self._path.endswith(" ") else "."
        return _guarded(self._values[key], f"{self._path}{separator}{key}")

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class _List(Sequence[Any]):
    def __init__(self, values: Sequence[Any], path: str) -> None:
        self._values = values
        self._path = path

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _List(self._values[index], self._path)
        return _guarded(self._values[index], f"{self._path}[{index}]")

    def __len__(self) -> int:
        return len(self._values)


def _guarded(value: Any, path: str) -> Any:
    if value is UNKNOWN:
        raise UnknownValueError(path)
    if isinstance(value, Mapping):
        return _Object(value, path)
    return _List(value, path) if isinstance(value, list | tuple) else value


def guarded(given: Object, path: str = "") -> Object:
    """``given`` as rules read it: reading an unknown value raises UnknownValueError, with ``path`` in front."""
    return _Object(given, path)


def title(given: Object) -> str:
    """``Deployment embedding-serving/embed``; parts that are not known are left out."""
    metadata = given.get("metadata")
    known = metadata if isinstance(metadata, Mapping) else {}
    parts = [part for part in (known.get("namespace"), known.get("name")) if isinstance(part, str)]
    return " ".join(part for part in (str(given.get("kind", "object")), "/".join(parts)) if part)


def name(given: Object) -> str:
    """metadata.name."""
    return str(given.get("metadata", {}).get("name", ""))


def namespace(given: Object) -> str:
    """metadata.namespace, and what Kubernetes takes where there is none."""
    return str(given.get("metadata", {}).get("namespace", "default"))


@dataclass(frozen=True)
class Container:
    """A container with the place where it stands."""

    path: str
    spec: Object

    @property
    def image(self) -> str:
        """Reference of the image; empty where there is none."""
        return str(self.spec.get("image", ""))

    def setting(self, variable: str) -> str | None:
        """What a TEI container is told: its flag in args wins over its environment variable, as in TEI itself.

        None when neither is given in plain text.
        """
        flag = "--" + variable.lower().replace("_", "-")
        given = [str(part) for part in self.spec.get("args", ())]
        for index, part in enumerate(given):
            if part.startswith(f"{flag}="):
                return part.removeprefix(f"{flag}=")
            if part == flag and index + 1 < len(given):
                return given[index + 1]
        # Of two entries with the same name Kubernetes takes the last.
        found = [entry for entry in self.spec.get("env", ()) if entry.get("name") == variable]
        return str(found[-1]["value"]) if found and "value" in found[-1] else None

    def has_variable(self, variable: str) -> bool:
        """Whether the environment variable is set at all, in plain text or from elsewhere."""
        return any(entry.get("name") == variable for entry in self.spec.get("env", ()))

    def resources(self, section: str) -> Object:
        """``limits`` or ``requests``."""
        found: Object = self.spec.get("resources", {}).get(section, {})
        return found


@dataclass(frozen=True)
class Pod:
    """The pod that an object makes, with the place where it stands."""

    path: str
    spec: Object
    labels: Object

    def containers(self) -> Iterator[Container]:
        """All of them, init containers too."""
        for section in ("initContainers", "containers"):
            for index, spec in enumerate(self.spec.get(section, ())):
                yield Container(f"{self.path}.{section}[{index}]", spec)

    def sidecars(self) -> Iterator[Container]:
        """Init containers that go on running: each starts when those before it have started."""
        for container in self.containers():
            if container.spec.get("restartPolicy") == "Always":
                yield container

    def main(self) -> Iterator[Container]:
        """Those that start when every sidecar has, and end before them."""
        for container in self.containers():
            if container.path.startswith(f"{self.path}.containers"):
                yield container

    def running(self) -> Iterator[Container]:
        """Those that run while the pod serves: sidecars and main containers."""
        yield from self.sidecars()
        yield from self.main()


_TEMPLATES = {
    "Deployment": "spec.template",
    "StatefulSet": "spec.template",
    "DaemonSet": "spec.template",
    "ReplicaSet": "spec.template",
    "Job": "spec.template",
    "CronJob": "spec.jobTemplate.spec.template",
}


def pod_of(given: Object) -> Pod | None:
    """The pod of a workload; None for every other kind."""
    kind = given.get("kind")
    if kind == "Pod":
        return Pod("spec", given.get("spec", {}), given.get("metadata", {}).get("labels", {}))
    path = _TEMPLATES.get(str(kind))
    if path is None:
        return None
    template: Object = given
    for part in path.split("."):
        template = template.get(part, {})
    return Pod(f"{path}.spec", template.get("spec", {}), template.get("metadata", {}).get("labels", {}))


def selects(selector: Object, labels: Object) -> bool:
    """Whether a label selector (matchLabels, matchExpressions) matches; an empty one matches everything."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(_holds(expression, labels) for expression in selector.get("matchExpressions", ()))


def _holds(expression: Object, labels: Object) -> bool:
    key, values = expression["key"], tuple(expression.get("values", ()))
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def whole(value: object) -> int | None:
    """The whole number that a field holds as number or text; None when it is none."""
    try:
        return int(str(value))
    except ValueError:
        return None
