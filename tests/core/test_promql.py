"""Reading PromQL: how many elements a query can give, and of which metrics."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.core.engines.tei import signals
from infra.core.rules import promql

pytestmark = pytest.mark.core

#: Of case-60: 0 for pods without load, nothing where no pod is there.
GUARDED = 'sum(te_queue_size{pod=~"a)b.*"}) or (0 * count(up{job="embed"} == 1))'
ONE = [
    GUARDED,
    signals.queue_depth("rag", "embed", 15),
    signals.overload_rate("rag", "embed", 15),
    "sum(te_queue_size) or vector(0)",
    "max(sum by (pod) (te_queue_size))",
    "sum by () (te_queue_size)",
    "sum without (pod) (sum by (pod) (te_queue_size))",
    "sum(te_queue_size) / count(up == 1)",
    "sum(rate(te_request_failure[1m])) * 2 ^ 3 > bool 1",
    "-sum(te_queue_size offset 5m)",
    "sum(te_queue_size @ end())",
    "clamp_min(avg(te_queue_size), 1e-3)",
    "avg_over_time(sum(te_queue_size)[1m:15s])",
    "histogram_quantile(0.9, sum by (le) (rate(te_request_queue_duration_bucket[1m])))",
    "quantile(0.9, te_queue_size)",
    "topk(1, te_queue_size)",
    "te_queue_size + on() sum(up)",
    'label_replace(sum(te_queue_size), "a", "b", "", "")',
    "absent(te_queue_size)",
    "sum(te_queue_size) unless on() absent(up)",
    "hour()",
    "sum(te_queue_size) # waiting texts",
]
SEVERAL = [
    "te_queue_size",
    '{__name__="te_queue_size"}',
    "rate(te_request_count[1m])",
    "sum by (pod) (te_queue_size)",
    "sum(te_queue_size) by (pod)",
    "sum without (pod) (te_queue_size)",
    "(te_queue_size)",
    "ceil(te_queue_size * 2)",
    "topk(3, te_queue_size)",
    "topk by (pod) (1, te_queue_size)",
    "count_values('size', te_queue_size)",
    "histogram_quantile(0.9, rate(te_request_queue_duration_bucket[1m]))",
    "sum(te_queue_size) or sum by (pod) (te_queue_size)",
    "topk(1, te_queue_size) or vector(0)",
    "te_queue_size and on() sum(up)",
    "te_queue_size * on (pod) group_left (node) up",
]
SCALAR = ["1", "scalar(sum(te_queue_size))", "time()", "1 + scalar(sum(up))"]


@pytest.mark.parametrize("query", ONE)
def test_a_query_over_all_pods_gives_one_element(query: str) -> None:
    result = promql.result_of(query)
    assert result
    assert (result.single, result.scalar) == (True, False)


@pytest.mark.parametrize("query", SEVERAL)
def test_a_query_that_keeps_pods_apart_gives_several(query: str) -> None:
    result = promql.result_of(query)
    assert result
    assert (result.single, result.scalar) == (False, False)


@pytest.mark.parametrize("query", SCALAR)
def test_a_scalar_is_no_vector(query: str) -> None:
    result = promql.result_of(query)
    assert result
    assert result.scalar


@pytest.mark.parametrize("query", ["sum(te_queue_size", "sum(te_queue_size))", 'sum(te_queue_size{pod="a})', "a ? b"])
def test_what_no_prometheus_reads_is_said(query: str) -> None:
    with pytest.raises(promql.UnreadableQueryError):
        promql.result_of(query)


@pytest.mark.parametrize("query", ["", "sum()", "a b", "sum(a) someday sum(b)", "+"])
def test_syntax_that_is_not_known_is_not_judged(query: str) -> None:
    assert promql.result_of(query) is None


@pytest.mark.parametrize(
    ("query", "names"),
    [
        (GUARDED, {"te_queue_size", "up"}),
        (signals.queue_depth("rag", "embed", 15), {"te_queue_size", "up"}),
        ("sum by (te_pod) (rate(a_total[1m])) * on (b) group_left (c) d offset 5m", {"a_total", "d"}),
        ("sum(serving:queue:sum) > bool 1 or vector(0) @ start()", {"serving:queue:sum"}),
    ],
)
def test_metrics_are_told_from_labels_functions_and_words(query: str, names: set[str]) -> None:
    assert promql.metrics(query) == names


def test_a_query_may_be_nested_deeper_than_it_can_be_followed() -> None:
    deep = "(" * 5000 + "te_queue_size" + ")" * 5000
    assert promql.result_of(deep) is None
    assert promql.metrics(deep) == {"te_queue_size"}


_PIECES = [
    "sum",
    "by",
    "on",
    "(",
    ")",
    "te_queue_size",
    "{a='b'}",
    "[1m]",
    "or",
    "+",
    "1",
    ",",
    "topk",
    "bool",
    "@",
    "'",
]


@settings(deadline=None, derandomize=True, max_examples=500)
@given(st.lists(st.sampled_from(_PIECES), max_size=12).map(" ".join) | st.text(max_size=30))
def test_any_text_is_read_not_known_or_said_to_be_no_promql(query: str) -> None:
    try:
        result = promql.result_of(query)
        named = promql.metrics(query)
    except promql.UnreadableQueryError:
        return
    assert result is None or result.single or not result.scalar
    assert all(named)
