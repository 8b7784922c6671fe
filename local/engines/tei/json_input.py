"""Request bodies read as serde_json and axum read them, with their error texts and positions.

A client that sends a wrong body meets these texts (recordings embed/20, 25, 31-39, rerank/17-20, classifier/08), so the
reader below follows serde_json's order of reading: it stops at the first error and reports the byte where it stopped.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]  # the C scanner behind json.loads
from typing import Any

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MAX_DEPTH = 128


class BodyError(Exception):
    """A body that the JSON layer refuses: status 400 (syntax) or 422 (wrong data), answered as plain text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class _JsonSyntaxError(Exception):
    def __init__(self, message: str, position: int) -> None:
        self.message = message
        self.position = position
        self.path: list[str] = []


class _WrongDataError(_JsonSyntaxError):
    pass


class UnplacedError(Exception):
    """An error of a value that was already read; it gets its position where serde's `fix_position` would give it."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.path: list[str] = []


class Reader:
    """Cursor over one body."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def peek(self) -> str:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def peek_error(self, message: str) -> _JsonSyntaxError:
        return _JsonSyntaxError(message, min(len(self.text), self.at + 1))

    def place(self, error: UnplacedError) -> _WrongDataError:
        placed = _WrongDataError(error.message, self.at)
        placed.path = error.path
        return placed

    def string(self) -> str:
        opening = self.at
        try:
            value, self.at = scanstring(self.text, opening + 1, True)
        except json.JSONDecodeError as error:
            if error.msg.startswith("Unterminated"):
                raise _JsonSyntaxError("EOF while parsing a string", len(self.text)) from None
            if error.msg.startswith("Invalid control"):
                message = "control character (\\u0000-\\u001F) found while parsing a string"
                raise _JsonSyntaxError(message, error.pos + 1) from None
            raise _JsonSyntaxError("invalid escape", min(len(self.text), error.pos + 2)) from None
        return str(value)

    def number(self) -> int | float:
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            self.at += 1
            raise self.peek_error("EOF while parsing a value" if self.at >= len(self.text) else "invalid number")
        self.at = match.end()
        return float(match.group()) if match.group(1) or match.group(2) else int(match.group())

    def word(self, word: str, value: object) -> object:
        for offset, character in enumerate(word):
            found = self.text[self.at + offset : self.at + offset + 1]
            if found != character:
                ended = not found
                position = min(len(self.text), self.at + offset + (0 if ended else 1))
                raise _JsonSyntaxError("EOF while parsing a value" if ended else "expected ident", position)
        self.at += len(word)
        return value

    def scalar(self, first: str) -> object:
        if first == '"':
            return self.string()
        if first == "n":
            return self.word("null", None)
        if first == "t":
            return self.word("true", True)
        if first == "f":
            return self.word("false", False)
        if first.isdigit() or first == "-":
            return self.number()
        if not first:
            raise self.peek_error("EOF while parsing a value")
        raise self.peek_error("expected value")

    def enter(self) -> None:
        self.depth += 1
        if self.depth >= _MAX_DEPTH:
            raise self.peek_error("recursion limit exceeded")
        self.at += 1

    def next_key(self, *, first: bool) -> str | None:
        """The next key of an object with the cursor behind its colon; None at the closing brace, which is not read."""
        found = self.peek()
        if found == "}":
            return None
        if not found:
            raise self.peek_error("EOF while parsing an object")
        if not first:
            if found != ",":
                raise self.peek_error("expected `,` or `}`")
            self.at += 1
            found = self.peek()
        if found != '"':
            if not found:
                raise self.peek_error("EOF while parsing a value")
            raise self.peek_error("trailing comma" if found == "}" else "key must be a string")
        key = self.string()
        found = self.peek()
        if found != ":":
            raise self.peek_error("expected `:`" if found else "EOF while parsing an object")
        self.at += 1
        return key

    def has_element(self, *, first: bool) -> bool:
        found = self.peek()
        if found == "]":
            return False
        if not found:
            raise self.peek_error("EOF while parsing a list")
        if not first:
            if found != ",":
                raise self.peek_error("expected `,` or `]`")
            self.at += 1
            found = self.peek()
            if found == "]":
                raise self.peek_error("trailing comma")
            if not found:
                raise self.peek_error("EOF while parsing a value")
        return True

    def anything(self) -> Any:
        """Any value, as plain Python data."""
        found = self.peek()
        if found == "{":
            self.enter()
            mapping: dict[str, object] = {}
            while (key := self.next_key(first=not mapping)) is not None:
                mapping[key] = self.anything()
            self.leave()
            return mapping
        if found == "[":
            self.enter()
            items: list[object] = []
            while self.has_element(first=not items):
                items.append(self.anything())
            self.leave()
            return items
        return self.scalar(found)

    def leave(self) -> None:
        self.at += 1
        self.depth -= 1


Shape = Callable[[Reader], Any]


