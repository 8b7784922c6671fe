"""The NIM stand-in against what NVIDIA's pages and public reports say; nobody has recorded a real one."""

import asyncio
import base64
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

from infra.core import catalogue
from infra.core.engines.nim import versions
from infra.core.engines.nim.versions import Role
from local.engines.nim import configuration
from local.engines.nim.models import MODELS
from local.engines.nim.server import Server
from tests.local_engines.engine import HANG, HOST, Engine, free_port

pytestmark = pytest.mark.local

KEY = "nvapi-the-key-of-this-test"
E5 = "nvidia/nv-embedqa-e5-v5"
NEMOTRON = "nvidia/nemotron-3-embed-1b"
RERANKER = "nvidia/llama-3.2-nv-rerankqa-1b-v2"
ASYMMETRIC = "'input_type' parameter is required for asymmetric models"


def nim(models: Path, scratch: Path, model: str, version: str, **changes: str) -> Engine:
    """A stand-in of ``version`` on a port of loopback, told so in the words of its release."""
    port = free_port()
    environment = {
        "STAND_IN_MODELS": str(models),
        "STAND_IN_NIM_MODEL": model,
        "STAND_IN_NIM_VERSION": version,
        "NGC_API_KEY": KEY,
    }
    if version.startswith("1."):
        environment |= {
            "STAND_IN_HOST": HOST,
            "STAND_IN_TRITON_METRICS_PORT": str(free_port()),
            "NIM_HTTP_API_PORT": str(port),
            "NIM_CACHE_PATH": str(scratch / "cache"),
        }
    else:
        environment |= {
            "NIM_SERVER_BIND_ADDR": f"{HOST}:{port}",
            "NIM_ENGINE_MODEL_PATH": str(scratch / "model"),
            "NIM_ENGINE_MODEL_DOWNLOAD_PROVIDER": "ngc",
        }
    environment |= changes
    kept = {name: value for name, value in environment.items() if value}
    return Engine([], scratch, environment=kept, port=port, hostname=None, module="local.engines.nim")


