"""The /metrics text: names, types, buckets, registration and content type as recorded (recording metrics/)."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local_engines.engine import HOST, Engine, free_port
from tests.local_engines.recordings import load

pytestmark = pytest.mark.local

RECORDED = load("metrics.json")


@pytest.fixture(scope="module")
def prometheus_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def fresh(small_models: Path, prometheus_port: int) -> Iterator[Engine]:
    """A server of this module's own; the tests below run in their order."""
    arguments = ["--model-id", "all-minilm-l6-v2", "--dtype", "float32", "--prometheus-port", str(prometheus_port)]
    with Engine(arguments, small_models) as engine:
        yield engine.wait_until_ready()


def _text(engine: Engine) -> str:
    return engine.get("/metrics").body.decode()


def _types(text: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


def test_metrics_are_empty_before_the_first_inference(fresh: Engine) -> None:
    assert fresh.get("/health").status == 200
    answer = fresh.get("/metrics")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.header("content-type") == "text/plain; charset=utf-8"


def test_metrics_after_one_request_are_the_recorded_ones(fresh: Engine) -> None:
    assert fresh.embed("What is Deep Learning?").status == 200
    text = _text(fresh)
    shown = {
        line for line in text.splitlines() if line and "_bucket{" not in line and not re.search(r"_duration_sum ", line)
    }
    assert shown == set(RECORDED["after_one_embed"])
    for name, kind in _types(text).items():
        if kind == "histogram":
            bounds = re.findall(rf'^{name}_bucket{{le="([^"]+)"}} ', text, re.MULTILINE)
            recorded = RECORDED["buckets"]["*_duration" if name.endswith("_duration") else name]
            assert bounds == recorded, name


def test_a_prometheus_scraper_gets_the_same_text(fresh: Engine) -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    answer = fresh.request("GET", "/metrics", headers={"Accept": accept, "Accept-Encoding": "gzip"})
    assert answer.header("content-type") == "text/plain; charset=utf-8"
    assert answer.header("content-encoding") is None
    assert answer.body == fresh.get("/metrics").body
    text = answer.body.decode()
    assert "# HELP" not in text
    assert "# EOF" not in text
    assert text.startswith("# TYPE te_")
    # The text format that Prometheus reads by this content type: comments, and one sample per line.
    for line in filter(None, text.splitlines()):
        assert re.fullmatch(r'# TYPE \w+ (counter|gauge|histogram)|\w+(\{\w+="[^"]+"\})? [0-9.]+', line), line


def test_http_1_0_is_answered_as_recorded(fresh: Engine) -> None:
    with socket.create_connection((HOST, fresh.port)) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    head = received.split(b"\r\n\r\n")[0].decode().splitlines()
    names = [line.split(":")[0] for line in head]
    assert names == [line.split(":")[0] for line in RECORDED["http10_head"]]
    assert head[:2] == RECORDED["http10_head"][:2]


@pytest.mark.usefixtures("fresh")
def test_the_prometheus_port_does_not_answer(prometheus_port: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, prometheus_port))


def test_all_metric_names_types_and_labels_are_recorded_ones(fresh: Engine, models: Path) -> None:
    reranker = ["--model-id", "tiny-reranker", "--dtype", "float32", "--max-concurrent-requests", "4"]
    with Engine(reranker, models) as engine:
        engine.wait_until_ready()
        assert _text(engine) == ""
        assert engine.post("/rerank", {"query": "q", "texts": ["a"]}).status == 200
        assert engine.post("/rerank", {"query": "q", "texts": ["a"] * 5}).status == 429
        found_text = _text(engine)
    for body in (["a", ""], ["a"] * 33, ""):
        assert fresh.embed(body).status in {400, 422}
    assert fresh.embed(["a", "b"]).status == 200
    assert fresh.post("/predict", {"inputs": "a"}).status == 424
    assert fresh.post("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}).status == 400
    found_text += _text(fresh)
    assert _types(found_text) == RECORDED["types"]
    labels: dict[str, set[str]] = {}
    for name, label, value in re.findall(r'^(\w+)\{(\w+)="([^"]+)"\} ', found_text, re.MULTILINE):
        if label != "le":
            labels.setdefault(f"{name} {label}", set()).add(value)
    recorded = {
        f"{name} {label}": set(values) for name, keys in RECORDED["labels"].items() for label, values in keys.items()
    }
    # Failed inference and gone clients are met in other tests.
    failure = "te_request_failure err"
    assert labels.pop(failure) == recorded.pop(failure) - {"inference", "dropped"}
    assert labels == recorded
