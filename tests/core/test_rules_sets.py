"""Rules over objects that are deployed together."""

from typing import Any

import pytest

from infra.core import rules
from infra.core.rules import SET_RULES, UNKNOWN, UNKNOWN_VALUES, Level, Rule, SetRule, Violation
from tests.core.kubernetes import (
    ABSENT,
    CONTAINER,
    TEI,
    autoscaler,
    budget,
    deployment,
    monitor,
    network_policy,
    scaled_object,
    service,
)

pytestmark = pytest.mark.core

Objects = list[dict[str, Any]]
RULES: dict[str, SetRule] = {rule.id: rule for rule in SET_RULES}
GOOD = [deployment(), service(), monitor(), scaled_object(), budget(), network_policy()]


def said(rule: str, given: Objects) -> list[str]:
    verdict = rules.judge_set(RULES[rule], given)
    assert verdict.unknown is None
    return [str(found) for found in verdict.violations]


def test_objects_that_fit_together_pass_every_rule() -> None:
    assert rules.judge(GOOD) == []


@pytest.mark.parametrize(
    "given",
    [
        [],
        [{}],
        [{"kind": kind} for kind in ("Deployment", "Service")],
        [deployment({"spec.replicas": 3, f"{CONTAINER}.image": "app:1.0", "spec.template.metadata": ABSENT})],
    ],
)
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_nothing_to_say_where_nothing_meets(rule: str, given: Objects) -> None:
    assert said(rule, given) == []


@pytest.mark.parametrize(
    "scaler", [scaled_object(), scaled_object({"spec.scaleTargetRef.kind": "Deployment"}), autoscaler()]
)
def test_case_62_replicas_beside_a_scaler_are_refused(scaler: dict[str, Any]) -> None:
    [message] = said("replicas-beside-scaler", [deployment({"spec.replicas": 2}), scaler])
    assert message.startswith("Deployment rag/embed: spec.replicas: ")
    assert f"{scaler['kind']} rag/embed sets it too" in message


@pytest.mark.parametrize(
    "scaler",
    [
        scaled_object({"spec.scaleTargetRef.name": "rerank"}),
        scaled_object({"spec.scaleTargetRef.kind": "StatefulSet"}),
        scaled_object({"metadata.namespace": "other"}),
        {"kind": "ScaledObject"},
    ],
)
def test_replicas_beside_the_scaler_of_another_workload_are_accepted(scaler: dict[str, Any]) -> None:
    assert said("replicas-beside-scaler", [deployment({"spec.replicas": 2}), scaler]) == []


def test_replicas_that_are_null_count_as_left_out() -> None:
    assert said("replicas-beside-scaler", [deployment({"spec.replicas": None}), scaled_object()]) == []


def test_case_64_a_second_scaler_of_a_workload_is_refused() -> None:
    [message] = said("one-scaler", [autoscaler(), scaled_object()])
    assert message.startswith("ScaledObject rag/embed: spec.scaleTargetRef: Deployment embed is scaled by Horizontal")
    other = scaled_object({"metadata.name": "rerank", "spec.scaleTargetRef.name": "rerank"})
    assert said("one-scaler", [scaled_object(), other]) == []


# (service, monitor, place, words)
UNREACHED = [
    (service(), monitor({"spec.selector.matchLabels": {"app": "embed"}}), "spec.selector", ["namespace rag"]),
    (service({"metadata.labels": ABSENT}), monitor(), "spec.selector", ["no Service has these labels"]),
    (service({"metadata.namespace": "other"}), monitor(), "spec.selector", ["no Service"]),
    (
        service(),
        monitor({"spec.selector.matchExpressions": [{"key": "app.kubernetes.io/name", "operator": "DoesNotExist"}]}),
        "spec.selector",
        ["no Service"],
    ),
    (service(), monitor({"spec.endpoints.0.port": "metrics"}), "spec.endpoints[0].port", ["'metrics'", "are http"]),
    (service(), monitor({"spec.endpoints.0.port": ABSENT}), "spec.endpoints[0].port", ["there is none"]),
    (service(), monitor({"spec.endpoints": ABSENT}), "spec.endpoints", ["nothing would be scraped"]),
    (service({"spec.ports.0.name": ABSENT}), monitor(), "spec.endpoints[0].port", ["are (no name)"]),
    (service({"spec.ports": ABSENT}), monitor(), "spec.endpoints[0].port", ["are none"]),
    (service({"spec.ports.0.targetPort": "web"}), monitor(), "spec.endpoints[0].port", ["no container", "'web'"]),
    (service(), monitor({"spec.endpoints.0.path": "/prometheus"}), "spec.endpoints[0].path", ["/prometheus"]),
]