@pytest.fixture(scope="module")
def e5(weights_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with nim(weights_directory, tmp_path_factory.mktemp("e5"), E5, "1.5.0") as engine:
        yield engine.wait_until_ready()


@pytest.fixture(scope="module")
def nemotron(weights_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    scratch = tmp_path_factory.mktemp("nemotron")
    with nim(weights_directory, scratch, NEMOTRON, "2.2.2", NIM_SERVER_MAX_QUEUE_SIZE="1", LOG_FORMAT="json") as engine:
        yield engine.wait_until_ready()


@pytest.fixture(scope="module")
def reranker(weights_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with nim(weights_directory, tmp_path_factory.mktemp("reranker"), RERANKER, "1.8.0") as engine:
        yield engine.wait_until_ready()


def embedded(engine: Engine, text: str | list[str], **options: object) -> list[list[float]]:
    body = {"model": E5, "input": text, "input_type": "passage", **options}
    answer = engine.post("/v1/embeddings", body)
    assert answer.status == 200, answer.body
    rows = answer.json()["data"]
    assert [row["index"] for row in rows] == list(range(len(rows)))
    return [row["embedding"] for row in rows]


# -- what it claims


def test_models_agree_with_the_catalogue_and_the_table_of_nims() -> None:
    assert set(MODELS) == set(versions.nims())
    for name, model in MODELS.items():
        known = catalogue.models()[name]
        assert (model.max_tokens, model.dimension) == (known.max_tokens, known.dimension)
        assert model.dynamic == versions.nims()[name].dynamic_dimensions
        assert (model.dimension is None) == (versions.nims()[name].role is Role.RERANKING)


@pytest.mark.parametrize("tag", ["1.10.1", "2.0.0", "2.2.2"])
def test_names_of_variables_are_those_of_the_table(tag: str) -> None:
    version = versions.parse(tag)
    assert version is not None

    def name(purpose: str) -> str:
        return versions.name_of(purpose, version, Role.EMBEDDING) or "ABSENT"

    given = {
        "STAND_IN_NIM_MODEL": "nvidia/llama-3.2-nv-embedqa-1b-v2",
        "STAND_IN_NIM_VERSION": tag,
        "NGC_API_KEY": KEY,
        name("provider"): "ngc",
        name("http-port"): "9001",
        name("http-address"): "127.0.0.1:9001",
        name("weights-path"): "/somewhere",
        name("served-name"): "house-model",
        name("queue"): "7",
        name("json-log"): "1" if version[0] == 1 else "json",
    }
    del given["ABSENT"]
    if version[0] == 2:
        given[name("model-name")] = "house-model"
    read = configuration.read(given)
    assert (read.port, str(read.weights_path), read.served_name, read.json_log) == (
        9001,
        "/somewhere",
        "house-model",
        True,
    )
    assert (read.queue, read.triton_metrics_port) == ((None, 8002) if version[0] == 1 else (7, None))


def test_it_says_that_it_is_a_stand_in(e5: Engine, nemotron: Engine) -> None:
    for engine in (e5, nemotron):
        assert "stand-in" in engine.log[0]
        answer = engine.get("/v1/models")
        assert "stand-in" in (answer.header("x-stand-in") or "")
        assert "stand-in" in answer.json()["data"][0]["stand_in"]
    assert nemotron.log[0].startswith("{")


# -- start


@pytest.mark.parametrize(
    ("model", "version", "changes", "found"),
    [
        (E5, "1.5.0", {"NGC_API_KEY": ""}, "NGC_API_KEY is not set"),
        (NEMOTRON, "2.2.2", {"NGC_API_KEY": ""}, "NGC_API_KEY is not set"),
        (NEMOTRON, "2.2.2", {"NIM_ENGINE_MODEL_DOWNLOAD_PROVIDER": ""}, "HF_TOKEN is not set"),
        (NEMOTRON, "2.2.2", {"NIM_MODEL_PATH": "/model"}, "NIM_ENGINE_MODEL_PATH"),
        (NEMOTRON, "2.2.2", {"NIM_SERVER_BIND_ADDR": "8000"}, "host:port"),
        (E5, "1.5.0", {"NIM_CACHE_PATH": "/proc/nothing"}, "os error"),
        ("meta/llama-3.1-8b-instruct", "1.5.0", {}, "this stand-in serves"),
        (E5, "latest", {}, "STAND_IN_NIM_VERSION"),
    ],
)
def test_a_start_that_a_nim_would_not_survive_ends_in_one_line_without_the_key(
    tmp_path: Path, model: str, version: str, changes: dict[str, str], found: str
) -> None:
    with nim(tmp_path, tmp_path, model, version, **changes) as engine:
        assert engine.exit_code() == 1
    assert found in engine.log[-1]
    assert engine.log[-1].startswith("Error: ")
    assert not any(KEY in line for line in engine.log)


def test_case_55_the_port_of_1_x_is_ignored_by_2_x() -> None:
    given = {
        "STAND_IN_NIM_MODEL": NEMOTRON,
        "STAND_IN_NIM_VERSION": "2.2.2",
        "HF_TOKEN": "x",
        "NIM_HTTP_API_PORT": "9000",
    }
    assert configuration.read(given).port == 8000


def test_it_is_live_and_not_ready_while_it_loads() -> None:
    given = {"STAND_IN_NIM_MODEL": E5, "STAND_IN_NIM_VERSION": "1.5.0", "NGC_API_KEY": KEY}
    application = Server(configuration.read(given)).application()

    async def ask() -> list[int]:
        async with TestClient(TestServer(application)) as client:
            body = {"model": E5, "input": "text", "input_type": "query"}
            answers = [await client.get("/v1/health/live"), await client.get("/v1/health/ready")]
            answers.append(await client.post("/v1/embeddings", json=body))
            return [answer.status for answer in answers]

    assert asyncio.run(ask()) == [200, 503, 503]


def test_it_is_ready_once_it_has_loaded(e5: Engine) -> None:
    answer = e5.get("/v1/health/ready")
    assert (answer.status, answer.json()["ready"]) == (200, True)


def test_sigterm_ends_it_with_0_after_the_started_request(weights_directory: Path, tmp_path: Path) -> None:
    with nim(weights_directory, tmp_path, E5, "1.5.0") as engine, ThreadPoolExecutor(1) as client:
        engine.wait_until_ready()
        long = client.submit(embedded, engine, ["word " * 250] * 8)
        _wait_for_pending(engine)
        engine.signal(signal.SIGTERM)
        assert len(long.result(HANG)) == 8
        assert engine.exit_code() == 0


# -- embeddings


def test_case_48_without_input_type_an_embedding_is_refused(e5: Engine) -> None:
    answer = e5.post("/v1/embeddings", {"model": E5, "input": "text"})
    assert (answer.status, ASYMMETRIC in answer.body.decode()) == (400, True)


@pytest.mark.parametrize("word", ["query", "passage"])
def test_the_ending_of_the_model_name_says_the_input_type_too(e5: Engine, word: str) -> None:
    by_field = embedded(e5, "text", input_type=word)
    answer = e5.post("/v1/embeddings", {"model": f"{E5}-{word}", "input": "text"})
    assert answer.status == 200
    assert answer.json()["model"] == E5
    assert [row["embedding"] for row in answer.json()["data"]] == by_field


def test_queries_and_passages_have_other_vectors_and_the_dimension_and_norm_of_the_model(e5: Engine) -> None:
    [query], [passage] = embedded(e5, "text", input_type="query"), embedded(e5, ["text"])
    assert query != passage
    assert len(query) == len(passage) == 1024
    assert np.linalg.norm(passage) == pytest.approx(1, abs=1e-5)


def test_vectors_mean_something(e5: Engine) -> None:
    query = np.array(embedded(e5, "How do I reset my password?", input_type="query")[0])
    near, far = np.array(embedded(e5, ["I forgot my password and cannot log in.", "Two ripe bananas and flour."]))
    assert query @ near > query @ far


def test_base64_holds_the_same_numbers(e5: Engine) -> None:
    [text] = embedded(e5, "text", encoding_format="base64")
    decoded = np.frombuffer(base64.b64decode(str(text)), dtype="<f4")
    assert decoded == pytest.approx(embedded(e5, "text")[0], abs=1e-6)


def test_long_texts_are_refused_unless_an_end_is_cut_off(e5: Engine) -> None:
    text = "first " + "word " * 600 + "last"
    for truncate in ({}, {"truncate": "NONE"}):
        answer = e5.post("/v1/embeddings", {"model": E5, "input": text, "input_type": "query", **truncate})
        assert answer.status == 400
        assert "exceeds maximum allowed token size 512" in answer.json()["error"]
    assert embedded(e5, text, truncate="START") != embedded(e5, text, truncate="END")


def test_fewer_dimensions_are_for_models_that_were_trained_for_them(
    e5: Engine, weights_directory: Path, tmp_path: Path
) -> None:
    answer = e5.post("/v1/embeddings", {"model": E5, "input": "x", "input_type": "query", "dimensions": 512})
    assert answer.status == 400
    name = "nvidia/llama-3.2-nv-embedqa-1b-v2"
    changes = {"NIM_SERVED_MODEL_NAME": "house-model"}
    with nim(weights_directory, tmp_path, name, "1.10.1", **changes) as engine:
        engine.wait_until_ready()
        assert engine.get("/v1/models").json()["data"][0]["id"] == "house-model"
        full, short = (
            embedded(engine, "x", model="house-model"),
            embedded(engine, "x", model="house-model", dimensions=256),
        )
        assert (len(full[0]), len(short[0])) == (2048, 256)
        assert np.linalg.norm(short[0]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"model": "nvidia/other"}, 404),
        ({"model": None}, 422),
        ({"input_type": "document"}, 422),
        ({"input": []}, 422),
        ({"input": [1, 2]}, 422),
        ({"input": ""}, 400),
        ({"truncate": "MIDDLE"}, 422),
        ({"encoding_format": "int8"}, 422),
        ({"embedding_type": "binary"}, 400),
        ({"dimensions": 0}, 400),
    ],
)
def test_a_wrong_request_is_refused(e5: Engine, changes: dict[str, object], status: int) -> None:
    answer = e5.post("/v1/embeddings", {"model": E5, "input": "text", "input_type": "query", **changes})
    assert answer.status == status
    assert answer.json()["error"]


