"""What the API server says of a workload, told by a kubectl of the tests' own."""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.core.contract import Contract
from local import toolchain
from local.paths import CHECKOUT
from local.toolchain import Found
from scripts.access import Access, ForwardError, NotFoundError
from scripts.command import CommandError
from scripts.smoke import results
from scripts.smoke import run as smoke
from scripts.smoke.cluster import DeployedWorkload
from scripts.smoke.overload import Burst
from scripts.smoke.results import NotProvenError, Status, UnmetError
from scripts.smoke.tei import TeiService
from tests.scripts.conftest import planned
from tests.scripts.fake_cluster import Cluster, pod, ready_pod, scaled, workload

pytestmark = pytest.mark.core

IMAGE = "stand-in.local/huggingface/text-embeddings-inference:89-1.9.3"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path)
    made.has("deployment", _deployment())
    made.has("endpointslices", {"items": [_slice("10.244.0.5")]})
    made.has("pods", {"items": [pod("embed-1")]})
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


def test_a_deployment_as_planned_passes(cluster: Cluster) -> None:
    deployed = DeployedWorkload(workload(), cluster.access)
    assert deployed.pods() == f"1 pod ready, planned 1; image {IMAGE}"
    assert deployed.endpoints() == "Service embed leads to 1 ready pod"


def test_more_pods_than_planned_pass_because_a_scaler_may_have_added_them(cluster: Cluster) -> None:
    cluster.has("deployment", _deployment(ready=4, updated=4))
    assert DeployedWorkload(workload(), cluster.access).pods().startswith("4 pods ready")


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
        DeployedWorkload(workload(), cluster.access).pods()
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
    cluster.has("pods", {"items": [pod("embed-1", **status)]})
    with pytest.raises(UnmetError, match=found):
        DeployedWorkload(workload(), cluster.access).pods()


def test_a_deployment_that_is_gone_fails(cluster: Cluster) -> None:
    (cluster.folder / "deployment.json").unlink()
    with pytest.raises(UnmetError, match="NotFound"):
        DeployedWorkload(workload(), cluster.access).pods()


@pytest.mark.parametrize("slices", [[], [_slice()], [_slice("10.0.0.1", ready=False)], [{"endpoints": None}]])
def test_a_service_that_leads_nowhere_fails(cluster: Cluster, slices: list[object]) -> None:
    cluster.has("endpointslices", {"items": slices})
    with pytest.raises(UnmetError, match="leads to 0 ready pods, planned 1"):
        DeployedWorkload(workload(), cluster.access).endpoints()


def test_an_address_in_two_slices_is_onepod(cluster: Cluster) -> None:
    cluster.has("endpointslices", {"items": [_slice("10.0.0.1"), _slice("10.0.0.1")]})
    with pytest.raises(UnmetError, match="leads to 1 ready pod, planned 2"):
        DeployedWorkload(workload(replicas=2), cluster.access).endpoints()


def test_the_device_of_a_stand_in_is_never_proven(cluster: Cluster) -> None:
    with pytest.raises(NotProvenError, match="stand-in"):
        DeployedWorkload(workload(), cluster.access).device()


def test_the_device_of_every_pod_is_looked_up(cluster: Cluster) -> None:
    leaving = pod("embed-0")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.has("pods", {"items": [leaving, pod("embed-1"), pod("embed-2")]})
    found = DeployedWorkload(workload(stand_in=False), cluster.access).device()
    assert found.startswith("2 pods")
    logs = [line for line in cluster.calls().splitlines() if " logs " in line]
    assert len(logs) == 2
    assert "embed-0" not in cluster.calls()


def test_a_scaled_workload_may_have_any_number_of_pods_that_keda_may_choose(cluster: Cluster) -> None:
    for ready in (1, 3):
        cluster.has("deployment", _deployment(ready=ready, updated=ready))
        assert f"{ready} pod" in DeployedWorkload(scaled(), cluster.access).pods()
        assert "planned 1 to 3" in DeployedWorkload(scaled(), cluster.access).pods()


