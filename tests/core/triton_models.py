"""Small ONNX files, and served models on them, for tests of the Triton repository."""

from dataclasses import replace
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from infra.core import catalogue
from infra.core.engines.triton.repository import Served, Source
from infra.core.engines.triton.signature import usual

BERT = "sentence-transformers/all-MiniLM-L6-v2"
XLM = "intfloat/multilingual-e5-large"
RERANKER = "BAAI/bge-reranker-large"


def served(model_id: str = BERT, name: str = "m", **changes: object) -> Served:
    model = catalogue.models()[model_id]
    signature = usual(model)
    assert signature is not None
    return replace(Served(name, model, signature, max_batch_size=32, max_tokens=256), **changes)  # type: ignore[arg-type]


def graph(
    path: Path,
    inputs: dict[str, list[str | int]],
    outputs: dict[str, list[str | int]],
    *,
    kind: int = TensorProto.FLOAT,
    nodes: tuple[str, ...] = ("Identity",),
    weights: tuple[onnx.TensorProto, ...] = (),
) -> Path:
    """A file with these inputs (int64) and outputs; what it computes is nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    declared = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in inputs.items()]
    made = [helper.make_tensor_value_info(name, kind, shape) for name, shape in outputs.items()]
    steps = [helper.make_node(operator, [next(iter(inputs))], [f"n{i}"]) for i, operator in enumerate(nodes)]
    onnx.save(helper.make_model(helper.make_graph(steps, "g", declared, made, list(weights))), path)
    return path


def bert_graph(path: Path, hidden: int = 384) -> Path:
    """What optimum exports for a BERT encoder."""
    sequences: list[str | int] = ["batch", "sequence"]
    names = ("input_ids", "attention_mask", "token_type_ids")
    return graph(path, dict.fromkeys(names, sequences), {"last_hidden_state": [*sequences, hidden]})


def source(folder: Path, onnx_file: Path) -> Source:
    """Files of a served model; the tokenizer and its package are empty."""
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text("{}")
    packages = folder / "packages" / "tokenizers"
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "__init__.py").touch()
    return Source(onnx_file, tokenizer, packages.parent)
