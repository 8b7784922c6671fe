"""BERT forward pass in numpy (float32, CPU), from a Hugging Face directory with config.json and model.safetensors.

GELU is the tanh approximation because that is what TEI computes for `hidden_act=gelu` (its log says so).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


class InferenceError(Exception):
    """A forward pass that failed; the text is the one that candle gives."""


def read_safetensors(path: Path) -> dict[str, Floats]:
    """All float tensors of a safetensors file as float32.

    Format: 8 bytes little-endian header length, a JSON header with dtype, shape and data_offsets, then the data
    (https://github.com/huggingface/safetensors#format).
    """
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    header_length = int.from_bytes(raw[:8].tobytes(), "little")
    header: dict[str, Any] = json.loads(raw[8 : 8 + header_length].tobytes())
    data = raw[8 + header_length :]
    tensors: dict[str, Floats] = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in {"F32", "F16"}:
            continue
        start, end = entry["data_offsets"]
        stored = np.dtype("<f4") if entry["dtype"] == "F32" else np.dtype("<f2")
        values = np.frombuffer(data[start:end].tobytes(), dtype=stored)
        tensors[name] = values.reshape(entry["shape"]).astype(np.float32, copy=False)
    return tensors


@dataclass(frozen=True)
class TokenizedInput:
    """One tokenized input."""

    ids: Sequence[int]
    type_ids: Sequence[int]


def _select(table: Floats, indices: Integers) -> Floats:
    too_high = indices[indices >= len(table)]
    if too_high.size:
        raise InferenceError(f"index-select invalid index {int(too_high[0])} with dim size {len(table)}")
    return table[indices]


def _gelu(x: Floats) -> Floats:
    inner = x * x
    inner *= x
    inner *= np.float32(0.044715)
    inner += x
    inner *= np.float32(np.sqrt(2 / np.pi))
    np.tanh(inner, out=inner)
    inner += 1
    inner *= x
    inner *= np.float32(0.5)
    return inner


def _softmax(scores: Floats) -> Floats:
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


@dataclass(frozen=True)
class _Linear:
    weight: Floats
    bias: Floats

    def __call__(self, x: Floats) -> Floats:
        result: Floats = x @ self.weight.T
        result += self.bias
        return result


@dataclass(frozen=True)
class _Norm:
    weight: Floats
    bias: Floats
    epsilon: float

    def __call__(self, x: Floats) -> Floats:
        x = x - x.mean(axis=-1, keepdims=True)
        x /= np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(self.epsilon))
        x *= self.weight
        x += self.bias
        return x


@dataclass(frozen=True)
class _Layer:
    attention: _Linear
    attention_out: _Linear
    attention_norm: _Norm
    up: _Linear
    down: _Linear
    norm: _Norm


class Bert:
    """A BERT encoder, with a classification head if the weights have one.

    Args:
        directory: holds config.json and model.safetensors.

    Raises:
        FileNotFoundError: when the weights are missing.
    """

    def __init__(self, directory: Path) -> None:
        config = json.loads((directory / "config.json").read_text())
        tensors = read_safetensors(directory / "model.safetensors")
        prefix = "bert." if any(name.startswith("bert.") for name in tensors) else ""
        self._heads = int(config["num_attention_heads"])
        epsilon = float(config["layer_norm_eps"])

        def linear(name: str) -> _Linear:
            return _Linear(tensors[f"{name}.weight"], tensors[f"{name}.bias"])

        def norm(name: str) -> _Norm:
            return _Norm(tensors[f"{name}.weight"], tensors[f"{name}.bias"], epsilon)

        def layer(index: int) -> _Layer:
            name = f"{prefix}encoder.layer.{index}"
            parts = [linear(f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
            fused = _Linear(np.concatenate([p.weight for p in parts]), np.concatenate([p.bias for p in parts]))
            return _Layer(
                attention=fused,
                attention_out=linear(f"{name}.attention.output.dense"),
                attention_norm=norm(f"{name}.attention.output.LayerNorm"),
                up=linear(f"{name}.intermediate.dense"),
                down=linear(f"{name}.output.dense"),
                norm=norm(f"{name}.output.LayerNorm"),
            )

        embeddings = f"{prefix}embeddings"
        self._words = tensors[f"{embeddings}.word_embeddings.weight"]
        self._types = tensors[f"{embeddings}.token_type_embeddings.weight"]
        self._positions = tensors[f"{embeddings}.position_embeddings.weight"]
        self._embedding_norm = norm(f"{embeddings}.LayerNorm")
        self._layers = [layer(index) for index in range(int(config["num_hidden_layers"]))]
        self._pooler = linear(f"{prefix}pooler.dense") if f"{prefix}pooler.dense.weight" in tensors else None
        self._classifier = linear("classifier") if "classifier.weight" in tensors else None

    @property
    def max_positions(self) -> int:
        return len(self._positions)

    @property
    def vocabulary(self) -> int:
        return len(self._words)

    def hidden_states(self, batch: Sequence[TokenizedInput]) -> list[Floats]:
        """Last hidden states of each input, shape (its tokens, hidden size).

        Raises:
            InferenceError: a token id or a position outside its table.
        """
        longest = max(len(item.ids) for item in batch)
        ids = np.zeros((len(batch), longest), dtype=np.int64)
        type_ids = np.zeros_like(ids)
        padding = np.full((len(batch), 1, 1, longest), np.float32(-1e9), dtype=np.float32)
        for row, item in enumerate(batch):
            ids[row, : len(item.ids)] = item.ids
            type_ids[row, : len(item.ids)] = item.type_ids
            padding[row, ..., : len(item.ids)] = 0
        x = _select(self._words, ids) + _select(self._types, type_ids)
        x = self._embedding_norm(x + _select(self._positions, np.arange(longest)))
        for layer in self._layers:
            x = layer.attention_norm(x + layer.attention_out(self._attention(layer.attention(x), padding)))
            x = layer.norm(x + layer.down(_gelu(layer.up(x))))
        return [x[row, : len(item.ids)] for row, item in enumerate(batch)]

    def _attention(self, fused: Floats, padding: Floats) -> Floats:
        count, length, width = fused.shape
        size = width // 3 // self._heads
        query, key, value = fused.reshape(count, length, 3, self._heads, size).transpose(2, 0, 3, 1, 4)
        scores = query @ key.transpose(0, 1, 3, 2)
        scores *= np.float32(1 / np.sqrt(size))
        scores += padding
        context = _softmax(scores) @ value
        joined: Floats = context.transpose(0, 2, 1, 3).reshape(count, length, width // 3)
        return joined

    def logits(self, batch: Sequence[TokenizedInput]) -> list[Floats]:
        """Raw scores of the classification head per input, shape (labels,).

        Raises:
            InferenceError: as `hidden_states`; also when the weights hold no head.
        """
        if self._classifier is None:
            raise InferenceError("the weights hold no classification head")
        first = np.stack([states[0] for states in self.hidden_states(batch)])
        if self._pooler is not None:
            first = np.tanh(self._pooler(first))
        return list(self._classifier(first))


def pool(states: Floats, pooling: str) -> Floats:
    """One vector of a text from its hidden states: "cls", "mean" or "last-token"."""
    chosen: Floats = states.mean(axis=0)
    if pooling == "cls":
        chosen = states[0]
    elif pooling == "last-token":
        chosen = states[-1]
    return chosen


def normalized(vector: Floats) -> Floats:
    """The vector at length 1; the length is summed in float64, as TEI does."""
    scaled: Floats = vector * np.float32(1.0 / np.sqrt(np.square(vector.astype(np.float64)).sum()))
    return scaled
