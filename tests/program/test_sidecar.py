"""What the program registers for an engine in the pods of an app."""

from typing import Any

import pytest

from infra.core import plan, settings
from infra.core.plan import Plan
from scripts import check
from tests import stacks
from tests.program.test_deploy import deployed

pytestmark = pytest.mark.program

APP = {
    "image": "built.local/rag-app:1.0.0",
    "port": 8000,
    "readinessPath": "/ready",
    "resources": {"cpu": "100m", "memory": "128Mi"},
}


def planned(app: dict[str, Any] | None = None, *, scaled: bool = False, **changes: Any) -> Plan:
    stack = stacks.local(topology="sidecar", app={**APP, **(app or {})}, **changes)
    if scaled:
        del stack["serving"][0]["replicas"]
        stack["serving"][0]["scaling"] = {"max": 2}
        stack["addons"] = {"keda": "existing", "prometheus": "existing"}
        stack["monitoring"] = {
            "address": "http://prometheus.monitoring.svc:9090",
            "namespace": "monitoring",
            "labels": {},
        }
    return plan.make(settings.load(stack), name="local", secrets={"apiKey"})


def pod(made: Plan) -> dict[str, Any]:
    [deployment] = deployed(made)[0].of_kind("Deployment")
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return found


def test_a_sidecar_is_the_same_objects_as_a_centralized_workload() -> None:
    def kinds(made: Plan) -> list[str]:
        return sorted(found["kind"] for found in deployed(made)[0].objects())

    apart = plan.make(settings.load(stacks.local(requireApiKey=True)), name="local", secrets={"apiKey"})
    assert kinds(planned(requireApiKey=True)) == kinds(apart)


def test_the_engine_starts_before_the_app_and_ends_after_it() -> None:
    made = planned()
    found = pod(made)
    [engine], [app] = found["initContainers"], found["containers"]
    assert (engine["name"], engine["restartPolicy"], app["name"]) == ("tei", "Always", "app")
    assert engine["startupProbe"]["httpGet"]["path"] == "/health"
    assert "lifecycle" not in engine
    assert app["lifecycle"] == {"preStop": {"sleep": {"seconds": made.workloads[0].budgets.pre_stop}}}
    assert found["terminationGracePeriodSeconds"] == made.workloads[0].budgets.termination_grace


def test_the_engine_is_the_container_that_it_is_in_pods_of_its_own() -> None:
    [engine] = pod(planned())["initContainers"]
    apart = plan.make(settings.load(stacks.local()), name="local")
    [own] = pod(apart)["containers"]
    assert {**engine, "lifecycle": own["lifecycle"]} == {**own, "restartPolicy": "Always"}


def test_the_app_is_told_where_its_engine_is_and_gets_the_key_of_the_same_secret() -> None:
    found = pod(planned({"command": ["/app"], "args": ["--x"], "env": {"TEAM": "rag"}}, requireApiKey=True))
    [app], [engine] = found["containers"], found["initContainers"]
    assert (app["command"], app["args"]) == (["/app"], ["--x"])
    env = {entry["name"]: entry for entry in app["env"]}
    assert env["EMBED_URL"]["value"] == "http://localhost:8080"
    assert env["TEAM"]["value"] == "rag"
    [key] = [entry for entry in engine["env"] if entry["name"] == "API_KEY"]
    assert env["EMBED_API_KEY"]["valueFrom"] == key["valueFrom"]


def test_an_app_without_paths_is_asked_for_its_port() -> None:
    [app] = pod(planned({"readinessPath": None}))["containers"]
    assert app["readinessProbe"]["tcpSocket"] == {"port": "app"}
    assert "httpGet" not in app["readinessProbe"]
    assert "grpc" not in app["readinessProbe"]
    assert "livenessProbe" not in app


@pytest.mark.parametrize(("protocol", "number"), [("http", 8080), ("grpc", 9000)])
def test_the_service_leads_to_the_app_and_prometheus_to_the_engine(protocol: str, number: int) -> None:
    recorder, _ = deployed(planned(scaled=True, protocol=protocol))
    [service] = recorder.of_kind("Service")
    assert service["spec"]["ports"] == [
        {"name": "app", "port": 80, "targetPort": "app"},
        {"name": "metrics", "port": number, "targetPort": number},
    ]
    [monitor] = recorder.of_kind("ServiceMonitor")
    assert monitor["spec"]["endpoints"][0]["port"] == "metrics"
    [policy] = recorder.of_kind("NetworkPolicy")
    clients, prometheus = policy["spec"]["ingress"]
    assert clients["ports"] == [{"port": "app"}], "nobody but the app and Prometheus reaches the engine"
    assert prometheus["ports"] == [{"port": number}]
    [scaled] = recorder.of_kind("ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] == "embed"
    assert all('service="embed"' in trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_sidecar_passes_every_rule(protocol: str) -> None:
    assert check.violations(planned(scaled=True, protocol=protocol, requireApiKey=True)) == []


def test_another_topology_keeps_names_and_selectors_so_that_objects_change_in_place() -> None:
    def kept(made: Plan) -> list[tuple[str, str, str]]:
        return [
            (found["kind"], found["metadata"]["name"], repr(found.get("spec", {}).get("selector")))
            for found in deployed(made)[0].objects()
        ]

    apart = plan.make(settings.load(stacks.local()), name="local")
    assert sorted(kept(planned())) == sorted(kept(apart))
