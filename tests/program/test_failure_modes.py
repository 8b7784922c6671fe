"""Rows of docs/failure-modes.md that show in what the program registers, for the committed stack and its variants."""

import copy
from typing import Any

import pytest

from infra.core import plan, settings
from infra.core.engines.tei import signals
from infra.core.plan import Plan
from infra.core.rules import judge
from infra.program.recording import Recorder, record
from tests import stacks

pytestmark = pytest.mark.program

PROMETHEUS = "http://prometheus.monitoring.svc.cluster.local:9090"
KEYS = {"apiKey": "value-of-apiKey", "huggingFaceToken": "value-of-huggingFaceToken"}


def planned(**of_each_workload: Any) -> Plan:
    """The committed stack local: an embedder that is scaled, and a reranker; operators are somebody else's."""
    stack = copy.deepcopy(stacks.committed("local"))
    # Thousands of lines that no test here looks at.
    stack["addons"] = {"prometheus": "existing", "keda": "existing"}
    stack["monitoring"].update(address=PROMETHEUS, namespace="monitoring", labels={})
    for workload in stack["serving"]:
        workload.update(of_each_workload)
    return plan.make(settings.load(stack), name="local", secrets=KEYS)


def recorded(**of_each_workload: Any) -> Recorder:
    return record(planned(**of_each_workload), KEYS)[0]


def engines(recorder: Recorder) -> list[dict[str, Any]]:
    """The containers that serve a model."""
    name = "text-embeddings-inference"
    pods = [
        found["spec"]["template"]["spec"]
        for found in recorder.of_kind("Deployment")
        if found["metadata"].get("labels", {}).get("app.kubernetes.io/name") == name
    ]
    assert len(pods) == 2
    return [container for pod in pods for container in pod["containers"]]


@pytest.mark.parametrize(("protocol", "port", "number"), [("http", "http", 8080), ("grpc", "metrics", 9000)])
def test_case_02_prometheus_scrapes_the_port_where_the_image_has_metrics(protocol: str, port: str, number: int) -> None:
    recorder = recorded(protocol=protocol)
    endpoints = [endpoint for found in recorder.of_kind("ServiceMonitor") for endpoint in found["spec"]["endpoints"]]
    assert {(endpoint["port"], endpoint["path"]) for endpoint in endpoints} == {(port, "/metrics")}
    for container in engines(recorder):
        numbers = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
        assert numbers[port] == number
        assert (9000 in numbers.values()) == (protocol == "grpc")


def test_case_03_what_keda_asks_are_the_queries_that_are_tested_on_fresh_pods() -> None:
    [scaler] = recorded().of_kind("ScaledObject")
    asked = [trigger["metadata"]["query"] for trigger in scaler["spec"]["triggers"]]
    where = ("embedding-serving", "embed", 5)
    assert asked == [signals.queue_depth(*where), signals.overload_rate(*where)]


def test_case_11_no_engine_has_its_entrypoint_or_folder_replaced() -> None:
    for container in engines(recorded()):
        assert {"command", "args", "workingDir"} & set(container) == set()


def test_case_21_every_engine_has_a_memory_limit_and_no_probe_looks_at_memory() -> None:
    for container in engines(recorded()):
        assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]
        probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
        assert all("exec" not in probe for probe in probes)


def test_case_23_a_dead_gpu_restarts_no_pod_by_health_which_says_nothing_of_it() -> None:
    for container in engines(recorded()):
        assert container["livenessProbe"]["httpGet"]["path"] == "/metrics"
        assert container["readinessProbe"]["httpGet"]["path"] == "/health"


def test_case_25_the_token_comes_from_a_secret_under_its_one_name() -> None:
    gated = {"id": "acme/gated", "kind": "embedding", "architecture": "bert", "parametersM": 22, "bytesPerParameter": 4}
    gated |= {"layers": 6, "hidden": 384, "maxTokens": 512, "dimension": 384, "pooling": "mean", "gated": True}
    stack = {**stacks.local(model="acme/gated"), "models": [gated], "images": {}}
    recorder, _ = record(plan.make(settings.load(stack), name="local", secrets=KEYS), KEYS)
    [found] = recorder.of_kind("Deployment")
    [container] = found["spec"]["template"]["spec"]["containers"]
    tokens = [entry for entry in container["env"] if entry["name"].startswith("HF_")]
    assert [(entry["name"], list(entry.get("valueFrom", {}))) for entry in tokens] == [("HF_TOKEN", ["secretKeyRef"])]


def test_case_27_probes_need_no_key_and_only_clients_and_prometheus_reach_the_port() -> None:
    clients = [{"namespace": "apps", "podLabels": {"app": "rag-api"}}]
    recorder = recorded(requireApiKey=True, clients=clients)
    public = {"/health", "/metrics"}
    for container in engines(recorder):
        paths = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
        assert paths <= public
    for policy in recorder.of_kind("NetworkPolicy"):
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        assert [rule["from"] for rule in policy["spec"]["ingress"]] == [
            [
                {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "apps"}},
                    "podSelector": {"matchLabels": {"app": "rag-api"}},
                }
            ],
            [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        ]
    assert judge(recorder.objects()) == []


def test_case_97_objects_are_applied_by_the_server() -> None:
    # Applied by the client, an object carries itself in an annotation, which is too long for definitions of operators.
    [provider] = [found for found in recorded().resources if found.typ == "pulumi:providers:kubernetes"]
    assert set(provider.inputs) <= {"context"}


def test_case_98_keda_asks_prometheus_under_its_full_name() -> None:
    own = plan.make(settings.load(stacks.committed("local")), name="local").monitoring
    assert own
    assert own.address == PROMETHEUS, "where the stack installs it"
    [scaler] = recorded().of_kind("ScaledObject")
    assert {trigger["metadata"]["serverAddress"] for trigger in scaler["spec"]["triggers"]} == {PROMETHEUS}
