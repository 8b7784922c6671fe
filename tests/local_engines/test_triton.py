"""The generated model repository on a real tritonserver: what it answers, counts and refuses."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tokenizers import Tokenizer

from infra.core import catalogue
from infra.core.engines.triton import signature
from infra.core.engines.triton.check import check
from infra.core.engines.triton.repository import Backend, Precision, Served, Source, TensorRt, write
from local.engines.tei.bert import Bert, Floats, TokenizedInput, normalized, pool
from local.images import engine, tritonserver
from local.onnx_models import files as onnx
from local.report import PlainReporter
from tests.core.triton_broken import BROKEN, GOOD, add
from tests.local_engines.engine import HOST
from tests.local_engines.triton_server import TritonServer, usable

pytestmark = [pytest.mark.local, pytest.mark.skipif(bool(usable()), reason=usable())]

_BATCH = 8
_TOKENS = 64
_TEXTS = [
    "The cat sits outside.",
    "A kitten is sitting in the garden.",
    "Interest rates were raised by the central bank in June.",
]


def _served(name: str, model_id: str, file: Path) -> Served:
    # The accelerator is for the onnxruntime backend; it is here because only backend and kind may differ on the CPU.
    tensorrt = TensorRt(Precision.FP16, "/var/cache/triton")
    model = catalogue.models()[model_id]
    return Served(name, model, signature.read(file), _BATCH, _TOKENS, tensorrt=tensorrt)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = onnx.ensure(PlainReporter())
    packages = tritonserver.tokenizer_packages(PlainReporter())
    served = []
    for name, model_id, file in (
        ("embed", "sentence-transformers/all-MiniLM-L6-v2", onnx.EMBEDDER),
        ("rerank", "cross-encoder/ms-marco-MiniLM-L-6-v2", onnx.RERANKER),
    ):
        source = Source(files / file, files / onnx.TOKENIZER, packages)
        served.append((_served(name, model_id, files / file), source))
    target = _open(tmp_path_factory.mktemp("models"))
    write(target, served, Backend.PYTHON)
    return target


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with TritonServer(repository, tmp_path_factory.mktemp("server"), "--disable-auto-complete-config") as started:
        started.wait_until_ready()
        yield started


@pytest.fixture
def client(server: TritonServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"{HOST}:{server.grpc}") as made:
        yield made


def _open(folder: Path) -> Path:
    """A folder of pytest's that the server's user may enter."""
    for path in (folder, *folder.parents):
        if path.name.startswith("pytest-") or path == folder:
            path.chmod(0o755)
    return folder


def _texts(name: str, texts: list[str]) -> triton.InferInput:
    given = triton.InferInput(name, [len(texts), 1], "BYTES")
    given.set_data_from_numpy(np.array([[text] for text in texts], dtype=object))
    return given


def _embed(client: triton.InferenceServerClient, texts: list[str]) -> Floats:
    vectors: Floats = client.infer("embed", [_texts("text", texts)]).as_numpy("embedding")
    return vectors


def test_the_checker_finds_nothing_in_what_the_server_loads(repository: Path, server: TritonServer) -> None:
    assert check(repository, backends={"python"}, gpus=0) == []
    for name in ("embed-tokenizer", "embed-embedder", "embed-pooler", "embed", "rerank-tokenizer", "rerank-reranker"):
        assert server.get(f"v2/models/{name}/ready").status_code == 200, name
    # case-32: readiness is asked for by name; 400 is how this server says no.
    assert server.get("v2/models/absent/ready").status_code == 400
    assert server.get("v2/health/live").status_code == 200


def test_the_ensemble_answers_texts_with_the_model_s_vectors(client: triton.InferenceServerClient) -> None:
    directory = engine.model_files(PlainReporter())
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    encoded = [TokenizedInput(one.ids, one.type_ids) for one in tokenizer.encode_batch(_TEXTS)]
    wanted = np.stack([normalized(pool(states, "mean")) for states in Bert(directory).hidden_states(encoded)])
    vectors = _embed(client, _TEXTS)
    # The reference approximates GELU, as TEI does; the graph does not.
    np.testing.assert_allclose(vectors, wanted, atol=1e-3)
    assert vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2]


def test_a_vector_does_not_depend_on_what_it_is_batched_and_padded_with(client: triton.InferenceServerClient) -> None:
    alone = _embed(client, _TEXTS[:1])
    beside = _embed(client, [_TEXTS[0], " ".join(_TEXTS * 5)])
    np.testing.assert_allclose(alone[0], beside[0], atol=1e-5)


def test_the_reranker_puts_the_answer_first(client: triton.InferenceServerClient) -> None:
    texts = [_TEXTS[2], _TEXTS[0]]
    given = [_texts("query", ["Where is the cat?"] * 2), _texts("text", texts)]
    logits = client.infer("rerank", given).as_numpy("logits")
    assert logits.shape == (2, 1)
    assert logits[1, 0] > logits[0, 0] + 1


def test_a_request_above_the_batch_size_is_refused(client: triton.InferenceServerClient) -> None:
    with pytest.raises(triton.InferenceServerException, match=f"must be <= {_BATCH}"):
        _embed(client, ["x"] * (_BATCH + 1))


def test_single_requests_are_batched_by_the_server(server: TritonServer, client: triton.InferenceServerClient) -> None:
    def totals() -> tuple[float, float]:
        return (
            server.counter("nv_inference_count", "embed-embedder"),
            server.counter("nv_inference_exec_count", "embed-embedder"),
        )

    count, runs = totals()
    with ThreadPoolExecutor(16) as pool_:
        list(pool_.map(lambda _: _embed(client, _TEXTS[:1]), range(64)))
    after, runs_after = totals()
    assert after - count == 64
    assert runs_after - runs < 64


def test_metrics_have_the_names_that_alerts_and_scaling_use(server: TritonServer) -> None:
    for name in (
        "nv_inference_request_success",
        "nv_inference_queue_duration_us",
        "nv_inference_pending_request_count",
    ):
        assert server.counter(name, "embed-embedder") >= 0
    # case-45: requests wait in the composing models.
    assert server.counter("nv_inference_pending_request_count", "embed") == 0


def test_case_42_warm_up_ran_both_shapes_before_the_server_was_ready(server: TritonServer) -> None:
    config = server.get("v2/models/rerank-reranker/config").json()
    assert [sample["batch_size"] for sample in config["model_warmup"]] == [1, _BATCH]
    stats = server.get("v2/models/rerank-reranker/stats").json()["model_stats"][0]
    assert {entry["batch_size"] for entry in stats["batch_stats"]} >= {1, _BATCH}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Log of a server that was given every broken directory and does not stop at the first."""
    target = _open(tmp_path_factory.mktemp("broken"))
    add(target, "good", GOOD)
    for name, broken in BROKEN.items():
        add(target, name, broken.config, broken.version)
    work = tmp_path_factory.mktemp("refusing")
    flags = ("--exit-on-error=false", "--strict-readiness=false", "--disable-auto-complete-config")
    with TritonServer(target, work, *flags) as server:
        server.wait_until_ready()
        assert [name for name in BROKEN if server.get(f"v2/models/{name}/ready").status_code == 200] == []
        assert server.get("v2/models/good/ready").status_code == 200
        yield server.log


@pytest.mark.parametrize("name", BROKEN)
def test_the_server_refuses_a_broken_directory_in_the_predicted_words(name: str, refused: str) -> None:
    assert BROKEN[name].says.format(name=name) in refused


def test_a_server_with_a_broken_model_exits(tmp_path: Path) -> None:
    target = tmp_path / "models"
    target.mkdir()
    _open(target)
    add(target, "good", BROKEN["preferred_too_large"].config)
    (tmp_path / "work").mkdir()
    with TritonServer(target, tmp_path / "work") as server:
        assert server.wait_for_end() != 0
        assert BROKEN["preferred_too_large"].says.format(name="good") in server.log
