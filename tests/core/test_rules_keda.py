"""Rules about ScaledObjects, and about scalers beside the workload that they scale."""

from typing import Any

import pytest

from infra.core import rules
from infra.core.engines.tei import signals
from infra.core.rules import ObjectRule, Rule, SetRule
from tests.core.kubernetes import (
    ABSENT,
    CONTAINER,
    POD,
    Changes,
    autoscaler,
    deployment,
    network_policy,
    scaled_object,
)

pytestmark = pytest.mark.core

Given = dict[str, Any]
RULES: dict[str, Rule] = {rule.id: rule for rule in rules.ALL}
TRIGGER = "spec.triggers.0"
SERVER = f"{TRIGGER}.metadata.serverAddress"
CPU = {"type": "cpu", "metricType": "Utilization", "metadata": {"value": "60"}}
MEMORY = {"type": "memory", "metricType": "AverageValue", "metadata": {"value": "1Gi"}}
GATEWAY = {**scaled_object({f"{TRIGGER}.metadata.query": "sum(rate(gateway_requests[1m]))"})["spec"]["triggers"][0]}


def said(rule: str, *given: Given) -> list[str]:
    judge = RULES[rule]
    if isinstance(judge, ObjectRule):
        verdicts = [rules.judge_object(judge, one) for one in given]
    else:
        assert isinstance(judge, SetRule)
        verdicts = [rules.judge_set(judge, given)]
    assert {verdict.unknown for verdict in verdicts} == {None}
    return [str(found) for verdict in verdicts for found in verdict.violations]


# (changes, place, words): each is refused by scaled-object, with exactly this.
REFUSED: list[tuple[Changes, str, list[str]]] = [
    ({f"{TRIGGER}.metadata.threshold": 16}, "metadata.threshold", ["16 is no text", 'Write "16"']),
    ({f"{TRIGGER}.metadata.ignoreNullValues": False}, "metadata.ignoreNullValues", ["false is no text", '"false"']),
    ({f"{TRIGGER}.metadata.headers": {"a": "b"}}, "metadata.headers", ["no text"]),
    ({"spec.triggers.1": {"type": "cron", "metadata": {"desiredReplicas": 2}}}, "triggers[1].metadata", ['"2"']),
    ({f"{TRIGGER}.metadata.threshold": ABSENT}, "metadata.threshold", ["there is none"]),
    ({f"{TRIGGER}.metadata.threshold": "many"}, "metadata.threshold", ["'many' is no number above 0"]),
    ({f"{TRIGGER}.metadata.threshold": "0"}, "metadata.threshold", ["'0' is no number above 0"]),
    ({f"{TRIGGER}.metadata.threshold": "inf"}, "metadata.threshold", ["'inf'"]),
    ({"spec.minReplicaCount": 5}, "spec.minReplicaCount", ["5 is more than maxReplicaCount (4)"]),
    ({"spec.minReplicaCount": 101, "spec.maxReplicaCount": ABSENT}, "spec.minReplicaCount", ["(100)"]),
    ({"spec.idleReplicaCount": 1}, "spec.idleReplicaCount", ["KEDA takes 0 only"]),
    ({"spec.idleReplicaCount": 0, "spec.minReplicaCount": 0}, "spec.idleReplicaCount", ["below a minimum of 1"]),
    ({"spec.triggers": [CPU, MEMORY]}, "spec.fallback", ["none for triggers on cpu and memory"]),
]


@pytest.mark.parametrize(("changes", "place", "words"), REFUSED)
def test_a_scaled_object_that_keda_refuses_is_refused_before(changes: Changes, place: str, words: list[str]) -> None:
    [message] = said("scaled-object", scaled_object(changes))
    assert [word for word in (place, *words) if word not in message] == []


@pytest.mark.parametrize("value", [ABSENT, "true", "True"])
def test_case_60_and_case_61_a_fallback_needs_empty_answers_to_be_errors(value: object) -> None:
    [message] = said("scaled-object", scaled_object({f"{TRIGGER}.metadata.ignoreNullValues": value}))
    assert "spec.triggers[0].metadata.ignoreNullValues" in message
    assert 'Give "false"' in message


