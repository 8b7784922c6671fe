"""Rules about a ScaledObject by itself. Source: KEDA 2.20.2 (apis/keda/v1alpha1, pkg/scalers/prometheus_scaler.go).

KEDA's webhook says some of this too, but it lets objects pass when it is not reachable (failurePolicy: Ignore), it only
warns of others, and much of it shows when Prometheus is gone, which is too late.
"""

from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from math import isfinite
from urllib.parse import urlsplit

from infra.core.rules import promql
from infra.core.rules.objects import Object, name, whole
from infra.core.rules.rule import ALWAYS_MANDATORY, Finding, ObjectRule

#: Triggers on what a container uses, which KEDA hands over to the HorizontalPodAutoscaler as they are.
RESOURCE_TRIGGERS = frozenset({"cpu", "memory"})
#: Of names that become values of labels.
_LONGEST_NAME = 63
_HPA_PREFIX = "keda-hpa-"
_DEFAULT_MAX_REPLICAS = 100


def fewest(spec: Object) -> int:
    """minReplicaCount, and what KEDA takes where there is none."""
    return whole(spec.get("minReplicaCount", 0)) or 0


def scales_to_zero(spec: Object) -> bool:
    """Whether the workload has no pod at all in quiet hours."""
    return fewest(spec) == 0 or whole(spec.get("idleReplicaCount")) == 0


def prometheus_triggers(spec: Object) -> Iterator[tuple[str, Object]]:
    """Path and trigger of each question to Prometheus."""
    for index, trigger in enumerate(spec.get("triggers", ())):
        if trigger.get("type") == "prometheus":
            yield f"spec.triggers[{index}]", trigger


def _scaled_object(given: Object) -> Iterable[Finding]:
    if given.get("kind") != "ScaledObject":
        return
    spec = given.get("spec", {})
    yield from _names(given, spec)
    yield from _replicas(spec)
    triggers = spec.get("triggers", ())
    for index, trigger in enumerate(triggers):
        yield from _texts(f"spec.triggers[{index}].metadata", trigger.get("metadata", {}))
    fallback = "fallback" in spec
    if fallback and triggers and all(trigger.get("type") in RESOURCE_TRIGGERS for trigger in triggers):
        yield Finding(
            "spec.fallback", "KEDA has none for triggers on cpu and memory", "Remove it, or ask Prometheus as well"
        )
    for path, trigger in prometheus_triggers(spec):
        yield from _prometheus(path, trigger, fallback=fallback)


def _names(given: Object, spec: Object) -> Iterator[Finding]:
    own = name(given)
    config = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
    chosen = config.get("name")
    if chosen is None and len(_HPA_PREFIX + own) > _LONGEST_NAME:
        yield Finding(
            "metadata.name",
            f"{own!r} has {len(own)} characters, and the HorizontalPodAutoscaler {_HPA_PREFIX}{own} more than "
            f"{_LONGEST_NAME}",
            f"Use {_LONGEST_NAME - len(_HPA_PREFIX)} characters or fewer",
        )
    elif len(own) > _LONGEST_NAME:
        yield Finding("metadata.name", f"{own!r} has {len(own)} characters", f"Use {_LONGEST_NAME} or fewer")
    if chosen is not None and len(str(chosen)) > _LONGEST_NAME:
        yield Finding(
            "spec.advanced.horizontalPodAutoscalerConfig.name",
            f"{chosen!r} has {len(str(chosen))} characters",
            f"Use {_LONGEST_NAME} or fewer",
        )


def _replicas(spec: Object) -> Iterator[Finding]:
    least, idle = fewest(spec), whole(spec.get("idleReplicaCount"))
    most = whole(spec.get("maxReplicaCount", _DEFAULT_MAX_REPLICAS))
    if most is not None and least > most:
        yield Finding("spec.minReplicaCount", f"{least} is more than maxReplicaCount ({most})", "Swap or change them")
    if idle is not None and (idle != 0 or least == 0):
        yield Finding(
            "spec.idleReplicaCount",
            f"{idle} with a minReplicaCount of {least}: KEDA takes 0 only, below a minimum of 1 or more",
            "Remove it, or give 0 and raise minReplicaCount",
        )
    if scales_to_zero(spec):
        return
    if "cooldownPeriod" in spec:
        yield Finding(
            "spec.cooldownPeriod",
            f"it counts from one replica to none only, and there are never fewer than {least}",
            "Remove it; advanced.horizontalPodAutoscalerConfig.behavior.scaleDown.stabilizationWindowSeconds is what "
            "keeps replicas after a peak",
        )
    cached = any(trigger.get("useCachedMetrics") for trigger in spec.get("triggers", ()))
    if "pollingInterval" in spec and not cached:
        yield Finding(
            "spec.pollingInterval",
            f"it counts for scaling from none only, and there are never fewer than {least}: from one replica on the "
            "HorizontalPodAutoscaler asks, every 15 s",
            "Remove it",
        )


