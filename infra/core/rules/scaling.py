"""Rules about who decides the number of replicas, and on what signal."""

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from infra.core.rules import promql
from infra.core.rules.images import engine_of, wants_gpu
from infra.core.rules.keda import RESOURCE_TRIGGERS, prometheus_triggers, scales_to_zero
from infra.core.rules.objects import Object, Pod, name, namespace, pod_of, title, whole
from infra.core.rules.rule import ALWAYS_MANDATORY, Finding, ObjectRule, SetRule

#: (namespace, kind, name) of a workload.
Target = tuple[str, str, str]


def scaled(given: Iterable[Object]) -> dict[Target, list[Object]]:
    """The workloads that a ScaledObject or a HorizontalPodAutoscaler names, each with those that name it."""
    found: dict[Target, list[Object]] = defaultdict(list)
    for one in given:
        if one.get("kind") in {"ScaledObject", "HorizontalPodAutoscaler"}:
            target = one.get("spec", {}).get("scaleTargetRef", {})
            found[(namespace(one), str(target.get("kind", "Deployment")), str(target.get("name", "")))].append(one)
    return found


def target_of(workload: Object) -> Target:
    """How scalers name ``workload``."""
    return (namespace(workload), str(workload.get("kind")), name(workload))


def _replicas_beside_scaler(given: Sequence[Object]) -> Iterable[tuple[Object, Finding]]:
    targets = scaled(given)
    for one in given:
        if one.get("kind") in {"Deployment", "StatefulSet"} and "replicas" in one.get("spec", {}):
            for scaler in targets.get(target_of(one), ()):
                finding = Finding(
                    "spec.replicas",
                    f"{title(scaler)} sets it too: every deployment would put the number back, or end in a conflict",
                    "Leave it out; the scaler's minimum is what counts",
                )
                yield one, finding


def _one_scaler(given: Sequence[Object]) -> Iterable[tuple[Object, Finding]]:
    for (_, kind, target), scalers in scaled(given).items():
        first = title(scalers[0])
        for other in scalers[1:]:
            finding = Finding(
                "spec.scaleTargetRef",
                f"{kind} {target} is scaled by {first} already; two scalers undo each other's numbers",
                "Keep one of them: a ScaledObject makes its own HorizontalPodAutoscaler",
            )
            yield other, finding


def _of_pods(given: Sequence[Object]) -> Iterator[tuple[Object, Object, Pod]]:
    """Scaler, workload and its pod, of each pair that is deployed together."""
    targets = scaled(given)
    for workload in given:
        pod = pod_of(workload)
        if pod is not None:
            for scaler in targets.get(target_of(workload), ()):
                yield scaler, workload, pod


def _gpu_scaling(given: Sequence[Object]) -> Iterable[tuple[Object, Finding]]:
    for scaler, workload, pod in _of_pods(given):
        if not any(wants_gpu(container) for container in pod.running()):
            continue
        for path, resource in _resources(scaler):
            finding = Finding(
                path,
                f"{title(workload)} computes on a GPU: its {resource} says nothing of how much waits",
                "Scale on the engine's queue, by a ScaledObject that asks Prometheus",
            )
            yield scaler, finding


def _resources(scaler: Object) -> Iterator[tuple[str, str]]:
    """Path and name of each resource by whose use ``scaler`` scales."""
    spec = scaler.get("spec", {})
    if scaler.get("kind") == "ScaledObject":
        for index, trigger in enumerate(spec.get("triggers", ())):
            if trigger.get("type") in RESOURCE_TRIGGERS:
                yield f"spec.triggers[{index}]", str(trigger["type"])
        return
    if not spec.get("metrics"):
        # Kubernetes takes 80 % of the CPU where nothing is said, in autoscaling/v1 always the CPU.
        yield "spec.metrics", "cpu"
    for index, metric in enumerate(spec.get("metrics", ())):
        for source in ("resource", "containerResource"):
            if source in metric:
                yield f"spec.metrics[{index}].{source}", str(metric[source].get("name"))


def _scale_to_zero(given: Sequence[Object]) -> Iterable[tuple[Object, Finding]]:
    for scaler, workload, pod in _of_pods(given):
        spec = scaler.get("spec", {})
        if scaler.get("kind") != "ScaledObject" or not scales_to_zero(spec):
            continue
        if not any(engine_of(container) for container in pod.running()):
            continue
        triggers = spec.get("triggers", ())
        if triggers and all(_of_the_workload(trigger) for trigger in triggers):
            field = "minReplicaCount" if whole(spec.get("idleReplicaCount")) is None else "idleReplicaCount"
            finding = Finding(
                f"spec.{field}",
                f"with 0 pods nothing of {title(workload)} can be measured, so that it never starts again",
                "Keep 1 replica or more, or add a trigger on what stands in front of it: a gateway, a queue",
            )
            yield scaler, finding


def _of_the_workload(trigger: Object) -> bool:
    """Whether a trigger asks for what only running engines say."""
    if trigger.get("type") in RESOURCE_TRIGGERS:
        return True
    if trigger.get("type") != "prometheus":
        return False
    try:
        asked = promql.metrics(str(trigger.get("metadata", {}).get("query", "")))
    except promql.UnreadableQueryError:
        return False
    return bool(asked & SIGNALS) and asked <= SIGNALS | {"up"}


