"""What Prometheus knows of the workloads: without it nothing scales and nobody is told."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import requests

from infra.core.contract import Contract, WorkloadContract
from infra.core.errors import counted
from scripts.access import Access, ForwardError
from scripts.smoke.cluster import DeployedWorkload
from scripts.smoke.results import Check, NotProvenError, PendingError, UnmetError, UnreachableError, patient

#: Until prometheus-operator has written a new ServiceMonitor into the configuration and Prometheus has read it.
_DISCOVERY_SECONDS = 60
#: Scrapes that may fail or come too early.
_SCRAPES = 4
_TIMEOUT = 10

#: What queries of scaling and alerts read (tests/data/tei-1.9.3/metrics.json). Absent until the first request.
_SERIES = ("te_queue_size", "te_request_count", "te_request_duration_bucket")

_IN_CLUSTER = re.compile(r"http://([a-z0-9-]+)\.([a-z0-9-]+)\.svc(?:\.[a-z0-9.-]+)?(?::([0-9]+))?(/.*)?")


@dataclass(frozen=True)
class Sample:
    """One number of an answer, with its labels."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Place:
    """A Service of the cluster, and what its URL has behind the port."""

    service: str
    namespace: str
    port: int
    path: str


def service_of(address: str) -> Place | None:
    """The Service that an address of the contract names; None where it names none, or speaks TLS."""
    found = _IN_CLUSTER.fullmatch(address)
    if found is None:
        return None
    service, namespace, port, path = found.groups()
    return Place(service, namespace, int(port or 80), (path or "").rstrip("/"))


class Prometheus:
    """A Prometheus at ``url``; None: not reached, because of ``reason``."""

    def __init__(self, url: str | None, reason: UnmetError | NotProvenError | None = None) -> None:
        self._url = url
        self._reason = reason
        self._session = requests.Session()
        # The way to the Service is loopback: a proxy of the environment would be asked for its own loopback.
        self._session.trust_env = False

    def reached(self) -> str:
        """That it answers. Raises UnmetError, and NotProvenError where another way than from here leads to it."""
        if self._reason:
            raise self._reason
        samples = self.query("count(up)")
        number = int(samples[0].value) if samples else 0
        return f"answers, and has {counted(number, 'target')}"

    def query(self, text: str) -> list[Sample]:
        """The answer to an instant query, as KEDA asks it.

        Raises UnmetError for a query that is refused, UnreachableError without an answer, and NotProvenError where
        there is no way to it.
        """
        if self._url is None:
            raise NotProvenError("Prometheus was not reached")
        step = "see the check Prometheus; KEDA asks it for every decision"
        try:
            answer = self._session.get(f"{self._url}/api/v1/query", params={"query": text}, timeout=_TIMEOUT)
            body: Any = answer.json()
        except requests.JSONDecodeError:
            raise UnmetError(f"GET /api/v1/query: {answer.status_code}, and no JSON", step) from None
        except requests.RequestException as error:
            raise UnreachableError(f"GET /api/v1/query: {type(error).__name__}", step) from None
        if not isinstance(body, dict) or body.get("status") != "success":
            said = body.get("error") if isinstance(body, dict) else None
            raise UnmetError(f"GET /api/v1/query: {answer.status_code} {said}", step)
        data = body["data"]
        if data["resultType"] == "scalar":
            return [Sample({}, float(data["result"][1]))]
        return [Sample(sample["metric"], float(sample["value"][1])) for sample in data["result"]]


@contextmanager
def opened(contract: Contract, access: Access) -> Iterator[Prometheus | None]:
    """The Prometheus of the contract, by port-forward where its address is a Service; None where nothing is scraped."""
    if contract.monitoring is None:
        yield None
        return
    address: str = contract.monitoring["address"]
    place = service_of(address)
    if place is None:
        reason = f"{address} is no Service behind http: only the cluster's own way leads to it, which KEDA takes"
        yield Prometheus(None, NotProvenError(reason))
        return
    with ExitStack() as stack:
        try:
            url = stack.enter_context(access.forward(place.namespace, f"service/{place.service}", place.port))
        except ForwardError as error:
            prometheus = Prometheus(None, _no_way(place.namespace, place.service, str(error)))
        else:
            prometheus = Prometheus(url + place.path)
        yield prometheus


def _no_way(namespace: str, service: str, said: str) -> UnmetError | NotProvenError:
    if "forbidden" in said.lower():
        return NotProvenError(f"kubectl port-forward to Service {namespace}/{service}: {said}")
    return UnmetError(
        f"kubectl port-forward to Service {namespace}/{service}: {said}",
        f"KEDA does not reach it either, and scales nothing: kubectl -n {namespace} get services,pods, or correct "
        "monitoring.address of the stack file",
    )


