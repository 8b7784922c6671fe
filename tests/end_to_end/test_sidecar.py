"""Topology as a switch: the sample app beside its engine, and the same app with an engine of its own pods."""

import json
from typing import Any

import pytest
import requests

from infra.core import contract
from infra.core.contract import WorkloadContract
from local.cluster import Cluster
from local.images import names
from scripts.access import Access
from scripts.smoke.results import Status
from scripts.smoke.run import test as smoke_test
from tests import stacks
from tests.end_to_end.deployment import Deployment, eventually
from tests.end_to_end.test_deploy import NAMESPACE

pytestmark = pytest.mark.cluster

APP = {
    "image": names.RAG_APP,
    "port": 8000,
    "readinessPath": "/ready",
    "startupSeconds": 30,
    "resources": {"cpu": "100m", "memory": "128Mi"},
}
KEY = {"apiKey": "key-of-the-sidecar-for-tests"}
QUESTION = {"question": "Where does the kitten nap?", "top": 1}
ANSWER = "The cat sleeps on the warm windowsill all afternoon."


def agreed(deployment: Deployment) -> contract.Contract:
    return contract.read(json.loads(deployment.read("stack", "output", "--json"))["contract"])


def answer(url: str) -> str | None:
    try:
        answered = requests.post(f"{url}/query", json=QUESTION, timeout=30)
    except requests.RequestException:
        return None
    return str(answered.json()["passages"][0]["text"]) if answered.status_code == 200 else None


def plain_app(workload: WorkloadContract) -> list[dict[str, Any]]:
    """The app as a user deploys it beside a centralized engine: all that it is told comes from the contract."""
    labels = {"app": "rag-app"}
    key = {"name": workload.api_key_secret, "key": workload.api_key_secret_key}
    restricted = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "app",
        "image": names.RAG_APP,
        "env": [
            {"name": workload.url_variable, "value": workload.url},
            {"name": workload.api_key_variable, "valueFrom": {"secretKeyRef": key}},
        ],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8000}},
        "securityContext": restricted,
    }
    metadata = {"name": "rag-app", "labels": labels}
    template = {"metadata": {"labels": labels}, "spec": {"enableServiceLinks": False, "containers": [container]}}
    return [
        {"metadata": metadata, "spec": {"selector": {"matchLabels": labels}, "template": template}},
        {"metadata": metadata, "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8000}]}},
    ]


def test_an_app_finds_its_engine_on_localhost_and_after_the_switch_in_pods_of_its_own(
    deployment: Deployment, embedded: Cluster
) -> None:
    deployment.up(stacks.local(topology="sidecar", app=APP, requireApiKey=True), KEY)
    made = agreed(deployment)
    [workload] = made.workloads
    assert (workload.url, workload.url_variable) == ("http://localhost:8080", "EMBED_URL")
    [pod] = deployment.pods().values()
    [engine], [app] = pod.spec.init_containers, pod.spec.containers
    assert (engine.name, engine.restart_policy, app.image) == ("tei", "Always", names.RAG_APP)
    started = {status.name: status.state.running.started_at for status in pod.status.container_statuses}
    [of_engine] = pod.status.init_container_statuses
    assert of_engine.started
    assert of_engine.state.running.started_at < started["app"]
    assert {variable.name for variable in app.env} == {"EMBED_URL", "EMBED_API_KEY"}
    url = embedded.publish("sidecar-app", NAMESPACE, workload.service, workload.service_port)
    assert answer(url) == ANSWER

    report = smoke_test(made, Access(kubeconfig=embedded.layout.kubeconfig), burst=False)
    assert not report.failed, report.failures()
    proven = {result.check for result in report.workloads[0].results if result.status is Status.PASSED}
    assert {"pods", "endpoints", "API key"} <= proven
    again = deployment.pulumi("preview", "--expect-no-changes", "--diff")
    assert again.returncode == 0, again.stdout

    before = deployment.pods()
    deployment.up(stacks.local(requireApiKey=True), KEY)
    [switched] = agreed(deployment).workloads
    assert (switched.url_variable, switched.api_key_variable) == (workload.url_variable, workload.api_key_variable)
    [pod] = deployment.pods().values()
    assert pod.metadata.uid not in before
    assert [container.name for container in pod.spec.containers] == ["tei"]
    assert not pod.spec.init_containers
    again = deployment.pulumi("preview", "--expect-no-changes", "--diff")
    assert again.returncode == 0, again.stdout

    app_object, service = plain_app(switched)
    deployment.apps.create_namespaced_deployment(NAMESPACE, app_object)
    deployment.core.create_namespaced_service(NAMESPACE, service)
    url = embedded.publish("plain-app", NAMESPACE, "rag-app", 80)
    eventually(lambda: answer(url) == ANSWER, "the same image answers with the engine of the Service")

    # And back: the objects change in place, so nothing of either topology is left beside the other.
    deployment.up(stacks.local(topology="sidecar", app=APP, requireApiKey=True), KEY)
    deployments = {found.metadata.name for found in deployment.apps.list_namespaced_deployment(NAMESPACE).items}
    assert deployments == {"embed", "rag-app"}
    url = embedded.publish("sidecar-app", NAMESPACE, workload.service, workload.service_port)
    eventually(lambda: answer(url) == ANSWER, "the app answers beside its engine again")
