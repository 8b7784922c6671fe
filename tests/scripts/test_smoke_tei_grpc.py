"""The smoke checks over gRPC against a server: each passes where it should, and fails where the contract differs."""

from collections.abc import Callable

import pytest

from scripts.smoke.results import Result, Status
from scripts.smoke.tei_grpc import CallError, TeiGrpcClient
from tests.scripts.conftest import API_KEY, ServedGrpc

pytestmark = pytest.mark.local

Serve = Callable[..., ServedGrpc]
RERANKER = {
    "model": "BAAI/bge-reranker-base",
    "longestRequestSeconds": 700,
    "maxClientBatchSize": 5,
    "requireApiKey": True,
}


def _not_passed(results: dict[str, Result]) -> dict[str, str]:
    return {name: result.found for name, result in results.items() if result.status is not Status.PASSED}


def test_every_check_passes_on_an_embedder(serve_grpc: Serve) -> None:
    results = serve_grpc().checked()
    assert _not_passed(results) == {}
    assert set(results) == {"health", "info", "dimension and norm", "similar texts", "metrics"}


def test_every_check_passes_on_a_reranker_with_a_key(serve_grpc: Serve) -> None:
    results = serve_grpc(**RERANKER).checked()
    assert _not_passed(results) == {}
    assert set(results) == {"health", "info", "order of texts", "batch limit", "metrics", "API key"}
    assert not any(API_KEY in str(result) for result in results.values())


@pytest.mark.parametrize(
    ("changes", "check", "found"),
    [
        ({"dimension": 768}, "dimension and norm", "384 dimensions, the contract says 768"),
        ({"version": "1.9.2"}, "info", "version is '1.9.3', planned '1.9.2'"),
        ({"limits": {"max_batch_tokens": 1}}, "info", "max_batch_tokens is 4096, planned 1"),
        ({"kind": "reranker"}, "health", "grpc.health.v1 says NOT_SERVING for tei.v1.Rerank"),
        ({"kind": "reranker"}, "order of texts", "/tei.v1.Rerank/Rerank: FAILED_PRECONDITION"),
        ({"kind": "classifier"}, "classes", "/tei.v1.Predict/Predict: FAILED_PRECONDITION"),
        ({"kind": "sparse"}, "sparse vector", "/tei.v1.Embed/EmbedSparse: FAILED_PRECONDITION"),
    ],
)
def test_a_check_fails_when_the_contract_says_something_else(
    serve_grpc: Serve, changes: dict[str, object], check: str, found: str
) -> None:
    result = serve_grpc().promising(**changes).checked()[check]
    assert result.status is Status.FAILED
    assert found in result.found
    assert result.next_step


@pytest.mark.parametrize("most", [4, 6])
def test_another_limit_of_texts_than_the_servers_fails(serve_grpc: Serve, most: int) -> None:
    served = serve_grpc(**RERANKER)
    assert served.contract.limits["max_client_batch_size"] == 5
    result = served.promising(limits={"max_client_batch_size": most}).checked()["batch limit"]
    assert result.status is Status.FAILED


def test_case_08_a_reranker_is_asked_for_exactly_as_many_texts_as_top_k(serve_grpc: Serve) -> None:
    served = serve_grpc(**RERANKER)
    found = served.promising(top_k=3).checked()["batch limit"].found
    assert found == "3 (topK) and 5 texts answered, 6 refused with INVALID_ARGUMENT"
    assert served.promising(top_k=6).checked()["batch limit"].status is Status.FAILED


def test_every_check_passes_on_a_sparse_model(serve_grpc: Serve) -> None:
    results = serve_grpc(model="naver/efficient-splade-VI-BT-large-doc", longestRequestSeconds=900).checked()
    assert _not_passed(results) == {}
    assert "vocabulary entries with a weight" in results["sparse vector"].found


def test_a_key_that_is_not_enforced_fails(serve_grpc: Serve) -> None:
    open_to_all = serve_grpc().promising(api_key_secret="embed-keys", api_key_secret_key="apiKey").with_key(API_KEY)
    result = open_to_all.checked()["API key"]
    assert (result.status, result.found) == (
        Status.FAILED,
        "Info/Info with no key: OK, expected UNAUTHENTICATED",
    )


def test_another_key_than_the_servers_fails(serve_grpc: Serve) -> None:
    results = serve_grpc(**RERANKER).with_key("another-key-of-this-test").checked()
    assert results["health"].status is Status.PASSED
    assert "UNAUTHENTICATED" in results["order of texts"].found
    assert "expected OK" in results["API key"].found
    assert not any("another-key-of-this-test" in str(result) for result in results.values())


def test_without_an_answer_one_check_fails_and_the_others_are_not_proven(serve_grpc: Serve, free_port: int) -> None:
    results = serve_grpc().at(f"127.0.0.1:{free_port}").checked()
    assert "UNAVAILABLE" in results.pop("health").found
    assert {result.found for result in results.values()} == {"not run: health failed"}


def test_metrics_that_were_not_reached_are_not_proven(serve_grpc: Serve) -> None:
    result = serve_grpc().without_metrics().checked()["metrics"]
    assert (result.status, "was not reached" in result.found) == (Status.NOT_PROVEN, True)


def test_the_client_says_code_and_text_of_a_refusal(serve_grpc: Serve) -> None:
    with TeiGrpcClient(serve_grpc().target) as client, pytest.raises(CallError, match="cannot be empty") as caught:
        client.rerank("a query", [])
    assert caught.value.code == "INVALID_ARGUMENT"
