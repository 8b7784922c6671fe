"""What would not load is said in Triton's words; the same table runs on a real server in tests/local_engines."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from infra.core.engines.triton.check import Problem, check
from tests.core.triton_broken import BROKEN, ENSEMBLE, GOOD, add
from tests.core.triton_models import bert_graph, graph

pytestmark = pytest.mark.core

_ONNX = """backend: "onnxruntime"
max_batch_size: 8
input { name: "input_ids" data_type: TYPE_INT64 dims: -1 }
input { name: "attention_mask" data_type: TYPE_INT64 dims: -1 }
input { name: "token_type_ids" data_type: TYPE_INT64 dims: -1 }
output { name: "last_hidden_state" data_type: TYPE_FP32 dims: [-1, 384] }
"""


def _onnx(repository: Path, config: str) -> list[Problem]:
    bert_graph(repository / "m" / "1" / "model.onnx")
    (repository / "m" / "config.pbtxt").write_text(config)
    return check(repository)


def test_models_that_triton_loads_have_no_problem(tmp_path: Path) -> None:
    add(tmp_path, "good", GOOD)
    add(tmp_path, "ensemble", ENSEMBLE)
    assert check(tmp_path, gpus=0) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_mistake_is_predicted_in_the_words_of_the_server(name: str, tmp_path: Path) -> None:
    add(tmp_path, "good", GOOD)
    add(tmp_path, name, BROKEN[name].config, BROKEN[name].version)
    (problem,) = check(tmp_path, gpus=0)
    assert problem.model == name
    assert problem.triton == BROKEN[name].says.format(name=name)
    assert str(problem).startswith(f"model {name}: Triton would refuse it: {problem.triton}. ")
    assert "\n" not in str(problem)


def test_an_ensemble_of_unreadable_models_says_so_too(tmp_path: Path) -> None:
    add(tmp_path, "good", GOOD + "nosuch: 1")
    add(tmp_path, "outer", ENSEMBLE)
    assert [problem.model for problem in check(tmp_path)] == ["good", "outer"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("", ""), None),
        (
            ('input { name: "token_type_ids" data_type: TYPE_INT64 dims: -1 }\n', ""),
            "unable to load model 'm', configuration expects 2 inputs, model provides 3",
        ),
        (
            ('"token_type_ids"', '"types"'),
            "unexpected inference input 'types', allowed inputs are: attention_mask, input_ids, token_type_ids",
        ),
        (
            ("TYPE_FP32", "TYPE_FP16"),
            "unable to load model 'm', configuration expects datatype TYPE_FP16 for output 'last_hidden_state', model "
            "provides TYPE_FP32",
        ),
        (
            ("[-1, 384]", "[-1, -1, 384]"),
            "model 'm', tensor 'last_hidden_state': the model expects 3 dimensions (shape [-1,-1,384]) but the model "
            "configuration specifies 4 dimensions",
        ),
        (
            ("[-1, 384]", "[-1, 1024]"),
            "model 'm', tensor 'last_hidden_state': the model expects 3 dimensions (shape [-1,-1,384]) but the model "
            "configuration specifies 3 dimensions",
        ),
    ],
)
def test_case_37_38_39_a_configuration_is_compared_with_its_onnx_file(
    change: tuple[str, str], says: str | None, tmp_path: Path
) -> None:
    assert [problem.triton for problem in _onnx(tmp_path, _ONNX.replace(*change))] == ([says] if says else [])


def test_case_37_a_static_export_cannot_be_batched(tmp_path: Path) -> None:
    graph(tmp_path / "m" / "1" / "model.onnx", {"x": [1, 128]}, {"y": [1, 8]})
    batched = 'backend: "onnxruntime"\nmax_batch_size: 8\ninput { name: "x" data_type: TYPE_INT64 dims: 128 }\n'
    (tmp_path / "m" / "config.pbtxt").write_text(batched + 'output { name: "y" data_type: TYPE_FP32 dims: 8 }')
    assert [problem.triton for problem in check(tmp_path)] == [
        f"model 'm', tensor '{name}': for the model to support batching the shape should have at least 1 dimension and "
        f"the first dimension must be -1; but shape expected by the model is [1,{size}]"
        for name, size in (("x", 128), ("y", 8))
    ]


_TRT = """optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" %s } } }
model_warmup { name: "w" batch_size: 1
  inputs { key: "input_ids" value { data_type: TYPE_INT64 dims: 8 zero_data: true } }
  inputs { key: "attention_mask" value { data_type: TYPE_INT64 dims: 8 zero_data: true } }
  inputs { key: "token_type_ids" value { data_type: TYPE_INT64 dims: 8 zero_data: true } } }