def test_case_60_without_a_fallback_what_an_empty_answer_means_has_to_be_said() -> None:
    without = {"spec.fallback": ABSENT}
    place = f"{TRIGGER}.metadata.ignoreNullValues"
    [message] = said("scaled-object", scaled_object({**without, place: ABSENT}))
    assert "an outage of the scraping scales the workload down" in message
    assert [said("scaled-object", scaled_object({**without, place: value})) for value in ("true", "false")] == [[], []]


def test_case_63_the_metric_type_is_said_and_is_the_one_that_every_fallback_takes() -> None:
    [message] = said("scaled-object", scaled_object({f"{TRIGGER}.metricType": ABSENT}))
    assert "spec.triggers[0].metricType: there is none" in message
    [message] = said("scaled-object", scaled_object({f"{TRIGGER}.metricType": "Value"}))
    assert "with Value the fallback does not work in every release" in message
    [message] = said("scaled-object", scaled_object({f"{TRIGGER}.metricType": "Utilization", "spec.fallback": ABSENT}))
    assert "Say AverageValue" in message
    assert said("scaled-object", scaled_object({f"{TRIGGER}.metricType": "Value", "spec.fallback": ABSENT})) == []


@pytest.mark.parametrize("field", ["cooldownPeriod", "pollingInterval"])
def test_case_67_a_period_that_counts_at_zero_only_is_refused_above(field: str) -> None:
    [message] = said("scaled-object", scaled_object({f"spec.{field}": 300}))
    assert f"spec.{field}" in message
    assert "never fewer than 2" in message
    at_zero: list[Changes] = [
        {"spec.minReplicaCount": 0},
        {"spec.minReplicaCount": ABSENT},
        {"spec.idleReplicaCount": 0},
    ]
    assert [said("scaled-object", scaled_object({f"spec.{field}": 300, **(zero or {})})) for zero in at_zero] == [
        []
    ] * 3


def test_case_67_a_polling_interval_counts_where_metrics_are_cached() -> None:
    assert said("scaled-object", scaled_object({"spec.pollingInterval": 30, f"{TRIGGER}.useCachedMetrics": True})) == []


def test_a_name_leaves_room_for_that_of_the_autoscaler_that_keda_makes() -> None:
    config = "spec.advanced.horizontalPodAutoscalerConfig.name"
    assert said("scaled-object", scaled_object({"metadata.name": "a" * 54})) == []
    [message] = said("scaled-object", scaled_object({"metadata.name": "a" * 55}))
    assert "keda-hpa-" in message
    assert "54 characters or fewer" in message
    assert said("scaled-object", scaled_object({"metadata.name": "a" * 63, config: "short"})) == []
    [message] = said("scaled-object", scaled_object({"metadata.name": "a" * 64, config: "short"}))
    assert "64 characters" in message
    [message] = said("scaled-object", scaled_object({config: "a" * 64}))
    assert config in message


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (ABSENT, "there is none"),
        ("prometheus.monitoring:9090", "no URL with http"),
        ("http://", "no URL with http"),
        ("http://[::1", "no URL"),
        ("http://prometheus:9090", "'prometheus' has no namespace"),
        ("http://localhost:9090", "localhost is KEDA's own pod"),
        ("http://127.0.0.1:9090", "127.0.0.1 is KEDA's own pod"),
    ],
)
def test_case_98_an_address_that_keda_cannot_resolve_is_refused(address: object, words: str) -> None:
    [message] = said("scaled-object", scaled_object({SERVER: address}))
    assert "spec.triggers[0].metadata.serverAddress" in message
    assert words in message


@pytest.mark.parametrize(
    "address",
    [
        "http://prometheus-operated.monitoring:9090",
        "http://prometheus-operated.monitoring.svc:9090/",
        "https://aps-workspaces.us-east-1.amazonaws.com/workspaces/ws-1",
        "http://10.0.0.7:9090",
        "http://[fd00::7]:9090",
    ],
)
def test_case_98_an_address_with_a_namespace_or_a_domain_is_accepted(address: str) -> None:
    assert said("scaled-object", scaled_object({SERVER: address})) == []


def query(text: str) -> Given:
    return scaled_object({f"{TRIGGER}.metadata.query": text})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("te_queue_size", "several elements, and KEDA"),
        ("sum by (pod) (te_queue_size)", "one for each pod"),
        ("max without (instance) (te_queue_size)", "Put sum() around it"),
        ("scalar(sum(te_queue_size))", "a scalar, which KEDA cannot read"),
        ("sum(te_queue_size", "no PromQL"),
    ],
)
def test_case_65_a_query_that_is_not_one_number_is_refused(text: str, words: str) -> None:
    [message] = said("scaling-query", query(text))
    assert "spec.triggers[0].metadata.query" in message
    assert words in message


