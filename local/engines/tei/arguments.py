"""Command line and environment of text-embeddings-router 1.9.3, with the errors of its parser (clap).

Flags, variables and defaults: recording startup/flags.json; error texts and exit code 2: startup/start-cases.json.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from local.engines.tei import VERSION

PROGRAM = "text-embeddings-router"
TRY_HELP = "For more information, try '--help'."


class UsageError(Exception):
    """What clap prints before it exits with code 2."""


class Kind(Enum):
    TEXT = auto()
    COUNT = auto()
    PORT = auto()
    CHOICE = auto()
    SWITCH = auto()
    OPTIONAL_BOOLEAN = auto()
    LIST = auto()


@dataclass(frozen=True)
class Flag:
    name: str
    kind: Kind
    default: str | None = None
    choices: tuple[str, ...] = ()
    masked: bool = False

    @property
    def long(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return self.name.upper()

    @property
    def shown(self) -> str:
        """The flag with its value as clap writes it in errors and usage lines."""
        if self.kind is Kind.SWITCH:
            return self.long
        if self.kind is Kind.OPTIONAL_BOOLEAN:
            return f"{self.long} [<{self.variable}>]"
        return f"{self.long} <{self.variable}>"


#: In the order in which the router's first log line prints them.
FLAGS = (
    Flag("model_id", Kind.TEXT, masked=True),
    Flag("revision", Kind.TEXT),
    Flag("tokenization_workers", Kind.COUNT),
    Flag("dtype", Kind.CHOICE, choices=("float16", "float32")),
    Flag("served_model_name", Kind.TEXT),
    Flag("pooling", Kind.CHOICE, choices=("cls", "mean", "splade", "last-token")),
    Flag("max_concurrent_requests", Kind.COUNT, "512"),
    Flag("max_batch_tokens", Kind.COUNT, "16384"),
    Flag("max_batch_requests", Kind.COUNT),
    Flag("max_client_batch_size", Kind.COUNT, "32"),
    Flag("auto_truncate", Kind.OPTIONAL_BOOLEAN, "true", choices=("true", "false")),
    Flag("default_prompt_name", Kind.TEXT),
    Flag("default_prompt", Kind.TEXT),
    Flag("dense_path", Kind.TEXT),
    Flag("hf_api_token", Kind.TEXT, masked=True),
    Flag("hf_token", Kind.TEXT, masked=True),
    Flag("hostname", Kind.TEXT, "0.0.0.0"),  # noqa: S104 - the router's default
    Flag("port", Kind.PORT, "3000"),
    Flag("uds_path", Kind.TEXT, "/tmp/text-embeddings-inference-server"),  # noqa: S108 - the router's default
    Flag("huggingface_hub_cache", Kind.TEXT),
    Flag("payload_limit", Kind.COUNT, "2000000"),
    Flag("api_key", Kind.TEXT),
    Flag("json_output", Kind.SWITCH, "false", choices=("true", "false")),
    Flag("disable_spans", Kind.SWITCH, "false", choices=("true", "false")),
    Flag("otlp_endpoint", Kind.TEXT),
    Flag("otlp_service_name", Kind.TEXT, "text-embeddings-inference.server"),
    Flag("prometheus_port", Kind.PORT, "9000"),
    Flag("cors_allow_origin", Kind.LIST),
)
BY_LONG = {flag.long: flag for flag in FLAGS}
BY_NAME = {flag.name: flag for flag in FLAGS}
CONFLICTS = (("hf_api_token", "hf_token"), ("default_prompt", "default_prompt_name"))
SHORT = {"-p": BY_NAME["port"]}


@dataclass(frozen=True)
class Arguments:
    model_id: str
    revision: str | None
    tokenization_workers: int | None
    dtype: str | None
    served_model_name: str | None
    pooling: str | None
    max_concurrent_requests: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool
    default_prompt_name: str | None
    default_prompt: str | None
    dense_path: str | None
    hf_api_token: str | None
    hf_token: str | None
    hostname: str
    port: int
    uds_path: str
    huggingface_hub_cache: str | None
    payload_limit: int
    api_key: str | None
    json_output: bool
    disable_spans: bool
    otlp_endpoint: str | None
    otlp_service_name: str
    prometheus_port: int
    cors_allow_origin: list[str] | None

    def debug_text(self) -> str:
        """The router's first log line. It masks the model id and the tokens, and prints the API key in clear."""
        fields = ", ".join(f"{flag.name}: {_debug(flag, getattr(self, flag.name))}" for flag in FLAGS)
        return f"Args {{ {fields} }}"


