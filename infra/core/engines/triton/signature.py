"""What an ONNX file declares: its inputs, outputs and types, read without its weights."""

from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto
from onnx.external_data_helper import uses_external_data

from infra.core.catalogue import Model, ModelKind

#: Names of ONNX element types in config.pbtxt.
#: Source: ConvertFromOnnxDataType, onnxruntime_backend src/onnxruntime_utils.cc.
_TYPES: dict[int, str] = {
    TensorProto.FLOAT: "TYPE_FP32",
    TensorProto.UINT8: "TYPE_UINT8",
    TensorProto.INT8: "TYPE_INT8",
    TensorProto.UINT16: "TYPE_UINT16",
    TensorProto.INT16: "TYPE_INT16",
    TensorProto.INT32: "TYPE_INT32",
    TensorProto.INT64: "TYPE_INT64",
    TensorProto.STRING: "TYPE_STRING",
    TensorProto.BOOL: "TYPE_BOOL",
    TensorProto.FLOAT16: "TYPE_FP16",
    TensorProto.DOUBLE: "TYPE_FP64",
    TensorProto.UINT32: "TYPE_UINT32",
    TensorProto.UINT64: "TYPE_UINT64",
    TensorProto.BFLOAT16: "TYPE_BF16",
}

#: Operators of a graph whose numbers were made smaller already; TensorRT then needs no calibration table.
_QUANTIZED = {"QuantizeLinear", "DequantizeLinear"}

#: Inputs of the usual exports. XLM-RoBERTa has no token types; with two inputs for BERT, Triton refuses the model.
#: Source: the models' forward methods in transformers; engine name "bert" covers its fine-tuned versions.
_USUAL_INPUTS = {
    "bert": ("input_ids", "attention_mask", "token_type_ids"),
    "nomic_bert": ("input_ids", "attention_mask", "token_type_ids"),
    "xlm-roberta": ("input_ids", "attention_mask"),
    "distilbert": ("input_ids", "attention_mask"),
}


class UnreadableError(ValueError):
    """A file is no ONNX model; the text says which and why, in one line."""


@dataclass(frozen=True)
class Tensor:
    """An input or output. ``shape`` counts the batch; -1 is any size, of any name."""

    name: str
    data_type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs in the order of the file. ``files`` are those beside it that hold weights."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    quantized: bool = False
    files: tuple[str, ...] = ()


def read(path: Path) -> Signature:
    """The signature of an ONNX file. Raises UnreadableError."""
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except (DecodeError, OSError) as error:
        raise UnreadableError(f"{path} is no ONNX model: {' '.join(str(error).split())}") from None
    if not graph.output:
        raise UnreadableError(f"{path} is no ONNX model: it declares no outputs")
    weights = {tensor.name for tensor in graph.initializer}
    outside = {
        entry.value
        for tensor in graph.initializer
        if uses_external_data(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return Signature(
        # Files of an old format list weights as inputs too; they are none.
        tuple(_tensor(entry) for entry in graph.input if entry.name not in weights),
        tuple(_tensor(entry) for entry in graph.output),
        quantized=any(node.op_type in _QUANTIZED for node in graph.node),
        files=tuple(sorted(outside)),
    )


def usual(model: Model) -> Signature | None:
    """What exports of ``model`` usually declare, for plans without the file; None where there is no usual one."""
    names = _USUAL_INPUTS.get(model.architecture)
    if names is None:
        return None
    inputs = tuple(Tensor(name, "TYPE_INT64", (-1, -1)) for name in names)
    if model.kind is ModelKind.RERANKER:
        return Signature(inputs, (Tensor("logits", "TYPE_FP32", (-1, 1)),))
    return Signature(inputs, (Tensor("last_hidden_state", "TYPE_FP32", (-1, -1, model.hidden)),))


def _tensor(entry: onnx.ValueInfoProto) -> Tensor:
    kind = entry.type.tensor_type
    shape = tuple(size.dim_value if size.HasField("dim_value") else -1 for size in kind.shape.dim)
    return Tensor(entry.name, _TYPES.get(kind.elem_type, "TYPE_INVALID"), shape)
