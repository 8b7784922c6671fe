"""Recording rules and alerts of one workload, as groups of a PrometheusRule.

Each alert is labelled with the exporters that it needs. All are always there: without its exporter an alert has no
series and stays silent, which docs/observability.md says and tests/promql shows.

Where names and labels were read:
  engine              recording metrics/names.json of TEI 1.9.3 (tests/data/tei-1.9.3/metrics.json)
  keda                kedacore/keda v2.20.2, pkg/metricscollector/prommetrics.go
  kube-state-metrics  its docs/metrics: pod-metrics.md, horizontalpodautoscaler-metrics.md
  dcgm-exporter       its etc/default-counters.csv; labels namespace and pod where it maps GPUs to pods
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from infra.core.engines.tei import signals

#: Exporters, as the label ``exporter`` names them.
ENGINE: Final = "engine"
KEDA: Final = "keda"
KUBE_STATE: Final = "kube-state-metrics"
DCGM: Final = "dcgm-exporter"

#: Where the page of an alert lies in this repository; nobody knows under which host people read it.
RUNBOOKS: Final = "docs/runbooks"

#: TEI's buckets end at 14.6 s, so no quantile says more; the one below ends at 9.7 s.
_LONGEST_QUEUE_SECONDS = 9.0
#: Waiting that nobody calls interactive, where no need says what is too long.
_USUAL_QUEUE_SECONDS = 5.0
#: Refused requests per second and pod that are no accident, where no scaling says it.
_USUAL_OVERLOAD = 0.1
#: A CUDA context alone takes more than this, an unused GPU a few MiB (DCGM_FI_DEV_FB_USED is in MiB).
_UNUSED_GPU_MIB = 100
#: Real signals vary within this time; what KEDA takes during a fallback does not.
_STILL = "15m"

Rule = dict[str, Any]


@dataclass(frozen=True)
class ScalingLimits:
    """What KEDA was told. ``triggers`` is how many questions it asks."""

    queue_threshold: float
    overload_per_second: float
    min: int
    max: int
    triggers: int


@dataclass(frozen=True)
class EngineLimits:
    """What the signals of TEI are held against."""

    scrape_seconds: int
    #: Texts that one pod takes at once before it refuses.
    places: int
    #: Whether it scores texts instead of embedding them: other counters.
    scores: bool
    #: Texts per second that the workload was sized for, and the latency promised; None: no need says it.
    texts_per_second: float | None = None
    latency_ms: float | None = None


@dataclass(frozen=True)
class Watched:
    """A workload as its rules see it. ``workload`` is the name of its Deployment and of its ScaledObject."""

    workload: str
    namespace: str
    service: str
    gpus: int
    #: None: names of the engine's metrics are not known.
    engine: EngineLimits | None
    #: None: not scaled.
    scaling: ScalingLimits | None


def groups(watched: Watched) -> list[dict[str, Any]]:
    """Groups of a PrometheusRule: signals first, since alerts of the same group read what was just recorded."""
    rules = _Rules(watched)
    return [{"name": f"{watched.namespace}/{watched.workload}", "rules": [*rules.recorded(), *rules.alerts()]}]


class _Rules:
    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._target = f'namespace="{watched.namespace}",service="{watched.service}"'
        # Names of a Deployment's pods: its own, a hash of the template, five characters.
        self._pod = f"{watched.workload}-[a-z0-9]+-[a-z0-9]{{5}}"

    def recorded(self) -> Iterator[Rule]:
        """Signals under names that dashboards and people can use."""
        target, engine = self._target, self._watched.engine
        yield self._record("pods", f"count(max by (pod) (up{{{target}}} == 1))")
        if engine is None:
            return
        where = (self._watched.namespace, self._watched.service, engine.scrape_seconds)
        buckets = f"sum by (le) (rate(te_request_queue_duration_bucket{{{target}}}[5m]))"
        texts = "te_predict_count" if engine.scores else "te_embed_count"
        yield self._record("queue", signals.queue_depth(*where))
        yield self._record("overload", signals.overload_rate(*where))
        yield self._record("queue_seconds:p99", f"histogram_quantile(0.99, {buckets})")
        yield self._record("texts:rate5m", f"sum(rate({texts}{{{target}}}[5m]))")

    def alerts(self) -> Iterator[Rule]:
        """Every alert that has a meaning for this workload."""
        watched = self._watched
        if watched.engine:
            yield from self._of_engine(watched.engine)
        if watched.scaling:
            yield from self._of_scaling(watched.scaling)
        yield from self._of_pods()
        if watched.gpus:
            yield from self._of_gpus()

    def _of_engine(self, engine: EngineLimits) -> Iterator[Rule]:
        scaling = self._watched.scaling
        queue, pods = self._signal("queue"), self._signal("pods")
        waiting = scaling.queue_threshold if scaling else engine.places / 2
        refused = scaling.overload_per_second if scaling else _USUAL_OVERLOAD
        yield self._alert(
            "EmbeddingQueueGrows",
            f"{queue} / {pods} > {waiting:g} "
            f"and avg_over_time({queue}[10m]) > 1.2 * avg_over_time({queue}[10m] offset 10m)",
            lasting="5m",
            severity="warning",
            exporter=ENGINE,
            says=f"more than {waiting:g} texts wait per pod, and more than ten minutes ago",
        )
        yield self._alert(
            "EmbeddingOverload",
            f"{self._signal('overload')} / {pods} > {refused:g}",
            lasting="5m",
            severity="critical",
            exporter=ENGINE,
            says=f"each pod refuses more than {refused:g} requests per second (HTTP 429)",
        )
        longest = min(engine.latency_ms / 1000 if engine.latency_ms else _USUAL_QUEUE_SECONDS, _LONGEST_QUEUE_SECONDS)
        yield self._alert(
            "EmbeddingQueueTimeHigh",
            f"{self._signal('queue_seconds:p99')} > {longest:g}",
            lasting="10m",
            severity="warning",
            exporter=ENGINE,
            says=f"1 % of the requests wait longer than {longest:g} s before they are computed",
        )
        if engine.texts_per_second is not None:
            yield self._alert(
                "EmbeddingLoadOverBudget",
                f"{self._signal('texts:rate5m')} > {engine.texts_per_second:g}",
                lasting="15m",
                severity="warning",
                exporter=ENGINE,
                says=f"more texts arrive than the {engine.texts_per_second:g} per second that the need names",
            )

    def _of_scaling(self, scaling: ScalingLimits) -> Iterator[Rule]:
        watched, target = self._watched, self._target
        # The query of the queue gives 0 where pods can be read and have no queue; with traffic they have one.
        yield self._alert(
            "EmbeddingScalerBlind",
            f"absent(up{{{target}}} == 1) or "
            f"(sum(rate(te_request_success{{{target}}}[5m])) > 0 unless count(te_queue_size{{{target}}}))",
            lasting="5m",
            severity="critical",
            exporter=ENGINE,
            says="no pod can be read, or pods answer and their queue is not recorded: scaling has nothing to go by",
        )
        # While KEDA falls back it reports no error (GetMetricsWithFallback gives none) and takes for each question
        # threshold times replicas, which stays. So the errors tell when it begins, and values that stand still after.
        ours = f'scaledObject="{watched.workload}"'
        errors = self._foreign("keda_scaler_detail_errors_total", ours, "[15m]", "increase")
        least, most = (
            f"max by (scaler) ({self._foreign('keda_scaler_metrics_value', ours, f'[{_STILL}]', function)})"
            for function in ("min_over_time", "max_over_time")
        )
        yield self._alert(
            "EmbeddingScalerFallback",
            f"max(max by (scaler) ({errors}) > 2) or count({least} == {most} > 0) == {scaling.triggers}",
            lasting="1m",
            severity="warning",
            exporter=KEDA,
            says="KEDA got no answers from Prometheus and keeps the replicas as they are",
        )
        if scaling.max > scaling.min:
            hpa = f'horizontalpodautoscaler="keda-hpa-{watched.workload}"'
            desired = self._foreign("kube_horizontalpodautoscaler_status_desired_replicas", hpa)
            allowed = self._foreign("kube_horizontalpodautoscaler_spec_max_replicas", hpa)
            yield self._alert(
                "EmbeddingReplicasAtMaximum",
                f"max({desired}) >= max({allowed})",
                lasting="15m",
                severity="warning",
                exporter=KUBE_STATE,
                says=f"the autoscaler has asked for all {scaling.max} replicas for 15 minutes and can add none",
            )

    def _of_pods(self) -> Iterator[Rule]:
        unschedulable = self._of_pod("kube_pod_status_unschedulable")
        yield self._alert(
            "EmbeddingPodsPending",
            f"sum({unschedulable}) > 0",
            lasting="10m",
            severity="warning",
            exporter=KUBE_STATE,
            says="{{ $value }} pods find no node" + (", such as one with a free GPU" if self._watched.gpus else ""),
        )
        # An engine beside an app is an init container.
        restarts = " or ".join(
            self._of_pod(f"kube_pod_{kind}_status_restarts_total", "[30m]", "increase")
            for kind in ("container", "init_container")
        )
        yield self._alert(
            "EmbeddingRestartLoop",
            f"sum by (pod) ({restarts}) > 2",
            lasting="",
            severity="critical",
            exporter=KUBE_STATE,
            says="pod {{ $labels.pod }} was restarted more than twice in 30 minutes",
        )

    def _of_gpus(self) -> Iterator[Rule]:
        used = self._of_pod("DCGM_FI_DEV_FB_USED")
        yield self._alert(
            "EmbeddingGpuIdle",
            f"max by (pod) ({self._of_pod('DCGM_FI_DEV_GPU_UTIL', '[5m]', 'max_over_time')}) == 0",
            lasting="1h",
            severity="info",
            exporter=DCGM,
            says="the GPU of pod {{ $labels.pod }} has computed nothing for an hour",
        )
        # Engines open their port when the model is loaded, so what can be scraped has to hold GPU memory.
        yield self._alert(
            "EmbeddingEngineOnCpu",
            f"max by (pod) ({used}) < {_UNUSED_GPU_MIB} and on (pod) max by (pod) (up{{{self._target}}} == 1)",
            lasting="5m",
            severity="critical",
            exporter=f"{DCGM}, {ENGINE}",
            says="pod {{ $labels.pod }} is up and its GPU holds no model: the engine computes on the CPU",
        )

    def _of_pod(self, metric: str, window: str = "", function: str = "") -> str:
        """A metric of another exporter for our pods, with the label ``pod`` in any case; see `_foreign`."""
        plain, renamed = self._both(metric, f'pod=~"{self._pod}"', f'exported_pod=~"{self._pod}"', window, function)
        return f'{plain} or label_replace({renamed}, "pod", "$1", "exported_pod", "(.+)")'

    def _foreign(self, metric: str, labels: str, window: str = "", function: str = "") -> str:
        """A metric of another exporter about objects of our namespace.

        Prometheus renames labels that a target has itself unless the monitor says honorLabels, which charts differ in.
        """
        return " or ".join(self._both(metric, labels, labels, window, function))

    def _both(self, metric: str, plain: str, renamed: str, window: str, function: str) -> tuple[str, str]:
        namespace = self._watched.namespace
        selectors = (
            f'{metric}{{namespace="{namespace}",{plain}}}{window}',
            f'{metric}{{exported_namespace="{namespace}",{renamed}}}{window}',
        )
        first, second = (f"{function}({selector})" if function else selector for selector in selectors)
        return first, second

    def _signal(self, name: str) -> str:
        return f"embedding_serving:{name}{{{self._target}}}"

    def _record(self, name: str, query: str) -> Rule:
        watched = self._watched
        labels = {"namespace": watched.namespace, "service": watched.service, "workload": watched.workload}
        return {"record": f"embedding_serving:{name}", "expr": query, "labels": labels}

    def _alert(self, name: str, query: str, *, lasting: str, severity: str, exporter: str, says: str) -> Rule:
        watched = self._watched
        return {
            "alert": name,
            "expr": query,
            **({"for": lasting} if lasting else {}),
            "labels": {
                "severity": severity,
                "exporter": exporter,
                "namespace": watched.namespace,
                "service": watched.service,
                "workload": watched.workload,
            },
            "annotations": {
                "summary": f"{watched.namespace}/{watched.workload}: {says}",
                "runbook_url": f"{RUNBOOKS}/{name}.md",
            },
        }
