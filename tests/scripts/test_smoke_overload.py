"""The burst of the smoke test: against the stand-in, and against servers that overload in another way."""

from collections.abc import Callable, Mapping

import pytest
import requests

from scripts.smoke.cluster import PodState
from scripts.smoke.overload import Burst
from scripts.smoke.results import NotProvenError, UnmetError
from tests.scripts.conftest import Served, ServedGrpc
from tests.scripts.fake_cluster import workload
from tests.scripts.http_server import Behaviour, Request, answer, hang_up, serving_in_a_thread

REFUSED = b'{"error":"Model is overloaded","error_type":"Overloaded"}'
KEY = "the-key-of-the-burst"
#: Two places, and lists of two.
SMALL = workload().limits | {"max_concurrent_requests": 2, "max_client_batch_size": 2}


def _pods(**states: PodState) -> Callable[[], Mapping[str, PodState]]:
    return lambda: states


STEADY = _pods(one=PodState(ready=True, restarts=0))


def _lists_and_singles(lists: Behaviour, singles: Behaviour) -> Behaviour:
    """The first list takes all places; later ones and single texts are told apart by their bodies."""

    async def behave(request: Request, writer: object) -> None:
        chosen = lists if b'["' in request.body else singles
        await (answer(200, b"[]") if request.number == 0 else chosen)(request, writer)  # type: ignore[arg-type]

    return behave


def _burst(behave: Behaviour, states: Callable[[], Mapping[str, PodState]] = STEADY) -> str:
    with serving_in_a_thread(behave) as server:
        return Burst(workload(limits=SMALL), server.url, KEY, states).prove()


@pytest.mark.local
@pytest.mark.parametrize("model", ["sentence-transformers/all-MiniLM-L6-v2", "BAAI/bge-reranker-base"])
def test_case_06_a_pod_that_refuses_lists_and_single_texts_passes(serve: Callable[..., Served], model: str) -> None:
    served = serve(model=model, longestRequestSeconds=900, maxConcurrentRequests=24, maxClientBatchSize=8)
    found = Burst(served.contract, served.url, None, STEADY).prove()
    assert found.startswith("24 places: ")
    assert "429 Overloaded" in found
    assert found.endswith("; 1 pod as before")
    assert requests.get(f"{served.url}/health", timeout=30).status_code == 200


@pytest.mark.local
def test_over_grpc_calls_too_many_are_refused_with_resource_exhausted(serve_grpc: Callable[..., ServedGrpc]) -> None:
    served = serve_grpc(maxConcurrentRequests=24, maxClientBatchSize=8).promising(protocol="grpc")
    found = Burst(served.contract, f"http://{served.target}", None, STEADY).prove()
    assert found.startswith("24 places: ")
    assert "RESOURCE_EXHAUSTED" in found
    with pytest.raises(NotProvenError, match="waits for places"):
        Burst(served.promising(kind="reranker").contract, f"http://{served.target}", None, STEADY).prove()


@pytest.mark.local
def test_over_grpc_another_code_fails(serve_grpc: Callable[..., ServedGrpc]) -> None:
    served = serve_grpc(maxConcurrentRequests=24, maxClientBatchSize=8).promising(protocol="grpc", kind="classifier")
    with pytest.raises(UnmetError, match="FAILED_PRECONDITION"):
        Burst(served.contract, f"http://{served.target}", None, STEADY).prove()


@pytest.mark.core
def test_the_documented_refusal_of_both_forms_passes_and_the_load_is_bounded() -> None:
    with serving_in_a_thread(_lists_and_singles(answer(429, REFUSED), answer(429, REFUSED))) as server:
        found = Burst(workload(limits=SMALL), server.url, KEY, STEADY).prove()
        assert len(server.requests) == 3
        assert all(f"Authorization: Bearer {KEY}" in request.head for request in server.requests)
    assert found == (
        "2 places: 1 list and 1 single text too many got 429 Overloaded, 1 request an answer; 1 pod as before"
    )


@pytest.mark.core
@pytest.mark.parametrize(
    ("behave", "found"),
    [
        (answer(500, b"oh"), "500 'oh', expected 200 or 429"),
        (answer(503, b'{"error":"unhealthy"}'), "503"),
        (answer(401, b""), "401"),
        (answer(429, b"Too Many Requests"), 'expected {"error": "Model is overloaded"'),
        (answer(429, b'{"error":"Model is overloaded","error_type":"overloaded"}'), '"error_type": "Overloaded"'),
        (hang_up, "no answer"),
    ],
)
def test_another_answer_than_the_documented_one_fails(behave: Behaviour, found: str) -> None:
    with pytest.raises(UnmetError) as caught:
        _burst(behave)
    assert found in str(caught.value)
    assert KEY not in f"{caught.value} {caught.value.next_step}"


@pytest.mark.core
def test_case_06_a_pod_that_refuses_single_texts_but_no_lists_fails() -> None:
    with pytest.raises(UnmetError, match="lists of 2 never"):
        _burst(_lists_and_singles(answer(200, b"[]"), answer(429, REFUSED)))


@pytest.mark.core
@pytest.mark.parametrize(
    ("lists", "singles", "never"),
    [(200, 200, "a list and a single text never met"), (429, 200, "a single text never met")],
)
def test_a_pod_that_is_faster_than_the_burst_is_not_proven(lists: int, singles: int, never: str) -> None:
    behave = _lists_and_singles(answer(lists, REFUSED), answer(singles, REFUSED))
    with pytest.raises(NotProvenError, match=never):
        _burst(behave)


@pytest.mark.core
def test_a_pod_with_too_many_places_for_a_burst_gets_none() -> None:
    many = workload(limits=SMALL | {"max_concurrent_requests": 1000, "max_client_batch_size": 1})
    with pytest.raises(NotProvenError, match="more than 256 connections"):
        Burst(many, "http://127.0.0.1:1", None, STEADY).prove()


@pytest.mark.core
@pytest.mark.parametrize(
    ("after", "found"),
    [
        ({"one": PodState(ready=False, restarts=0)}, "pod one is not ready"),
        ({"one": PodState(ready=True, restarts=1)}, "pod one restarted"),
        ({"two": PodState(ready=True, restarts=0)}, "pod one is gone"),
    ],
)
def test_a_pod_that_does_not_stand_the_burst_fails(after: dict[str, PodState], found: str) -> None:
    states = iter([STEADY(), after])
    with pytest.raises(UnmetError, match=found):
        _burst(_lists_and_singles(answer(429, REFUSED), answer(429, REFUSED)), lambda: next(states))
