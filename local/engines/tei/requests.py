"""The bodies that the router's endpoints accept (fields and defaults of release 1.9)."""

from typing import Any

from local.engines.tei.json_input import (
    Field,
    Reader,
    UnplacedError,
    boolean,
    list_of,
    one_of,
    optional,
    struct,
    text,
    untagged,
    usize,
)

_DIRECTION = Field(one_of({"Left": "left", "left": "left", "Right": "right", "right": "right"}), "right")
_TRUNCATE = Field(optional(boolean))
_PROMPT_NAME = Field(optional(text))
_RAW_SCORES = Field(boolean, False)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def is_ids(value: object) -> bool:
    """True for a list of token ids; the empty list is one too, as it is for the router."""
    return isinstance(value, list) and all(_is_id(item) for item in value)


def _is_input(value: object) -> bool:
    if isinstance(value, str) or is_ids(value):
        return True
    return isinstance(value, list) and all(isinstance(item, str) or is_ids(item) for item in value)


def _is_texts(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _is_id_lists(value: object) -> bool:
    return is_ids(value) or (isinstance(value, list) and all(is_ids(item) for item in value))


_PREDICT_EXPECTED = (
    "a string, a pair of strings [string, string] or a batch of mixed strings and pairs "
    "[[string], [string, string], ...]"
)


def _predict_input(reader: Reader) -> Any:
    """A string, a pair, or a list of lists with one or two strings; a plain list with one string counts as a string.

    Errors arise while the list is read and are placed behind its closing bracket (recording classifier/08).
    """
    value = reader.anything()
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        described = {type(None): "null", dict: "map"}.get(type(value), f"`{value}`")
        raise reader.place(UnplacedError(f"invalid type: {described}, expected {_PREDICT_EXPECTED}"))
    strings = all(isinstance(item, str) for item in value)
    lists = all(isinstance(item, list) and all(isinstance(part, str) for part in item) for item in value)
    if not value or (strings and len(value) > 2):
        wrong_length = min(len(value), 3)
    elif lists:
        wrong_length = next((len(item) for item in value if len(item) not in {1, 2}), -1)
    elif strings:
        wrong_length = -1
    else:
        raise reader.place(UnplacedError("data did not match any variant of untagged enum Internal"))
    if wrong_length >= 0:
        raise reader.place(UnplacedError(f"invalid length {wrong_length}, expected {_PREDICT_EXPECTED}"))
    return value


_INPUT = untagged("Input", _is_input)

EMBED = struct(
    "EmbedRequest",
    {
        "inputs": Field(_INPUT, required=True),
        "truncate": _TRUNCATE,
        "truncation_direction": _DIRECTION,
        "prompt_name": _PROMPT_NAME,
        "normalize": Field(boolean, True),
        "dimensions": Field(optional(usize)),
    },
)
EMBED_UNPOOLED = struct(
    "EmbedAllRequest",
    {
        "inputs": Field(_INPUT, required=True),
        "truncate": _TRUNCATE,
        "truncation_direction": _DIRECTION,
        "prompt_name": _PROMPT_NAME,
    },
)
OPENAI = struct(
    "OpenAICompatRequest",
    {
        "input": Field(_INPUT, required=True),
        "model": Field(optional(text)),
        "user": Field(optional(text)),
        "encoding_format": Field(one_of({"float": "float", "base64": "base64"}), "float"),
        "dimensions": Field(optional(usize)),
    },
)
RERANK = struct(
    "RerankRequest",
    {
        "query": Field(text, required=True),
        "texts": Field(list_of(text), required=True),
        "truncate": _TRUNCATE,
        "truncation_direction": _DIRECTION,
        "raw_scores": _RAW_SCORES,
        "return_text": Field(boolean, False),
    },
)
PREDICT = struct(
    "PredictRequest",
    {
        "inputs": Field(_predict_input, required=True),
        "truncate": _TRUNCATE,
        "truncation_direction": _DIRECTION,
        "raw_scores": _RAW_SCORES,
    },
)
SIMILARITY = struct(
    "SimilarityRequest",
    {
        "inputs": Field(
            struct(
                "SimilarityInput",
                {"source_sentence": Field(text, required=True), "sentences": Field(list_of(text), required=True)},
            ),
            required=True,
        ),
        "parameters": Field(
            optional(
                struct(
                    "SimilarityParameters",
                    {"truncate": _TRUNCATE, "truncation_direction": _DIRECTION, "prompt_name": _PROMPT_NAME},
                )
            )
        ),
    },
)
TOKENIZE = struct(
    "TokenizeRequest",
    {
        "inputs": Field(untagged("TokenizeInput", _is_texts), required=True),
        "add_special_tokens": Field(boolean, True),
        "prompt_name": _PROMPT_NAME,
    },
)
DECODE = struct(
    "DecodeRequest",
    {
        "ids": Field(untagged("InputIds", _is_id_lists), required=True),
        "skip_special_tokens": Field(boolean, True),
    },
)
VERTEX = struct("VertexRequest", {"instances": Field(list_of(Reader.anything), required=True)})