"""
_COMPLETE = {
    "precision_mode": "FP16",
    "trt_engine_cache_enable": "1",
    "trt_engine_cache_path": "/cache",
    "trt_profile_min_shapes": "input_ids:1x8",
    "trt_profile_opt_shapes": "input_ids:8x64",
    "trt_profile_max_shapes": "input_ids:8x128",
}


def _accelerated(**parameters: str) -> str:
    given = _COMPLETE | parameters
    return _ONNX + _TRT % " ".join(f'parameters {{ key: "{k}" value: "{v}" }}' for k, v in given.items())


def test_a_complete_tensorrt_accelerator_has_no_problem(tmp_path: Path) -> None:
    assert _onnx(tmp_path, _accelerated()) == []


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"segment_size": "1"}, "unknown parameter 'segment_size' is provided for TensorRT Execution Accelerator"),
        ({"precision_mode": "FP8"}, "unsupported precision mode 'FP8' is requested"),
        ({"trt_engine_cache_path": ""}, "TensorRT builds its engines again at every start"),
        ({"trt_engine_cache_enable": "0"}, "TensorRT builds its engines again at every start"),
        ({"trt_profile_opt_shapes": ""}, "set trt_profile_opt_shapes"),
    ],
)
def test_case_41_a_tensorrt_accelerator_is_checked(parameters: dict[str, str], says: str, tmp_path: Path) -> None:
    (problem,) = _onnx(tmp_path, _accelerated(**parameters))
    assert says in str(problem)


def test_case_41_tensorrt_without_warm_up_builds_during_requests(tmp_path: Path) -> None:
    (problem,) = _onnx(tmp_path, _accelerated().partition("model_warmup")[0])
    assert "add model_warmup" in problem.why


def test_case_42_a_warm_up_above_the_batch_size_is_refused(tmp_path: Path) -> None:
    # Not in the table: the server sometimes crashes over it.
    sample = 'batch_size: 9 inputs { key: "x" value { data_type: TYPE_INT64 dims: 2 zero_data: true } }'
    add(tmp_path, "m", f'{GOOD}model_warmup {{ name: "w" {sample} }}')
    (problem,) = check(tmp_path)
    assert problem.triton == "failed to run warmup sample 'w': batch size 9"


def test_an_ensemble_without_its_platform_is_refused(tmp_path: Path) -> None:
    add(tmp_path, "good", GOOD)
    add(tmp_path, "m", ENSEMBLE.replace('platform: "ensemble"', ""))
    (problem,) = check(tmp_path)
    assert problem.why == 'A model with ensemble_scheduling needs platform: "ensemble"'


def test_an_unknown_accelerator_is_refused(tmp_path: Path) -> None:
    (problem,) = _onnx(tmp_path, _accelerated().replace('"tensorrt"', '"trt"'))
    assert problem.triton == "unknown Execution Accelerator 'trt' is requested"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (GOOD.replace("max_batch_size: 4", "dynamic_batching { }"), "dynamic_batching does nothing"),
        (GOOD + 'model_warmup { name: "w" }', "warm-up sample 'w' is skipped without a word: its batch_size is 0"),
        (
            GOOD
            + 'model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_INT64 dims: 2 '
            + "random_data: true } } }",
            "random_data for 'x' gives token ids outside the vocabulary",
        ),
    ],
)
def test_case_36_42_what_loads_and_does_nothing_is_said_too(config: str, why: str, tmp_path: Path) -> None:
    add(tmp_path, "good", GOOD)
    add(tmp_path, "m", config)
    (problem,) = check(tmp_path)
    assert problem.triton == ""
    assert why in problem.why


def test_a_missing_model_file_is_named(tmp_path: Path) -> None:
    add(tmp_path, "m", GOOD)
    (tmp_path / "m" / "1" / "model.py").unlink()
    (problem,) = check(tmp_path)
    assert problem.triton == "Python model file not found in 'm/1/model.py'"
    (tmp_path / "m" / "config.pbtxt").write_text('platform: "onnxruntime_onnx"')
    (problem,) = check(tmp_path)
    assert str(problem).endswith("There is no m/1/model.onnx")


def test_weights_that_are_not_beside_their_graph_are_named(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.zeros(2, np.float32), "w")
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "model.onnx_data"
    graph(tmp_path / "m" / "1" / "model.onnx", {"x": ["b"]}, {"y": ["b"]}, weights=(weight,))
    (tmp_path / "m" / "1" / "model.onnx_data").unlink()
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "onnxruntime"')
    (problem,) = check(tmp_path)
    assert "the graph keeps weights in model.onnx_data, which is not beside model.onnx" in problem.why


def test_a_pointer_in_place_of_the_weights_is_named(tmp_path: Path) -> None:
    add(tmp_path, "m", 'backend: "onnxruntime"')
    (tmp_path / "m" / "1" / "model.onnx").write_text("version https://git-lfs.github.com/spec/v1")
    (problem,) = check(tmp_path)
    assert "is no ONNX model" in problem.why


def test_users_models_may_leave_out_what_triton_completes(tmp_path: Path) -> None:
    graph(tmp_path / "bare" / "1" / "model.onnx", {"x": ["b"]}, {"y": ["b"]})
    add(tmp_path, "plan", 'platform: "tensorrt_plan"')
    (tmp_path / "plan" / "1" / "model.plan").touch()
    add(tmp_path, "own", 'backend: "mine"')
    (tmp_path / "own" / "libtriton_mine.so").touch()
    assert check(tmp_path) == []


def test_gpus_are_numbered_from_zero_in_every_container(tmp_path: Path) -> None:
    add(tmp_path, "m", GOOD.replace("kind: KIND_CPU", "kind: KIND_GPU gpus: 1"))
    (problem,) = check(tmp_path, gpus=1)
    assert "The container sees GPUs 0, numbered from 0" in problem.why
    assert check(tmp_path, gpus=2) == []
