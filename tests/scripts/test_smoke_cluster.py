"""What the API server says of a workload, told by a kubectl of the tests' own."""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.core.contract import WorkloadContract
from local import toolchain
from local.paths import CHECKOUT
from local.toolchain import Found
from scripts.access import Access, ForwardError, NotFoundError
from scripts.command import CommandError
from scripts.smoke import run as smoke
from scripts.smoke.cluster import DeployedWorkload
from scripts.smoke.results import NotProvenError, Status, UnmetError
from tests.scripts.conftest import planned

pytestmark = pytest.mark.core

IMAGE = "stand-in.local/huggingface/text-embeddings-inference:89-1.9.3"

#: kubectl [--context X] --request-timeout=N (get KIND | VERB) ...: answers from KIND.json or VERB.json, else from err.
KUBECTL = """#!/bin/sh
here=$(dirname "$0")
echo "$KUBECONFIG|$@" >> "$here/calls"
[ "$1" = --context ] && shift 2
shift
[ "$1" = get ] && shift
[ -f "$here/$1.json" ] && exec cat "$here/$1.json"
cat "$here/err" >&2
exit 1
"""


class Cluster:
    """A kubectl that answers what it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubectl = folder / "kubectl"
        self.kubectl.write_text(KUBECTL)
        self.kubectl.chmod(0o755)
        (folder / "config").write_text("")
        self.says("Error from server (NotFound): nothing is here")
        self.access = Access(kubeconfig=folder / "config", kubectl=self.kubectl)

    def says(self, error: str) -> None:
        (self.folder / "err").write_text(error)

    def has(self, kind: str, content: object) -> None:
        (self.folder / f"{kind}.json").write_text(content if isinstance(content, str) else json.dumps(content))

    def calls(self) -> str:
        return (self.folder / "calls").read_text()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path)
    made.has("deployment", _deployment())
    made.has("endpointslices", {"items": [_slice("10.244.0.5")]})
    made.has("pods", {"items": [_pod("embed-1")]})
    made.has("logs", "Starting FlashBert model on Cuda(CudaDevice(DeviceId(1)))\nStarting HTTP server\n")
    return made


def _deployment(ready: int = 1, updated: int = 1, image: str = IMAGE, seen: int = 2) -> dict[str, Any]:
    return {
        "metadata": {"generation": 2},
        "spec": {"template": {"spec": {"containers": [{"image": image}]}}},
        "status": {"readyReplicas": ready, "updatedReplicas": updated, "observedGeneration": seen},
    }


def _slice(*addresses: str, ready: bool = True) -> dict[str, Any]:
    endpoints = [{"addresses": [address], "conditions": {"ready": ready}} for address in addresses]
    return {"ports": [{"name": "http", "port": 8080}], "endpoints": endpoints}


def _pod(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"phase": "Running", **status}}


def _workload(**changes: Any) -> WorkloadContract:
    fields = planned()[1].workloads[0].__dict__ | changes
    return WorkloadContract(**fields)


def test_a_deployment_as_planned_passes(cluster: Cluster) -> None:
    deployed = DeployedWorkload(_workload(), cluster.access)
    assert deployed.pods() == f"1 pod ready, planned 1; image {IMAGE}"
    assert deployed.endpoints() == "Service embed leads to 1 ready pod"


def test_more_pods_than_planned_pass_because_a_scaler_may_have_added_them(cluster: Cluster) -> None:
    cluster.has("deployment", _deployment(ready=4, updated=4))
    assert DeployedWorkload(_workload(), cluster.access).pods().startswith("4 pods ready")


@pytest.mark.parametrize(
    ("deployment", "found"),
    [
        (_deployment(ready=0), "0 pods ready and 1 up to date"),
        (_deployment(updated=0), "1 pod ready and 0 up to date"),
        (_deployment(seen=1), "1 pod ready and 1 up to date"),
        (_deployment(image="another:1"), "the image is another:1"),
    ],
)
def test_a_deployment_that_is_not_as_planned_fails(cluster: Cluster, deployment: object, found: str) -> None:
    cluster.has("deployment", deployment)
    with pytest.raises(UnmetError, match=found) as caught:
        DeployedWorkload(_workload(), cluster.access).pods()
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("status", "found"),
    [
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not there"}}}]},
            "embed-1: ImagePullBackOff not there",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "Insufficient nvidia.com/gpu"}]},
            "embed-1: Insufficient nvidia.com/gpu",
        ),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, "no pod says why"),
    ],
)
def test_a_missing_pod_says_why_it_is_missing(cluster: Cluster, status: dict[str, Any], found: str) -> None:
    cluster.has("deployment", _deployment(ready=0))
    cluster.has("pods", {"items": [_pod("embed-1", **status)]})
    with pytest.raises(UnmetError, match=found):
        DeployedWorkload(_workload(), cluster.access).pods()


def test_a_deployment_that_is_gone_fails(cluster: Cluster) -> None:
    (cluster.folder / "deployment.json").unlink()
    with pytest.raises(UnmetError, match="NotFound"):
        DeployedWorkload(_workload(), cluster.access).pods()


@pytest.mark.parametrize("slices", [[], [_slice()], [_slice("10.0.0.1", ready=False)], [{"endpoints": None}]])
def test_a_service_that_leads_nowhere_fails(cluster: Cluster, slices: list[object]) -> None:
    cluster.has("endpointslices", {"items": slices})
    with pytest.raises(UnmetError, match="leads to 0 ready pods, planned 1"):
        DeployedWorkload(_workload(), cluster.access).endpoints()


def test_an_address_in_two_slices_is_one_pod(cluster: Cluster) -> None:
    cluster.has("endpointslices", {"items": [_slice("10.0.0.1"), _slice("10.0.0.1")]})
    with pytest.raises(UnmetError, match="leads to 1 ready pod, planned 2"):
        DeployedWorkload(_workload(replicas=2), cluster.access).endpoints()


def test_the_device_of_a_stand_in_is_never_proven(cluster: Cluster) -> None:
    with pytest.raises(NotProvenError, match="stand-in"):
        DeployedWorkload(_workload(), cluster.access).device()


def test_the_device_of_every_pod_is_looked_up(cluster: Cluster) -> None:
    leaving = _pod("embed-0")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.has("pods", {"items": [leaving, _pod("embed-1"), _pod("embed-2")]})
    found = DeployedWorkload(_workload(stand_in=False), cluster.access).device()
    assert found.startswith("2 pods")
    logs = [line for line in cluster.calls().splitlines() if " logs " in line]
    assert len(logs) == 2
    assert "embed-0" not in cluster.calls()


def test_a_cpu_workload_has_no_device_check(cluster: Cluster) -> None:
    assert [check.name for check in DeployedWorkload(_workload(gpu=None), cluster.access).checks()] == [
        "pods",
        "endpoints",
    ]


def test_the_key_is_read_from_its_secret_and_stands_on_no_argument_list(cluster: Cluster) -> None:
    cluster.has("secret", {"data": {"apiKey": base64.b64encode(b"s3cret").decode()}})
    workload = _workload(api_key_secret="embed-keys", api_key_secret_key="apiKey")
    assert DeployedWorkload(workload, cluster.access).api_key() == "s3cret"
    assert "s3cret" not in cluster.calls()


@pytest.mark.parametrize("content", [{}, {"data": None}, {"data": {"other": "eA=="}}, {"data": {"apiKey": "?"}}, None])
def test_a_secret_without_the_key_gives_none(cluster: Cluster, content: object) -> None:
    if content is not None:
        cluster.has("secret", content)
    workload = _workload(api_key_secret="embed-keys", api_key_secret_key="apiKey")
    assert DeployedWorkload(workload, cluster.access).api_key() is None


@pytest.mark.parametrize(
    ("stderr", "says"),
    [
        ('error: context "x" does not exist\n', "kubectl config get-contexts"),
        ("E1 memcache.go\nThe connection to the server 127.0.0.1:1 was refused - did you specify it?\n", "make status"),
        ("Unable to connect to the server: dial tcp: lookup x: no such host\n", "make status"),
        ("error: You must be logged in to the server (Unauthorized)\n", "log in to the cluster again"),
        ('Error from server (Forbidden): pods is forbidden: User "u" cannot list\n', "use a user who may read it"),
        ("error: error loading config file\n", "kubectl config view"),
        ("", "no message"),
    ],
)
def test_a_cluster_that_cannot_be_asked_is_one_line_with_the_next_step(
    cluster: Cluster, stderr: str, says: str
) -> None:
    cluster.says(stderr)
    with pytest.raises(CommandError, match=says) as caught:
        cluster.access.run("get", "nodes")
    assert "\n" not in str(caught.value)


def test_an_object_that_is_not_there_is_told_apart(cluster: Cluster) -> None:
    with pytest.raises(NotFoundError):
        cluster.access.run("get", "nodes")


def test_a_missing_kubeconfig_and_a_missing_kubectl_are_said(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match="no kubeconfig at"):
        Access(kubeconfig=cluster.folder / "nope", kubectl=cluster.kubectl).run("get", "nodes")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(toolchain, "find", lambda names: {name: Found(name, None, "missing") for name in names})
    with pytest.raises(CommandError, match=r"kubectl is not on PATH: .*make toolchain"):
        Access(kubeconfig=cluster.folder / "config").run("get", "nodes")


def test_a_kubectl_of_the_toolchain_serves_where_there_is_none_on_path(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(toolchain, "find", lambda names: {name: Found(name, cluster.kubectl, "ours") for name in names})
    assert json.loads(Access(kubeconfig=cluster.folder / "config").run("get", "pods"))["items"]


def test_the_context_is_passed_on_and_the_kubeconfig_too(cluster: Cluster) -> None:
    Access(cluster.folder / "config", "ours", cluster.kubectl).run("get", "pods")
    assert cluster.calls().startswith(f"{cluster.folder}/config|--context ours ")


def test_a_forward_that_does_not_stand_says_what_kubectl_said(cluster: Cluster) -> None:
    cluster.says("error: timed out waiting for the condition\n")
    with pytest.raises(ForwardError, match="timed out"), cluster.access.forward("ns", "embed", 80):
        pass


def test_without_a_forward_the_test_fails_and_goes_on_to_report(cluster: Cluster) -> None:
    report = smoke.test(planned()[1], cluster.access, burst=None)
    results = {result.check: result for result in report.workloads[0].results}
    assert results["pods"].status is Status.PASSED
    assert results["port-forward"].status is Status.FAILED


@pytest.mark.parametrize(
    ("changes", "check", "status"),
    [({"replicas": 0}, "pods", Status.NOT_PROVEN), ({"engine": "other"}, "engine", Status.FAILED)],
)
def test_what_cannot_be_tested_is_not_passed(
    cluster: Cluster, changes: dict[str, Any], check: str, status: Status
) -> None:
    agreed = planned()[1]
    contract = type(agreed)(**agreed.__dict__ | {"workloads": (_workload(**changes),)})
    (tested,) = smoke.test(contract, cluster.access, burst=None).workloads
    assert {result.check: result.status for result in tested.results}[check] is status


def test_a_contract_without_workloads_proves_nothing(cluster: Cluster) -> None:
    agreed = planned()[1]
    with pytest.raises(CommandError, match="nothing to test"):
        smoke.test(type(agreed)(**agreed.__dict__ | {"workloads": ()}), cluster.access, burst=None)


FORWARDING = """#!/bin/sh
echo $$ > "$(dirname "$0")/pid"
echo "Forwarding from 127.0.0.1:4242 -> 8080"
exec sleep 1000
"""

WAITS = """
import signal, sys, time
from pathlib import Path
from scripts import command
from scripts.access import Access
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
folder = Path(sys.argv[1])
def main():
    with Access(folder / "config", None, folder / "kubectl").forward("ns", "embed", 80) as url:
        print(url, flush=True)
        time.sleep(60)
    return 0
sys.exit(command.run(main))
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_command_that_is_ended_leaves_no_port_forward(cluster: Cluster, sent: signal.Signals, code: int) -> None:
    cluster.kubectl.write_text(FORWARDING)
    command = [sys.executable, "-c", WAITS, str(cluster.folder)]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "http://127.0.0.1:4242\n"
        process.send_signal(sent)
        assert process.wait() == code
    with pytest.raises(ProcessLookupError):
        os.kill(int((cluster.folder / "pid").read_text()), 0)
