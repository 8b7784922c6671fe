"""What KEDA says of a ScaledObject and its HPA, and what the smoke test makes of it."""

import copy
from pathlib import Path
from typing import Any

import pytest

from scripts.smoke import results
from scripts.smoke.results import Result, Status
from scripts.smoke.scaling import ScaledWorkload
from tests.scripts.fake_cluster import Cluster, scaled

pytestmark = pytest.mark.core

#: Conditions as KEDA 2.20 writes them.
HEALTHY = {"Ready": "True", "Active": "False", "Fallback": "False", "Paused": "False"}
FAILING = {"s0-prometheus": {"numberOfFailures": 5, "status": "Failing"}}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path)
    made.has("scaledobjects", _scaled_object(HEALTHY))
    made.has("horizontalpodautoscalers", {"items": [_hpa()]})
    return made


def _scaled_object(conditions: dict[str, str], health: dict[str, Any] | None = None) -> dict[str, Any]:
    listed = [{"type": kind, "status": status, "message": f"about {kind}"} for kind, status in conditions.items()]
    return {"status": {"conditions": listed, "health": health or {}}}


def _hpa(name: str = "keda-hpa-embed", deployment: str = "embed", **status: Any) -> dict[str, Any]:
    """With both metrics, unless ``status`` says something else."""
    metrics = [
        {"type": "External", "external": {"metric": {"name": f"s{at}-prometheus"}, "current": {"averageValue": value}}}
        for at, value in enumerate(("2500m", "0"))
    ]
    active = [{"type": "ScalingActive", "status": "True"}]
    return {
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"kind": "Deployment", "name": deployment},
            "minReplicas": 1,
            "maxReplicas": 3,
        },
        "status": {"currentReplicas": 2, "currentMetrics": metrics, "conditions": active} | status,
    }


def _checked(cluster: Cluster) -> dict[str, Result]:
    return {r.check: r for r in results.run(ScaledWorkload(scaled(), cluster.access, wait_seconds=0).checks())}


def test_a_workload_that_keda_scales_passes_and_shows_numbers(cluster: Cluster) -> None:
    found = _checked(cluster)
    assert found["ScaledObject"].found == "Ready is True, Fallback is False"
    assert found["autoscaler"].found == ("keda-hpa-embed: 2 of 1 to 3 replicas; queue 2500m of 8, overload 0 of 0.1")
    assert {result.status for result in found.values()} == {Status.PASSED}


def test_case_98_a_scaled_object_that_is_ready_and_in_fallback_fails(cluster: Cluster) -> None:
    cluster.has("scaledobjects", _scaled_object(HEALTHY | {"Fallback": "True"}, FAILING))
    # As was seen with a Prometheus that nobody reaches: KEDA serves the threshold itself, and the HPA looks healthy.
    hpa = _hpa()
    hpa["status"]["currentMetrics"][0]["external"]["current"] = {"averageValue": "8"}
    cluster.has("horizontalpodautoscalers", {"items": [hpa]})
    found = _checked(cluster)
    assert found["ScaledObject"].status is Status.FAILED
    assert "Ready is True and Fallback too" in found["ScaledObject"].found
    assert "s0-prometheus (5 times)" in found["ScaledObject"].found
    assert "http://prometheus-operated.monitoring.svc.cluster.local:9090" in (found["ScaledObject"].next_step or "")
    assert found["autoscaler"].status is Status.PASSED


@pytest.mark.parametrize(
    ("conditions", "health", "status", "found"),
    [
        (HEALTHY | {"Ready": "False"}, None, Status.FAILED, "Ready is False: about Ready"),
        ({"Fallback": "False"}, None, Status.FAILED, "Ready is missing: no reason given"),
        (HEALTHY | {"Paused": "True"}, None, Status.FAILED, "Paused is True: nothing is scaled"),
        (HEALTHY | {"Fallback": "Unknown"}, None, Status.NOT_PROVEN, "Fallback is Unknown"),
        ({"Ready": "True"}, None, Status.NOT_PROVEN, "Fallback is missing"),
        (HEALTHY, FAILING, Status.FAILED, "questions fail: s0-prometheus (5 times)"),
    ],
)
def test_a_scaled_object_that_does_not_work_is_not_passed(
    cluster: Cluster, conditions: dict[str, str], health: dict[str, Any] | None, status: Status, found: str
) -> None:
    cluster.has("scaledobjects", _scaled_object(conditions, health))
    result = _checked(cluster)["ScaledObject"]
    assert result.status is status
    assert found in result.found


def test_a_scaled_object_that_nobody_has_looked_at_is_not_passed(cluster: Cluster) -> None:
    cluster.has("scaledobjects", {"spec": {}})
    assert _checked(cluster)["ScaledObject"].status is Status.FAILED


def test_a_scaled_object_that_is_gone_fails(cluster: Cluster) -> None:
    (cluster.folder / "scaledobjects.json").unlink()
    result = _checked(cluster)["ScaledObject"]
    assert (result.status, "pulumi up --refresh" in (result.next_step or "")) == (Status.FAILED, True)


def _metrics(*values: str) -> list[dict[str, Any]]:
    metrics = copy.deepcopy(_hpa()["status"]["currentMetrics"])
    for metric, value in zip(metrics, values, strict=True):
        metric["external"]["current"] = {"averageValue": value} if value else {}
    return list(metrics)


@pytest.mark.parametrize(
    ("hpas", "found"),
    [
        ([], "there is no HPA keda-hpa-embed of Deployment embed"),
        ([_hpa(deployment="another")], "there is no HPA keda-hpa-embed of Deployment embed"),
        ([_hpa(), _hpa("by-hand")], "another autoscaler: by-hand"),
        (
            [_hpa(conditions=[{"type": "ScalingActive", "status": "False", "message": "no metrics"}])],
            "ScalingActive is False: no metrics",
        ),
        ([_hpa(conditions=None)], "ScalingActive is missing: it has not looked yet"),
        ([_hpa(currentMetrics=None)], "a number for 0 of 2 triggers"),
        ([_hpa(currentMetrics=_metrics("1", ""))], "a number for 1 of 2 triggers"),
        ([_hpa(currentMetrics=_metrics("1", "<unknown>"))], "a number for 1 of 2 triggers"),
        ([_hpa(currentReplicas=4)], "counts 4 replicas, planned 1 to 3"),
        ([_hpa(currentReplicas=0)], "counts 0 replicas, planned 1 to 3"),
        ([_hpa() | {"spec": _hpa()["spec"] | {"maxReplicas": 9}}], "keeps 1 to 9 replicas, planned 1 to 3"),
    ],
)
def test_an_autoscaler_that_is_not_as_planned_fails(cluster: Cluster, hpas: list[dict[str, Any]], found: str) -> None:
    cluster.has("horizontalpodautoscalers", {"items": hpas})
    result = _checked(cluster)["autoscaler"]
    assert result.status is Status.FAILED
    assert found in result.found
    assert result.next_step


def test_autoscalers_of_other_workloads_are_left_alone(cluster: Cluster) -> None:
    cluster.has("horizontalpodautoscalers", {"items": [_hpa(), _hpa("keda-hpa-rerank", deployment="rerank")]})
    assert _checked(cluster)["autoscaler"].status is Status.PASSED
