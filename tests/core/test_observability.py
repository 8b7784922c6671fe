"""Rules of a workload: which alerts there are, their pages, and names that engines really have."""

import re
from dataclasses import replace
from typing import Any

import pytest

from infra.core import rules as judges
from infra.core.observability import rules
from infra.core.observability.rules import EngineLimits, ScalingLimits, Watched
from infra.core.rules import promql
from local.paths import CHECKOUT

pytestmark = pytest.mark.core

SCALING = ScalingLimits(queue_threshold=10, overload_per_second=0.5, min=1, max=4, triggers=2)
ENGINE = EngineLimits(scrape_seconds=15, places=512, scores=False, texts_per_second=100, latency_ms=800)
WATCHED = Watched("embed", "rag", "embed", gpus=1, engine=ENGINE, scaling=SCALING)
PAGES = CHECKOUT / rules.RUNBOOKS

#: Metrics of other exporters, from the places that the module names.
FOREIGN = {
    "keda_scaler_detail_errors_total",
    "keda_scaler_metrics_value",
    "kube_horizontalpodautoscaler_spec_max_replicas",
    "kube_horizontalpodautoscaler_status_desired_replicas",
    "kube_pod_container_status_restarts_total",
    "kube_pod_init_container_status_restarts_total",
    "kube_pod_status_unschedulable",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_GPU_UTIL",
}
PREFIXES = {
    "keda_": rules.KEDA,
    "kube_": rules.KUBE_STATE,
    "DCGM_": rules.DCGM,
    "te_": rules.ENGINE,
    "up": rules.ENGINE,
}


def made(watched: Watched) -> list[dict[str, Any]]:
    return [rule for group in rules.groups(watched) for rule in group["rules"]]


def alerts(watched: Watched) -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in made(watched) if "alert" in rule}


def test_each_alert_has_its_page_and_each_page_its_alert() -> None:
    named = {rule["annotations"]["runbook_url"] for rule in alerts(WATCHED).values()}
    assert named == {f"{rules.RUNBOOKS}/{page.name}" for page in PAGES.iterdir()}


def test_a_page_and_the_table_say_what_the_alert_says() -> None:
    table = (CHECKOUT / "docs" / "observability.md").read_text(encoding="utf-8")
    for name, rule in alerts(WATCHED).items():
        severity, exporter = rule["labels"]["severity"], rule["labels"]["exporter"].replace(", ", " and ")
        page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {name}\n\nSeverity {severity}; needs {exporter}.\n")
        assert f"| [{name}](runbooks/{name}.md) | {exporter} | {severity} |" in table


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES.iterdir():
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            assert (PAGES / link).is_file(), (page.name, link)


def test_the_rule_about_signals_knows_every_metric_of_an_engine() -> None:
    given = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "embed", "namespace": "rag"},
        "spec": {"groups": rules.groups(WATCHED)},
    }
    assert judges.judge([given]) == []
    broken = {**given, "spec": {"groups": [{"name": "a", "rules": [{"record": "a:b", "expr": "te_queue_length"}]}]}}
    assert ["te_queue_length" in str(found) for found in judges.judge([broken])] == [True]


def test_every_other_metric_is_known_and_the_label_names_its_exporter() -> None:
    recorded = {rule["record"] for rule in made(WATCHED) if "record" in rule}
    for name, rule in alerts(WATCHED).items():
        found = promql.metrics(rule["expr"])
        assert {metric for metric in found if ":" in metric} <= recorded
        assert {metric for metric in found if metric.startswith(("keda_", "kube_", "DCGM_"))} <= FOREIGN
        needed = {
            rules.ENGINE if ":" in metric else PREFIXES[next(known for known in PREFIXES if metric.startswith(known))]
            for metric in found
        }
        assert set(rule["labels"]["exporter"].split(", ")) == needed, name


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        (replace(WATCHED, gpus=0), {"EmbeddingGpuIdle", "EmbeddingEngineOnCpu"}),
        (
            replace(WATCHED, scaling=None),
            {"EmbeddingScalerBlind", "EmbeddingScalerFallback", "EmbeddingReplicasAtMaximum"},
        ),
        (replace(WATCHED, scaling=replace(SCALING, max=1)), {"EmbeddingReplicasAtMaximum"}),
        (replace(WATCHED, engine=replace(ENGINE, texts_per_second=None)), {"EmbeddingLoadOverBudget"}),
        (
            replace(WATCHED, engine=None, scaling=None),
            {
                *("EmbeddingQueueGrows", "EmbeddingOverload", "EmbeddingQueueTimeHigh", "EmbeddingLoadOverBudget"),
                *("EmbeddingScalerBlind", "EmbeddingScalerFallback", "EmbeddingReplicasAtMaximum"),
            },
        ),
    ],
)
def test_an_alert_without_a_meaning_is_left_out(changed: Watched, missing: set[str]) -> None:
    assert set(alerts(WATCHED)) - set(alerts(changed)) == missing


@pytest.mark.parametrize(("latency", "seconds"), [(800, "0.8"), (None, "5"), (30_000, "9")])
def test_the_longest_wait_is_that_of_the_need_as_far_as_buckets_reach(latency: float | None, seconds: str) -> None:
    watched = replace(WATCHED, engine=replace(ENGINE, latency_ms=latency))
    assert alerts(watched)["EmbeddingQueueTimeHigh"]["expr"].endswith(f"> {seconds}")


def test_without_scaling_the_queue_is_held_against_the_places() -> None:
    found = alerts(replace(WATCHED, scaling=None))
    assert " > 256 and " in found["EmbeddingQueueGrows"]["expr"]
    assert found["EmbeddingOverload"]["expr"].endswith(" > 0.1")
