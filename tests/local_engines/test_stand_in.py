"""What is the stand-in's own: which ids it serves and how it says what it is; units that no recording reaches."""

import base64
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from local.engines.tei import models as served_models
from local.engines.tei.arguments import UsageError, masked, parse
from local.engines.tei.json_input import BodyError, Shape, read_body
from local.engines.tei.logs import Filter, rust_duration
from local.engines.tei.metrics import number
from local.engines.tei.requests import EMBED, PREDICT, SIMILARITY
from local.engines.tei.server import float_text
from tests.local_engines.engine import HOST, Engine
from tests.local_engines.recordings import load

pytestmark = pytest.mark.local

QUERY = "What is Deep Learning?"
TEXTS = ["I like cheese.", "Deep learning is a subset of machine learning.", "Paris is the capital of France."]


class Start(Protocol):
    def __call__(self, model_id: str, **variables: str) -> Engine: ...


@pytest.fixture
def start(weights_directory: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a server by Hugging Face id, as a pod does: model files by STAND_IN_MODELS, the rest by variables."""
    engines: list[Engine] = []

    def started(model_id: str, **variables: str) -> Engine:
        environment = {"MODEL_ID": model_id, "STAND_IN_MODELS": str(weights_directory), **variables}
        engines.append(Engine([], tmp_path, environment=environment))
        return engines[-1]

    yield started
    for engine in engines:
        engine.__exit__()


def test_minilm_by_its_id_has_its_own_weights_and_says_so(start: Start, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    revision = "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"
    engine = start(served_models.MINILM_ID, REVISION=revision, HUGGINGFACE_HUB_CACHE=str(cache))
    engine.wait_until_ready()
    info = engine.get("/info").json()
    assert info["model_id"] == served_models.MINILM_ID
    assert info["model_sha"] == revision
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["max_input_length"] == 256
    assert "stand-in" in info["stand_in"]
    assert "own weights" in info["stand_in"]
    assert info["stand_in"] in engine.log[0]
    first = load("requests.json")["servers"][2]["requests"][2]["answer"]["json"][0]["_vector"]["first4"]
    assert np.allclose(engine.embed(QUERY).json()[0][:4], first, atol=2e-6)
    assert list(cache.iterdir()) == [cache / "models--sentence-transformers--all-MiniLM-L6-v2"]


def test_another_embedding_id_is_served_with_minilm_weights_and_says_so(start: Start) -> None:
    engine = start("BAAI/bge-small-en-v1.5", POOLING="cls")
    engine.wait_until_ready()
    info = engine.get("/info").json()
    assert info["model_type"] == {"embedding": {"pooling": "cls"}}
    assert info["max_input_length"] == 512
    assert "mean-pooled MiniLM vectors, not that model's" in info["stand_in"]
    assert info["stand_in"] in engine.log[0]
    query, *others = np.array(engine.embed([QUERY, *TEXTS]).json())
    assert np.allclose(np.linalg.norm(query), 1, atol=1e-5)
    similarities = [float(query @ other) for other in others]
    assert max(similarities) == similarities[1]


@pytest.mark.parametrize("model_id", ["BAAI/bge-reranker-base", "BAAI/bge-reranker-v2-m3"])
def test_a_reranker_ranks_the_related_text_first(start: Start, model_id: str) -> None:
    engine = start(model_id)
    engine.wait_until_ready()
    info = engine.get("/info").json()
    assert info["model_type"] == {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}
    assert info["max_input_length"] == served_models.SUBSTITUTES[model_id].max_input_length
    assert "cosine similarity of MiniLM" in info["stand_in"]
    ranks = engine.post("/rerank", {"query": QUERY, "texts": TEXTS, "return_text": True}).json()
    assert ranks[0]["index"] == 1
    assert ranks[0]["text"] == TEXTS[1]
    assert ranks[0]["score"] > 0.9
    assert ranks[-1]["score"] < 0.1
    raw = engine.post("/rerank", {"query": QUERY, "texts": TEXTS, "raw_scores": True}).json()
    assert [rank["index"] for rank in raw] == [rank["index"] for rank in ranks]
    long_text = " ".join(["word"] * 1500)
    assert engine.post("/rerank", {"query": QUERY, "texts": [long_text, "deep learning"]}).json()[0]["index"] == 1
    assert engine.post("/predict", {"inputs": "alone"}).status == 200


def test_a_sparse_model_weighs_the_tokens_of_the_text_and_says_that_it_adds_none(start: Start) -> None:
    engine = start("naver/efficient-splade-VI-BT-large-doc", POOLING="splade")
    engine.wait_until_ready()
    info = engine.get("/info").json()
    assert info["model_type"] == {"embedding": {"pooling": "splade"}}
    assert "no expansion" in info["stand_in"]
    tokens = {token["id"] for token in engine.post("/tokenize", {"inputs": TEXTS[2]}).json()[0] if not token["special"]}
    one, two = engine.post("/embed_sparse", {"inputs": [TEXTS[2], TEXTS[0]]}).json()
    assert engine.post("/embed_sparse", {"inputs": TEXTS[2]}).json() == [one]
    assert [entry["index"] for entry in one] == sorted(tokens), "the index is the vocabulary entry, in its order"
    assert all(set(entry) == {"index", "value"} and 0 < entry["value"] < 1 for entry in [*one, *two])
    weights = {entry["index"]: entry["value"] for entry in one}
    paris, of = (engine.post("/tokenize", {"inputs": word}).json()[0][1]["id"] for word in ("paris", "of"))
    assert weights[paris] > weights[of]
    refused = engine.post("/embed", {"inputs": "a"})
    assert (refused.status, refused.json()["error_type"]) == (424, "Backend")
    assert "normalize" in refused.json()["error"]


def test_a_sparse_model_with_another_pooling_is_refused(start: Start) -> None:
    engine = start("naver/efficient-splade-VI-BT-large-query", POOLING="mean")
    assert engine.exit_code() == 1
    assert "with --pooling splade only" in engine.log[-1]


@pytest.mark.parametrize("model_id", ["intfloat/e5-mistral-7b-instruct", "/models/none"])
def test_an_unknown_model_is_refused_in_one_line(start: Start, model_id: str) -> None:
    engine = start(model_id)
    assert engine.exit_code() == 1
    errors = [line for line in engine.log if line.startswith("Error: ")]
    assert len(errors) == 1
    for part in (model_id, "stand-in", served_models.MINILM_ID, "BAAI/bge-reranker-base"):
        assert part in errors[0]


def test_missing_model_files_are_named(start: Start, tmp_path: Path) -> None:
    engine = start(served_models.MINILM_ID, STAND_IN_MODELS=str(tmp_path / "nowhere"))
    assert engine.exit_code() == 1
    assert "set STAND_IN_MODELS" in engine.log[-1]


def test_a_cache_that_cannot_be_written_ends_the_start(start: Start, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    engine = start(served_models.MINILM_ID, HUGGINGFACE_HUB_CACHE=str(blocked))
    assert engine.exit_code() == 1
    assert "Error: Could not download model artifacts" in engine.log


def test_a_flag_wins_over_its_variable() -> None:
    arguments = parse(["--model-id", "flag", "-p", "81"], {"MODEL_ID": "variable", "PORT": "82", "DTYPE": "float16"})
    assert (arguments.model_id, arguments.port, arguments.dtype) == ("flag", 81, "float16")


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--port"], "a value is required for '--port <PORT>' but none was supplied"),
        (["--port", "70000"], "invalid value '70000' for '--port <PORT>': 70000 is not in 0..=65535"),
        (["--max-batch-tokens", "-1"], "a value is required for '--max-batch-tokens <MAX_BATCH_TOKENS>'"),
        (["--max-batch-tokens="], "cannot parse integer from empty string"),
        (["--port", "1", "--port", "2"], "the argument '--port <PORT>' cannot be used multiple times"),
        (["extra"], "unexpected argument 'extra' found"),
        (["--json-output=true"], "unexpected value 'true' for '--json-output' found"),
    ],
)
def test_wrong_arguments_are_refused_like_claps(argv: list[str], text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(["--model-id", "x", *argv], {})
    assert text in str(refused.value)


def test_tokens_are_masked_in_the_argument_line() -> None:
    token = "hf_" + "abcdefghijkl"
    text = parse(["--model-id", "x"], {"HF_TOKEN": token}).debug_text()
    assert token not in text
    assert masked(token) == "hf_a" + "*" * 8 + "jkl"


@pytest.mark.parametrize(
    ("directives", "target", "level", "allowed"),
    [
        ("info", "text_embeddings_router", "INFO", True),
        ("info", "text_embeddings_router", "DEBUG", False),
        ("warn,text_embeddings_router::http=info", "text_embeddings_router::http::server", "INFO", True),
        ("warn,text_embeddings_router::http=info", "text_embeddings_router", "INFO", False),
        ("text_embeddings_router=off", "text_embeddings_core::infer", "ERROR", False),
        ("no=such=level", "text_embeddings_router", "INFO", True),
    ],
)
def test_log_directives_choose_by_the_longest_target(directives: str, target: str, level: str, allowed: bool) -> None:
    assert Filter(directives).allows(target, level) is allowed


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.014084139, "14.084139ms"), (0.000137849, "137.849µs"), (1.976056266, "1.976056266s"), (2.0, "2s"), (0, "0ns")],
)
def test_durations_are_written_as_rust_writes_them(seconds: float, text: str) -> None:
    assert rust_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.8371236e-05, "0.000018371236"), (4.072004e-06, "4.072004e-6"), (0.0006229695, "0.0006229695"), (-0.5, "-0.5")],
)
def test_scores_are_written_as_serde_json_writes_them(value: float, text: str) -> None:
    assert float_text(np.float32(value)) == text


def test_metric_values_have_no_exponent() -> None:
    assert [number(value) for value in (1.5000000000000002e-05, 7.0, 0.1)] == ["0.000015000000000000002", "7", "0.1"]


@pytest.mark.parametrize(
    ("body", "shape", "text"),
    [
        (b'{"inputs":"a",}', EMBED, "trailing comma at line 1 column 15"),
        (b'{"inputs":"a"} x', EMBED, "trailing characters at line 1 column 16"),
        (b'{"inputs":"a"', EMBED, "EOF while parsing an object at line 1 column 13"),
        (b'{"inputs":"a', EMBED, "inputs: EOF while parsing a string at line 1 column 12"),
        (b'{\n "inputs": tru}', EMBED, "inputs: expected ident at line 2 column 15"),
        (
            '{"inputs":"é","normalize":3}'.encode(),
            EMBED,
            "normalize: invalid type: integer `3`, expected a boolean at line 1 column 28",
        ),
        (
            b'{"inputs":{"source_sentence":"a","sentences":["b",1]}}',
            SIMILARITY,
            "inputs.sentences[1]: invalid type: integer `1`",
        ),
        (b'{"inputs":["a","b","c"]}', PREDICT, "invalid length 3"),
        (b'{"inputs":"\xff"}', EMBED, "invalid unicode code point at line 1 column 12"),
    ],
)
def test_wrong_bodies_name_place_and_reason(body: bytes, shape: Shape, text: str) -> None:
    with pytest.raises(BodyError) as refused:
        read_body(body, shape)
    assert text in refused.value.text


def test_base64_vectors_are_little_endian_floats(minilm: Engine) -> None:
    recorded = load("behaviour.json")["embed/notes-openai-base64.json"]
    body = {"input": "hello world", "encoding_format": "base64"}
    shown = minilm.post("/v1/embeddings", body).json()["data"][0]["embedding"]
    assert len(shown) == recorded["base64_chars"]
    decoded = base64.b64decode(shown)
    assert len(decoded) == recorded["bytes"]
    assert np.allclose(struct.unpack("<4f", decoded[:16]), recorded["first4"], atol=2e-6)


def test_the_api_description_names_the_recorded_paths(minilm: Engine) -> None:
    recorded = load("behaviour.json")["embed/openapi-summary.json"]
    found = minilm.get("/api-doc/openapi.json").json()
    paths = {
        path: {method: sorted(entry["responses"]) for method, entry in methods.items()}
        for path, methods in found["paths"].items()
    }
    assert paths == recorded["paths"]
    assert (found["openapi"], found["info"]["version"]) == (recorded["openapi"], recorded["info"]["version"])
    assert "stand-in" in found["info"]["description"]


def test_headers_come_in_the_recorded_order(minilm: Engine) -> None:
    recorded = load("behaviour.json")["embed/raw-wire-embed-head.txt"]
    body = json.dumps({"inputs": "hello"}).encode()
    head = f"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((HOST, minilm.port)) as connection:
        connection.sendall(head.encode() + body)
        received = connection.recv(4096).split(b"\r\n\r\n")[0].decode()
    names = [line.split(":")[0] for line in received.splitlines()]
    assert names == [line.split(":")[0] for line in recorded]


def test_vertex_answers_each_instance_or_the_first_error(minilm: Engine) -> None:
    answer = minilm.post("/vertex", {"instances": [{"inputs": "hello"}, {"inputs": ["a", "b"]}]})
    assert [len(prediction) for prediction in answer.json()["predictions"]] == [1, 2]
    assert minilm.post("/vertex", {"instances": [{"inputs": ""}]}).status == 400
    assert minilm.post("/vertex", {"instances": [{"nope": 1}]}).status == 422
