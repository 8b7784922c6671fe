"""Texts, or pairs of texts, to token ids: the first step of every ensemble.

All texts that are tokenized together get one length, out of a few that the configuration names: Triton batches only
requests of equal shape, and TensorRT keeps an engine for a range of shapes. Padding is masked.

Configuration: inputs `text`, or `query` and `text`, TYPE_STRING [1]; outputs among input_ids, attention_mask,
token_type_ids, [-1]. Parameters: max_tokens, padded_lengths (ascending, the last is max_tokens), truncate (true: cut
what is longer; false: refuse the request).
"""

import json
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
# Packages that the server's image lacks come with the model.
sys.path.insert(0, str(_HERE / "packages"))

import numpy as np  # noqa: E402
import triton_python_backend_utils as triton  # noqa: E402
from tokenizers import Encoding, Tokenizer  # noqa: E402

_FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
_PADDING_TOKENS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "</s>")


class TritonPythonModel:
    """The interface that Triton's Python backend asks for."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = {name: entry["string_value"] for name, entry in config["parameters"].items()}
        self._max_tokens = int(parameters["max_tokens"])
        self._lengths = [int(length) for length in parameters["padded_lengths"].split(",")]
        self._inputs = [entry["name"] for entry in config["input"]]
        self._outputs = {entry["name"]: triton.triton_string_to_numpy(entry["data_type"]) for entry in config["output"]}
        self._tokenizer = Tokenizer.from_file(str(_HERE / "tokenizer.json"))
        self._padding = _padding_id(self._tokenizer)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        if parameters["truncate"] == "true":
            self._tokenizer.enable_truncation(self._max_tokens)

    def execute(self, requests: list[Any]) -> list[Any]:
        answers: list[list[Encoding] | triton.TritonError] = [self._encode(request) for request in requests]
        encoded = [answer for answer in answers if isinstance(answer, list)]
        longest = max((len(one.ids) for many in encoded for one in many), default=0)
        length = next((n for n in self._lengths if n >= longest), self._max_tokens)
        return [
            triton.InferenceResponse(output_tensors=self._tensors(answer, length))
            if isinstance(answer, list)
            else triton.InferenceResponse(error=answer)
            for answer in answers
        ]

    def _encode(self, request: Any) -> "list[Encoding] | triton.TritonError":
        columns = [triton.get_input_tensor_by_name(request, name).as_numpy().ravel() for name in self._inputs]
        try:
            rows = [tuple(value.decode() for value in row) for row in zip(*columns, strict=True)]
        except UnicodeDecodeError as error:
            return triton.TritonError(f"a text is not UTF-8: {error}", triton.TritonError.INVALID_ARG)
        encoded = self._tokenizer.encode_batch([row if len(row) > 1 else row[0] for row in rows])
        for number, one in enumerate(encoded):
            if len(one.ids) > self._max_tokens:
                return triton.TritonError(
                    f"text {number} has {len(one.ids)} tokens, allowed are {self._max_tokens}",
                    triton.TritonError.INVALID_ARG,
                )
        return list(encoded)

    def _tensors(self, encoded: list[Encoding], length: int) -> list[Any]:
        tensors = []
        for name, kind in self._outputs.items():
            rows = np.full((len(encoded), length), self._padding if name == "input_ids" else 0, dtype=kind)
            for row, one in zip(rows, encoded, strict=True):
                row[: len(one.ids)] = getattr(one, _FIELDS[name])
            tensors.append(triton.Tensor(name, rows))
        return tensors


def _padding_id(tokenizer: Tokenizer) -> int:
    """What fills rows: XLM-R counts positions from it, so it has to be the model's own."""
    if tokenizer.padding:
        return int(tokenizer.padding["pad_id"])
    for token in _PADDING_TOKENS:
        if (found := tokenizer.token_to_id(token)) is not None:
            return int(found)
    raise triton.TritonModelException(f"tokenizer.json names no padding, and has none of {', '.join(_PADDING_TOKENS)}")
