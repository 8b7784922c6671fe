"""Operators of the contract, as the API server describes what they run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.core import catalogue
from scripts.smoke import operators, results
from scripts.smoke import run as smoke
from scripts.smoke.operators import Operator
from scripts.smoke.results import Result, Status
from tests.scripts.conftest import planned
from tests.scripts.fake_cluster import Cluster

pytestmark = pytest.mark.core


def _addon(name: str) -> dict[str, Any]:
    row = catalogue.addons()[name]
    return {"name": name, "version": row.version, "namespace": row.namespace, "images": {}}


def _available(status: str = "True") -> dict[str, Any]:
    return {"status": {"conditions": [{"type": "Available", "status": status, "message": "what it says"}]}}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path)
    for kind in ("deployment", "apiservice", "prometheus"):
        made.has(kind, _available())
    return made


def _checked(cluster: Cluster, addon: dict[str, Any]) -> Result:
    (result,) = results.run([Operator(addon, cluster.access, wait_seconds=0).check()])
    return result


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("keda", ("3 Deployments", "APIService v1beta1.external.metrics.k8s.io")),
        ("metrics-server", ("1 Deployment", "APIService v1beta1.metrics.k8s.io")),
        ("prometheus", ("1 Deployment", "Prometheus embedding-serving")),
        ("external-secrets", ("1 Deployment",)),
    ],
)
def test_an_operator_that_works_passes_with_all_that_its_objects_name(
    cluster: Cluster, name: str, parts: tuple[str, ...]
) -> None:
    result = _checked(cluster, _addon(name))
    assert result.status is Status.PASSED
    assert all(part in result.found for part in parts)


@pytest.mark.parametrize(
    ("kind", "addon"),
    [
        ("deployment-keda-metrics-apiserver", "keda"),
        ("apiservice-v1beta1.external.metrics.k8s.io", "keda"),
        ("apiservice-v1beta1.metrics.k8s.io", "metrics-server"),
        ("prometheus-embedding-serving", "prometheus"),
    ],
)
@pytest.mark.parametrize("answer", [_available("False"), _available("Unknown"), {"status": {}}])
def test_one_part_that_is_not_available_fails(cluster: Cluster, kind: str, addon: str, answer: dict[str, Any]) -> None:
    cluster.has(kind, answer)
    result = _checked(cluster, _addon(addon))
    assert result.status is Status.FAILED
    assert kind.partition("-")[2] in result.found
    assert "describe" in (result.next_step or "")


def test_a_part_that_is_gone_fails(cluster: Cluster) -> None:
    (cluster.folder / "apiservice.json").unlink()
    result = _checked(cluster, _addon("keda"))
    assert (result.status, "pulumi up --refresh" in (result.next_step or "")) == (Status.FAILED, True)


@pytest.mark.parametrize("changes", [{"version": "0.1.0"}, {"name": "istio"}])
def test_an_operator_that_this_checkout_does_not_know_fails(cluster: Cluster, changes: dict[str, str]) -> None:
    result = _checked(cluster, _addon("keda") | changes)
    assert result.status is Status.FAILED
    assert "the checkout that deployed it" in (result.next_step or "")


def test_results_of_operators_are_in_the_report_beside_those_of_workloads(cluster: Cluster) -> None:
    contract = replace(planned()[1], addons=(_addon("keda"),))
    assert [check.name for check in operators.checks(contract, cluster.access)] == ["operator keda"]
    cluster.says("error: no forward")
    cluster.has("deployment-embed", {"metadata": {}, "spec": {"template": {"spec": {"containers": []}}}})
    cluster.has("endpointslices", {"items": []})
    cluster.has("pods", {"items": []})
    report = smoke.test(contract, cluster.access, burst=None)
    assert [(result.check, result.status) for result in report.shared] == [("operator keda", Status.PASSED)]
