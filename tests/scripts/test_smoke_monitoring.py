"""What a Prometheus answers, and what the smoke test makes of it."""

import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from infra.core.contract import Contract
from scripts.access import Access, ForwardError
from scripts.smoke import monitoring, results
from scripts.smoke.cluster import DeployedWorkload
from scripts.smoke.monitoring import MonitoredWorkload, Place, Prometheus, service_of
from scripts.smoke.results import NotProvenError, Result, Status, UnmetError, UnreachableError
from tests.scripts.conftest import planned
from tests.scripts.fake_cluster import SCALING, Cluster, ready_pod, scaled, workload

pytestmark = pytest.mark.core

LABELS = 'namespace="embedding-serving",service="embed"'
UP = f"up{{{LABELS}}}"
NAMES = f'count by (__name__) ({{__name__=~"te_.+",{LABELS}}})'
QUEUE, OVERLOAD = (trigger["query"] for trigger in SCALING["triggers"])
ADDRESS = "http://prometheus-operated.monitoring.svc.cluster.local:9090"
MONITORING = {"address": ADDRESS, "namespace": "monitoring", "labels": {"release": "ours"}, "scrape_seconds": 5}


def _vector(*samples: tuple[dict[str, str], str]) -> dict[str, Any]:
    result = [{"metric": labels, "value": [1.0, value]} for labels, value in samples]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def _up(**values: str) -> dict[str, Any]:
    return _vector(*(({"pod": f"embed-{number}"}, value) for number, value in values.items()))


def _names(*names: str) -> dict[str, Any]:
    return _vector(*(({"__name__": name}, "1") for name in names))


@dataclass
class Fake:
    """Answers by query; of a list one after the other, the last one for good."""

    url: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def next(self, query: str) -> tuple[int, bytes]:
        self.asked.append(query)
        answer = self.answers[query]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, tuple):
            return answer
        return 200, json.dumps(answer).encode()


@pytest.fixture
def prometheus() -> Iterator[Fake]:
    """One that has all that it should have."""
    fake = Fake()
    fake.answers = {
        "count(up)": _vector(({}, "7")),
        UP: _up(**{"1": "1", "2": "1"}),
        NAMES: _names("te_queue_size", "te_request_count", "te_request_duration_bucket", "te_embed_count"),
        QUEUE: _vector(({}, "3.5")),
        OVERLOAD: {"status": "success", "data": {"resultType": "scalar", "result": [1.0, "0"]}},
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            status, body = (
                fake.next(urllib.parse.parse_qs(query)["query"][0]) if path == "/api/v1/query" else (404, b"")
            )
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    yield fake
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path)
    made.has("pods", {"items": [ready_pod("embed-1"), ready_pod("embed-2"), ready_pod("embed-3", ready=False)]})
    return made


def _checked(prometheus: Prometheus, cluster: Cluster, wait: float = 0, **changes: Any) -> dict[str, Result]:
    tested = scaled(**changes)
    watched = MonitoredWorkload(tested, MONITORING, prometheus, DeployedWorkload(tested, cluster.access), wait)
    return {result.check: result for result in results.run(watched.checks())}


def test_a_workload_that_is_scraped_passes_and_shows_what_keda_sees(prometheus: Fake, cluster: Cluster) -> None:
    found = _checked(Prometheus(prometheus.url), cluster)
    assert {name: result.found for name, result in found.items()} == {
        "scrape targets": "up is 1 for 2 ready pods of Service embed",
        "series": "4 metrics named te_*, te_queue_size, te_request_count, te_request_duration_bucket among them",
        "scaling queries": "queue 3.5 (a replica per 8), overload 0 (a replica per 0.1)",
    }
    assert {result.status for result in found.values()} == {Status.PASSED}


def test_a_workload_that_is_not_scaled_has_no_scaling_queries(prometheus: Fake, cluster: Cluster) -> None:
    tested = workload()
    watched = MonitoredWorkload(
        tested, MONITORING, Prometheus(prometheus.url), DeployedWorkload(tested, cluster.access)
    )
    assert [check.name for check in watched.checks()] == ["scrape targets", "series"]


@pytest.mark.parametrize(
    ("query", "answer", "expected"),
    [
        (UP, _up(), ("scrape targets", "2 ready pods of 2 no target of Prometheus: embed-1, embed-2")),
        (UP, _up(**{"1": "1", "3": "1"}), ("scrape targets", "1 ready pod of 2 no target of Prometheus: embed-2")),
        (UP, _up(**{"1": "1", "2": "0"}), ("scrape targets", "up is 0 for embed-2")),
        (NAMES, _names(), ("series", "no te_queue_size, te_request_count, te_request_duration_bucket of Service")),
        (NAMES, _names("te_request_count", "te_queue_size"), ("series", "has no te_request_duration_bucket")),
        (QUEUE, _vector(), ("scaling queries", "trigger queue has no answer although pods are ready")),
        (QUEUE, _vector(({"a": "1"}, "1"), ({"a": "2"}, "1")), ("scaling queries", "queue gives 2 numbers")),
        (OVERLOAD, _vector(({}, "NaN")), ("scaling queries", "trigger overload gives nan")),
        (OVERLOAD, (400, b'{"status":"error","error":"parse error"}'), ("scaling queries", "400 parse error")),
        (OVERLOAD, (502, b"bad gateway"), ("scaling queries", "502, and no JSON")),
    ],
)
def test_what_prometheus_does_not_have_fails_with_the_next_step(
    prometheus: Fake, cluster: Cluster, query: str, answer: Any, expected: tuple[str, str]
) -> None:
    check, found = expected
    prometheus.answers[query] = answer
    result = _checked(Prometheus(prometheus.url), cluster)[check]
    assert result.status is Status.FAILED
    assert found in result.found
    assert result.next_step


