"""Reading a stack file: its schema, and one clear line for each mistake."""

import difflib
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from infra.core import credentials
from infra.core.errors import Refusal, RefusedError, quoted
from infra.core.settings.stack import Stack
from infra.core.settings.workloads import WORKLOADS, Workload

#: A switch that is named after a credential and holds none.
_NO_SECRETS = {"requireApiKey"}
#: What people write for true and false, in an error shown even under the name of a credential.
_SWITCHES = {"true", "false", "yes", "no", "on", "off"}
#: What is allowed, by the kind of mistake that pydantic names: what an editor of YAML has to write.
_WRITTEN = {
    "bool_type": "true or false, without quotes",
    "int_type": "a whole number, without quotes",
    "float_type": "a number, without quotes",
}
_OWN_KEYS = "secret config keys of their own: pulumi config set --secret embedding-serving:<name>"
#: Real stack files have seven levels; a YAML anchor inside itself has no end.
_DEEPEST = 16
#: A section with more keys than this is not listed in an error.
_FEW_KEYS = 10


def load(given: object) -> Stack:
    """Reads the structured object ``embedding-serving:stack``.

    ``given`` is what YAML holds: dicts, lists, strings, numbers. Raises RefusedError with one line per mistake.
    """
    if not isinstance(given, dict):
        raise RefusedError(
            [
                Refusal(
                    "stack", quoted(given), "an object with environment, cluster, ...", "See stacks/Pulumi.local.yaml."
                )
            ]
        )
    unreadable = list(_unreadable(given, "stack", 0))
    if unreadable:
        raise RefusedError(unreadable)
    try:
        return Stack.model_validate(_tuples(given))
    except ValidationError as error:
        details = error.errors(include_url=False)
        places = [detail["loc"] for detail in details]
        # A list whose items were refused counts as too short as well: only the items' own mistakes say something.
        told = [
            detail
            for detail in details
            if detail["type"] != "too_short"
            or not any(
                len(place) > len(detail["loc"]) and place[: len(detail["loc"])] == detail["loc"] for place in places
            )
        ]
        raise RefusedError(_refusal(detail) for detail in told) from None


def schema() -> dict[str, Any]:
    """JSON schema of a stack file (stacks/Pulumi.<stack>.yaml), by which editors check it."""
    stack = Stack.model_json_schema(by_alias=True)
    definitions = stack.pop("$defs")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Stack file of the embedding-serving blueprint",
        "type": "object",
        "properties": {
            "config": {
                "type": "object",
                # Other keys belong to Pulumi's providers, and to the secrets of this project.
                "properties": {"embedding-serving:stack": {"$ref": "#/$defs/Stack"}},
                "required": ["embedding-serving:stack"],
            }
        },
        "required": ["config"],
        "$defs": {**definitions, "Stack": stack},
    }


def _tuples(value: Any) -> Any:
    """Lists become tuples: strict validation wants the frozen form, YAML knows lists only."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_tuples(item) for item in value)
    return value


def _unreadable(value: object, path: str, depth: int) -> Iterator[Refusal]:
    """What is refused before any value is looked at, so that no credential is repeated in an error."""
    if depth > _DEEPEST:
        yield Refusal(path, "one more level", f"{_DEEPEST} levels", "No section nests that deep; is it an anchor?")
    elif isinstance(value, dict):
        for key, item in value.items():
            here = f"{path}.{key if isinstance(key, str) else quoted(key)}"
            if not isinstance(key, str):
                yield Refusal(here, f"the key {quoted(key)}", "text as a key", "YAML reads on, yes and 80 otherwise.")
            elif isinstance(item, str | int | float) and not isinstance(item, bool) and credentials.NAME.search(key):
                if key not in _NO_SECRETS:
                    yield _credential(here)
            elif isinstance(item, dict) and set(item) == {"secure"}:
                yield Refusal(
                    here, "an encrypted value", _OWN_KEYS, "A secret nested in an object is decrypted into the state."
                )
            else:
                yield from _unreadable(item, here, depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _unreadable(item, f"{path}[{index}]", depth + 1)
    elif isinstance(value, str) and credentials.VALUE.search(value):
        yield _credential(path)


def _credential(path: str) -> Refusal:
    return Refusal(
        path,
        "a credential (not repeated here)",
        _OWN_KEYS,
        "Pulumi hands the values of a structured object to the program as plain text, and they land readable in the "
        "state.",
    )


def _untagged(location: tuple[int | str, ...]) -> tuple[tuple[int | str, ...], str | None]:
    """The place as a user knows it, and the engine: pydantic puts the name of the engine into places of a workload."""
    if location[:1] == ("serving",) and len(location) > 2 and location[2] in WORKLOADS:
        return (*location[:2], *location[3:]), str(location[2])
    return location, None


def _path(location: tuple[int | str, ...]) -> str:
    path = "stack"
    for part in _untagged(location)[0]:
        # Pydantic marks mistakes in the key itself; the key already says which.
        if part != "[key]":
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path


def _fields(location: tuple[int | str, ...]) -> list[str]:
    """The keys allowed at ``location``: that of the object that holds an unknown or missing key."""
    model: Any = Stack
    place, engine = _untagged(location)
    for part in place:
        if isinstance(part, int):
            continue
        by_alias = {field.alias: field for field in model.model_fields.values()}
        if part not in by_alias:
            return []
        model = _section_in(by_alias[part].annotation, engine)
        if model is None:
            return []
    return [str(field.alias) for field in model.model_fields.values()]


def _section_in(annotation: Any, engine: str | None) -> type[BaseModel] | None:
    """The section that an annotation holds; of workloads the one of ``engine``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return WORKLOADS[engine] if engine and issubclass(annotation, Workload) else annotation
    for argument in getattr(annotation, "__args__", ()):
        if found := _section_in(argument, engine):
            return found
    return None


