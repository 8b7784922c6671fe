"""Tokenizer and pooler as Triton calls them, with the few names of its module that they use."""

import importlib
import json
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from infra.core.engines.triton import python_models

pytestmark = pytest.mark.core


class _Error(Exception):
    INVALID_ARG = 3

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Any]:
    """Loads a Python model from a folder of its own, as Triton does."""
    module = types.ModuleType("triton_python_backend_utils")
    module.__dict__.update(
        Tensor=lambda name, values: SimpleNamespace(name=name, values=values),
        InferenceResponse=lambda output_tensors=(), error=None: SimpleNamespace(
            tensors={tensor.name: tensor.values for tensor in output_tensors}, error=error
        ),
        TritonError=_Error,
        TritonModelException=_Error,
        get_input_tensor_by_name=lambda request, name: SimpleNamespace(as_numpy=lambda: request[name]),
        triton_string_to_numpy=lambda kind: {"TYPE_INT64": np.int64, "TYPE_INT32": np.int32}[kind],
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def load_from_folder(name: str) -> Any:
        shutil.copyfile(Path(python_models.__path__[0]) / f"{name}.py", tmp_path / "model.py")
        monkeypatch.delitem(sys.modules, "model", raising=False)
        importlib.invalidate_caches()
        loaded = importlib.import_module("model")
        monkeypatch.delitem(sys.modules, "model")
        return loaded

    return load_from_folder


def _tokenizer(load: Callable[[str], Any], folder: Path, *, truncate: bool, padding: str = "[PAD]") -> Any:
    vocabulary = {padding: 7, "[UNK]": 1, "a": 2, "b": 3}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    model = load("tokenizer").TritonPythonModel()
    parameters = {"max_tokens": "6", "padded_lengths": "2,4,6", "truncate": str(truncate).lower()}
    config = {
        "input": [{"name": "text"}],
        "output": [
            {"name": "input_ids", "data_type": "TYPE_INT64"},
            {"name": "attention_mask", "data_type": "TYPE_INT32"},
        ],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }
    model.initialize({"model_config": json.dumps(config)})
    return model


def _request(*texts: bytes) -> dict[str, Any]:
    return {"text": np.array([[text] for text in texts], dtype=object)}


def test_texts_that_are_tokenized_together_get_one_of_the_lengths_and_a_mask(
    load: Callable[[str], Any], tmp_path: Path
) -> None:
    model = _tokenizer(load, tmp_path, truncate=True)
    short, long = model.execute([_request(b"a"), _request(b"a b a", b"b")])
    assert short.tensors["input_ids"].tolist() == [[2, 7, 7, 7]]
    assert long.tensors["input_ids"].tolist() == [[2, 3, 2, 7], [3, 7, 7, 7]]
    assert long.tensors["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
    assert long.tensors["attention_mask"].dtype == np.int32
    (alone,) = model.execute([_request(b"a")])
    assert alone.tensors["input_ids"].tolist() == [[2, 7]]


def test_what_is_too_long_is_cut_or_refused_as_configured(load: Callable[[str], Any], tmp_path: Path) -> None:
    (cut,) = _tokenizer(load, tmp_path, truncate=True).execute([_request(b"a " * 9)])
    assert cut.tensors["input_ids"].shape == (1, 6)
    refused, kept = _tokenizer(load, tmp_path, truncate=False).execute([_request(b"b", b"a " * 9), _request(b"a")])
    assert str(refused.error) == "text 1 has 9 tokens, allowed are 6"
    assert refused.error.code == _Error.INVALID_ARG
    assert kept.tensors["input_ids"].tolist() == [[2, 7]]


def test_bytes_that_are_no_text_fail_their_own_request_only(load: Callable[[str], Any], tmp_path: Path) -> None:
    refused, kept = _tokenizer(load, tmp_path, truncate=True).execute([_request(b"\xff"), _request(b"a")])
    assert "not UTF-8" in str(refused.error)
    assert kept.error is None


def test_a_tokenizer_without_padding_does_not_load(load: Callable[[str], Any], tmp_path: Path) -> None:
    with pytest.raises(_Error, match="names no padding"):
        _tokenizer(load, tmp_path, truncate=True, padding="none")


@pytest.mark.parametrize(
    ("pooling", "wanted"),
    [("mean", [[2.0, 3.0], [1.0, 2.0]]), ("cls", [[1.0, 2.0], [1.0, 2.0]]), ("last-token", [[3.0, 4.0], [1.0, 2.0]])],
)
def test_padding_takes_no_part_in_pooling(load: Callable[[str], Any], pooling: str, wanted: list[list[float]]) -> None:
    model = load("pooler").TritonPythonModel()
    config = {
        "input": [{"name": "states"}, {"name": "attention_mask"}],
        "output": [{"name": "embedding"}],
        "parameters": {"pooling": {"string_value": pooling}, "normalize": {"string_value": "false"}},
    }
    model.initialize({"model_config": json.dumps(config)})
    states = np.array([[[1, 2], [3, 4], [9, 9]]] * 2, dtype=np.float16)
    (answer,) = model.execute([{"states": states, "attention_mask": np.array([[1, 1, 0], [1, 0, 0]])}])
    assert answer.tensors["embedding"].tolist() == wanted
    assert answer.tensors["embedding"].dtype == np.float32


def test_a_pooled_vector_is_brought_to_length_one_and_zero_stays_zero(load: Callable[[str], Any]) -> None:
    model = load("pooler").TritonPythonModel()
    config = {
        "input": [{"name": "sentence_embedding"}],
        "output": [{"name": "embedding"}],
        "parameters": {"pooling": {"string_value": "none"}, "normalize": {"string_value": "true"}},
    }
    model.initialize({"model_config": json.dumps(config)})
    (answer,) = model.execute([{"sentence_embedding": np.array([[3, 4], [0, 0]], dtype=np.float32)}])
    np.testing.assert_allclose(answer.tensors["embedding"], [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)
