"""Log lines of the router: text with colours, or JSON, filtered by LOG_LEVEL per target.

Shapes: recordings startup/log-text.txt and startup/log-json.txt. The recorded texts lost their colours; the recording's
README says that the server writes them even when it is not attached to a terminal.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TextIO

LEVELS = {"TRACE": 0, "DEBUG": 1, "INFO": 2, "WARN": 3, "ERROR": 4, "OFF": 5}
_COLOURS = {"TRACE": 35, "DEBUG": 34, "INFO": 32, "WARN": 33, "ERROR": 31}
_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"

ROUTER = "text_embeddings_router"
HTTP_SERVER = "text_embeddings_router::http::server"
GRPC_SERVER = "text_embeddings_router::grpc::server"
SHUTDOWN = "text_embeddings_router::shutdown"
CORE_INFER = "text_embeddings_core::infer"
CORE_TOKENIZATION = "text_embeddings_core::tokenization"
BACKEND = "text_embeddings_backend"
BACKEND_CANDLE = "text_embeddings_backend_candle"
STAND_IN = "stand_in"


class Filter:
    """Directives such as "info,text_embeddings_router=warn": the longest target that is a prefix decides.

    Text that cannot be read means "info", as in the router (`EnvFilter::try_from_env(..).unwrap_or("info")`).
    """

    def __init__(self, directives: str) -> None:
        try:
            self._levels = self._read(directives)
        except KeyError:
            self._levels = {"": LEVELS["INFO"]}

    @staticmethod
    def _read(directives: str) -> dict[str, int]:
        levels: dict[str, int] = {}
        for directive in filter(None, (part.strip() for part in directives.split(","))):
            target, separator, level = directive.rpartition("=")
            if not separator and level.upper() not in LEVELS:
                levels[level] = LEVELS["TRACE"]
            else:
                levels[target] = LEVELS[level.upper()]
        return levels or {"": LEVELS["ERROR"]}

    def allows(self, target: str, level: str) -> bool:
        matching = [name for name in self._levels if target.startswith(name)]
        if not matching:
            return False
        return LEVELS[level] >= self._levels[max(matching, key=len)]


def rust_duration(seconds: float) -> str:
    """A duration as Rust prints it: "14.084139ms", "137.849µs", "1.976056266s"."""
    nanoseconds = round(seconds * 1e9)
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if nanoseconds >= size:
            whole, rest = divmod(nanoseconds, size)
            digits = len(str(size)) - 1
            fraction = f"{rest:0{digits}d}".rstrip("0")
            return f"{whole}.{fraction}{unit}" if fraction else f"{whole}{unit}"
    return f"{nanoseconds}ns"


@dataclass(frozen=True)
class Span:
    """One level of context of a line: the request handler or a step below it, with its recorded fields."""

    name: str
    fields: Mapping[str, str] = field(default_factory=dict)
    quoted: bool = True

    def text(self) -> str:
        if not self.fields:
            return self.name
        pairs = (f'{key}="{value}"' if self.quoted else f"{key}={value}" for key, value in self.fields.items())
        return f"{_BOLD}{self.name}{{{_PLAIN}{' '.join(pairs)}{_BOLD}}}{_PLAIN}"

    def json(self) -> dict[str, str]:
        return {**self.fields, "name": self.name}


class Log:
    def __init__(self, directives: str, *, json_output: bool, stream: TextIO = sys.stdout) -> None:
        self._filter = Filter(directives)
        self._json = json_output
        self._stream = stream

    def always(self, message: str) -> None:
        """What the stand-in says about itself; no LOG_LEVEL hides it."""
        self._write("WARN", STAND_IN, "local/engines/tei/startup.py:1", message, ())

    def info(self, target: str, source: str, message: str, *spans: Span) -> None:
        self._filtered("INFO", target, source, message, spans)

    def warn(self, target: str, source: str, message: str, *spans: Span) -> None:
        self._filtered("WARN", target, source, message, spans)

    def error(self, target: str, source: str, message: str, *spans: Span) -> None:
        self._filtered("ERROR", target, source, message, spans)

    def _filtered(self, level: str, target: str, source: str, message: str, spans: tuple[Span, ...]) -> None:
        if self._filter.allows(target, level):
            self._write(level, target, source, message, spans)

    def _write(self, level: str, target: str, source: str, message: str, spans: tuple[Span, ...]) -> None:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        file, _, line = source.rpartition(":")
        if self._json:
            record: dict[str, object] = {
                "timestamp": now,
                "level": level,
                "message": message,
                "target": target,
                "filename": file,
                "line_number": int(line),
            }
            if spans:
                record["span"] = spans[-1].json()
                record["spans"] = [span.json() for span in spans]
            text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        else:
            context = "".join(f"{span.text()}{_DIM}:{_PLAIN}" for span in spans)
            text = (
                f"{_DIM}{now}{_PLAIN} \x1b[{_COLOURS[level]}m{level:>5}{_PLAIN} {context}{' ' if context else ''}"
                f"{_DIM}{target}{_PLAIN}{_DIM}:{_PLAIN} {_DIM}{file}{_PLAIN}{_DIM}:{_PLAIN}{_DIM}{line}:{_PLAIN} "
                f"{message}"
            )
        self._stream.write(text + "\n")
        self._stream.flush()
