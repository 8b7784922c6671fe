"""Token states to one vector per text, or a vector of the graph's own passed on, at length 1 if that is configured.

Configuration: input [-1, hidden] with attention_mask [-1], or [dimension] alone; output `embedding`, TYPE_FP32
[dimension]. Parameters: pooling (mean, cls, last-token, or none for vectors), normalize (true, false).
"""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as triton

_MASK = "attention_mask"

Floats = npt.NDArray[np.float32]


class TritonPythonModel:
    """The interface that Triton's Python backend asks for."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = {name: entry["string_value"] for name, entry in config["parameters"].items()}
        self._pooling = parameters["pooling"]
        self._normalize = parameters["normalize"] == "true"
        (self._states,) = (entry["name"] for entry in config["input"] if entry["name"] != _MASK)
        (self._output,) = (entry["name"] for entry in config["output"])

    def execute(self, requests: list[Any]) -> list[Any]:
        return [
            triton.InferenceResponse(output_tensors=[triton.Tensor(self._output, self._vectors(request))])
            for request in requests
        ]

    def _vectors(self, request: Any) -> Floats:
        states: Floats = (
            triton.get_input_tensor_by_name(request, self._states).as_numpy().astype(np.float32, copy=False)
        )
        vectors = states
        if self._pooling != "none":
            mask = triton.get_input_tensor_by_name(request, _MASK).as_numpy()
            vectors = pool(states, mask, self._pooling)
        if self._normalize:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        return np.ascontiguousarray(vectors)


def pool(states: Floats, mask: npt.NDArray[np.int64], pooling: str) -> Floats:
    """(batch, sequence, hidden) to (batch, hidden); `mask` (batch, sequence) is 1 where a token is."""
    weights = mask[..., None].astype(states.dtype)
    vectors: Floats = (states * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1)
    if pooling == "cls":
        vectors = states[:, 0]
    elif pooling == "last-token":
        last = mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)
        vectors = states[np.arange(len(states)), last]
    return vectors
