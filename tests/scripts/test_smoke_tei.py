"""The smoke checks against a server: each passes where it should, and fails where the contract says something else."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import requests

from scripts.smoke import answers
from scripts.smoke.results import Result, Status, UnmetError
from scripts.smoke.tei import TeiService
from tests.scripts.conftest import API_KEY, Served, planned
from tests.scripts.http_server import answer, in_turn, serving_in_a_thread

pytestmark = pytest.mark.local

Serve = Callable[..., Served]
RERANKER = "BAAI/bge-reranker-base"


def _not_passed(results: dict[str, Result]) -> dict[str, str]:
    return {name: result.found for name, result in results.items() if result.status is not Status.PASSED}


def test_every_check_passes_on_the_embedder_of_the_local_stack(serve: Serve) -> None:
    results = serve().checked()
    assert _not_passed(results) == {}
    assert set(results) == {
        *("health", "info", "dimension and norm", "similar texts", "openai client", "batch limit", "metrics"),
    }


def test_every_check_passes_with_other_limits_a_served_name_and_a_key(serve: Serve) -> None:
    results = serve(
        maxClientBatchSize=5,
        maxConcurrentRequests=6,
        autoTruncate=False,
        servedModelName="house-model",
        requireApiKey=True,
    ).checked()
    assert _not_passed(results) == {}
    assert results["batch limit"].found == "5 texts answered, 6 refused with 422"
    assert "house-model" in results["openai client"].found
    assert "API key" in results


def test_every_check_passes_on_a_reranker(serve: Serve) -> None:
    results = serve(model=RERANKER, longestRequestSeconds=700).checked()
    assert _not_passed(results) == {}
    assert set(results) == {"health", "info", "order of texts", "batch limit", "metrics"}


SPARSE = {"model": "naver/efficient-splade-VI-BT-large-doc", "longestRequestSeconds": 900}


def test_every_check_passes_on_a_sparse_model(serve: Serve) -> None:
    results = serve(**SPARSE).checked()
    assert _not_passed(results) == {}
    assert set(results) == {"health", "info", "sparse vector", "batch limit", "metrics"}
    # "How do I reset my password?" as BERT reads it: a weight for each of its tokens.
    assert results["sparse vector"].found == "7 vocabulary entries with a weight"


def test_case_08_a_reranker_is_asked_for_exactly_as_many_texts_as_top_k(serve: Serve) -> None:
    served = serve(model=RERANKER, longestRequestSeconds=700)
    assert served.contract.limits["max_client_batch_size"] == 32
    fewer, more = served.promising(top_k=20).checked(), served.promising(top_k=40).checked()
    assert fewer["batch limit"].found == "20 (topK) and 32 texts answered, 33 refused with 422"
    assert more["batch limit"].status is Status.FAILED
    assert "POST /rerank with 40 texts: 422" in more["batch limit"].found


@pytest.mark.parametrize(
    "ranks",
    [
        [(1, 0.2), (0, 0.9), (2, 0.1)],
        [(0, 0.9), (1, 0.2), (2, 0.1)],
        [(1, 0.9), (0, 0.2)],
        [(1, float("nan")), (0, 0), (2, 0)],
    ],
)
def test_ranks_that_are_unsorted_wrong_or_missing_fail(ranks: list[tuple[int, float]]) -> None:
    contract = planned()[1].workloads[0]
    with pytest.raises(UnmetError):
        answers.order(ranks, "POST /rerank", contract, "logs")
    assert answers.order([(1, 0.9), (0, 0.2), (2, 0.1)], "POST /rerank", contract, "logs").startswith("the answer")


def test_case_27_paths_that_compute_need_the_key_and_those_of_probes_and_prometheus_do_not(serve: Serve) -> None:
    locked = serve(requireApiKey=True)
    results = locked.checked()
    assert results["API key"].found == "401 without the key and with another one, 200 with it"
    results = Served(locked.contract, locked.url, None).checked()
    assert results["health"].status is Status.PASSED
    assert "401" in results["batch limit"].found
    assert requests.get(f"{locked.url}/metrics", timeout=10).status_code == 200


@pytest.mark.parametrize(("closed", "where"), [(0, "GET /info with no key: 200"), (1, "POST /embed with no key: 200")])
def test_one_path_that_asks_for_no_key_fails(closed: int, where: str) -> None:
    contract = replace(planned()[1].workloads[0], api_key_secret="embed-keys", api_key_secret_key="apiKey")
    replies = [answer(401, b"")] * closed + [answer(200, b"[[1.0]]")]
    with serving_in_a_thread(in_turn(*replies)) as server, pytest.raises(UnmetError, match=where):
        TeiService(contract, server.url, API_KEY).key_enforced()


def test_an_answer_that_holds_the_key_fails_and_does_not_show_it() -> None:
    contract = planned()[1].workloads[0]
    telling = answer(200, f'{{"key": "{API_KEY}"}}'.encode())
    said = "GET /health: the answer holds the API key"
    with serving_in_a_thread(telling) as server, pytest.raises(UnmetError, match=said) as caught:
        TeiService(contract, server.url, API_KEY).health()
    assert API_KEY not in f"{caught.value} {caught.value.next_step}"


@pytest.mark.parametrize(
    ("changes", "check", "found"),
    [
        ({"dimension": 768}, "dimension and norm", "384 dimensions, the contract says 768"),
        ({"dimension": 768}, "openai client", "2 vectors of [384] dimensions for 2 texts"),
        ({"client_name": "another"}, "openai client", "'sentence-transformers/all-MiniLM-L6-v2'"),
        ({"client_name": "another"}, "info", "served_model_name is"),
        ({"id": "BAAI/bge-base-en-v1.5"}, "info", "planned 'BAAI/bge-base-en-v1.5'"),
        ({"version": "1.9.2"}, "info", "version is '1.9.3', planned '1.9.2'"),
        ({"limits": {"max_input_tokens": 512}}, "info", "max_input_length is 256, planned 512"),
        ({"limits": {"max_batch_tokens": 1}}, "info", "max_batch_tokens is 4096, planned 1"),
        ({"limits": {"max_client_batch_size": 31}}, "info", "max_client_batch_size is 32, planned 31"),
        ({"limits": {"max_concurrent_requests": 63}}, "info", "max_concurrent_requests is 64, planned 63"),
        ({"limits": {"auto_truncate": False}}, "info", "auto_truncate is True, planned False"),
        ({"limits": {"max_client_batch_size": 33}}, "batch limit", "/embed with 33 texts: 422"),
        ({"limits": {"max_client_batch_size": 31}}, "batch limit", "/embed with 32 texts: 200"),
        ({"kind": "reranker"}, "order of texts", "/rerank: 424"),
        ({"kind": "classifier"}, "classes", "/predict: 424"),
        ({"kind": "sparse"}, "sparse vector", "/embed_sparse: 424"),
        ({"metrics_path": "/nothing"}, "metrics", "GET /nothing: 404"),
    ],
)
def test_a_check_fails_when_the_contract_says_something_else(
    serve: Serve, changes: dict[str, object], check: str, found: str
) -> None:
    result = serve().promising(**changes).checked()[check]
    assert result.status is Status.FAILED
    assert found in result.found
    assert result.next_step


def test_health_passes_whatever_else_is_wrong(serve: Serve) -> None:
    results = serve().promising(dimension=1, version="0.0.0", limits={"max_client_batch_size": 1}).checked()
    assert results["health"].status is Status.PASSED
    assert {name for name, r in results.items() if r.status is Status.FAILED} == {
        *("info", "dimension and norm", "openai client", "batch limit"),
    }


def test_a_key_that_is_not_enforced_fails(serve: Serve) -> None:
    open_to_all = serve().promising(api_key_secret="embed-keys", api_key_secret_key="apiKey")
    result = Served(open_to_all.contract, open_to_all.url, API_KEY).checked()["API key"]
    assert (result.status, result.found) == (Status.FAILED, "GET /info with no key: 200, expected 401")


def test_a_key_that_is_not_in_the_secret_fails_and_the_other_checks_say_401(serve: Serve) -> None:
    locked = serve(requireApiKey=True)
    results = Served(locked.contract, locked.url, None).checked()
    assert results["health"].status is Status.PASSED
    assert "has no key apiKey" in results["API key"].found
    assert "401" in results["dimension and norm"].found
    assert "401" in results["openai client"].found


def test_another_key_than_the_servers_fails(serve: Serve) -> None:
    locked = serve(requireApiKey=True)
    results = Served(locked.contract, locked.url, "another-key-of-this-test").checked()
    assert "expected 200" in results["API key"].found
    assert not any("another-key-of-this-test" in str(result) for result in results.values())


def test_a_key_is_in_no_result(serve: Serve) -> None:
    locked = serve(requireApiKey=True)
    wrong = locked.promising(
        version="0.0.0", dimension=1, client_name="x", metrics_path="/no", limits={"auto_truncate": False}
    )
    for results in (locked.checked(), wrong.checked()):
        assert not any(API_KEY in str(result) for result in results.values())


def test_without_an_answer_one_check_fails_and_the_others_are_not_proven(serve: Serve, free_port: int) -> None:
    served = serve()
    results = Served(served.contract, f"http://127.0.0.1:{free_port}", None).checked()
    assert results.pop("health").found == "GET /health: connection refused"
    assert {result.status for result in results.values()} == {Status.NOT_PROVEN}
    assert {result.found for result in results.values()} == {"not run: health failed"}


def test_metrics_count_what_the_check_sends(serve: Serve) -> None:
    served = serve()
    before = requests.get(f"{served.url}/metrics", timeout=10).text
    result = served.checked()["metrics"]
    after = requests.get(f"{served.url}/metrics", timeout=10).text
    assert result.status is Status.PASSED
    assert before != after


def test_a_dimension_that_nobody_knows_is_not_proven(serve: Serve) -> None:
    result = serve().promising(dimension=None).checked()["dimension and norm"]
    assert result.status is Status.NOT_PROVEN
    assert "384 dimensions" in result.found


def test_metrics_on_another_port_are_not_proven(serve: Serve) -> None:
    assert serve().promising(forward_metrics_port=9000).checked()["metrics"].status is Status.NOT_PROVEN