@pytest.mark.parametrize(
    ("ready", "found"), [(0, "0 pods ready and 0 up to date, planned 1 to 3"), (4, "4 pods ready")]
)
def test_a_scaled_workload_with_too_few_or_too_many_pods_fails(cluster: Cluster, ready: int, found: str) -> None:
    cluster.has("deployment", _deployment(ready=ready, updated=ready))
    with pytest.raises(UnmetError, match=found):
        DeployedWorkload(scaled(), cluster.access).pods()


KEY = "key-of-the-clients"


def test_a_key_that_no_container_printed_passes(cluster: Cluster) -> None:
    cluster.has("pods", {"items": [ready_pod("embed-1", restarts=1), ready_pod("embed-2")]})
    cluster.has("logs", "Ready")
    cluster.has("previous", "Ready")
    assert DeployedWorkload(workload(), cluster.access).key_not_in_logs(KEY) == "not in 3 logs of the pods of embed"
    assert KEY not in cluster.calls()


@pytest.mark.parametrize(("kind", "when"), [("logs", "now"), ("previous", "before its last restart")])
def test_a_key_in_a_log_fails_whether_of_this_container_or_of_the_one_before(
    cluster: Cluster, kind: str, when: str
) -> None:
    cluster.has("pods", {"items": [ready_pod("embed-1", restarts=2)]})
    cluster.has("logs", "Ready")
    cluster.has("previous", "Ready")
    cluster.has(kind, f'Args {{ api_key: Some("{KEY}") }}')
    with pytest.raises(UnmetError, match=f"the log of embed-1, container tei, {when}") as caught:
        DeployedWorkload(workload(), cluster.access).key_not_in_logs(KEY)
    assert KEY not in f"{caught.value} {caught.value.next_step}"


def test_the_log_before_a_restart_may_be_gone(cluster: Cluster) -> None:
    cluster.has("pods", {"items": [ready_pod("embed-1", restarts=1)]})
    cluster.says('Error from server (BadRequest): previous terminated container "tei" in pod "embed-1" not found')
    assert DeployedWorkload(workload(), cluster.access).key_not_in_logs(KEY).startswith("not in 1 log ")


@pytest.mark.parametrize("key", [None, "short"])
def test_a_key_that_is_unknown_or_an_ordinary_word_is_not_proven_to_be_in_no_log(
    cluster: Cluster, key: str | None
) -> None:
    with pytest.raises(NotProvenError):
        DeployedWorkload(workload(), cluster.access).key_not_in_logs(key)


def test_a_cpu_workload_has_no_device_check(cluster: Cluster) -> None:
    assert [check.name for check in DeployedWorkload(workload(gpu=None), cluster.access).checks()] == [
        "pods",
        "endpoints",
    ]


def test_the_key_is_read_from_its_secret_and_stands_on_no_argument_list(cluster: Cluster) -> None:
    cluster.has("secret", {"data": {"apiKey": base64.b64encode(b"s3cret").decode()}})
    served = workload(api_key_secret="embed-keys", api_key_secret_key="apiKey")
    assert DeployedWorkload(served, cluster.access).api_key() == "s3cret"
    assert "s3cret" not in cluster.calls()


@pytest.mark.parametrize("content", [{}, {"data": None}, {"data": {"other": "eA=="}}, {"data": {"apiKey": "?"}}, None])
def test_a_secret_without_the_key_gives_none(cluster: Cluster, content: object) -> None:
    if content is not None:
        cluster.has("secret", content)
    served = workload(api_key_secret="embed-keys", api_key_secret_key="apiKey")
    assert DeployedWorkload(served, cluster.access).api_key() is None


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
    with pytest.raises(ForwardError, match="timed out"), cluster.access.forward("ns", "service/embed", 80):
        pass


def test_without_a_forward_the_test_fails_and_goes_on_to_report(cluster: Cluster) -> None:
    report = smoke.test(planned()[1], cluster.access, burst=None)
    results = {result.check: result for result in report.workloads[0].results}
    assert results["pods"].status is Status.PASSED
    assert results["port-forward"].status is Status.FAILED


