"""Rules about objects that find others by their labels."""

from collections.abc import Iterable, Iterator, Sequence
from math import ceil

from infra.core.rules.images import engine_of, speaks_grpc
from infra.core.rules.keda import fewest
from infra.core.rules.objects import Container, Object, Pod, namespace, pod_of, selects, title, whole
from infra.core.rules.rule import ALWAYS_MANDATORY, MANDATORY_FROM_STAGING, Finding, SetRule
from infra.core.rules.scaling import scaled, target_of


def _monitor_reaches_service(given: Sequence[Object]) -> Iterable[tuple[Object, Finding]]:
    services = [one for one in given if one.get("kind") == "Service"]
    for monitor in given:
        if monitor.get("kind") != "ServiceMonitor":
            continue
        spec = monitor.get("spec", {})
        reached = [service for service in services if _reaches(monitor, service)]
        if not reached:
            finding = Finding(
                "spec.selector",
                f"no Service has these labels in {_where(monitor)}: nothing would be scraped",
                "Select labels that the Service itself carries (its metadata, not its selector)",
            )
            yield monitor, finding
            continue
        if not spec.get("endpoints"):
            yield monitor, Finding("spec.endpoints", "there is none: nothing would be scraped", "Name port and path")
        for index, endpoint in enumerate(spec.get("endpoints", ())):
            path = f"spec.endpoints[{index}]"
            for finding in _endpoint(path, endpoint, reached, given):
                yield monitor, finding


def _reaches(monitor: Object, service: Object) -> bool:
    chosen = monitor.get("spec", {}).get("namespaceSelector", {})
    here = chosen.get("matchNames") or [namespace(monitor)]
    if not chosen.get("any") and namespace(service) not in here:
        return False
    selector = monitor.get("spec", {}).get("selector", {})
    return selects(selector, service.get("metadata", {}).get("labels", {}))


def _where(monitor: Object) -> str:
    chosen = monitor.get("spec", {}).get("namespaceSelector", {})
    if chosen.get("any"):
        return "any namespace"
    return "namespace " + ", ".join(chosen.get("matchNames") or [namespace(monitor)])


def _endpoint(path: str, endpoint: Object, services: list[Object], given: Sequence[Object]) -> Iterator[Finding]:
    port = endpoint.get("port")
    if port is None and "targetPort" not in endpoint:
        yield Finding(f"{path}.port", "there is none", "Give the name of a port of the Service")
        return
    for service in services:
        ports = service.get("spec", {}).get("ports", ())
        targets = _targets(endpoint, service)
        if not targets:
            there = ", ".join(str(entry.get("name", "(no name)")) for entry in ports) or "none"
            yield Finding(f"{path}.port", f"{title(service)} has no port {port!r}", f"Its ports are {there}")
        for target in targets:
            for workload, pod in _pods_behind(service, given):
                yield from _target(path, endpoint, target, workload, pod)


def _targets(endpoint: Object, service: Object) -> list[object]:
    """Container ports, by number or name, that an endpoint of a ServiceMonitor means behind ``service``."""
    if "port" not in endpoint:
        return [endpoint["targetPort"]] if "targetPort" in endpoint else []
    ports = service.get("spec", {}).get("ports", ())
    return [entry.get("targetPort", entry.get("port")) for entry in ports if entry.get("name") == endpoint["port"]]


def scraped(workload: Object, given: Sequence[Object]) -> dict[int, str | None]:
    """Numbers of the container ports of ``workload`` that a ServiceMonitor scrapes, with their names."""
    found: dict[int, str | None] = {}
    services = [one for one in given if one.get("kind") == "Service"]
    for monitor in given:
        if monitor.get("kind") != "ServiceMonitor":
            continue
        for service in services:
            pods = [pod for one, pod in _pods_behind(service, given) if one is workload]
            if not pods or not _reaches(monitor, service):
                continue
            for endpoint in monitor.get("spec", {}).get("endpoints", ()):
                for target in _targets(endpoint, service):
                    found.update(
                        (entry["containerPort"], entry.get("name"))
                        for container in pods[0].running()
                        for entry in container.spec.get("ports", ())
                        if _is_port(entry, target)
                    )
    return found


def _pods_behind(service: Object, given: Sequence[Object]) -> Iterator[tuple[Object, Pod]]:
    selector = service.get("spec", {}).get("selector", {})
    for one in given:
        pod = pod_of(one)
        if pod and selector and namespace(one) == namespace(service) and selects({"matchLabels": selector}, pod.labels):
            yield one, pod