def _rust_string(text: str) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(character, character) for character in text) + '"'


def masked(text: str) -> str:
    """All but the first and last letters and digits replaced, as in the recorded logs ("all-******-*6-v2")."""
    positions = [index for index, character in enumerate(text) if character.isalnum()]
    shown = min(len(positions) // 3, 3)
    hidden = set(positions[shown : len(positions) - shown])
    return "".join("*" if index in hidden else character for index, character in enumerate(text))


def _debug(flag: Flag, value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, int):
        text = str(value)
    elif isinstance(value, list):
        text = "[" + ", ".join(_rust_string(item) for item in value) + "]"
    elif flag.kind is Kind.CHOICE:
        text = "".join(word.capitalize() for word in str(value).split("-"))
    else:
        text = _rust_string(masked(str(value)) if flag.masked else str(value))
    optional = flag.default is None and flag.name != "model_id"
    return f"Some({text})" if optional else text


def jaro(left: str, right: str) -> float:
    """Jaro similarity, by which clap picks the "similar" name of a tip."""
    if not left or not right:
        return 0.0
    window = max(len(left), len(right)) // 2 - 1
    taken = [False] * len(right)
    matches: list[str] = []
    for index, character in enumerate(left):
        for other in range(max(0, index - window), min(len(right), index + window + 1)):
            if not taken[other] and right[other] == character:
                taken[other] = True
                matches.append(character)
                break
    if not matches:
        return 0.0
    counterparts = [character for character, used in zip(right, taken, strict=True) if used]
    transposed = sum(a != b for a, b in zip(matches, counterparts, strict=True)) / 2
    count = len(matches)
    return (count / len(left) + count / len(right) + (count - transposed) / count) / 3


def _similar(given: str, known: Sequence[str]) -> str | None:
    best = max(known, key=lambda name: jaro(given, name), default=None)
    return best if best is not None and jaro(given, best) > 0.7 else None


def _message(first: str, *details: str, usage: str | None = None) -> str:
    parts = ["\n".join([f"error: {first}", *(f"  {detail}" if detail else "" for detail in details)])]
    if usage:
        parts.append(usage)
    parts.append(TRY_HELP)
    return "\n\n".join(parts)


def _choice_details(flag: Flag) -> list[str]:
    return [f"[possible values: {', '.join(flag.choices)}]"] if flag.choices else []


def _number(flag: Flag, text: str, highest: int) -> int:
    if re.fullmatch(r"\+?[0-9]+", text, re.ASCII):
        value = int(text)
        if value <= highest:
            return value
        reason = "number too large to fit in target type"
        if flag.kind is Kind.PORT:
            reason = f"{value} is not in 0..=65535"
    elif not text:
        reason = "cannot parse integer from empty string"
    else:
        reason = "invalid digit found in string"
    raise UsageError(_message(f"invalid value '{text}' for '{flag.shown}': {reason}"))


def _choice(flag: Flag, text: str) -> str:
    if text in flag.choices:
        return text
    if not text:
        raise UsageError(
            _message(f"a value is required for '{flag.shown}' but none was supplied", *_choice_details(flag))
        )
    details = _choice_details(flag)
    if flag.kind is Kind.CHOICE and (similar := _similar(text, flag.choices)):
        details += ["", f"tip: a similar value exists: '{similar}'"]
    raise UsageError(_message(f"invalid value '{text}' for '{flag.shown}'", *details))


_PARSERS: dict[Kind, Callable[[Flag, str], object]] = {
    Kind.TEXT: lambda _flag, text: text,
    Kind.LIST: lambda _flag, text: [text],
    Kind.COUNT: lambda flag, text: _number(flag, text, 2**64 - 1),
    Kind.PORT: lambda flag, text: _number(flag, text, 65535),
    Kind.CHOICE: _choice,
    Kind.SWITCH: lambda flag, text: _choice(flag, text) == "true",
    Kind.OPTIONAL_BOOLEAN: lambda flag, text: _choice(flag, text) == "true",
}


def _usage(given: Sequence[str], also: str | None = None) -> str:
    names = dict.fromkeys(["model_id", *given, *([also] if also else [])])
    return " ".join([f"Usage: {PROGRAM}", *(BY_NAME[name].shown for name in names)])


def _unexpected(token: str, given: Sequence[str]) -> UsageError:
    name = token.split("=", 1)[0]
    details: list[str] = []
    similar = None
    if name.startswith("--"):
        similar = _similar(name[2:], [flag.long[2:] for flag in FLAGS])
    if similar:
        details = ["", f"tip: a similar argument exists: '--{similar}'"]
    also = similar.replace("-", "_") if similar else None
    return UsageError(_message(f"unexpected argument '{name}' found", *details, usage=_usage(given, also)))


def _command_line(argv: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    index = 0
    while index < len(argv):
        token = argv[index]
        index += 1
        name, separator, value = token.partition("=")
        flag = BY_LONG.get(name)
        if flag is None and token[:2] in SHORT:
            flag = SHORT[token[:2]]
            value = token[2:].removeprefix("=")
            separator = "=" if value else ""
        if flag is None:
            raise _unexpected(token, list(given))
        if flag.kind is Kind.SWITCH:
            if separator:
                raise UsageError(_message(f"unexpected value '{value}' for '{flag.long}' found; no more were expected"))
            value = "true"
        elif not separator:
            if index < len(argv) and not argv[index].startswith("-"):
                value = argv[index]
                index += 1
            elif flag.kind is Kind.OPTIONAL_BOOLEAN:
                value = "true"
            else:
                raise UsageError(
                    _message(f"a value is required for '{flag.shown}' but none was supplied", *_choice_details(flag))
                )
        if flag.name in given and flag.kind is not Kind.LIST:
            raise UsageError(_message(f"the argument '{flag.shown}' cannot be used multiple times"))
        given[flag.name] = value
    return given


def parse(argv: Sequence[str], environment: Mapping[str, str]) -> Arguments:
    """Arguments of one start; a flag wins over its variable.

    Raises:
        UsageError: with the text that clap prints.
    """
    given = _command_line(argv)
    from_environment = {
        flag.name: environment[flag.variable]
        for flag in FLAGS
        if flag.variable in environment and flag.name not in given
    }
    texts = from_environment | given
    values: dict[str, object] = {}
    for flag in FLAGS:
        text = texts.get(flag.name, flag.default)
        values[flag.name] = None if text is None else _PARSERS[flag.kind](flag, text)
    for first, second in CONFLICTS:
        if first in texts and second in texts:
            shown = f"the argument '{BY_NAME[first].shown}' cannot be used with '{BY_NAME[second].shown}'"
            raise UsageError(_message(shown, usage=_usage([name for name in given if name != second])))
    if values["model_id"] is None:
        missing = _message(
            "the following required arguments were not provided:",
            BY_NAME["model_id"].shown,
            usage=_usage(list(given)),
        )
        raise UsageError(missing)
    return Arguments(**values)  # type: ignore[arg-type]  # each parser returns the type of its field


def help_text() -> str:
    """Names only; the router's own descriptions are not carried here."""
    lines = [
        f"Stand-in for {PROGRAM} {VERSION}: real MiniLM weights on the CPU (docs/local-tei.md).",
        "",
        f"Usage: {PROGRAM} [OPTIONS] --model-id <MODEL_ID>",
        "",
        "Options:",
    ]
    for flag in FLAGS:
        notes = f"[env: {flag.variable}]"
        notes += f" [default: {flag.default}]" if flag.default else ""
        notes += f" [possible values: {', '.join(flag.choices)}]" if flag.choices else ""
        lines.append(f"  {flag.shown} {notes}")
    return "\n".join(lines)
