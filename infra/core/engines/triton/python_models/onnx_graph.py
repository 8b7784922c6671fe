"""An ONNX graph on the CPU, for servers without the onnxruntime backend: the embedded cluster.

As that backend does, it puts the requests of a batch, which have equal shapes, through the graph in one pass.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import triton_python_backend_utils as triton

_HERE = Path(__file__).parent


class TritonPythonModel:
    """The interface that Triton's Python backend asks for."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._inputs = [entry["name"] for entry in config["input"]]
        self._outputs = [entry["name"] for entry in config["output"]]
        self._session = onnxruntime.InferenceSession(_HERE / "model.onnx", providers=["CPUExecutionProvider"])

    def execute(self, requests: list[Any]) -> list[Any]:
        rows = [{name: self._tensor(request, name) for name in self._inputs} for request in requests]
        batch = {name: np.concatenate([row[name] for row in rows]) for name in self._inputs}
        results = self._session.run(self._outputs, batch)
        ends = np.cumsum([len(row[self._inputs[0]]) for row in rows])[:-1]
        parts = [np.split(result, ends) for result in results]
        return [
            triton.InferenceResponse(
                output_tensors=[
                    triton.Tensor(name, part[number]) for name, part in zip(self._outputs, parts, strict=True)
                ]
            )
            for number in range(len(requests))
        ]

    @staticmethod
    def _tensor(request: Any, name: str) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = triton.get_input_tensor_by_name(request, name).as_numpy()
        return found