def test_a_workload_without_a_ready_pod_is_not_scraped(prometheus: Fake, cluster: Cluster) -> None:
    cluster.has("pods", {"items": []})
    assert _checked(Prometheus(prometheus.url), cluster)["scrape targets"].found == "no pod is ready"


def test_case_03_series_that_come_with_a_later_scrape_are_waited_for(
    prometheus: Fake, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.smoke.results.time.sleep", lambda _: None)
    prometheus.answers[NAMES] = [_names(), _names("te_embed_count"), prometheus.answers[NAMES]]
    assert _checked(Prometheus(prometheus.url), cluster, wait=60)["series"].status is Status.PASSED
    assert prometheus.asked.count(NAMES) == 3


def test_a_query_that_gives_several_numbers_is_not_waited_for(prometheus: Fake, cluster: Cluster) -> None:
    prometheus.answers[QUEUE] = _vector(({}, "1"), ({}, "2"))
    assert _checked(Prometheus(prometheus.url), cluster, wait=60)["scaling queries"].status is Status.FAILED
    assert prometheus.asked.count(QUEUE) == 1


def test_after_no_answer_of_prometheus_the_rest_is_not_proven(cluster: Cluster, free_port: int) -> None:
    found = _checked(Prometheus(f"http://127.0.0.1:{free_port}"), cluster)
    assert found.pop("scrape targets").status is Status.FAILED
    assert {result.status for result in found.values()} == {Status.NOT_PROVEN}


@pytest.mark.parametrize(
    ("address", "place"),
    [
        (ADDRESS, Place("prometheus-operated", "monitoring", 9090, "")),
        ("http://prom.ops.svc/metrics/", Place("prom", "ops", 80, "/metrics")),
        ("https://prom.ops.svc:9090", None),
        ("http://prometheus.example.com", None),
        ("http://127.0.0.1:9090", None),
    ],
)
def test_the_service_of_an_address(address: str, place: Place | None) -> None:
    assert service_of(address) == place


def _contract(address: str = ADDRESS) -> Contract:
    return replace(planned()[1], monitoring=MONITORING | {"address": address})


def test_prometheus_is_reached_through_a_port_forward_to_its_service(
    prometheus: Fake, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    @contextmanager
    def forward(_: Access, *place: object) -> Iterator[str]:
        asked.append(place)
        yield prometheus.url

    monkeypatch.setattr(Access, "forward", forward)
    with monitoring.opened(_contract(), cluster.access) as reached:
        assert reached is not None
        assert reached.reached() == "answers, and has 7 targets"
    assert asked == [("monitoring", "service/prometheus-operated", 9090)]


def test_a_stack_that_nobody_scrapes_has_no_prometheus(cluster: Cluster) -> None:
    with monitoring.opened(planned()[1], cluster.access) as reached:
        assert reached is None


@pytest.mark.parametrize(
    ("address", "said", "error"),
    [
        (ADDRESS, 'Error from server (NotFound): services "prometheus-operated" not found', UnmetError),
        (ADDRESS, "error: timed out waiting for the condition", UnmetError),
        (ADDRESS, "Error from server (Forbidden): pods is forbidden", NotProvenError),
        ("https://prometheus.example.com", "", NotProvenError),
    ],
)
def test_a_prometheus_that_is_not_reached_is_one_line_and_proves_nothing_else(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, address: str, said: str, error: type[Exception]
) -> None:
    @contextmanager
    def forward(*_: object) -> Iterator[str]:
        raise ForwardError(said)
        yield ""

    monkeypatch.setattr(Access, "forward", forward)
    with monitoring.opened(_contract(address), cluster.access) as reached:
        assert reached is not None
        with pytest.raises(error) as caught:
            reached.reached()
        assert "\n" not in str(caught.value)
        found = _checked(reached, cluster)
    assert {result.status for result in found.values()} == {Status.NOT_PROVEN}
    assert {result.found for result in found.values()} == {"Prometheus was not reached"}


def test_a_prometheus_that_does_not_answer_fails_its_own_check(free_port: int) -> None:
    with pytest.raises(UnreachableError):
        Prometheus(f"http://127.0.0.1:{free_port}").reached()