@pytest.mark.parametrize(("there", "given", "place", "words"), UNREACHED)
def test_a_monitor_that_reaches_nothing_is_refused(
    there: dict[str, Any], given: dict[str, Any], place: str, words: list[str]
) -> None:
    [message] = said("monitor-reaches-service", [deployment(), there, given])
    assert [word for word in ("ServiceMonitor rag/embed", place, *words) if word not in message] == []


def test_case_02_the_metrics_port_of_the_grpc_image_is_refused_for_an_http_image() -> None:
    ports = [{"name": "http", "containerPort": 8080}, {"name": "metrics", "containerPort": 9000}]
    pods = deployment({f"{CONTAINER}.ports": ports})
    there = service({"spec.ports.1": {"name": "metrics", "port": 9000, "targetPort": "metrics"}})
    wanted = monitor({"spec.endpoints.0.port": "metrics"})
    [message] = said("monitor-reaches-service", [pods, there, wanted])
    assert "nothing on 9000" in message
    grpc = deployment({f"{CONTAINER}.ports": ports, f"{CONTAINER}.image": f"{TEI}:89-1.9.3-grpc"})
    assert said("monitor-reaches-service", [grpc, there, wanted]) == []


@pytest.mark.parametrize(
    "given",
    [
        monitor({"metadata.namespace": "monitoring", "spec.namespaceSelector": {"matchNames": ["rag"]}}),
        monitor({"metadata.namespace": "monitoring", "spec.namespaceSelector": {"any": True}}),
        monitor({"spec.endpoints.0": {"targetPort": 8080}}),
        monitor(
            {
                "spec.selector": {
                    "matchExpressions": [
                        {"key": "app.kubernetes.io/instance", "operator": "In", "values": ["embed", "rerank"]},
                        {"key": "app.kubernetes.io/name", "operator": "Exists"},
                        {"key": "team", "operator": "NotIn", "values": ["other"]},
                    ]
                }
            }
        ),
    ],
)
def test_a_monitor_that_reaches_its_service_is_accepted(given: dict[str, Any]) -> None:
    assert said("monitor-reaches-service", [deployment(), service(), given]) == []


# (replicas, scaler, budget, words)
STUCK = [
    (2, None, budget({"spec.maxUnavailable": 0}), ["spec.maxUnavailable", "never drains"]),
    (2, None, budget({"spec.maxUnavailable": "0%"}), ["spec.maxUnavailable", "0%"]),
    (1, None, budget({"spec.maxUnavailable": ABSENT, "spec.minAvailable": 1}), ["1 of 1 replicas"]),
    (None, None, budget({"spec.maxUnavailable": ABSENT, "spec.minAvailable": 1}), ["1 of 1 replicas"]),
    (3, None, budget({"spec.maxUnavailable": ABSENT, "spec.minAvailable": "70%"}), ["70% of 3 replicas"]),
    (None, scaled_object(), budget({"spec.maxUnavailable": ABSENT, "spec.minAvailable": 2}), ["2 of 2 replicas"]),
    (
        None,
        autoscaler({"spec.minReplicas": 3}),
        budget({"spec.maxUnavailable": ABSENT, "spec.minAvailable": "100%"}),
        ["100% of 3 replicas"],
    ),
    (2, None, budget({"spec.selector.matchLabels": {"app": "embed"}}), ["spec.selector", "no pods"]),
    (2, None, budget({"spec.selector": ABSENT}), ["spec.selector", "no pods"]),
    (2, None, budget({"metadata.namespace": "other"}), ["no pods"]),
    (2, None, budget({"spec.unhealthyPodEvictionPolicy": ABSENT}), ["AlwaysAllow"]),
]