def _texts(path: str, metadata: Object) -> Iterator[Finding]:
    for key in metadata:
        value = metadata[key]
        if not isinstance(value, str):
            shown = str(value).lower() if isinstance(value, bool) else value
            yield Finding(
                f"{path}.{key}",
                f"{shown} is no text, and the API server takes texts only",
                f'Write "{shown}"' if isinstance(value, bool | int | float) else "Write a text in quotes",
            )


def _prometheus(path: str, trigger: Object, *, fallback: bool) -> Iterator[Finding]:
    metadata = trigger.get("metadata", {})
    yield from _server(f"{path}.metadata.serverAddress", metadata.get("serverAddress"))
    threshold = metadata.get("threshold")
    if not _above_zero(threshold):
        shown = "there is none" if threshold is None else f"{threshold!r} is no number above 0"
        yield Finding(f"{path}.metadata.threshold", shown, "Give what one replica may carry")
    metric_type = trigger.get("metricType")
    if metric_type != "AverageValue" and (fallback or metric_type != "Value"):
        yield Finding(
            f"{path}.metricType",
            "there is none, and releases of KEDA differ in whether fallback works then"
            if metric_type is None
            else f"with {metric_type} the fallback does not work in every release of KEDA"
            if metric_type == "Value"
            else f"{metric_type!r} is none of KEDA's for what Prometheus says",
            "Say AverageValue",
        )
    ignore = metadata.get("ignoreNullValues")
    lenient = str(ignore).lower() != "false"
    if lenient and fallback:
        yield Finding(
            f"{path}.metadata.ignoreNullValues",
            "an empty answer counts as 0 and not as an error, so that lost targets scale the workload down and the "
            "fallback never comes into force",
            'Give "false"',
        )
    elif ignore is None:
        yield Finding(
            f"{path}.metadata.ignoreNullValues",
            "there is none: an empty answer counts as 0, so that an outage of the scraping scales the workload down",
            'Give "false", and a query that says 0 for pods without load; or say "true", if that is what is meant',
        )


def _above_zero(threshold: object) -> bool:
    try:
        number = float(str(threshold))
    except ValueError:
        return False
    return isfinite(number) and number > 0


def _server(path: str, address: object) -> Iterator[Finding]:
    fix = "Give http://SERVICE.NAMESPACE.svc.cluster.local:PORT: KEDA asks from its own namespace"
    if address is None:
        yield Finding(path, "there is none", fix)
        return
    try:
        parts = urlsplit(str(address))
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        yield Finding(path, f"{address!r} is no URL", fix)
        return
    if parts.scheme not in {"http", "https"} or not host:
        yield Finding(path, f"{address!r} is no URL with http:// or https://", fix)
    elif _loopback(host):
        yield Finding(path, f"{host} is KEDA's own pod", fix)
    elif "." not in host and ":" not in host:
        yield Finding(path, f"{host!r} has no namespace, and KEDA would look for it in its own", fix)


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _scaling_query(given: Object) -> Iterable[Finding]:
    if given.get("kind") != "ScaledObject":
        return
    for path, trigger in prometheus_triggers(given.get("spec", {})):
        query = str(trigger.get("metadata", {}).get("query", ""))
        try:
            result = promql.result_of(query)
        except promql.UnreadableQueryError as error:
            yield Finding(f"{path}.metadata.query", f"it is no PromQL at {str(error)!r}", "Close brackets and quotes")
            continue
        if result is None:
            continue
        if result.scalar:
            yield Finding(
                f"{path}.metadata.query",
                "it gives a scalar, which KEDA cannot read: it wants a vector with one element",
                "Leave the outer scalar() out, or put vector() around it",
            )
        elif not result.single:
            varying = f", one for each {', '.join(sorted(result.labels))}" if result.labels else ""
            yield Finding(
                f"{path}.metadata.query",
                f"it can give several elements{varying}, and KEDA ends with an error then",
                "Put sum() around it, without by or without",
            )


SCALED_OBJECT = ObjectRule("scaled-object", "KEDA does what a ScaledObject says", ALWAYS_MANDATORY, _scaled_object)
SCALING_QUERY = ObjectRule("scaling-query", "A scaling query gives one number", ALWAYS_MANDATORY, _scaling_query)
