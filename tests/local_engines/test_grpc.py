"""The gRPC build of the stand-in against what was read in the router's source; nothing was recorded of a real one."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from local.engines.tei.grpc_server import MAX_MESSAGE_BYTES
from local.engines.tei_protocol import MESSAGES, METHODS
from tests.local_engines.engine import HOST, Engine, free_port, words
from tests.local_engines.grpc_engine import GrpcEngine

pytestmark = pytest.mark.local

EMBED = "/tei.v1.Embed/Embed"
RERANK = "/tei.v1.Rerank/Rerank"
KEY = "the-key-of-this-test"
OVERLOADED = 'te_request_failure{err="overloaded"}'
SINGLE = 'te_request_count{method="single"}'
TEXTS = ["one", "another text", "a third one"]


@pytest.fixture(scope="module")
def embedder(models: Path) -> Iterator[GrpcEngine]:
    with GrpcEngine(["--model-id", "all-minilm-l6-v2", "--dtype", "float32"], models) as engine:
        engine.wait_until_ready()
        yield engine


@pytest.fixture(scope="module")
def reranker(models: Path) -> Iterator[GrpcEngine]:
    """With a key, two permits, and at most three texts per request."""
    arguments = ["--model-id", "tiny-reranker", "--api-key", KEY]
    arguments += ["--max-concurrent-requests", "2", "--max-client-batch-size", "3"]
    with GrpcEngine(arguments, models) as engine:
        engine.wait_until_ready()
        yield engine


@pytest.fixture(scope="module")
def slow_with_one_permit(models: Path) -> Iterator[GrpcEngine]:
    with GrpcEngine(["--model-id", "embed-slow", "--max-concurrent-requests", "1"], models) as engine:
        engine.wait_until_ready()
        yield engine


# -- the wire


@pytest.mark.parametrize(
    ("name", "fields", "data"),
    [
        ("EmbedRequest", {"inputs": "a", "truncate": True, "normalize": True}, b"\x0a\x01a\x10\x01\x18\x01"),
        (
            "EmbedRequest",
            {"normalize": False, "truncation_direction": 1, "prompt_name": ""},
            b"\x18\x00\x20\x01\x2a\x00",
        ),
        ("EmbedResponse", {"embeddings": [1.0]}, b"\x0a\x04\x00\x00\x80\x3f"),
        (
            "RerankRequest",
            {"query": "q", "texts": ["a", "b"], "return_text": True},
            b"\x0a\x01q\x12\x01a\x12\x01b\x28\x01",
        ),
        ("Rank", {"index": 2, "text": "", "score": 1.0}, b"\x08\x02\x12\x00\x1d\x00\x00\x80\x3f"),
        ("InfoResponse", {"model_id": "m", "tokenization_workers": 3}, b"\x22\x01m\x68\x03"),
        ("Metadata", {"inference_time_ns": 2**40}, b"\x30\x80\x80\x80\x80\x80\x20"),
        ("HealthCheckResponse", {"status": 1}, b"\x08\x01"),
    ],
)
def test_messages_have_the_numbers_of_the_interface_on_the_wire(name: str, fields: dict[str, Any], data: bytes) -> None:
    assert MESSAGES[name](**fields).SerializeToString() == data
    assert MESSAGES[name].FromString(data) == MESSAGES[name](**fields)


def test_methods_have_the_paths_and_streams_of_the_interface() -> None:
    streams = {path for path, method in METHODS.items() if method.request_stream}
    assert len(METHODS) == 19
    assert {path for path in METHODS if path.endswith("Stream")} == streams
    assert METHODS[RERANK].request is MESSAGES["RerankRequest"]
    assert not METHODS["/tei.v1.Rerank/RerankStream"].response_stream


# -- embeddings


def test_a_vector_is_that_of_the_http_build(embedder: GrpcEngine, minilm: Engine) -> None:
    answer = embedder.call(EMBED, inputs="What is Deep Learning?", normalize=True)
    ((expected),) = minilm.embed("What is Deep Learning?").json()
    assert np.allclose(answer.embeddings, expected, atol=1e-6)
    assert answer.metadata.compute_chars == len("What is Deep Learning?")
    assert answer.metadata.compute_tokens == 7
    assert answer.metadata.total_time_ns >= answer.metadata.inference_time_ns > 0


def test_vectors_are_normalised_unless_the_client_declines(embedder: GrpcEngine) -> None:
    unasked = embedder.call(EMBED, inputs="a text").embeddings
    raw = embedder.call(EMBED, inputs="a text", normalize=False).embeddings
    assert np.linalg.norm(unasked) == pytest.approx(1, abs=1e-5)
    assert np.linalg.norm(raw) != pytest.approx(1, abs=0.1)


def test_vectors_of_a_stream_come_in_the_order_of_the_texts(embedder: GrpcEngine) -> None:
    alone = [embedder.call(EMBED, inputs=text).embeddings for text in TEXTS]
    together = embedder.stream("/tei.v1.Embed/EmbedStream", ({"inputs": text} for text in TEXTS))
    assert np.allclose([answer.embeddings for answer in together], alone, atol=1e-6)


def test_every_token_has_a_vector(embedder: GrpcEngine) -> None:
    answer = embedder.call("/tei.v1.Embed/EmbedAll", inputs="hello world")
    assert [len(token.embeddings) for token in answer.token_embeddings] == [384] * 4


def test_headers_come_as_initial_metadata(embedder: GrpcEngine) -> None:
    call = embedder.start(EMBED, inputs="hello world")
    call.result()
    assert dict(call.initial_metadata())["x-compute-tokens"] == "4"


def test_truncation_is_what_the_request_says(embedder: GrpcEngine) -> None:
    assert embedder.call(EMBED, inputs=words(300), truncate=True).metadata.compute_tokens == 256
    assert embedder.refused(EMBED, inputs=words(300)) == (
        "INVALID_ARGUMENT",
        "Input validation error: `inputs` must have less than 256 tokens. Given: 300",
    )


@pytest.mark.parametrize(
    ("path", "fields", "code", "text"),
    [
        (EMBED, {"inputs": ""}, "INVALID_ARGUMENT", "Input validation error: `inputs` cannot be empty"),
        (EMBED, {"inputs": "a", "prompt_name": "none"}, "INVALID_ARGUMENT", "Input validation error: "),
        (RERANK, {"query": "q"}, "INVALID_ARGUMENT", "`texts` cannot be empty"),
        (RERANK, {"query": "q", "texts": ["a"]}, "FAILED_PRECONDITION", "model is not a classifier model"),
        ("/tei.v1.Predict/Predict", {"inputs": "a"}, "FAILED_PRECONDITION", "Backend error: Model is not a classifier"),
        ("/tei.v1.Predict/PredictPair", {"inputs": TEXTS}, "INVALID_ARGUMENT", "`inputs` must have a single or two"),
        ("/tei.v1.Embed/EmbedSparse", {"inputs": "a"}, "FAILED_PRECONDITION", "Backend error: Model is not an emb"),
        ("/grpc.health.v1.Health/Check", {"service": "tei.v1.Other"}, "NOT_FOUND", "service not registered"),
        (EMBED, {"inputs": "a" * MAX_MESSAGE_BYTES}, "OUT_OF_RANGE", "Error, decoded message length too large: found"),
    ],
)
def test_a_refusal_has_the_code_and_text_of_the_source(
    embedder: GrpcEngine, path: str, fields: dict[str, Any], code: str, text: str
) -> None:
    refused, details = embedder.refused(path, **fields)
    assert refused == code
    assert details.startswith(text)


def test_a_refused_text_ends_its_stream(embedder: GrpcEngine) -> None:
    with pytest.raises(Exception, match="cannot be empty"):
        embedder.stream("/tei.v1.Embed/EmbedStream", [{"inputs": "a"}, {"inputs": ""}, {"inputs": "b"}])


def test_tokens_of_a_text_give_the_text_again(embedder: GrpcEngine) -> None:
    tokens = embedder.call("/tei.v1.Tokenize/Tokenize", inputs="hello world", add_special_tokens=True).tokens
    assert [(token.text, token.special) for token in tokens] == [
        *(("[CLS]", True), ("hello", False), ("world", False), ("[SEP]", True)),
    ]
    assert (tokens[2].start, tokens[2].stop, tokens[0].HasField("start")) == (6, 11, False)
    ids = [token.id for token in tokens]
    assert embedder.call("/tei.v1.Tokenize/Decode", ids=ids, skip_special_tokens=True).text == "hello world"


def test_what_is_not_here_says_so(embedder: GrpcEngine) -> None:
    code, text = _stream_refused(embedder, "/tei.v1.Rerank/RerankStream")
    assert (code, "not in this stand-in" in text) == ("UNIMPLEMENTED", True)


def _stream_refused(engine: GrpcEngine, path: str) -> tuple[str, str]:
    call = engine.channel.stream_unary(path, request_serializer=bytes, response_deserializer=bytes)
    with pytest.raises(Exception, match="StatusCode") as caught:
        call(iter([b""]))
    error: Any = caught.value
    return error.code().name, error.details()


def test_it_says_that_it_is_a_stand_in(embedder: GrpcEngine) -> None:
    info = embedder.call("/tei.v1.Info/Info")
    assert info.docker_label.startswith("This is a stand-in for text-embeddings-router 1.9.3")
    assert (info.version, info.model_id, info.max_input_length) == ("1.9.3", "all-minilm-l6-v2", 256)
    assert any("nothing was recorded of a real gRPC server" in line for line in embedder.log)


# -- rerankers


def test_the_best_text_comes_first_and_scores_are_those_of_predict(reranker: GrpcEngine) -> None:
    answer = reranker.call(RERANK, key=KEY, query="q", texts=TEXTS, return_text=True)
    assert [rank.score for rank in answer.ranks] == sorted((rank.score for rank in answer.ranks), reverse=True)
    for rank in answer.ranks:
        pair = reranker.call("/tei.v1.Predict/PredictPair", key=KEY, inputs=["q", TEXTS[rank.index]])
        assert rank.text == TEXTS[rank.index]
        assert pair.predictions[0].score == pytest.approx(rank.score, abs=1e-6)


def test_texts_of_a_rerank_wait_for_permits_where_http_refuses(reranker: GrpcEngine) -> None:
    # Two permits, three texts.
    assert len(reranker.call(RERANK, key=KEY, query="q", texts=TEXTS).ranks) == 3
    assert reranker.metrics().get(OVERLOADED, 0) == 0


def test_a_batch_above_the_limit_of_clients_is_refused(reranker: GrpcEngine) -> None:
    assert reranker.refused(RERANK, key=KEY, query="q", texts=[*TEXTS, "more"]) == (
        "INVALID_ARGUMENT",
        "batch size 4 > maximum allowed batch size 3",
    )


@pytest.mark.parametrize("key", [None, "another", ""])
def test_without_the_key_everything_but_health_is_closed(reranker: GrpcEngine, key: str | None) -> None:
    for path in ("/tei.v1.Info/Info", EMBED, RERANK, "/tei.v1.Tokenize/Tokenize"):
        assert reranker.refused(path, key=key) == ("UNAUTHENTICATED", "No valid auth token")
    with pytest.raises(Exception, match="No valid auth token"):
        reranker.stream("/tei.v1.Predict/PredictStream", [{"inputs": "a"}], key=key)
    assert reranker.health("tei.v1.Rerank") == "SERVING"


# -- health


def test_health_follows_the_kind_of_model(embedder: GrpcEngine, reranker: GrpcEngine) -> None:
    always = {"": "SERVING", "tei.v1.Info": "SERVING", "tei.v1.Tokenize": "SERVING"}
    kinds = ("tei.v1.Embed", "tei.v1.Predict", "tei.v1.Rerank")
    assert {name: embedder.health(name) for name in (*always, *kinds)} == always | dict(
        zip(kinds, ("SERVING", "NOT_SERVING", "NOT_SERVING"), strict=True)
    )
    assert [reranker.health(name) for name in kinds] == ["NOT_SERVING", "SERVING", "SERVING"]


def test_health_is_lost_with_a_failed_batch_and_back_with_one_that_works(models: Path) -> None:
    with GrpcEngine(["--model-id", "embed-small-vocab"], models) as engine:
        engine.wait_until_ready()
        assert engine.health("tei.v1.Embed") == "SERVING"
        # The vocabulary has 2,000 entries; "hello" is the token 7592.
        assert engine.refused(EMBED, inputs="hello")[0] == "FAILED_PRECONDITION"
        assert engine.health("tei.v1.Embed") == "NOT_SERVING"
        assert engine.health("") == "SERVING"
        engine.call(EMBED, inputs="!")
        assert engine.health("tei.v1.Embed") == "SERVING"


# -- overload, metrics, ports, signals


def test_a_second_text_is_refused_while_the_only_permit_is_taken_and_health_does_not_wait(
    slow_with_one_permit: GrpcEngine,
) -> None:
    engine = slow_with_one_permit
    before = engine.metrics()
    taken = engine.start(EMBED, inputs=words(512))
    engine.wait_for_metric("te_embed_count", before.get("te_embed_count", 0) + 1)
    assert engine.refused(EMBED, inputs="a") == ("RESOURCE_EXHAUSTED", "Model is overloaded")
    assert engine.health("tei.v1.Embed") == "SERVING"
    assert not taken.done()
    # A stream waits instead, one text after the other.
    assert len(engine.stream("/tei.v1.Embed/EmbedStream", [{"inputs": "a"}] * 3)) == 3
    assert taken.done()
    assert engine.metrics()[OVERLOADED] == before.get(OVERLOADED, 0) + 1


def test_a_client_that_goes_away_gives_its_permit_back(slow_with_one_permit: GrpcEngine) -> None:
    engine = slow_with_one_permit
    started = engine.metrics().get("te_embed_count", 0)
    given_up = engine.start(EMBED, inputs=words(512))
    engine.wait_for_metric("te_embed_count", started + 1)
    given_up.cancel()
    assert len(engine.stream("/tei.v1.Embed/EmbedStream", [{"inputs": "a"}])) == 1
    assert len(engine.call(EMBED, inputs="a").embeddings) == 768


def test_case_02_metrics_are_on_the_port_of_prometheus_under_every_path(embedder: GrpcEngine) -> None:
    before = embedder.metrics()
    embedder.call(EMBED, inputs="a")
    after = embedder.metrics()
    # The router counts a request twice where it means a success.
    assert after[SINGLE] - before.get(SINGLE, 0) == 2
    assert after["te_embed_success"] - before.get("te_embed_success", 0) == 1
    assert b"te_request_duration_count" in embedder.get("/anything").body
    assert embedder.get("/metrics").header("content-type") == "text/plain; charset=utf-8"
    assert embedder.get("/health").body == b"OK"


def test_case_05_a_port_of_prometheus_that_is_taken_ends_the_start(small_models: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        with GrpcEngine(
            ["--model-id", "all-minilm-l6-v2"], small_models, metrics_port=taken.getsockname()[1]
        ) as engine:
            assert engine.exit_code() == 1
    assert "Error: failed to create HTTP listener: Address already in use (os error 98)" in engine.log


def test_a_port_that_is_taken_ends_the_start(small_models: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        arguments = ["--model-id", "all-minilm-l6-v2", "--port", port, "--prometheus-port", str(free_port())]
        with Engine(arguments, small_models, port=int(port), module="local.engines.tei.grpc") as engine:
            assert engine.exit_code() == 1
    assert "Error: transport error" in engine.log


def test_started_calls_are_answered_after_sigterm(models: Path) -> None:
    with GrpcEngine(["--model-id", "embed-slow"], models) as engine:
        engine.wait_until_ready()
        started = engine.start(EMBED, inputs=words(512))
        engine.wait_for_metric("te_embed_count", 1)
        assert engine.stop() == 0
        assert len(started.result().embeddings) == 768
    assert any("signal received, starting graceful shutdown" in line for line in engine.log)