@pytest.mark.parametrize(("replicas", "scaler", "given", "words"), STUCK)
def test_a_budget_that_keeps_a_node_from_draining_is_refused(
    replicas: int | None, scaler: dict[str, Any] | None, given: dict[str, Any], words: list[str]
) -> None:
    workload = deployment({"spec.replicas": replicas})
    [message] = said("disruption-budget", [workload, given, *([scaler] if scaler else [])])
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("replicas", "given"),
    [
        (1, budget()),
        (0, budget({"spec.maxUnavailable": ABSENT, "spec.minAvailable": 1})),
        (2, budget({"spec.maxUnavailable": ABSENT, "spec.minAvailable": 1})),
        (3, budget({"spec.maxUnavailable": ABSENT, "spec.minAvailable": "50%"})),
        (1, budget({"spec.maxUnavailable": "1%"})),
    ],
)
def test_a_budget_that_leaves_a_pod_to_evict_is_accepted(replicas: int, given: dict[str, Any]) -> None:
    assert said("disruption-budget", [deployment({"spec.replicas": replicas}), given]) == []


def test_two_budgets_over_the_same_pods_are_refused() -> None:
    [message] = said("disruption-budget", [deployment(), budget(), budget({"metadata.name": "second"})])
    assert message.startswith("PodDisruptionBudget rag/second")
    assert "PodDisruptionBudget rag/embed covers Deployment rag/embed too" in message


@pytest.mark.parametrize(
    ("rule", "given", "place"),
    [
        (
            "replicas-beside-scaler",
            [deployment({"spec.replicas": 2}), scaled_object({"metadata.namespace": UNKNOWN})],
            "ScaledObject embed: metadata.namespace",
        ),
        (
            "one-scaler",
            [autoscaler({"spec.scaleTargetRef.name": UNKNOWN})],
            "HorizontalPodAutoscaler rag/embed: spec.scaleTargetRef.name",
        ),
        (
            "monitor-reaches-service",
            [service({"metadata.labels": UNKNOWN}), monitor()],
            "Service rag/embed: metadata.labels",
        ),
        (
            "disruption-budget",
            [deployment(), budget({"spec.maxUnavailable": UNKNOWN})],
            "PodDisruptionBudget rag/embed: spec.maxUnavailable",
        ),
        (
            "gpu-scaling, scale-to-zero",
            [deployment(), scaled_object({"spec.triggers": UNKNOWN, "spec.minReplicaCount": 0})],
            "ScaledObject rag/embed: spec.triggers",
        ),
        (
            "network-policy",
            [deployment(), network_policy({"spec.podSelector": UNKNOWN})],
            "NetworkPolicy rag/embed: spec.podSelector",
        ),
    ],
)
def test_case_94_what_objects_do_not_say_before_they_exist_is_reported(rule: str, given: Objects, place: str) -> None:
    told = rules.judge([*given, network_policy()])
    assert {one.rule for one in told} == {UNKNOWN_VALUES}
    [found] = [one for one in told if one.subject["kind"] == "Stack"]
    assert [word for word in (rule, place) if word not in str(found)] == []


def test_a_violation_names_the_object_that_was_given() -> None:
    given = [deployment({"spec.replicas": 2}), scaled_object()]
    [found] = rules.judge_set(RULES["replicas-beside-scaler"], given).violations
    assert isinstance(found, Violation)
    assert found.subject is given[0]


def test_ids_are_unique() -> None:
    assert len({rule.id for rule in rules.ALL}) == len(rules.ALL)


@pytest.mark.parametrize("rule", rules.ALL, ids=lambda rule: rule.id)
def test_every_rule_is_mandatory_where_others_rely_on_it(rule: Rule) -> None:
    assert {rule.levels[name] for name in ("staging", "prod")} == {Level.MANDATORY}


def test_what_leaks_or_cannot_start_is_mandatory_on_a_laptop_too() -> None:
    advisory = {rule.id for rule in rules.ALL if rule.levels["local"] is Level.ADVISORY}
    assert advisory == {"image-version", "budgets", "pod-security", "disruption-budget", "network-policy"}