def _target(path: str, endpoint: Object, target: object, workload: Object, pod: Pod) -> Iterator[Finding]:
    owner = next((found for found in pod.running() if _has_port(found, target)), None)
    if owner is None:
        yield Finding(f"{path}.port", f"no container of {title(workload)} has the port {target!r}", "Check targetPort")
    elif engine_of(owner) == "tei" and not speaks_grpc(owner):
        number = next(entry["containerPort"] for entry in owner.spec["ports"] if _is_port(entry, target))
        http = whole(owner.setting("PORT") or 80)
        if number != http:
            yield Finding(
                f"{path}.port",
                f"TEI serves metrics on its HTTP port {http}, and nothing on {number}: --prometheus-port counts for "
                "gRPC images only",
                "Scrape the port http",
            )
        if endpoint.get("path", "/metrics") != "/metrics":
            yield Finding(f"{path}.path", f"TEI has no metrics at {endpoint['path']}", "Use /metrics")


def _has_port(container: Container, target: object) -> bool:
    return any(_is_port(entry, target) for entry in container.spec.get("ports", ()))


def _is_port(entry: Object, target: object) -> bool:
    number = whole(target)
    return entry.get("name") == target if number is None else entry.get("containerPort") == number


def _disruption_budget(given: Sequence[Object]) -> Iterable[tuple[Object, Finding]]:
    scalers = scaled(given)
    seen: list[tuple[Object, Object]] = []
    for budget in given:
        if budget.get("kind") != "PodDisruptionBudget":
            continue
        spec = budget.get("spec", {})
        covered = [
            one
            for one in given
            if (pod := pod_of(one))
            and namespace(one) == namespace(budget)
            and "selector" in spec
            and selects(spec["selector"], pod.labels)
        ]
        if not covered:
            yield budget, Finding("spec.selector", "it matches no pods of this stack", "Select the labels of the pods")
        for workload in covered:
            for other, theirs in seen:
                if theirs is workload:
                    problem = f"{title(other)} covers {title(workload)} too: the eviction of a pod with two is refused"
                    yield budget, Finding("spec.selector", problem, "Keep one of them")
            seen.append((budget, workload))
            for finding in _drains(spec, workload, _fewest(workload, scalers.get(target_of(workload), []))):
                yield budget, finding
        if spec.get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            finding = Finding(
                "spec.unhealthyPodEvictionPolicy",
                "a pod that does not become ready cannot be evicted and keeps its node from draining",
                "Set it to AlwaysAllow",
            )
            yield budget, finding


def _fewest(workload: Object, scalers: list[Object]) -> int:
    """Replicas in quiet hours; Kubernetes takes 1 where nothing is said."""
    for scaler in scalers:
        spec = scaler.get("spec", {})
        if scaler.get("kind") == "ScaledObject":
            return max(1, fewest(spec))
        return int(spec.get("minReplicas", 1))
    return int(workload.get("spec", {}).get("replicas", 1))


def _drains(spec: Object, workload: Object, replicas: int) -> Iterator[Finding]:
    fix = "Use maxUnavailable: 1"
    if "maxUnavailable" in spec and _amount(spec["maxUnavailable"], replicas) == 0:
        yield Finding(
            "spec.maxUnavailable",
            f"with {spec['maxUnavailable']} no pod of {title(workload)} can be evicted, and its node never drains",
            fix,
        )
    if "minAvailable" in spec and replicas and _amount(spec["minAvailable"], replicas) >= replicas:
        yield Finding(
            "spec.minAvailable",
            f"{spec['minAvailable']} of {replicas} replicas of {title(workload)} leaves none to evict",
            fix,
        )


def _amount(given: object, replicas: int) -> int:
    """Kubernetes rounds shares up, for both fields."""
    text = str(given)
    return ceil(replicas * int(text[:-1]) / 100) if text.endswith("%") else int(text)


MONITOR_REACHES_SERVICE = SetRule(
    "monitor-reaches-service",
    "A ServiceMonitor finds its Service and its port",
    ALWAYS_MANDATORY,
    _monitor_reaches_service,
)
DISRUPTION_BUDGET = SetRule(
    "disruption-budget", "A PodDisruptionBudget lets a pod drain", MANDATORY_FROM_STAGING, _disruption_budget
)