class MonitoredWorkload:
    """A workload of the contract, as Prometheus sees it. ``wait_seconds`` None: as long as scrapes may take."""

    def __init__(
        self,
        workload: WorkloadContract,
        monitoring: Mapping[str, Any],
        prometheus: Prometheus,
        deployed: DeployedWorkload,
        wait_seconds: float | None = None,
    ) -> None:
        self._workload = workload
        self._monitoring = monitoring
        self._prometheus = prometheus
        self._deployed = deployed
        every: int = monitoring["scrape_seconds"]
        self._wait = _DISCOVERY_SECONDS + _SCRAPES * every if wait_seconds is None else wait_seconds
        self._labels = f'namespace="{workload.namespace}",service="{workload.service}"'

    def checks(self) -> list[Check]:
        """What has to hold after requests were answered."""
        return [
            Check("scrape targets", patient(self.targets, self._wait)),
            # No page names the series of a NIM.
            *([Check("series", patient(self.series, self._wait))] if self._workload.engine == "tei" else []),
            *([Check("scaling queries", patient(self.queries, self._wait))] if self._workload.scaling else []),
        ]

    def targets(self) -> str:
        """Every ready pod is a target, and its last scrape worked."""
        workload = self._workload
        up: dict[str | None, float] = {}
        for sample in self._prometheus.query(f"up{{{self._labels}}}"):
            # A pod with two ports for metrics is two targets: it is up when both are.
            up[sample.labels.get("pod")] = min(sample.value, up.get(sample.labels.get("pod"), 1.0))
        ready = [name for name, state in self._deployed.states().items() if state.ready]
        if not ready:
            raise PendingError(UnmetError("no pod is ready", f"kubectl -n {workload.namespace} get pods"))
        if missing := [name for name in ready if name not in up]:
            labels = ", ".join(f"{key}={value}" for key, value in self._monitoring["labels"].items())
            raise PendingError(
                UnmetError(
                    f"{counted(len(missing), 'ready pod')} of {len(ready)} no target of Prometheus: "
                    + ", ".join(missing),
                    f"does Prometheus select ServiceMonitors by {labels or 'the labels of monitoring.labels'} in "
                    f"namespace {workload.namespace}? kubectl get prometheuses -A -o yaml, "
                    f"kubectl -n {workload.namespace} get servicemonitor {workload.name} -o yaml",
                )
            )
        if down := [name for name in ready if up[name] != 1]:
            namespace = self._monitoring["namespace"] or "of Prometheus"
            raise PendingError(
                UnmetError(
                    f"up is 0 for {', '.join(down)}",
                    f"Prometheus cannot read port {workload.metrics_port}, path {workload.metrics_path}: does the "
                    f"NetworkPolicy let namespace {namespace} in, and do its pods run there?",
                )
            )
        return f"up is 1 for {counted(len(ready), 'ready pod')} of Service {workload.service}"

    def series(self) -> str:
        """The series of the engine exist once requests were answered."""
        found = self._prometheus.query(f'count by (__name__) ({{__name__=~"te_.+",{self._labels}}})')
        names = {sample.labels.get("__name__") for sample in found}
        if missing := [name for name in _SERIES if name not in names]:
            raise PendingError(
                UnmetError(
                    f"requests were answered, and Prometheus has no {', '.join(missing)} of Service "
                    f"{self._workload.service}",
                    "see scrape targets; does metricRelabelings of the ServiceMonitor or of Prometheus drop te_*?",
                )
            )
        return f"{len(names)} metrics named te_*, {', '.join(_SERIES)} among them"

    def queries(self) -> str:
        """Each trigger's query answers with one number, which is what KEDA takes."""
        scaling = self._workload.scaling or {}
        said = []
        for trigger in scaling["triggers"]:
            samples = self._prometheus.query(trigger["query"])
            name = trigger["name"]
            if not samples:
                raise PendingError(
                    UnmetError(
                        f"the query of trigger {name} has no answer although pods are ready: KEDA falls back",
                        "see scrape targets; the query is in the ScaledObject, ask Prometheus for its parts",
                    )
                )
            if len(samples) > 1:
                raise UnmetError(
                    f"the query of trigger {name} gives {len(samples)} numbers: KEDA takes one and falls back",
                    "the series have other labels than planned: compare up and te_queue_size in Prometheus",
                )
            if not math.isfinite(samples[0].value):
                raise PendingError(
                    UnmetError(
                        f"the query of trigger {name} gives {samples[0].value}: KEDA falls back", "see scrape targets"
                    )
                )
            said.append(f"{name} {samples[0].value:g} (a replica per {trigger['threshold']})")
        return ", ".join(said)
