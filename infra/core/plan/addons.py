"""Operators that the stack installs or expects, and the Prometheus among them."""

from infra.core import catalogue
from infra.core.errors import Refusal, quoted
from infra.core.plan.values import PlannedAddon, PlannedMonitoring
from infra.core.settings import Images, Stack

#: Key under ``stack.addons`` -> name in the catalogue, in the order in which they are installed.
_NAMES = {
    "prometheus": "prometheus",
    "keda": "keda",
    "metricsServer": "metrics-server",
    "externalSecrets": "external-secrets",
}
#: The Prometheus of the catalogue's objects, and the label by which it selects.
_ADDRESS = "http://prometheus.monitoring.svc.cluster.local:9090"
_LABELS = {"release": "embedding-serving"}
_POD_LABELS = {"app.kubernetes.io/name": "prometheus", "operator.prometheus.io/name": "embedding-serving"}


def mirrored(image: str, images: Images) -> str:
    """``image`` as it is pulled here."""
    registry, _, rest = image.partition("/")
    return f"{images.mirrors.get(registry, registry)}/{rest}"


def planned(stack: Stack) -> tuple[PlannedAddon, ...]:
    """The operators that this stack installs."""
    rows = catalogue.addons()
    chosen = stack.addons.model_dump(by_alias=True)
    return tuple(
        PlannedAddon(
            name=row.name,
            version=row.version,
            namespace=row.namespace,
            images={image: mirrored(image, stack.images) for image in row.images},
        )
        for key, name in _NAMES.items()
        if chosen[key] == "install" and (row := rows[name])
    )


def registries() -> set[str]:
    """Hosts that images of operators come from."""
    return {image.partition("/")[0] for row in catalogue.addons().values() for image in row.images}


def monitoring(stack: Stack, refusals: list[Refusal]) -> PlannedMonitoring | None:
    """The Prometheus of this stack; None where ``addons.prometheus`` is absent."""
    given, mode = stack.monitoring, stack.addons.prometheus
    written = {
        "address": given.address,
        "namespace": given.namespace,
        "podLabels": given.pod_labels or None,
        "labels": given.labels,
    }

    def refuse(key: str, value: object, allowed: str, why: str) -> None:
        refusals.append(Refusal(f"stack.monitoring.{key}", quoted(value), allowed, why))

    if mode != "existing":
        for key, value in written.items():
            if value is not None:
                why = f"stack.addons.prometheus is {mode or 'absent'}: there is no other Prometheus to describe."
                refuse(key, value, "absent, or addons.prometheus: existing", why)
        if mode is None:
            return None
        namespace = catalogue.addons()["prometheus"].namespace
        return PlannedMonitoring(_ADDRESS, namespace, dict(_POD_LABELS), dict(_LABELS), given.scrape_seconds)
    if given.labels is None:
        why = "It takes the ServiceMonitors that have its labels; of kube-prometheus-stack that is the release."
        refuse("labels", None, "such as {release: kube-prometheus-stack}, or {} where it takes all", why)
    if given.namespace is None and (closed := [at for at, one in enumerate(stack.serving) if one.clients is not None]):
        why = f"serving[{closed[0]}].clients lets nobody else in, so that Prometheus has to be named as well."
        refuse("namespace", None, "the namespace of its pods", why)
    if given.address is None:
        why = "stack.addons.prometheus is existing, and KEDA and the smoke test ask it."
        refuse("address", None, f"its URL inside the cluster, such as {_ADDRESS}", why)
        return None
    pods, labels = dict(given.pod_labels), dict(given.labels or {})
    return PlannedMonitoring(given.address, given.namespace, pods, labels, given.scrape_seconds)
