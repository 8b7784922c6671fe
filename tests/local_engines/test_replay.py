"""Every request of the recording's index.json, sent to the stand-in started with the same arguments."""

import base64
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.local_engines.engine import Answer, Engine
from tests.local_engines.recordings import NOT_COMPARED, load, request_body

pytestmark = pytest.mark.local

RECORDED = load("requests.json")
SERVERS: list[dict[str, Any]] = RECORDED["servers"]
COMPUTED = {"_vector", "score"}
RANDOM_WEIGHTS = set(NOT_COMPARED["values of vectors and scores of"])
#: float32 forward passes in another order of additions; observed differences stay below 2e-7.
TOLERANCE = 2e-6


@pytest.fixture(scope="module", params=range(len(SERVERS)), ids=lambda n: f"{SERVERS[n]['folder']}-{n}")
def server(request: pytest.FixtureRequest, models: Path) -> Iterator[tuple[int, Engine]]:
    with Engine(SERVERS[request.param]["arguments"], models) as engine:
        yield request.param, engine.wait_until_ready()
        assert engine.stop() == 0


def _same(recorded: Any, found: Any, *, values: bool, where: str = "") -> None:
    """Compares JSON: texts and structure exactly, numbers within the tolerance, cut parts as far as they were kept."""
    if isinstance(recorded, dict) and "_vector" in recorded:
        assert len(found) == recorded["_vector"]["len"], where
        if values:
            assert np.allclose(found[:4], recorded["_vector"]["first4"], atol=TOLERANCE), (where, found[:4], recorded)
    elif isinstance(recorded, dict) and "_string" in recorded:
        cut = recorded["_string"]
        assert len(found) == cut["len"], where
        ours, theirs = (np.frombuffer(base64.b64decode(text[:40])[:28], "<f4") for text in (found, cut["first40"]))
        assert np.allclose(ours, theirs, atol=TOLERANCE), where
    elif isinstance(recorded, dict):
        assert isinstance(found, dict), where
        assert set(found) - {"stand_in"} == set(recorded), where
        for key, value in recorded.items():
            _same(value, found[key], values=values, where=f"{where}.{key}")
    elif isinstance(recorded, list):
        kept = [item for item in recorded if not (isinstance(item, dict) and "_more_items" in item)]
        cut_items = sum(item["_more_items"] for item in recorded[len(kept) :])
        assert len(found) == len(kept) + cut_items, where
        for index, item in enumerate(kept):
            _same(item, found[index], values=values, where=f"{where}[{index}]")
    elif isinstance(recorded, float):
        assert isinstance(found, float | int), where
        if values:
            assert math.isclose(recorded, found, abs_tol=TOLERANCE), (where, recorded, found)
    else:
        assert found == recorded, where


def _sorted_as_ranks(recorded: Any, found: Any) -> Any:
    """Random weights give another order of ranks and labels: checks the order, and aligns the rest for comparison."""
    if isinstance(found, list) and found and isinstance(found[0], dict) and "score" in found[0]:
        keys = [(item["score"], item.get("index", 0)) for item in found]
        assert keys == sorted(keys, reverse=True)
        identity = "index" if "index" in found[0] else "label"
        order = [item[identity] for item in recorded if identity in item]
        by_identity = {item[identity]: item for item in found}
        rest = [item for item in found if item[identity] not in order]
        return [by_identity[value] for value in order] + rest
    if isinstance(found, list) and isinstance(recorded, list) and len(found) == len(recorded):
        return [_sorted_as_ranks(*pair) for pair in zip(recorded, found, strict=True)]
    return found


def _inputs(request: dict[str, Any]) -> int:
    """Number of inputs of a request that a batch counter can see."""
    return int(request["metrics_delta"].get("te_request_input_length_count", 0))


def _check_metrics(request: dict[str, Any], before: dict[str, float], after: dict[str, float]) -> None:
    counted = {name for name in after if not name.endswith("_sum")}
    found = {
        name: after[name] - before.get(name, 0) for name in counted if name not in before or after[name] != before[name]
    }
    recorded = dict(request["metrics_delta"])
    inputs = _inputs(request)
    for name in ("te_batch_next_size_count", "te_batch_next_tokens_count"):
        if inputs > 1:
            for delta in (recorded, found):
                takes = delta.pop(name)
                assert inputs / 4 + 1 <= takes <= 2 * inputs, (name, takes)
    if request["file"] in NOT_COMPARED["split into failures and successes of"]:
        success = ("te_embed_success", 'te_request_failure{err="inference"}')
        assert sum(found.pop(name, 0) for name in success) == sum(recorded.pop(name, 0) for name in success)
        for name in [name for name in recorded if name.startswith("te_embed_") and name.endswith("_duration_count")]:
            recorded.pop(name)
            found.pop(name, None)
    # The recorder kept a gauge when it appeared; its value between requests is 0 here and there.
    assert found.pop("te_queue_size", 0) == recorded.pop("te_queue_size", 0) == 0
    assert found == recorded


def _check_answer(request: dict[str, Any], answer: Answer) -> None:
    recorded = request["answer"]
    assert answer.status == recorded["status"]
    headers = {name.lower(): value for name, value in answer.headers}
    assert headers.pop("content-length") == str(len(answer.body)) or request["method"] == "HEAD"
    assert headers.pop("date")
    times = [name for name in headers if name.endswith("-time")]
    assert all(headers.pop(name).isdigit() for name in times)
    assert headers == RECORDED["common_headers"] | recorded["headers"]
    if "json" in recorded:
        values = request["file"].split("/")[0] not in RANDOM_WEIGHTS
        found = answer.json()
        expected = recorded["json"]
        if "tokenization_workers" in expected:
            # TEI's default: one less than the machine's cores, within 1 and 64; the recording machine had 2.
            expected = expected | {"tokenization_workers": min(max((os.cpu_count() or 1) - 1, 1), 64)}
        _same(expected, found if values else _sorted_as_ranks(expected, found), values=values)
    elif "not_carried" not in recorded:
        assert answer.body.decode() == recorded.get("text", "")


def test_all_recorded_requests_are_answered_as_recorded(server: tuple[int, Engine], subtests: pytest.Subtests) -> None:
    number, engine = server
    for request in SERVERS[number]["requests"]:
        with subtests.test(request["file"]):
            before = engine.metrics()
            answer = engine.request(
                request["method"], request["path"], headers=request.get("headers"), body=request_body(request)
            )
            _check_answer(request, answer)
            if "metrics_delta" in request:
                _check_metrics(request, before, engine.metrics())
