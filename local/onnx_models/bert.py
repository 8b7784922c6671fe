"""A BERT encoder as an ONNX graph, written with onnx.helper from a Hugging Face directory; no torch needed.

Inputs and outputs are those of the usual exports (optimum, tasks feature-extraction and text-classification): what is
tested here is what users bring.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from local.engines.tei.bert import Floats, read_safetensors

#: LayerNormalization is there from 17 on; the onnxruntime of Triton 24.10 reads both numbers.
_OPSET = 17
_IR_VERSION = 9

#: Added to the score of a padded position; below it, softmax gives exactly zero in float32.
_MASKED = -1e9

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass
class _Graph:
    """Nodes and weights while they are collected; every method returns the name of a tensor."""

    tensors: dict[str, Floats]
    epsilon: float
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def weight(self, name: str, *, transposed: bool = False) -> str:
        value = self.tensors[name]
        self.weights.setdefault(
            name, numpy_helper.from_array(np.ascontiguousarray(value.T if transposed else value), name)
        )
        return name

    def constant(self, value: object, kind: type = np.int64) -> str:
        array: npt.NDArray[Any] = np.array(value, dtype=kind)
        name = f"constant_{array.dtype}_{'_'.join(map(str, array.ravel()))}_{array.ndim}"
        self.weights.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def linear(self, name: str, x: str) -> str:
        product = self.add("MatMul", x, self.weight(f"{name}.weight", transposed=True))
        return self.add("Add", product, self.weight(f"{name}.bias"))

    def norm(self, name: str, x: str, output: str = "") -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.add("LayerNormalization", x, scale, bias, output=output, axis=-1, epsilon=self.epsilon)

    def gelu(self, x: str) -> str:
        """x/2 (1 + erf(x/√2)), which is what `hidden_act: gelu` means."""
        scaled = self.add("Div", x, self.constant(np.sqrt(2.0), np.float32))
        shifted = self.add("Add", self.add("Erf", scaled), self.constant(1.0, np.float32))
        return self.add("Mul", self.add("Mul", x, shifted), self.constant(0.5, np.float32))


def write(directory: Path, embedder: Path, reranker: Path) -> None:
    """Write the encoder of ``directory`` (config.json, model.safetensors) as two graphs, float32, weights inside.

    Both take input_ids, attention_mask and token_type_ids, int64 (batch, sequence). The embedder gives
    last_hidden_state, float32 (batch, sequence, hidden). The reranker is a stand-in, see `_cosine`; it gives logits,
    float32 (batch, 1).
    """
    config = json.loads((directory / "config.json").read_text())
    hidden = int(config["hidden_size"])
    tensors = read_safetensors(directory / "model.safetensors")

    graph = _Graph(tensors, float(config["layer_norm_eps"]))
    seen = graph.add("Unsqueeze", _mask(graph), graph.constant([1]))
    _encode(graph, config, "token_type_ids", _positions(graph), seen)
    _save(graph, "last_hidden_state", ["batch", "sequence", hidden], embedder)

    graph = _Graph(tensors, float(config["layer_norm_eps"]))
    _cosine(graph, config)
    _save(graph, "logits", ["batch", 1], reranker)


def _save(graph: _Graph, output: str, shape: list[str | int], target: Path) -> None:
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in _INPUTS]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)]
    made = helper.make_graph(graph.nodes, "bert", inputs, outputs, list(graph.weights.values()))
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    onnx.checker.check_model(model)
    onnx.save(model, target)


def _mask(graph: _Graph) -> str:
    return graph.add("Cast", "attention_mask", to=TensorProto.FLOAT)


def _cosine(graph: _Graph, config: dict[str, Any]) -> None:
    """Logits of pairs: 10 (2 c - 1), c the cosine of the mean states of query and text, which do not see each other.

    A meaningful order without the weights of a reranker; the formula of the TEI stand-in (local/engines/tei/models.py).
    """
    mask = _mask(graph)
    second = graph.add("Mul", graph.add("Cast", "token_type_ids", to=TensorProto.FLOAT), mask)
    first = graph.add("Sub", mask, second)
    columns, rows = graph.constant([2]), graph.constant([1])
    seen = [
        graph.add("Mul", graph.add("Unsqueeze", part, columns), graph.add("Unsqueeze", part, rows))
        for part in (first, second)
    ]
    types = graph.add("Sub", "token_type_ids", "token_type_ids")
    # The text counts its positions from 1, as behind a [CLS] of its own.
    skipped = graph.add("Sub", graph.add("ReduceSum", first, rows, keepdims=1), graph.constant(1.0, np.float32))
    shift = graph.add("Cast", graph.add("Mul", second, skipped), to=TensorProto.INT64)
    positions = graph.add("Sub", _positions(graph), shift)
    _encode(graph, config, types, positions, graph.add("Add", *seen))
    means = []
    for part in (first, second):
        weighted = graph.add("Mul", "last_hidden_state", graph.add("Unsqueeze", part, columns))
        total = graph.add("ReduceSum", weighted, rows, keepdims=0)
        # The cosine does not ask for the number of tokens.
        length = graph.add("ReduceL2", total, axes=[1], keepdims=1)
        means.append(graph.add("Div", total, graph.add("Max", length, graph.constant(1e-9, np.float32))))
    cosine = graph.add("ReduceSum", graph.add("Mul", *means), rows, keepdims=1)
    scaled = graph.add("Mul", cosine, graph.constant(20.0, np.float32))
    graph.add("Sub", scaled, graph.constant(10.0, np.float32), output="logits")


def _encode(graph: _Graph, config: dict[str, Any], types: str, positions: str, seen: str) -> None:
    """last_hidden_state; ``seen`` (batch, 1 or sequence, sequence) is 1 where a row's position sees a column's."""
    heads, hidden, layers = (
        int(config[f"{key}"]) for key in ("num_attention_heads", "hidden_size", "num_hidden_layers")
    )
    x = _embeddings(graph, types, positions)
    unseen = graph.add("Sub", graph.constant(1.0, np.float32), seen)
    penalty = graph.add("Mul", unseen, graph.constant(_MASKED, np.float32))
    penalty = graph.add("Unsqueeze", penalty, graph.constant([1]))
    for index in range(layers):
        name = f"encoder.layer.{index}"
        context = _attention(graph, name, x, penalty, heads=heads, hidden=hidden)
        attended = graph.linear(f"{name}.attention.output.dense", context)
        x = graph.norm(f"{name}.attention.output.LayerNorm", graph.add("Add", x, attended))
        up = graph.gelu(graph.linear(f"{name}.intermediate.dense", x))
        summed = graph.add("Add", x, graph.linear(f"{name}.output.dense", up))
        x = graph.norm(f"{name}.output.LayerNorm", summed, output="last_hidden_state" if index == layers - 1 else "")


def _positions(graph: _Graph) -> str:
    """0, 1, 2, ... for a row, (sequence,)."""
    length = graph.add("Squeeze", graph.add("Gather", graph.add("Shape", "input_ids"), graph.constant([1])))
    return graph.add("Range", graph.constant(0), length, graph.constant(1))


def _embeddings(graph: _Graph, types: str, positions: str) -> str:
    summed = graph.add("Gather", graph.weight("embeddings.word_embeddings.weight"), "input_ids")
    for table, indices in (("token_type", types), ("position", positions)):
        found = graph.add("Gather", graph.weight(f"embeddings.{table}_embeddings.weight"), indices)
        summed = graph.add("Add", summed, found)
    return graph.norm("embeddings.LayerNorm", summed)


def _attention(graph: _Graph, name: str, x: str, penalty: str, *, heads: int, hidden: int) -> str:
    """Context of each position before the output projection, (batch, sequence, hidden)."""
    split = graph.constant([0, 0, heads, hidden // heads])

    def part(of: str, order: list[int]) -> str:
        projected = graph.linear(f"{name}.attention.self.{of}", x)
        return graph.add("Transpose", graph.add("Reshape", projected, split), perm=order)

    query, key, value = part("query", [0, 2, 1, 3]), part("key", [0, 2, 3, 1]), part("value", [0, 2, 1, 3])
    scores = graph.add("Div", graph.add("MatMul", query, key), graph.constant(np.sqrt(hidden / heads), np.float32))
    weights = graph.add("Softmax", graph.add("Add", scores, penalty), axis=-1)
    context = graph.add("Transpose", graph.add("MatMul", weights, value), perm=[0, 2, 1, 3])
    return graph.add("Reshape", context, graph.constant([0, 0, hidden]))