def _environment(name: str) -> Contract:
    return replace(planned()[1], environment=name)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (("prod", None), "not sent: it takes every place of a pod, which clients in prod would notice; --overload"),
        (("staging", None), "clients in staging"),
        (("local", False), "not sent: --no-overload was given"),
    ],
)
def test_a_burst_that_is_not_sent_is_not_proven_and_says_why(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    asked: tuple[str, bool | None],
    reason: str,
) -> None:
    @contextmanager
    def forward(*_: object) -> Iterator[str]:
        yield "http://127.0.0.1:1"

    monkeypatch.setattr(Access, "forward", forward)
    monkeypatch.setattr(TeiService, "checks", lambda _: [])
    environment, burst = asked
    (tested,) = smoke.test(_environment(environment), cluster.access, burst=burst).workloads
    result = {result.check: result for result in tested.results}["overload"]
    assert result.status is Status.NOT_PROVEN
    assert reason in result.found


def test_a_burst_is_sent_where_it_disturbs_nobody_or_is_asked_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def forward(*_: object) -> Iterator[str]:
        yield "http://127.0.0.1:1"

    monkeypatch.setattr(Access, "forward", forward)
    monkeypatch.setattr(TeiService, "checks", lambda _: [])
    monkeypatch.setattr(Burst, "prove", lambda _: "sent")
    for environment, burst in (("local", None), ("dev", None), ("prod", True)):
        (tested,) = smoke.test(_environment(environment), cluster.access, burst=burst).workloads
        assert {result.check: result.found for result in tested.results}["overload"] == "sent"


def test_what_this_user_may_not_read_is_not_proven(cluster: Cluster) -> None:
    (cluster.folder / "deployment.json").unlink()
    cluster.says('Error from server (Forbidden): deployments is forbidden: User "u" cannot get\n')
    result = {r.check: r for r in results.run(DeployedWorkload(workload(), cluster.access).checks())}["pods"]
    assert result.status is Status.NOT_PROVEN
    assert "use a user who may read it" in result.found


def test_a_kind_of_object_that_the_cluster_does_not_know_is_an_object_that_is_not_there(cluster: Cluster) -> None:
    cluster.says('error: the server doesn\'t have a resource type "scaledobjects"\n')
    with pytest.raises(NotFoundError):
        cluster.access.run("get", "scaledobjects", "embed")


@pytest.mark.parametrize(
    ("changes", "check", "status"),
    [({"replicas": 0}, "pods", Status.NOT_PROVEN), ({"engine": "other"}, "engine", Status.FAILED)],
)
def test_what_cannot_be_tested_is_not_passed(
    cluster: Cluster, changes: dict[str, Any], check: str, status: Status
) -> None:
    agreed = planned()[1]
    contract = type(agreed)(**agreed.__dict__ | {"workloads": (workload(**changes),)})
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

TWO_PORTS = FORWARDING.replace("exec", 'echo "Forwarding from 127.0.0.1:4343 -> 9000"\nexec')


def test_ports_of_one_target_are_forwarded_to_one_pod_in_the_order_in_which_they_are_asked_for(
    cluster: Cluster,
) -> None:
    cluster.kubectl.write_text(TWO_PORTS.replace("sleep 1000", "sleep 30").replace("echo $$", 'echo "$@"'))
    with cluster.access.forward_ports("ns", "service/embed", 80, 9000) as urls:
        assert urls == ["http://127.0.0.1:4242", "http://127.0.0.1:4343"]
    assert (cluster.folder / "pid").read_text().endswith("service/embed :80 :9000\n")


WAITS = """
import signal, sys, time
from pathlib import Path
from scripts import command
from scripts.access import Access
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
folder = Path(sys.argv[1])
def main():
    with Access(folder / "config", None, folder / "kubectl").forward("ns", "service/embed", 80) as url:
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