@pytest.mark.parametrize(
    "text",
    [
        'sum(te_queue_size{namespace="rag"}) or (0 * count(up{job="embed"} == 1))',
        signals.queue_depth("rag", "embed", 15),
        signals.overload_rate("rag", "embed", 15),
        "sum(a) someday sum(b)",
        "",
    ],
)
def test_case_65_one_number_is_accepted_and_so_is_syntax_that_is_not_known(text: str) -> None:
    assert said("scaling-query", query(text)) == []


def test_the_blueprints_signals_pass_every_rule() -> None:
    for text in (signals.queue_depth("rag", "embed", 15), signals.overload_rate("rag", "embed", 15)):
        assert rules.judge([deployment(), network_policy(), query(text)]) == []


@pytest.mark.parametrize(
    ("scaler", "place"),
    [
        (scaled_object({"spec.triggers.1": CPU}), "spec.triggers[1]"),
        (scaled_object({"spec.triggers": [MEMORY], "spec.fallback": ABSENT}), "spec.triggers[0]"),
        (autoscaler({"spec.metrics": ABSENT}), "spec.metrics"),
        (autoscaler({"spec.metrics": [{"type": "Resource", "resource": {"name": "cpu"}}]}), "metrics[0].resource"),
        (
            autoscaler({"spec.metrics": [{"type": "ContainerResource", "containerResource": {"name": "memory"}}]}),
            "spec.metrics[0].containerResource",
        ),
    ],
)
def test_a_workload_on_a_gpu_is_not_scaled_by_what_its_cpu_does(scaler: Given, place: str) -> None:
    [message] = said("gpu-scaling", deployment(), scaler)
    assert [word for word in (f"{scaler['kind']} rag/embed", place, "says nothing") if word not in message] == []


def test_a_workload_without_a_gpu_may_be_scaled_by_its_cpu() -> None:
    on_cpu = deployment({f"{CONTAINER}.resources": ABSENT, f"{POD}.tolerations": ABSENT})
    assert said("gpu-scaling", on_cpu, autoscaler({"spec.metrics": ABSENT})) == []
    other = autoscaler({"spec.metrics": ABSENT, "spec.scaleTargetRef.name": "app"})
    assert said("gpu-scaling", deployment(), other) == []
    assert said("gpu-scaling", deployment(), autoscaler(), scaled_object()) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"spec.minReplicaCount": 0}, "spec.minReplicaCount"),
        ({"spec.minReplicaCount": ABSENT}, "spec.minReplicaCount"),
        ({"spec.idleReplicaCount": 0}, "spec.idleReplicaCount"),
        ({"spec.minReplicaCount": 0, "spec.triggers.1": CPU}, "spec.minReplicaCount"),
        ({"spec.minReplicaCount": 0, f"{TRIGGER}.metadata.query": "sum(te_queue_size) * count(up)"}, "minReplica"),
    ],
)
def test_case_66_a_workload_that_is_measured_by_itself_does_not_scale_to_zero(changes: Changes, field: str) -> None:
    [message] = said("scale-to-zero", deployment(), scaled_object(changes))
    assert field in message
    assert "never starts again" in message


@pytest.mark.parametrize(
    "changes",
    [
        {"spec.minReplicaCount": 1},
        {"spec.minReplicaCount": 0, "spec.triggers.1": GATEWAY},
        {"spec.minReplicaCount": 0, "spec.triggers.1": {"type": "cron", "metadata": {}}},
        {
            "spec.minReplicaCount": 0,
            f"{TRIGGER}.metadata.query": "sum(te_queue_size) + sum(rate(gateway_requests[1m]))",
        },
        {"spec.minReplicaCount": 0, f"{TRIGGER}.metadata.query": "sum(te_queue_size"},
        {"spec.minReplicaCount": 0, "spec.scaleTargetRef.name": "app"},
        {"spec.minReplicaCount": 0, "spec.triggers": ABSENT},
    ],
)
def test_case_66_scaling_to_zero_is_accepted_where_something_else_can_wake_the_workload(changes: Changes) -> None:
    assert said("scale-to-zero", deployment(), scaled_object(changes)) == []