#: TEI's metrics. Source: text-embeddings-inference 0d124dc (2026-07-24), `te_` in core/ and router/; counters carry no
#: _total. A histogram has the suffixes _bucket, _sum and _count.
_TEI_COUNTERS = {
    *(f"te_request_{what}" for what in ("count", "success", "failure")),
    *(f"te_{api}_{what}" for api in ("embed", "predict") for what in ("count", "success")),
}
_TEI_HISTOGRAMS = {
    *(
        f"te_{api}_{step}duration"
        for api in ("request", "embed", "predict")
        for step in ("", "tokenization_", "queue_", "inference_")
    ),
    "te_request_input_length",
    "te_batch_next_size",
    "te_batch_next_tokens",
}
_TEI_GAUGES = {"te_queue_size"}
#: Triton's metrics. Source: triton-inference-server docs/user_guide/metrics.md and core/src/metrics.cc (2026-08).
_TRITON_COUNTERS = {
    *(f"nv_inference_{what}" for what in ("request_success", "request_failure", "count", "exec_count")),
    *(
        f"nv_inference_{step}_duration_us"
        for step in ("request", "queue", "compute_input", "compute_infer", "compute_output")
    ),
}
_TRITON_HISTOGRAMS = {"nv_inference_first_response_histogram_ms"}
_TRITON_GAUGES = {
    "nv_inference_pending_request_count",
    "nv_gpu_utilization",
    "nv_gpu_memory_total_bytes",
    "nv_gpu_memory_used_bytes",
    "nv_gpu_power_usage",
    "nv_gpu_power_limit",
    "nv_pinned_memory_pool_total_bytes",
    "nv_pinned_memory_pool_used_bytes",
    "nv_model_load_duration_secs",
}
_HISTOGRAM_SERIES = {
    f"{name}_{suffix}" for name in _TEI_HISTOGRAMS | _TRITON_HISTOGRAMS for suffix in ("bucket", "sum", "count")
}
COUNTERS = frozenset(_TEI_COUNTERS | _TRITON_COUNTERS | _HISTOGRAM_SERIES)
SIGNALS = frozenset(COUNTERS | _TEI_GAUGES | _TRITON_GAUGES)

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
#: Prefixes of the engines' metrics, and those that people make up for them.
_OURS = {"te_": "te_", "nv_": "nv_", "tei_": "te_", "text_embeddings_inference_": "te_", "triton_": "nv_inference_"}


def _scaling_signal(given: Object) -> Iterable[Finding]:
    kind, spec = given.get("kind"), given.get("spec", {})
    if kind == "ScaledObject":
        for place, trigger in prometheus_triggers(spec):
            path = f"{place}.metadata.query"
            query = str(trigger.get("metadata", {}).get("query", ""))
            if not query:
                yield Finding(path, "there is none", "Give a PromQL query that adds up the queues of all pods")
            yield from _names(path, query)
            yield from _bare_counters(path, query)
    elif kind == "PrometheusRule":
        for number, group in enumerate(spec.get("groups", ())):
            for index, rule in enumerate(group.get("rules", ())):
                yield from _names(f"spec.groups[{number}].rules[{index}].expr", str(rule.get("expr", "")))
    elif kind == "HorizontalPodAutoscaler":
        for index, metric in enumerate(spec.get("metrics", ())):
            for source in ("pods", "object", "external"):
                if source in metric:
                    path = f"spec.metrics[{index}].{source}.metric.name"
                    yield from _names(path, str(metric[source].get("metric", {}).get("name", "")))


def _names(path: str, query: str) -> Iterator[Finding]:
    # Label values are no metric names, and neither are recorded series, which have a colon.
    bare = re.sub(r"\"(\\.|[^\"])*\"|'(\\.|[^'])*'|`[^`]*`", '""', query)
    for metric in dict.fromkeys(_NAME.findall(bare)):
        prefix = next((known for known in sorted(_OURS, key=len, reverse=True) if metric.startswith(known)), None)
        if prefix is None or ":" in metric or metric in SIGNALS:
            continue
        yield Finding(path, f"no engine has a metric {metric}", f"Nearest is {nearest(metric)}")


def nearest(metric: str) -> str:
    """The metric that was most likely meant by a name that does not exist."""
    prefix = next(known for known in sorted(_OURS, key=len, reverse=True) if metric.startswith(known))
    wanted = _OURS[prefix] + metric.removeprefix(prefix)
    family = sorted(known for known in SIGNALS if known.startswith(_OURS[prefix]))
    return difflib.get_close_matches(wanted, family, n=1, cutoff=0.0)[0]


def _bare_counters(path: str, query: str) -> Iterator[Finding]:
    for counter in sorted(COUNTERS):
        if re.search(rf"(?<![\w:]){counter}(?![\w:])\s*(\{{[^}}]*\}})?\s*(?!\s*[\[{{])", query):
            yield Finding(
                path,
                f"{counter} only ever grows, so that the workload would only ever scale up",
                f"Use rate({counter}[1m])",
            )


REPLICAS_BESIDE_SCALER = SetRule(
    "replicas-beside-scaler", "What a scaler sets stands nowhere else", ALWAYS_MANDATORY, _replicas_beside_scaler
)
ONE_SCALER = SetRule("one-scaler", "A workload has one scaler", ALWAYS_MANDATORY, _one_scaler)
GPU_SCALING = SetRule("gpu-scaling", "What holds a GPU is not scaled by CPU or memory", ALWAYS_MANDATORY, _gpu_scaling)
SCALE_TO_ZERO = SetRule("scale-to-zero", "What scales to zero can start again", ALWAYS_MANDATORY, _scale_to_zero)
SCALING_SIGNAL = ObjectRule(
    "scaling-signal", "Queries name metrics that engines have", ALWAYS_MANDATORY, _scaling_signal
)