def test_an_embedding_nim_does_not_rank_and_a_body_that_is_no_json_is_refused(e5: Engine) -> None:
    assert e5.post("/v1/ranking", {}).status == 404
    assert e5.request("POST", "/v1/embeddings", body=b"{").status == 422


def test_case_57_a_full_queue_is_answered_with_503_in_2_x(nemotron: Engine) -> None:
    body = {"model": NEMOTRON, "input": ["word " * 250] * 8, "input_type": "passage"}
    with ThreadPoolExecutor(1) as client:
        long = client.submit(nemotron.post, "/v1/embeddings", body)
        _wait_for_pending(nemotron)
        refused = nemotron.post("/v1/embeddings", body | {"input": "short"})
        ready = nemotron.get("/v1/health/ready")
        assert (refused.status, ready.status, long.result(HANG).status) == (503, 200, 200)


# -- ranking


def test_the_passage_that_answers_the_query_comes_first(reranker: Engine) -> None:
    passages = ["Two ripe bananas and flour.", "Paris is the capital of France.", "The train leaves at noon."]
    body = {
        "model": RERANKER,
        "query": {"text": "What is the capital of France?"},
        "passages": [{"text": passage} for passage in passages],
    }
    answer = reranker.post("/v1/ranking", body)
    assert answer.status == 200
    ranks = answer.json()["rankings"]
    assert ranks[0]["index"] == 1
    assert sorted(rank["index"] for rank in ranks) == [0, 1, 2]
    logits = [rank["logit"] for rank in ranks]
    assert logits == sorted(logits, reverse=True)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"model": "nvidia/other"}, 404),
        ({"query": "text"}, 422),
        ({"passages": []}, 422),
        ({"passages": ["text"]}, 422),
        ({"passages": [{"text": ""}]}, 400),
        ({"passages": [{"text": "x"}] * 513}, 400),
        ({"truncate": "START"}, 422),
        ({"passages": [{"text": "word " * 9000}]}, 400),
        ({"passages": [{"text": "word " * 9000}], "truncate": "END"}, 200),
    ],
)
def test_a_ranking_request_is_judged(reranker: Engine, changes: dict[str, object], status: int) -> None:
    body = {"model": RERANKER, "query": {"text": "text"}, "passages": [{"text": "text"}], **changes}
    assert reranker.post("/v1/ranking", body).status == status


