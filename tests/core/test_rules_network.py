"""The rule about NetworkPolicies: every engine has one, and what is scraped can be reached by Prometheus."""

from typing import Any

import pytest

from infra.core import rules
from infra.core.rules import SetRule
from tests.core.kubernetes import (
    ABSENT,
    CONTAINER,
    LABELS,
    POD,
    TEI,
    Changes,
    deployment,
    monitor,
    network_policy,
    service,
)

pytestmark = pytest.mark.core

Objects = list[dict[str, Any]]
[RULE] = [rule for rule in rules.SET_RULES if rule.id == "network-policy"]
SCRAPED = [deployment(), service(), monitor()]
INGRESS = "spec.ingress.0"
FROM = f"{INGRESS}.from"
PROMETHEUS: dict[str, Any] = {"kind": "Prometheus", "metadata": {"name": "main", "namespace": "monitoring"}}


def said(given: Objects) -> list[str]:
    assert isinstance(RULE, SetRule)
    verdict = rules.judge_set(RULE, given)
    assert verdict.unknown is None
    return [str(found) for found in verdict.violations]


@pytest.mark.parametrize(
    "policies",
    [
        [],
        [network_policy({"metadata.namespace": "other"})],
        [network_policy({"spec.podSelector.matchLabels": {"app.kubernetes.io/instance": "rerank"}})],
        [network_policy({"spec.policyTypes": ["Egress"]})],
    ],
)
def test_case_27_an_engine_without_a_policy_of_its_own_is_refused(policies: Objects) -> None:
    [message] = said([deployment(), *policies])
    assert message.startswith("Deployment rag/embed: spec.template.metadata.labels: no NetworkPolicy selects")
    assert "/metrics without a key" in message


@pytest.mark.parametrize(
    "policy",
    [
        network_policy(),
        network_policy({"spec.policyTypes": ABSENT}),
        network_policy({"spec.podSelector": {}}),
        network_policy(
            {"spec.podSelector": {"matchExpressions": [{"key": "app.kubernetes.io/name", "operator": "Exists"}]}}
        ),
    ],
)
def test_a_policy_that_selects_the_pods_of_an_engine_is_accepted(policy: dict[str, Any]) -> None:
    assert said([*SCRAPED, policy, PROMETHEUS]) == []


def test_what_is_no_server_of_a_model_needs_no_policy() -> None:
    app = deployment({f"{CONTAINER}.image": "app:1.0", f"{CONTAINER}.resources": ABSENT})
    assert said([app, {**deployment(), "kind": "Job"}]) == []


def test_a_pod_by_itself_needs_one_too() -> None:
    alone = {
        "kind": "Pod",
        "metadata": {"name": "embed", "namespace": "rag", "labels": dict(LABELS)},
        "spec": {"initContainers": [{"image": f"{TEI}:89-1.9.3", "restartPolicy": "Always"}]},
    }
    [message] = said([alone])
    assert message.startswith("Pod rag/embed: metadata.labels")
    assert said([alone, network_policy()]) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"spec.ingress": ABSENT},
        {"spec.ingress": []},
        {f"{INGRESS}.ports": [{"port": 9000}]},
        {f"{INGRESS}.ports": [{"port": "http", "protocol": "UDP"}]},
        {f"{INGRESS}.ports": [{"port": 8000, "endPort": 8079}]},
        {f"{INGRESS}.ports": [{"port": "metrics"}]},
    ],
)
def test_case_27_a_port_that_is_scraped_and_that_no_rule_opens_is_refused(changes: Changes) -> None:
    [message] = said([*SCRAPED, network_policy(changes)])
    assert message.startswith("NetworkPolicy rag/embed: spec.ingress: a ServiceMonitor has port 8080 of Deployment")
    assert said([deployment(), service(), network_policy(changes)]) == []


@pytest.mark.parametrize(
    "ports",
    [ABSENT, [], [{"port": 8080}], [{"port": "8080"}], [{"port": 8000, "endPort": 8100}], [{"protocol": "TCP"}]],
)
def test_a_port_is_opened_by_name_number_range_or_not_at_all_restricted(ports: object) -> None:
    assert said([*SCRAPED, network_policy({f"{INGRESS}.ports": ports}), PROMETHEUS]) == []


@pytest.mark.parametrize(
    "peer",
    [
        {"podSelector": {}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "apps"}}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "apps", "team": "rag"}}},
    ],
)
def test_case_27_a_policy_that_does_not_admit_the_prometheus_of_the_stack_is_refused(peer: dict[str, Any]) -> None:
    there = {"kind": "Namespace", "metadata": {"name": "monitoring", "labels": {"team": "platform"}}}
    given = [*SCRAPED, network_policy({FROM: [peer]})]
    [message] = said([*given, PROMETHEUS, there])
    assert "no rule admits the namespace monitoring of Prometheus monitoring/main" in message
    # Where Prometheus runs is not known then.
    assert said(given) == []


@pytest.mark.parametrize(
    "peers",
    [
        ABSENT,
        [],
        [{"namespaceSelector": {}}],
        [{"namespaceSelector": {"matchLabels": {"team": "platform"}}}],
        [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}, "podSelector": {}}],
        [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
    ],
)
def test_a_policy_that_may_admit_the_prometheus_of_the_stack_is_accepted(peers: object) -> None:
    assert said([*SCRAPED, network_policy({FROM: peers}), PROMETHEUS]) == []


def test_two_policies_add_up() -> None:
    clients = network_policy({FROM: [{"podSelector": {"matchLabels": {"app": "rag-api"}}}]})
    scraping = network_policy({"metadata.name": "metrics", f"{INGRESS}.from.0": {"namespaceSelector": {}}})
    assert said([*SCRAPED, clients, scraping, PROMETHEUS]) == []


def test_a_prometheus_in_the_namespace_of_the_engine_is_admitted_as_its_neighbours_are() -> None:
    here = {"kind": "Prometheus", "metadata": {"name": "main", "namespace": "rag"}}
    assert said([*SCRAPED, network_policy({FROM: [{"podSelector": {}}]}), here]) == []


def test_the_metrics_port_of_a_grpc_image_is_what_has_to_be_open() -> None:
    ports = [{"name": "grpc", "containerPort": 8080}, {"name": "metrics", "containerPort": 9000}]
    pods = deployment({f"{CONTAINER}.ports": ports, f"{CONTAINER}.image": f"{TEI}:89-1.9.3-grpc", f"{POD}.volumes": []})
    there = service({"spec.ports.1": {"name": "metrics", "port": 9000, "targetPort": "metrics"}})
    given = [pods, there, monitor({"spec.endpoints.0.port": "metrics"})]
    [message] = said([*given, network_policy()])
    assert "port 9000" in message
    assert said([*given, network_policy({f"{INGRESS}.ports": [{"port": "grpc"}, {"port": "metrics"}]})]) == []
