"""Model repositories of Triton: what is generated, and that Triton's own rules hold in it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from tritonclient.grpc import model_config_pb2 as pb

from infra.core import catalogue
from infra.core.catalogue import ModelKind
from infra.core.engines.triton import signature
from infra.core.engines.triton.check import check
from infra.core.engines.triton.repository import (
    Backend,
    Precision,
    Served,
    TensorRt,
    configs,
    padded_lengths,
    pbtxt,
    refusals,
    shared_memory_bytes,
    write,
)
from infra.core.engines.triton.signature import Signature, Tensor, UnreadableError
from tests.core.triton_models import RERANKER, XLM, bert_graph, graph, served, source

pytestmark = pytest.mark.core

_TRT = TensorRt(Precision.FP16, "/var/cache/triton")


def _names(tensors: Sequence[pb.ModelInput | pb.ModelOutput]) -> list[str]:
    return [tensor.name for tensor in tensors]


def _accelerator(one: Served) -> dict[str, str]:
    (found,) = configs(one, Backend.ONNXRUNTIME)[
        one.graph
    ].optimization.execution_accelerators.gpu_execution_accelerator
    assert found.name == "tensorrt"
    return dict(found.parameters)


def test_an_embedding_model_is_an_ensemble_of_tokenizer_embedder_and_pooler() -> None:
    made = configs(served(), Backend.ONNXRUNTIME)
    assert list(made) == ["m-tokenizer", "m-embedder", "m-pooler", "m"]
    ensemble = made["m"]
    assert ensemble.platform == "ensemble"
    assert [step.model_name for step in ensemble.ensemble_scheduling.step] == ["m-tokenizer", "m-embedder", "m-pooler"]
    assert [(t.name, t.data_type, list(t.dims)) for t in ensemble.input] == [("text", pb.TYPE_STRING, [1])]
    assert [(t.name, t.data_type, list(t.dims)) for t in ensemble.output] == [("embedding", pb.TYPE_FP32, [384])]


def test_a_reranker_takes_pairs_and_gives_logits() -> None:
    made = configs(served(RERANKER, max_tokens=512), Backend.ONNXRUNTIME)
    assert list(made) == ["m-tokenizer", "m-reranker", "m"]
    assert _names(made["m"].input) == ["query", "text"]
    assert [(t.name, list(t.dims)) for t in made["m"].output] == [("logits", [1])]


def test_case_38_bert_graphs_get_three_inputs_and_xlm_roberta_graphs_two() -> None:
    bert = configs(served(), Backend.ONNXRUNTIME)
    assert _names(bert["m-embedder"].input) == ["input_ids", "attention_mask", "token_type_ids"]
    xlm = configs(served(XLM), Backend.ONNXRUNTIME)
    assert _names(xlm["m-embedder"].input) == ["input_ids", "attention_mask"]
    for made in (bert, xlm):
        assert _names(made["m-tokenizer"].output) == _names(made["m-embedder"].input)


def test_case_38_the_file_decides_inputs_types_and_the_output(tmp_path: Path) -> None:
    sequences: list[str | int] = ["batch", "sequence"]
    outputs: dict[str, list[str | int]] = {"token_embeddings": [*sequences, 8], "sentence_embedding": ["batch", 8]}
    file = graph(tmp_path / "a.onnx", {"input_ids": sequences}, outputs, kind=TensorProto.FLOAT16)
    made = configs(served(signature=signature.read(file)), Backend.ONNXRUNTIME)
    assert _names(made["m-embedder"].input) == ["input_ids"]
    (output,) = made["m-embedder"].output
    assert (output.name, output.data_type, list(output.dims)) == ("sentence_embedding", pb.TYPE_FP16, [8])
    assert made["m-pooler"].parameters["pooling"].string_value == "none"
    assert _names(made["m-tokenizer"].output) == ["input_ids"]


def test_a_graph_without_mask_still_gets_one_made_for_the_pooler() -> None:
    states = Tensor("last_hidden_state", "TYPE_FP32", (-1, -1, 384))
    made = configs(
        served(signature=Signature((Tensor("input_ids", "TYPE_INT64", (-1, -1)),), (states,))), Backend.PYTHON
    )
    assert _names(made["m-tokenizer"].output) == ["input_ids", "attention_mask"]
    assert _names(made["m-pooler"].input) == ["last_hidden_state", "attention_mask"]


def test_bert_s_own_pooler_output_is_not_taken_for_an_embedding() -> None:
    usual = served().signature
    both = Signature(usual.inputs, (Tensor("pooler_output", "TYPE_FP32", (-1, 384)), *usual.outputs))
    result = served(signature=both).result
    assert result is not None
    assert result.name == "last_hidden_state"


@pytest.mark.parametrize("precision", Precision)
def test_case_39_outputs_stay_fp32_whatever_tensorrt_computes_in(precision: Precision) -> None:
    one = served(tensorrt=TensorRt(precision, "/cache", calibration_table="calibration.flatbuffers"))
    assert [t.data_type for t in configs(one, Backend.ONNXRUNTIME)["m-embedder"].output] == [pb.TYPE_FP32]
    assert _accelerator(one)["precision_mode"] == precision


def test_case_41_tensorrt_gets_an_engine_cache_of_its_own_profiles_and_a_warm_up_at_both_ends() -> None:
    one = served(tensorrt=_TRT, max_batch_size=32, max_tokens=256, typical_tokens=120)
    parameters = _accelerator(one)
    assert parameters["trt_engine_cache_enable"] == "true"
    assert parameters["trt_engine_cache_path"] == "/var/cache/triton/m-embedder"
    assert parameters["max_workspace_size_bytes"] == str(1024**3)
    shapes = {part: parameters[f"trt_profile_{part}_shapes"].split(",")[0] for part in ("min", "opt", "max")}
    assert shapes == {"min": "input_ids:1x16", "opt": "input_ids:32x128", "max": "input_ids:32x256"}
    assert parameters["trt_profile_max_shapes"] == "input_ids:32x256,attention_mask:32x256,token_type_ids:32x256"
    warmup = configs(one, Backend.ONNXRUNTIME)["m-embedder"].model_warmup
    assert [(s.batch_size, list(s.inputs["input_ids"].dims)) for s in warmup] == [(1, [16]), (32, [256])]


def test_case_42_warm_up_uses_zeros_for_every_input_and_is_not_on_the_ensemble() -> None:
    made = configs(served(), Backend.ONNXRUNTIME)
    for sample in made["m-embedder"].model_warmup:
        assert set(sample.inputs) == {"input_ids", "attention_mask", "token_type_ids"}
        assert all(given.zero_data for given in sample.inputs.values())
    assert not made["m"].model_warmup


def test_case_36_and_37_batch_sizes_are_bounded_and_dims_leave_out_the_batch() -> None:
    one = served(preferred_batch_sizes=(8, 32), queue_delay_us=500, max_queue_size=64)
    config = configs(one, Backend.ONNXRUNTIME)["m-embedder"]
    assert list(config.dynamic_batching.preferred_batch_size) == [8, 32]
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 64
    assert [list(tensor.dims) for tensor in config.input] == [[-1]] * 3
    # Without a wish none is written: Triton's documents advise against it for all but TensorRT plans.
    assert not configs(served(), Backend.ONNXRUNTIME)["m-embedder"].dynamic_batching.preferred_batch_size


def test_an_ensemble_has_no_instance_group_optimization_or_warm_up() -> None:
    ensemble = configs(served(tensorrt=_TRT), Backend.ONNXRUNTIME)["m"]
    assert not ensemble.instance_group
    assert not ensemble.HasField("optimization")
    assert not ensemble.HasField("dynamic_batching")


def test_only_backend_and_kind_differ_where_the_server_has_no_onnxruntime_backend(tmp_path: Path) -> None:
    file = bert_graph(tmp_path / "model.onnx")
    one = served(tensorrt=_TRT, signature=signature.read(file))
    for backend in Backend:
        (tmp_path / backend).mkdir()
        write(tmp_path / backend, [(one, source(tmp_path, file))], backend)
    real, local = (
        {
            path.relative_to(tmp_path / backend): path.read_text().splitlines()
            for path in (tmp_path / backend).rglob("*.*t")
        }
        for backend in (Backend.ONNXRUNTIME, Backend.PYTHON)
    )
    assert real.keys() == local.keys()
    differing = {
        path: [(a.strip(), b.strip()) for a, b in zip(real[path], local[path], strict=True) if a != b] for path in real
    }
    assert {path: lines for path, lines in differing.items() if lines} == {
        Path("m-embedder/config.pbtxt"): [
            ("kind: KIND_GPU", "kind: KIND_CPU"),
            ('backend: "onnxruntime"', 'backend: "python"'),
        ]
    }
    files = [
        {path.relative_to(tmp_path / backend).as_posix() for path in (tmp_path / backend).rglob("*") if path.is_file()}
        for backend in (Backend.ONNXRUNTIME, Backend.PYTHON)
    ]
    assert files[1] - files[0] == {"m-embedder/1/model.py"}
    assert files[0] <= files[1]


def test_a_repository_holds_what_each_model_needs_and_passes_its_check(tmp_path: Path) -> None:
    file = bert_graph(tmp_path / "in" / "export.onnx")
    own = tmp_path / "own"
    graph(own / "3" / "model.onnx", {"x": ["n", 2]}, {"y": ["n", 2]})
    (own / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_batch_size: 1')
    target = tmp_path / "repository"
    target.mkdir()
    one = served(tensorrt=_TRT, signature=signature.read(file))
    write(target, [(one, source(tmp_path, file))], Backend.ONNXRUNTIME, {"mine": own})
    assert sorted(p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file()) == [
        "m-embedder/1/model.onnx",
        "m-embedder/config.pbtxt",
        "m-pooler/1/model.py",
        "m-pooler/config.pbtxt",
        "m-tokenizer/1/model.py",
        "m-tokenizer/1/packages/tokenizers/__init__.py",
        "m-tokenizer/1/tokenizer.json",
        "m-tokenizer/config.pbtxt",
        "m/config.pbtxt",
        "mine/3/model.onnx",
        "mine/config.pbtxt",
    ]
    # Triton does not load a model without a version directory, an ensemble included.
    assert (target / "m" / "1").is_dir()
    assert check(target) == []


def test_two_models_of_one_name_are_not_merged(tmp_path: Path) -> None:
    file = bert_graph(tmp_path / "model.onnx")
    (tmp_path / "r").mkdir()
    with pytest.raises(FileExistsError):
        write(tmp_path / "r", [(served(), source(tmp_path, file))] * 2, Backend.PYTHON)


def test_weights_beside_the_graph_and_a_calibration_table_come_along(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.zeros(2, np.float32), "w")
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "model.onnx_data"
    shape: list[str | int] = ["b", "s"]
    outputs: dict[str, list[str | int]] = {"last_hidden_state": [*shape, 384]}
    file = graph(tmp_path / "model.onnx", {"input_ids": shape}, outputs, weights=(weight,))
    (tmp_path / "model.onnx_data").write_bytes(b"\0" * 8)
    (tmp_path / "table").write_text("ranges")
    one = served(
        signature=signature.read(file), tensorrt=TensorRt(Precision.INT8, "/cache", calibration_table="calibration")
    )
    files = replace(source(tmp_path, file), calibration_table=tmp_path / "table")
    (tmp_path / "r").mkdir()
    write(tmp_path / "r", [(one, files)], Backend.ONNXRUNTIME)
    assert (tmp_path / "r/m-embedder/1/model.onnx_data").stat().st_size == 8
    assert (tmp_path / "r/m-embedder/1/calibration").read_text() == "ranges"
    assert _accelerator(one)["int8_calibration_table_name"] == "calibration"


def test_int8_needs_a_calibration_table_or_a_quantized_graph(tmp_path: Path) -> None:
    plain = served(tensorrt=TensorRt(Precision.INT8, "/cache"))
    (refusal,) = refusals(plain, "stack.serving[0]")
    assert str(refusal).startswith("stack.serving[0].precision: got 'INT8'; allowed: FP32, FP16; or INT8 with")
    file = graph(tmp_path / "q.onnx", {"input_ids": ["b"]}, {"o": ["b", "s", 384]}, nodes=("QuantizeLinear",))
    assert refusals(served(tensorrt=plain.tensorrt, signature=signature.read(file)), "x") == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"name": "a b"}, "x.name: got 'a b'; allowed: letters, digits, . _ -"),
        ({"max_batch_size": 0}, "x.maxBatchSize: got 0; allowed: 1 and more"),
        ({"preferred_batch_sizes": (8, 64)}, "x.preferredBatchSizes: got 64; allowed: 1 to 32"),
        ({"max_tokens": 512}, "x.maxTokens: got 512; allowed: 1 to 256"),
        ({"typical_tokens": 400}, "x.typicalTokens: got 400; allowed: 1 to 256"),
        ({"output": "logits"}, "x.onnx: got 'outputs last_hidden_state'; allowed: sentence_embedding"),
        (
            {"model": catalogue.models()["naver/efficient-splade-VI-BT-large-doc"], "max_tokens": 200},
            "x.model: got 'naver/efficient-splade-VI-BT-large-doc (sparse)'; allowed: embedding, reranker",
        ),
        (
            {"signature": Signature((Tensor("position_ids", "TYPE_INT64", (-1, -1)),), served().signature.outputs)},
            "x.onnx: got 'input position_ids'; allowed: input_ids, attention_mask, token_type_ids",
        ),
    ],
)
def test_what_cannot_be_generated_is_refused_in_one_line(changes: dict[str, object], line: str) -> None:
    (refusal,) = refusals(replace(served(), **changes), "x")  # type: ignore[arg-type]
    assert str(refusal).startswith(line)


def test_models_without_a_usual_export_need_their_file() -> None:
    known = {m.architecture for m in catalogue.models().values() if signature.usual(m)}
    assert known == {"bert", "nomic_bert", "xlm-roberta", "distilbert"}


@given(st.integers(1, 9000))
def test_texts_are_padded_to_few_lengths_that_end_with_the_longest(max_tokens: int) -> None:
    lengths = padded_lengths(max_tokens)
    assert lengths[-1] == max_tokens
    assert list(lengths) == sorted(set(lengths))
    assert len(lengths) <= 11


@given(
    model=st.sampled_from(
        [m for m in catalogue.models().values() if signature.usual(m) and m.kind != ModelKind.SPARSE]
    ),
    batch=st.integers(1, 256),
    tokens=st.integers(1, 8192),
    backend=st.sampled_from(Backend),
    tensorrt=st.sampled_from([None, _TRT]),
)
def test_whatever_is_not_refused_has_ensembles_whose_tensors_fit(
    model: catalogue.Model, batch: int, tokens: int, backend: Backend, tensorrt: TensorRt | None
) -> None:
    usual = signature.usual(model)
    assert usual is not None
    one = Served("m", model, usual, batch, tokens, tensorrt=tensorrt)
    if refusals(one, "x"):
        return
    made = configs(one, backend)
    assert all(text_format.Parse(pbtxt(config), pb.ModelConfig()) == config for config in made.values())
    shapes: dict[str, tuple[int, list[int]]] = {}
    for step in made["m"].ensemble_scheduling.step:
        config = made[step.model_name]
        assert config.max_batch_size == made["m"].max_batch_size
        for tensor in (*config.input, *config.output):
            assert shapes.setdefault(tensor.name, (tensor.data_type, list(tensor.dims))) == (
                tensor.data_type,
                list(tensor.dims),
            )


def test_case_29_shared_memory_grows_with_what_passes_through_python_models() -> None:
    small = served(max_batch_size=8)
    assert shared_memory_bytes([small]) == 1024**3
    large = served("BAAI/bge-m3", max_batch_size=32, max_tokens=8192)
    states = 32 * 8192 * 1024 * 4
    assert shared_memory_bytes([large]) == 2 * 64 * 1024**2 + states
    assert shared_memory_bytes([large], Backend.PYTHON) == 3 * 64 * 1024**2 + 2 * states
    pooled = Signature(large.signature.inputs, (Tensor("sentence_embedding", "TYPE_FP32", (-1, 1024)),))
    assert shared_memory_bytes([served("BAAI/bge-m3", signature=pooled, max_tokens=8192)]) == 1024**3


def test_a_file_that_is_no_onnx_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(UnreadableError, match=r"a\.onnx is no ONNX model"):
        signature.read(tmp_path / "a.onnx")