def _nearest(key: str, fields: list[str]) -> str:
    """The key that was probably meant, else all of a short list."""
    plain = {field.lower(): field for field in fields}
    near = difflib.get_close_matches(re.sub(r"[\s_-]", "", key).lower(), plain, n=1)
    if near:
        return plain[near[0]]
    return ", ".join(fields) if len(fields) <= _FEW_KEYS else "the keys in stacks/schema.json"


def _unknown_key(location: tuple[int | str, ...], path: str) -> Refusal:
    key, engine = location[-1], _untagged(location)[1]
    if engine and len(location) == len(("serving", 0, engine, key)):
        owners = [other for other in WORKLOADS if key in _fields(("serving", 0, other))]
        if owners:
            owned = f"a key of engine {' and '.join(owners)}"
            return Refusal(path, owned, f"keys of engine {engine}", "The engine decides which keys there are.")
    return Refusal(path, "an unknown key", _nearest(str(key), _fields(location[:-1])), "Check the spelling.")


def _refusal(details: Any) -> Refusal:
    location, kind, given = details["loc"], details["type"], details["input"]
    path = _path(location)
    match kind:
        case "extra_forbidden":
            return _unknown_key(location, path)
        case "too_short":
            return Refusal(path, "an empty list", "one entry or more", "Without one there is nothing to deploy.")
        case "union_tag_invalid" | "union_tag_not_found":
            engine = given.get("engine") if isinstance(given, dict) else None
            return Refusal(f"{path}.engine", quoted(engine), ", ".join(WORKLOADS), "It says what serves the models.")
        case "missing":
            return Refusal(path, "nothing", "a value", "This key has no default.")
        case "model_type" | "model_attributes_type" | "dict_type":
            keys = _fields(location)
            listed = ", ".join(keys) if 0 < len(keys) <= _FEW_KEYS else "keys and values"
            return Refusal(path, quoted(_lists(given)), f"an object with {listed}", "A section is written with keys.")
    message = re.sub(r"^(Input should be|Value error,) ", "", details["msg"])
    hidden = credentials.NAME.search(path) and not (isinstance(given, str) and given.lower() in _SWITCHES)
    shown = f"{'neither true nor false' if kind == 'bool_type' else 'a value'} (not repeated here)"
    if not hidden:
        shown = quoted(_lists(given))
    message = _WRITTEN.get(kind, message)
    # A section's own check says why before it says what is allowed.
    why, _, allowed = message.rpartition("; allowed: ")
    return Refusal(path, shown, allowed.replace("a valid tuple", "a list"), f"{why}." if why else _meaning(location))


def _meaning(location: tuple[int | str, ...]) -> str:
    """What the key means, from its description."""
    model: Any = Stack
    meaning = "stacks/schema.json describes every key"
    place, engine = _untagged(location)
    for part in place:
        field = next((field for field in model.model_fields.values() if field.alias == part), None)
        if field is None:
            continue
        meaning = field.description or meaning
        model = _section_in(field.annotation, engine)
        if model is None:
            break
    return f"{meaning}."


def _lists(value: Any) -> Any:
    """Back to YAML's own form for messages."""
    if isinstance(value, tuple):
        return [_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return value
