"""A cluster that is interrupted, doubled and removed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from local import paths
from local.cluster import Cluster, ClusterError, cgroups, init
from local.cluster.lock import exclusive
from tests.cluster_runtime.conftest import Kit, Lines

pytestmark = pytest.mark.cluster

#: Where parts would write if they were not kept from it, and what the kubelet would set for the whole machine.
HOST_PLACES = ("/run", "/run/netns", "/opt", "/etc", "/etc/cni", "/var/lib", "/var/lib/cni", "/var/log", "/usr/libexec")

UP = """
import json, sys
from pathlib import Path
from local.cluster import Cluster
from local.report import PlainReporter
state, identity, programs, images = json.loads(sys.stdin.read())
paths = [{name: Path(path) for name, path in table.items()} for table in (programs, images)]
Cluster(Path(state), identity).up(PlainReporter(), *paths)
"""


def host_state() -> dict[str, object]:
    """What belongs to the host and has to be the same after a cluster came and went."""
    links = subprocess.run(["ip", "-br", "link"], check=True, capture_output=True, text=True).stdout
    return {
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "links": links,
        "files": {
            place: sorted(entry.name for entry in Path(place).iterdir())
            for place in HOST_PLACES
            if Path(place).is_dir()
        },
        "tunables": {name: (Path("/proc/sys") / name).read_text() for name in init.KUBELET_TUNABLES},
        "cgroups": [
            str(root / name) for root in cgroup_roots() for name in ("k8s.io", "kubepods") if (root / name).exists()
        ],
    }


def cgroup_roots() -> list[Path]:
    return cgroups.roots(Path("/proc/self/mountinfo").read_text())


def holders(namespaces: Iterable[str]) -> list[str]:
    """Processes of the machine that are in one of these namespaces."""
    found = []
    for entry in Path("/proc").iterdir():
        for kind in ("pid", "net", "mnt") if entry.name.isdigit() else ():
            try:
                if str((entry / "ns" / kind).readlink()) in namespaces:
                    found.append(f"{entry.name} {(entry / 'comm').read_text().strip()}")
            except OSError:
                continue
    return found


def interrupted_up(kit: Kit, cluster: Cluster, after: str) -> None:
    """Start `up` in a process of its own and kill it when it reports ``after`` as done."""
    tables = [{name: str(path) for name, path in table.items()} for table in (kit.programs, kit.images)]
    child = subprocess.Popen(
        [sys.executable, "-c", UP], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=paths.CHECKOUT
    )
    assert child.stdin
    assert child.stderr
    child.stdin.write(json.dumps([str(cluster.layout.state), cluster.cluster_id, *tables]))
    child.stdin.close()
    seen = []
    for line in child.stderr:
        seen.append(line)
        if line.strip().startswith(f"ok  {after}"):
            child.send_signal(signal.SIGKILL)
            break
    child.stderr.close()
    assert child.wait() == -signal.SIGKILL, "".join(seen)


def test_an_up_that_was_killed_is_finished_by_the_next_and_down_leaves_nothing(kit: Kit) -> None:
    cluster = kit.cluster("killed")
    before = host_state()
    interrupted_up(kit, cluster, after="namespaces")
    interrupted_up(kit, cluster, after="kubelet")
    kit.up(cluster)
    assert [part for part in cluster.status() if not part.healthy] == []
    names = [
        part for part in cluster.namespaces.processes() if part.part == "etcd" and part.program == part.part_program
    ]
    assert len(names) == 1

    pid = cluster.namespaces.init_pid()
    namespaces = {str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in ("pid", "net", "mnt")}
    assert len(holders(namespaces)) > 10
    assert cgroups.existing(cluster.cgroup)

    cluster.down(Lines())

    assert holders(namespaces) == []
    assert cgroups.existing(cluster.cgroup) == []
    assert not cluster.layout.state.exists()
    assert not cluster.layout.state.with_name("test-killed.lock").exists()
    assert host_state() == before
    assert cluster.status() == []
    cluster.down(Lines())  # nothing to remove is fine


def test_an_up_that_was_killed_is_removed_by_down_without_its_state(kit: Kit) -> None:
    cluster = kit.cluster("killed")
    interrupted_up(kit, cluster, after="kubelet")
    pid = cluster.namespaces.init_pid()
    # Whoever removes .state by hand must not lose the way to the processes.
    shutil.rmtree(cluster.layout.state, ignore_errors=True)
    cluster.down(Lines())
    assert not Path(f"/proc/{pid}").exists()
    assert cgroups.existing(cluster.cgroup) == []


def test_two_clusters_run_side_by_side(kit: Kit, running: Cluster) -> None:
    other = kit.cluster("second")
    kit.up(other)
    for cluster in (running, other):
        assert [part for part in cluster.status() if not part.healthy] == []
    assert running.layout.kubeconfig.read_text() != other.layout.kubeconfig.read_text()
    other.down(Lines())
    assert [part for part in running.status() if not part.healthy] == []


def test_a_part_that_cannot_start_is_named_with_its_log(kit: Kit) -> None:
    cluster = kit.cluster("broken")
    programs = {**kit.programs, "etcd": Path("/bin/false")}
    with pytest.raises(ClusterError, match="etcd: ended with status 1") as failure:
        cluster.up(Lines(), programs, kit.images)
    assert str(cluster.layout.log("etcd")) in str(failure.value)
    cluster.down(Lines())


def test_a_second_up_at_the_same_time_is_told_so(kit: Kit, running: Cluster) -> None:
    lock = running.layout.state.with_name(f"{running.layout.state.name}.lock")
    with exclusive(lock), pytest.raises(ClusterError, match=f"another command is changing this cluster.*{os.getpid()}"):
        kit.up(running)
