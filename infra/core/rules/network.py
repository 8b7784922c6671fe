"""Rules about who may reach a pod."""

from collections.abc import Iterable, Iterator, Sequence

from infra.core.rules.images import engine_of
from infra.core.rules.objects import Object, Pod, name, namespace, pod_of, selects, title, whole
from infra.core.rules.rule import MANDATORY_FROM_STAGING, Finding, SetRule
from infra.core.rules.services import scraped

#: Every namespace carries its own name under this label.
_NAMESPACE_NAME = "kubernetes.io/metadata.name"


def _network_policy(given: Sequence[Object]) -> Iterable[tuple[Object, Finding]]:
    for workload in given:
        pod = pod_of(workload)
        if pod is None or workload.get("kind") in {"Job", "CronJob"}:
            continue
        if not any(engine_of(container) for container in pod.running()):
            continue
        policies = [one for one in given if _guards(one, workload, pod)]
        if not policies:
            finding = Finding(
                f"{pod.path.removesuffix('spec')}metadata.labels",
                "no NetworkPolicy selects these pods: everything in the cluster can use them, and read /metrics "
                "without a key",
                "Add one that names the clients, and Prometheus",
            )
            yield workload, finding
            continue
        for number, port in sorted(scraped(workload, given).items()):
            yield from _scrapable(policies, workload, number, port, given)


def _guards(policy: Object, workload: Object, pod: Pod) -> bool:
    """Whether ``policy`` decides who may reach the pods."""
    spec = policy.get("spec", {})
    return (
        policy.get("kind") == "NetworkPolicy"
        and namespace(policy) == namespace(workload)
        and "Ingress" in spec.get("policyTypes", ("Ingress",))
        and selects(spec.get("podSelector", {}), pod.labels)
    )


def _scrapable(
    policies: list[Object], workload: Object, number: int, port: str | None, given: Sequence[Object]
) -> Iterator[tuple[Object, Finding]]:
    rules = [
        (policy, rule)
        for policy in policies
        for rule in policy.get("spec", {}).get("ingress", ())
        if _opens(rule, number, port)
    ]
    what = f"a ServiceMonitor has port {number} of {title(workload)} scraped"
    if not rules:
        finding = Finding("spec.ingress", f"{what}, and no rule opens it", "Admit the namespace of Prometheus")
        yield policies[0], finding
        return
    # Where Prometheus runs is known when it is deployed together with the workload only.
    for prometheus in given:
        if prometheus.get("kind") != "Prometheus":
            continue
        if not any(_admits(rule, policy, prometheus, given) for policy, rule in rules):
            finding = Finding(
                "spec.ingress",
                f"{what}, and no rule admits the namespace {namespace(prometheus)} of {title(prometheus)}",
                f"Admit a namespaceSelector with {_NAMESPACE_NAME}: {namespace(prometheus)}",
            )
            yield policies[0], finding


def _opens(rule: Object, number: int, port: str | None) -> bool:
    entries = rule.get("ports", ())
    return not entries or any(_is_open(entry, number, port) for entry in entries)


def _is_open(entry: Object, number: int, port: str | None) -> bool:
    if entry.get("protocol", "TCP") != "TCP":
        return False
    if "port" not in entry:
        return True
    first = whole(entry["port"])
    if first is None:
        return bool(entry["port"] == port)
    return first <= number <= (whole(entry.get("endPort", first)) or first)


def _admits(rule: Object, policy: Object, prometheus: Object, given: Sequence[Object]) -> bool:
    """Whether a rule lets pods of Prometheus' namespace in; where that cannot be said, it does."""
    peers = rule.get("from", ())
    return not peers or any(_may_be(peer, policy, prometheus, given) for peer in peers)


def _may_be(peer: Object, policy: Object, prometheus: Object, given: Sequence[Object]) -> bool:
    where = namespace(prometheus)
    if "namespaceSelector" not in peer:
        # Pods of the policy's own namespace; an address says nothing of where the pods run.
        return "ipBlock" in peer or where == namespace(policy)
    own = [one for one in given if one.get("kind") == "Namespace" and name(one) == where]
    labels = {_NAMESPACE_NAME: where, **(own[0].get("metadata", {}).get("labels", {}) if own else {})}
    selector = peer["namespaceSelector"]
    asked = {*selector.get("matchLabels", {}), *(part["key"] for part in selector.get("matchExpressions", ()))}
    return (not own and bool(asked - {_NAMESPACE_NAME})) or selects(selector, labels)


NETWORK_POLICY = SetRule(
    "network-policy", "Engines have a NetworkPolicy, and it lets Prometheus in", MANDATORY_FROM_STAGING, _network_policy
)
