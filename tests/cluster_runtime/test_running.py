"""What a cluster that is up does for its users."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import yaml

from local.cluster import Cluster, ClusterError, Options, dns
from local.images import names
from tests.cluster_runtime.conftest import Kit
from tests.cluster_runtime.kubectl import Kubectl, eventually, namespace, pod

pytestmark = pytest.mark.cluster


@pytest.fixture
def kubectl(kit: Kit, running: Cluster) -> Kubectl:
    return Kubectl(kit.programs["kubectl"], running.layout.kubeconfig)


@pytest.fixture
def restricted(kubectl: Kubectl) -> Iterator[str]:
    """A namespace under Pod Security `restricted`."""
    kubectl.apply(namespace("cluster-test"))
    yield "cluster-test"
    kubectl("delete", "namespace", "cluster-test")


def phase(kubectl: Kubectl, where: str, name: str) -> str:
    found = kubectl.get("pod", name, "-n", where)["status"]
    return str(found.get("phase"))


def test_up_again_changes_nothing(kit: Kit, running: Cluster) -> None:
    before = {name: process.pid for name, process in running.namespaces.parts().items()}
    lines = kit.up(running)
    assert {name: process.pid for name, process in running.namespaces.parts().items()} == before
    assert lines.steps == []
    assert {"etcd", "kube-apiserver", "kubelet", "node", "coredns"} <= set(lines.finished)


def test_status_shows_every_part_healthy_with_its_log(running: Cluster) -> None:
    parts = {part.name: part for part in running.status()}
    assert [part for part in parts.values() if not part.healthy] == []
    assert {"namespaces", "containerd", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} <= set(
        parts
    )
    assert {"kubelet", "kube-proxy", "forward-kube-apiserver", "node", "coredns"} <= set(parts)
    for part in parts.values():
        if part.pid:
            assert part.log is not None
            assert part.log.exists()


def test_the_kubeconfig_works_from_the_host_and_is_private(running: Cluster, kubectl: Kubectl) -> None:
    assert running.layout.kubeconfig.stat().st_mode & 0o777 == 0o600
    (node,) = kubectl.get("nodes")["items"]
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-L4"


def test_nothing_on_the_host_listens_beyond_loopback(running: Cluster) -> None:
    """Every socket that the cluster's processes hold in the host's network is bound to 127.0.0.1."""
    listening = subprocess.run(["ss", "-Htlnp"], check=True, capture_output=True, text=True).stdout.splitlines()
    pids = {process.pid for process in running.namespaces.processes()}
    own = [line.split()[3] for line in listening if any(f"pid={pid}," in line for pid in pids)]
    assert own
    assert [address for address in own if not address.startswith("127.0.0.1:")] == []


def test_a_pod_runs_under_pod_security_restricted_and_a_lax_one_is_refused(kubectl: Kubectl, restricted: str) -> None:
    lax = kubectl.try_("apply", "-f", "-", stdin=yaml.safe_dump(pod(restricted, "lax", names.PAUSE, security={})))
    assert lax.returncode != 0
    assert "violates PodSecurity" in lax.stderr
    kubectl.apply(pod(restricted, "strict", names.PAUSE))
    eventually(lambda: phase(kubectl, restricted, "strict") == "Running", "the pod runs")


def test_kubectl_reaches_logs_and_processes_of_a_pod(kubectl: Kubectl) -> None:
    coredns = ("-n", "kube-system", "deployment/coredns")
    assert "CoreDNS-" in kubectl("logs", *coredns)
    assert "CoreDNS-" in kubectl("exec", *coredns, "--", "/coredns", "-version")


def test_the_third_pod_that_wants_a_gpu_stays_pending(kubectl: Kubectl, restricted: str) -> None:
    for name in ("first", "second"):
        kubectl.apply(pod(restricted, name, names.PAUSE, gpus=1))
        eventually(lambda name=name: phase(kubectl, restricted, name) == "Running", f"{name} runs")  # type: ignore[misc]
    kubectl.apply(pod(restricted, "third", names.PAUSE, gpus=1))

    def refused() -> bool:
        conditions = kubectl.get("pod", "third", "-n", restricted)["status"].get("conditions", [])
        return any("Insufficient nvidia.com/gpu" in condition.get("message", "") for condition in conditions)

    eventually(refused, "the scheduler says that GPUs are taken")
    assert phase(kubectl, restricted, "third") == "Pending"


def test_a_service_is_reached_by_name_from_a_pod_and_from_the_host_once_published(
    kit: Kit, running: Cluster, kubectl: Kubectl, restricted: str
) -> None:
    # CoreDNS serves its readiness over HTTP: a real server behind a Service with two ports of its own.
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "ready", "namespace": "kube-system"},
        "spec": {"selector": {"k8s-app": "kube-dns"}, "ports": [{"port": 80, "targetPort": 8181}]},
    }
    kubectl.apply(service)
    kubectl.apply(pod(restricted, "client", names.PAUSE))
    eventually(lambda: phase(kubectl, restricted, "client") == "Running", "the pod runs")
    address = kubectl.get("service", "ready", "-n", "kube-system")["spec"]["clusterIP"]

    # A program of the host, in the network of the pod alone.
    program = (
        "import sys, urllib.request\n"
        f"sys.path.insert(0, {str(Path(dns.__file__).parent)!r})\n"
        "import dns\n"
        "print(dns.problem('10.96.0.10', 'ready.kube-system.svc.cluster.local'))\n"
        f"print(urllib.request.urlopen('http://{address}/ready', timeout=5).read().decode())\n"
    )
    (container,) = kubectl.get("pod", "client", "-n", restricted)["status"]["containerStatuses"]
    pid = _task_pid(kit, running, container["containerID"].removeprefix("containerd://"))
    out = running.namespaces.run("nsenter", f"--net=/proc/{pid}/ns/net", sys.executable, "-c", program)
    assert out.split() == ["None", "OK"]

    url = running.publish("ready", "kube-system", "ready", 80)
    assert requests.get(f"{url}/ready", timeout=5).text == "OK"
    assert running.publish("ready", "kube-system", "ready", 80) == url
    kubectl("delete", "service", "ready", "-n", "kube-system")
    with pytest.raises(ClusterError, match="there is no Service kube-system/ready with port 80"):
        running.publish("ready", "kube-system", "ready", 80)
    assert kit.up(running).steps == ["ready is published no more: Service kube-system/ready is gone"]
    with pytest.raises(requests.ConnectionError):
        requests.get(url, timeout=5)


def _task_pid(kit: Kit, running: Cluster, container: str) -> str:
    tasks = running.namespaces.run(str(kit.programs["ctr"]), "-n", "k8s.io", "tasks", "ls")
    (pid,) = [line.split()[1] for line in tasks.splitlines() if line.startswith(container)]
    return pid


@pytest.mark.parametrize("part", ["kubelet", "kube-apiserver", "containerd", "forward-kube-apiserver"])
def test_a_part_that_died_is_shown_and_started_again(kit: Kit, running: Cluster, kubectl: Kubectl, part: str) -> None:
    before = kubectl.get("pods", "-A")["items"]
    os.kill(running.namespaces.parts()[part].pid, 9)
    eventually(lambda: part not in running.namespaces.parts(), f"{part} has ended")
    (shown,) = [entry for entry in running.status() if entry.name == part]
    assert (shown.healthy, shown.detail) == (False, "not running")

    lines = kit.up(running)

    assert any(line.startswith(f"{part} was not running") for line in lines.steps)
    assert [entry for entry in running.status() if not entry.healthy] == []
    (node,) = kubectl.get("nodes")["items"]
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    uids = {entry["metadata"]["uid"] for entry in kubectl.get("pods", "-A")["items"]}
    assert {entry["metadata"]["uid"] for entry in before} <= uids


def test_after_a_reboot_up_brings_back_what_was_there(kit: Kit, running: Cluster, kubectl: Kubectl) -> None:
    """Killing init is what a reboot does: no process and no mount is left, only the state directory."""
    kubectl("create", "configmap", "kept", "-n", "default")
    server = yaml.safe_load(running.layout.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    running.namespaces.stop()
    assert not any(entry.healthy for entry in running.status())
    kit.up(running)
    assert [entry for entry in running.status() if not entry.healthy] == []
    assert yaml.safe_load(running.layout.kubeconfig.read_text())["clusters"][0]["cluster"]["server"] == server
    kubectl("delete", "configmap", "kept", "-n", "default")


def test_a_changed_option_restarts_the_part_that_reads_it(kit: Kit, running: Cluster) -> None:
    running.options = Options(hpa_sync_seconds=5)
    assert any(line.startswith("kube-controller-manager: its configuration changed") for line in kit.up(running).steps)
    running.options = Options()
    kit.up(running)


def test_a_command_inside_sees_the_clusters_network_and_its_exit_status_comes_back(running: Cluster) -> None:
    assert running.execute(["sh", "-c", "ip address show node0 >/dev/null && kubectl version >/dev/null"]) == 0
    assert running.execute(["sh", "-c", "exit 7"]) == 7
