"""The text of the scaling queries: metrics and labels that TEI was recorded with, and values that stay values.

What the queries give is tested in tests/promql.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.core import rules
from infra.core.engines.tei import signals
from infra.core.rules.scaling import COUNTERS, SIGNALS
from tests.core.kubernetes import scaled_object

pytestmark = pytest.mark.core

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "data" / "tei-1.9.3" / "metrics.json").read_text(encoding="utf-8")
)
QUERIES = [signals.queue_depth, signals.overload_rate]
Query = Callable[[str, str, int], str]


@pytest.mark.parametrize("query", QUERIES)
def test_case_04_every_metric_and_label_was_recorded(query: Query) -> None:
    selectors = re.findall(r"\b(te_\w+|up)\{([^}]*)\}", query("rag", "embed", 15))
    assert {metric for metric, _ in selectors} - {"up"} <= set(RECORDED["types"]) & SIGNALS
    for metric, labels in selectors:
        own = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        assert (own.pop("namespace"), own.pop("service")) == ("rag", "embed")
        for label, value in own.items():
            assert value in RECORDED["labels"][metric][label]


def test_case_44_the_gauge_is_averaged_and_the_counter_is_a_rate() -> None:
    depth, rate = (query("rag", "embed", 15) for query in QUERIES)
    assert RECORDED["types"]["te_queue_size"] == "gauge"
    assert "avg_over_time(te_queue_size{" in depth
    assert RECORDED["types"]["te_request_failure"] == "counter"
    assert "te_request_failure" in COUNTERS
    assert "sum(rate(" in rate


@pytest.mark.parametrize("query", QUERIES)
def test_the_rule_about_scaling_signals_accepts_the_query(query: Query) -> None:
    trigger = {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": "http://prometheus-operated.monitoring.svc.cluster.local:9090",
            "query": query("te_namespace", "nv_service", 15),
            "threshold": "4",
            "ignoreNullValues": "false",
        },
    }
    assert rules.judge([scaled_object({"spec.triggers": [trigger]})]) == []


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        ("embed", '"embed"'),
        ('a"} or vector(9) or up{b="', r'"a\"} or vector(9) or up{b=\""'),
        ("back\\slash", r'"back\\slash"'),
        ("two\nlines", r'"two\nlines"'),
        ("日本語 🙂", '"日本語 🙂"'),
    ],
)
def test_a_label_value_cannot_leave_its_quotes(query: Query, value: str, quoted: str) -> None:
    for text in (query(value, "s", 15), query("n", value, 15)):
        # Without its strings the query is the same whatever they hold.
        bare = text.replace(quoted, '""').replace('"n"', '""').replace('"s"', '""')
        assert bare == query("n", "s", 15).replace('"n"', '""').replace('"s"', '""')


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(("interval", "window"), [(1, 30), (5, 30), (7, 30), (8, 32), (15, 60), (60, 240)])
def test_a_window_holds_four_scrapes_and_two_looks_of_the_autoscaler(query: Query, interval: int, window: int) -> None:
    windows = re.findall(r"\[(\d+)s(?::(\d+)s)?\]", query("rag", "embed", interval))
    assert {(size, step) for size, step in windows if size != "300"} <= {
        (str(window), ""),
        (str(window), str(interval)),
    }
    assert (str(window), "") in windows
