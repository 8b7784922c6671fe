"""What KEDA made of a workload's ScaledObject. That it says Ready proves nothing: it says so in Fallback as well."""

import json
import re
from collections.abc import Mapping
from typing import Any

from infra.core.contract import WorkloadContract
from scripts.access import Access, NotFoundError
from scripts.smoke.results import Check, NotProvenError, PendingError, UnmetError, patient

#: Three looks of the HPA, which come every 15 s, and KEDA's own.
_WAIT_SECONDS = 60
#: As the HPA shows its metrics: 0, 8, 1500m.
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?[mkMG]?")


class ScaledWorkload:
    """A workload of the contract that has ``scaling``."""

    def __init__(self, workload: WorkloadContract, access: Access, wait_seconds: float = _WAIT_SECONDS) -> None:
        self._workload = workload
        self._access = access
        self._wait = wait_seconds
        self._scaling: Mapping[str, Any] = workload.scaling or {}
        self._hpa = f"keda-hpa-{self._scaling['name']}"
        self._look = f"kubectl -n {workload.namespace} describe scaledobject {self._scaling['name']}"

    def checks(self) -> list[Check]:
        return [
            Check("ScaledObject", patient(self.scaled_object, self._wait)),
            Check("autoscaler", patient(self.autoscaler, self._wait)),
        ]

    def scaled_object(self) -> str:
        """Ready, not paused, and not in Fallback."""
        name = self._scaling["name"]
        try:
            found = self._get("scaledobjects", name)
        except NotFoundError as error:
            raise UnmetError(
                str(error), "was it, or KEDA, deleted by hand? pulumi up --refresh makes it again"
            ) from None
        status: Mapping[str, Any] = found.get("status") or {}
        conditions = _conditions(status)
        ready, fallback = _state(conditions, "Ready"), _state(conditions, "Fallback")
        if ready != "True":
            said = (conditions.get("Ready") or {}).get("message") or "no reason given"
            raise PendingError(UnmetError(f"Ready is {ready}: {said}", self._look))
        if _state(conditions, "Paused") == "True":
            raise UnmetError(
                "Paused is True: nothing is scaled",
                f"kubectl -n {self._workload.namespace} annotate scaledobject {name} autoscaling.keda.sh/paused- "
                "autoscaling.keda.sh/paused-replicas- ends it",
            )
        if fallback == "True":
            raise PendingError(
                UnmetError(
                    f"Ready is True and Fallback too: KEDA gets no answer to {_failing(status) or 'its queries'}, and "
                    "replicas stay as they are",
                    f"is {self._scaling['server_address']} a Prometheus that answers from KEDA's namespace? See the "
                    "checks Prometheus and scaling queries, and the log of keda-operator",
                )
            )
        if fallback != "False":
            raise PendingError(NotProvenError(f"Ready is True; Fallback is {fallback}: KEDA does not say"))
        if failing := _failing(status):
            raise PendingError(UnmetError(f"Fallback is False, but questions fail: {failing}", self._look))
        return "Ready is True, Fallback is False"

    def autoscaler(self) -> str:
        """KEDA's HPA is the only one of the Deployment, gets numbers, and stays within the planned replicas."""
        workload, scaling = self._workload, self._scaling
        every = {hpa["metadata"]["name"]: hpa for hpa in self._get("horizontalpodautoscalers")["items"]}
        others = [name for name, hpa in every.items() if name != self._hpa and self._scales(hpa)]
        if others:
            raise UnmetError(
                f"Deployment {workload.deployment} has another autoscaler: {', '.join(others)}",
                f"two undo each other's replicas: kubectl -n {workload.namespace} delete hpa {others[0]}",
            )
        hpa = every.get(self._hpa)
        if hpa is None or not self._scales(hpa):
            raise PendingError(
                UnmetError(f"there is no HPA {self._hpa} of Deployment {workload.deployment}", self._look)
            )
        least, most = hpa["spec"].get("minReplicas", 1), hpa["spec"]["maxReplicas"]
        if (least, most) != (scaling["min"], scaling["max"]):
            raise PendingError(
                UnmetError(
                    f"{self._hpa} keeps {least} to {most} replicas, planned {scaling['min']} to {scaling['max']}",
                    "somebody changed the ScaledObject: pulumi up --refresh sets it back",
                )
            )
        status: Mapping[str, Any] = hpa.get("status") or {}
        active = _conditions(status).get("ScalingActive") or {}
        describe = f"kubectl -n {workload.namespace} describe hpa {self._hpa}"
        if active.get("status") != "True":
            said = active.get("message") or "it has not looked yet"
            state = active.get("status", "missing")
            raise PendingError(UnmetError(f"{self._hpa}: ScalingActive is {state}: {said}", describe))
        values = _values(status)
        if len(values) < len(scaling["triggers"]):
            raise PendingError(
                UnmetError(
                    f"{self._hpa} has a number for {len(values)} of {len(scaling['triggers'])} triggers", describe
                )
            )
        current = status.get("currentReplicas", 0)
        if not scaling["min"] <= current <= scaling["max"]:
            raise PendingError(
                UnmetError(
                    f"{self._hpa} counts {current} replicas, planned {scaling['min']} to {scaling['max']}", describe
                )
            )
        shown = ", ".join(
            f"{trigger['name']} {value} of {trigger['threshold']}"
            for trigger, value in zip(scaling["triggers"], values, strict=False)
        )
        return f"{self._hpa}: {current} of {scaling['min']} to {scaling['max']} replicas; {shown}"

    def _scales(self, hpa: Mapping[str, Any]) -> bool:
        target = hpa["spec"]["scaleTargetRef"]
        return (target["kind"], target["name"]) == ("Deployment", self._workload.deployment)

    def _get(self, *arguments: str) -> Any:
        return json.loads(self._access.run("get", *arguments, "-n", self._workload.namespace, "-o", "json"))


def _conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {condition["type"]: condition for condition in status.get("conditions") or []}


def _state(conditions: Mapping[str, Mapping[str, Any]], kind: str) -> str:
    return str((conditions.get(kind) or {}).get("status", "missing"))


def _failing(status: Mapping[str, Any]) -> str:
    """Metrics that KEDA could not read when it last asked, with how often in a row."""
    health: Mapping[str, Mapping[str, Any]] = status.get("health") or {}
    return ", ".join(
        f"{metric} ({entry.get('numberOfFailures')} times)"
        for metric, entry in health.items()
        if entry.get("status") == "Failing" or entry.get("numberOfFailures")
    )


def _values(status: Mapping[str, Any]) -> list[str]:
    """Current values of the metrics that KEDA serves, in the order of the triggers: they are named s0-…, s1-…"""
    found = {}
    for metric in status.get("currentMetrics") or []:
        external = metric.get("external") or {}
        current = external.get("current") or {}
        value = str(current.get("averageValue") or current.get("value") or "")
        if _NUMBER.fullmatch(value):
            found[str(external.get("metric", {}).get("name"))] = value
    return [found[name] for name in sorted(found)]