def _described(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{value}`"
    if isinstance(value, str):
        return f"string {json.dumps(value, ensure_ascii=False)}"
    return "map" if isinstance(value, dict) else "sequence"


def _invalid_type(reader: Reader, found: str, expected: str) -> _WrongDataError:
    # A list or map is reported at its opening, a scalar once it was read.
    described = {"{": "map", "[": "sequence"}.get(found) or _described(reader.scalar(found))
    return reader.place(UnplacedError(f"invalid type: {described}, expected {expected}"))


def text(reader: Reader) -> str:
    if (found := reader.peek()) == '"':
        return reader.string()
    raise _invalid_type(reader, found, "a string")


def boolean(reader: Reader) -> bool:
    if (found := reader.peek()) in {"t", "f"}:
        return bool(reader.scalar(found))
    raise _invalid_type(reader, found, "a boolean")


def _unsigned(bits: int, name: str) -> Shape:
    def shape(reader: Reader) -> int:
        found = reader.peek()
        if not (found.isdigit() or found == "-"):
            raise _invalid_type(reader, found, name)
        value = reader.number()
        if isinstance(value, int) and 0 <= value < 2**bits:
            return value
        problem = "type" if isinstance(value, float) else "value"
        raise reader.place(UnplacedError(f"invalid {problem}: {_described(value)}, expected {name}"))

    return shape


usize = _unsigned(64, "usize")
u32 = _unsigned(32, "u32")


def optional(inner: Shape) -> Shape:
    def shape(reader: Reader) -> Any:
        if (found := reader.peek()) == "n":
            return reader.scalar(found)
        return inner(reader)

    return shape


def one_of(variants: Mapping[str, str]) -> Shape:
    """A unit enum: accepted spellings to values."""
    shown = [f"`{name}`" for name in variants]
    expected = f"{shown[0]} or {shown[1]}" if len(shown) == 2 else "one of " + ", ".join(shown)

    def shape(reader: Reader) -> str:
        found = reader.peek()
        if found != '"':
            raise reader.peek_error("expected value" if found else "EOF while parsing a value")
        value = reader.string()
        if value not in variants:
            raise reader.place(UnplacedError(f"unknown variant `{value}`, expected {expected}"))
        return variants[value]

    return shape


def list_of(inner: Shape) -> Shape:
    def shape(reader: Reader) -> list[Any]:
        if (found := reader.peek()) != "[":
            raise _invalid_type(reader, found, "a sequence")
        reader.enter()
        items: list[Any] = []
        while reader.has_element(first=not items):
            try:
                items.append(inner(reader))
            except _JsonSyntaxError as error:
                error.path.insert(0, f"[{len(items)}]")
                raise
        reader.leave()
        return items

    return shape


def untagged(name: str, accepts: Callable[[Any], bool]) -> Shape:
    """A serde untagged enum: the value is read whole and then tried against the variants."""

    def shape(reader: Reader) -> Any:
        value = reader.anything()
        if accepts(value):
            return value
        raise UnplacedError(f"data did not match any variant of untagged enum {name}")

    return shape


@dataclass(frozen=True)
class Field:
    shape: Shape
    default: Any = None
    required: bool = False


def struct(name: str, fields: Mapping[str, Field]) -> Shape:
    """An object with known fields; unknown ones are skipped."""

    def read(reader: Reader) -> dict[str, Any]:
        values: dict[str, Any] = {}
        first = True
        while (key := reader.next_key(first=first)) is not None:
            first = False
            field = fields.get(key)
            if field is None:
                reader.anything()
                continue
            if key in values:
                raise UnplacedError(f"duplicate field `{key}`")
            try:
                values[key] = field.shape(reader)
            except (_JsonSyntaxError, UnplacedError) as error:
                error.path.insert(0, key)
                raise
        for key, field in fields.items():
            if key not in values:
                if field.required:
                    raise UnplacedError(f"missing field `{key}`")
                values[key] = field.default
        return values

    def shape(reader: Reader) -> dict[str, Any]:
        if (found := reader.peek()) != "{":
            raise _invalid_type(reader, found, f"struct {name}")
        reader.enter()
        try:
            values = read(reader)
        except UnplacedError as error:
            # serde_json reads the closing brace before it gives an error without a position its place.
            if reader.peek() == "}":
                reader.leave()
            raise reader.place(error) from None
        reader.leave()
        return values

    return shape


def _joined(path: list[str]) -> str:
    joined = ""
    for part in path:
        joined += part if part.startswith("[") or not joined else f".{part}"
    return joined


def read_body(body: bytes, shape: Shape) -> Any:
    """The body as the shape's value.

    Raises:
        BodyError: 400 when it is no JSON, 422 when it is JSON of another shape; the text names line and byte column.
    """
    try:
        decoded = body.decode()
    except UnicodeDecodeError as error:
        position = error.start + 1
        line = body.count(b"\n", 0, position) + 1
        column = position - body.rfind(b"\n", 0, position) - 1
        where = f"line {line} column {column}"
        raise BodyError(
            400, f"Failed to parse the request body as JSON: invalid unicode code point at {where}"
        ) from None
    reader = Reader(decoded)
    try:
        value = shape(reader)
        if reader.peek():
            raise reader.peek_error("trailing characters")
    except _JsonSyntaxError as error:
        line_start = decoded.rfind("\n", 0, error.position) + 1
        column = len(decoded[line_start : error.position].encode())
        line = decoded.count("\n", 0, error.position) + 1
        path = f"{_joined(error.path)}: " if error.path else ""
        message = f"{path}{error.message} at line {line} column {column}"
        if isinstance(error, _WrongDataError):
            raise BodyError(422, f"Failed to deserialize the JSON body into the target type: {message}") from None
        raise BodyError(400, f"Failed to parse the request body as JSON: {message}") from None
    return value