# -- metrics


def test_case_56_metrics_are_on_v1_metrics_under_names_of_the_stand_in(e5: Engine, nemotron: Engine) -> None:
    for engine in (e5, nemotron):
        engine.get("/v1/models")
        assert engine.get("/metrics").status == 404
        text = engine.get("/v1/metrics").body.decode()
        assert 'stand_in_nim_requests_total{path="/v1/models",status="200"}' in text
        assert "nv_inference" not in text


def test_tritons_metrics_of_1_x_are_on_a_port_of_their_own(weights_directory: Path, tmp_path: Path) -> None:
    port = free_port()
    with nim(weights_directory, tmp_path, E5, "1.5.0", STAND_IN_TRITON_METRICS_PORT=str(port)) as engine:
        engine.wait_until_ready()
        embedded(engine, ["one", "two"])
        engine.http_port = port
        text = engine.get("/metrics").body.decode()
    labels = '{model="nvidia_nv-embedqa-e5-v5",version="1"}'
    assert f"nv_inference_request_success{labels} 1" in text
    assert f"nv_inference_count{labels} 2" in text


def _wait_for_pending(engine: Engine) -> None:
    deadline = time.monotonic() + HANG
    while "stand_in_nim_requests_pending 1" not in engine.get("/v1/metrics").body.decode():
        assert time.monotonic() < deadline
        time.sleep(0.01)
