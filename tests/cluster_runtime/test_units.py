"""The cluster's machinery without a cluster: no root, no namespaces."""

import os
import platform
import socket
import ssl
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from local.cluster import (
    Cluster,
    ClusterError,
    Options,
    PartStatus,
    cgroups,
    cluster_id,
    config,
    dns,
    forward,
    forwards,
    images,
)
from local.cluster import cluster as cluster_module
from local.cluster.__main__ import age_text, main
from local.cluster.api import Api
from local.cluster.cluster import GPUS_ANNOTATION, gpus_problem
from local.cluster.config import Configuration, Layout
from local.cluster.errors import PartFailedError, tail
from local.cluster.forwards import Forward, Forwards
from local.cluster.lock import exclusive
from local.cluster.namespaces import Part
from local.cluster.pki import CERTIFICATES, Pki

pytestmark = pytest.mark.local


@pytest.mark.parametrize("command", ["up", "status", "down"])
@pytest.mark.parametrize("where", [("Linux", 1000, "you are not root"), ("Darwin", 0, "this is Darwin")])
def test_where_it_cannot_run_one_line_says_what_to_use_instead(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    where: tuple[str, int, str],
    command: str,
) -> None:
    system, user, reason = where
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert main([command]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line
    assert "provider: existing, context: NAME" in line


def test_two_checkouts_have_two_ids_and_one_checkout_keeps_its_own(tmp_path: Path) -> None:
    assert cluster_id(tmp_path / "a") != cluster_id(tmp_path / "b")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert cluster_id(tmp_path / "link") == cluster_id(tmp_path / "a")


def test_cgroup_roots_are_found_on_hybrid_and_unified_hosts() -> None:
    hybrid = (
        "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
    )
    assert cgroups.roots(hybrid) == [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/unified")]
    assert cgroups.roots("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw") == [Path("/sys/fs/cgroup")]


def test_on_a_unified_host_the_controllers_that_pods_need_are_handed_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for directory in (tmp_path, own):
        (directory / "cgroup.controllers").write_text("cpuset memory rdma\n")
        (directory / "cgroup.subtree_control").write_text("memory\n")
    monkeypatch.setattr(cgroups, "roots", lambda _: [tmp_path])
    cgroups.create("own")
    # A real file takes the last write for its content; the kernel would add the controller.
    assert [(d / "cgroup.subtree_control").read_text() for d in (tmp_path, own)] == ["+cpuset", "+cpuset"]


def test_a_lock_that_is_held_names_its_holder_and_leaves_no_file(tmp_path: Path) -> None:
    lock = tmp_path / "cluster.lock"
    with exclusive(lock), pytest.raises(ClusterError, match=f"pid {os.getpid()}"), exclusive(lock):
        pass
    assert not lock.exists()
    with exclusive(lock):
        assert lock.exists()


def test_a_published_port_stays_the_same_and_gives_way_when_taken(tmp_path: Path) -> None:
    record = Forwards("0a1b2c3d", tmp_path / "published.json")
    with record.listener("tei") as first:
        port = first.getsockname()[1]
        with record.listener("tei") as second:
            other = second.getsockname()[1]
    assert other != port == forwards.usual_port("0a1b2c3d", "tei")
    assert first.family == socket.AF_INET
    record.keep(Forward("tei", other, "10.96.1.1", 80, "models", "tei"))
    with Forwards("0a1b2c3d", tmp_path / "published.json").listener("tei") as again:
        assert again.getsockname() == ("127.0.0.1", other)


def test_a_forward_carries_an_answer_that_comes_after_the_request_has_ended() -> None:
    """Client half-closes, the server answers then: nothing of it may be lost."""
    question, answer = b"q" * 300_000, b"a" * 300_000
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as listener:
        got = bytearray()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                while data := connection.recv(65536):
                    got.extend(data)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        script = [sys.executable, "-I", str(Path(forward.__file__)), "127.0.0.1", str(server.getsockname()[1])]
        child = subprocess.Popen(script, stdin=listener.fileno())
        try:
            with socket.create_connection(listener.getsockname(), timeout=20) as client:
                client.sendall(question)
                client.shutdown(socket.SHUT_WR)
                back = bytearray()
                while data := client.recv(65536):
                    back.extend(data)
        finally:
            child.terminate()
            child.wait()
        thread.join(20)
    assert bytes(got) == question
    assert bytes(back) == answer


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (lambda q: q[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + q[12:], None),
        (lambda q: q[:2] + b"\x81\x83\0\1\0\0\0\0\0\0" + q[12:], "response code 3"),
        (lambda _: b"?", "does not speak DNS"),
    ],
)
def test_a_dns_answer_counts_only_with_an_address(reply: Callable[[bytes], bytes], problem: str | None) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        asked: list[bytes] = []

        def serve() -> None:
            question, client = server.recvfrom(4096)
            asked.append(question)
            server.sendto(reply(question), client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        found = dns.problem("127.0.0.1", "name.test", server.getsockname()[1])
        thread.join(10)
    assert asked[0][12:] == b"\4name\4test\0\0\1\0\1"
    assert found is None if problem is None else problem in str(found)


def test_a_part_is_another_one_when_a_file_it_reads_changes(tmp_path: Path) -> None:
    file = tmp_path / "kubelet.yaml"
    file.write_text("a: 1")
    part = Part("kubelet", ("/bin/kubelet",), (file,))
    before = part.spec()
    assert part.spec() == before
    file.write_text("a: 2")
    assert part.spec() != before


def test_images_are_found_by_the_last_part_of_their_name() -> None:
    files = {"built.local/pause:embedded": Path("a"), "built.local/coredns:1.15.0": Path("b")}
    assert images.named(files, "coredns") == "built.local/coredns:1.15.0"
    with pytest.raises(ClusterError, match="no image called tei"):
        images.named(files, "tei")


def test_a_failed_part_says_what_its_log_ends_with_and_where_it_is(tmp_path: Path) -> None:
    log = tmp_path / "etcd.log"
    log.write_text("\n".join(f"line {number}" for number in range(100)))
    message = str(PartFailedError("etcd", "ended with status 1", log)).splitlines()
    assert message[0] == "etcd: ended with status 1"
    assert message[-2] == "  | line 99"
    assert message[-1] == f"  log: {log}"
    assert tail(tmp_path / "absent.log") == []


@pytest.mark.parametrize(("seconds", "text"), [(9.9, "9s"), (75, "1m15s"), (3661, "1h01m")])
def test_ages_are_short(seconds: float, text: str) -> None:
    assert age_text(seconds) == text


def test_without_gpus_the_node_loses_its_gpu_labels() -> None:
    assert set(Options(gpus=0).node_labels().values()) == {None}
    assert Options(gpus=4, gpu_product="NVIDIA-H100").node_labels() == {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": "4",
        "nvidia.com/gpu.product": "NVIDIA-H100",
    }


def _node(gpus: str, wanted: str | None) -> dict[str, Any]:
    annotations = {} if wanted is None else {GPUS_ANNOTATION: wanted}
    return {
        "metadata": {"annotations": annotations, "labels": {"nvidia.com/gpu.product": "NVIDIA-L4"}},
        "status": {
            "allocatable": {"cpu": "2"} if gpus == "0" else {"nvidia.com/gpu": gpus},
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}],
        },
    }


def _status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: Any) -> dict[str, PartStatus]:
    """What `status` says where no process runs and the API server gives these answers."""
    monkeypatch.setattr(cluster_module, "require_root_on_linux", lambda: None)
    cluster = Cluster(tmp_path, "of-a-test")

    def in_network(_call: object) -> None:
        raise ConnectionRefusedError

    quiet: Any = SimpleNamespace(
        init_pid=lambda: None, processes=list, parts=dict, in_network=in_network, log=tmp_path / "log"
    )
    cluster.namespaces, cluster.api = quiet, api
    return {part.name: part for part in cluster.status()}


def test_a_node_whose_kubelet_is_gone_is_shown_as_it_was_last_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = _status(tmp_path, monkeypatch, SimpleNamespace(get=lambda _path: _node("1", "1")))
    assert not parts["node"].healthy
    assert parts["node"].detail == (
        "last reported by its kubelet, which does not report now: "
        "Ready; 1 simulated GPU (NVIDIA-L4 on the label, no device)"
    )


def test_an_api_server_that_refuses_connections_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: object, **_more: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    namespaces: Any = SimpleNamespace(request=refused)
    pki: Any = SimpleNamespace(admin_context=lambda: None)
    parts = _status(tmp_path, monkeypatch, Api(namespaces, pki))
    assert parts["node"].detail == "the API server does not answer"


@pytest.mark.parametrize(
    ("gpus", "wanted", "well"),
    [("2", "2", True), ("0", "0", True), ("2", None, True), ("0", None, False), ("0", "2", False)],
)
def test_a_node_without_the_gpus_that_it_was_to_get_says_so(gpus: str, wanted: str | None, well: bool) -> None:
    problem = gpus_problem(_node(gpus, wanted))
    assert (problem is None) == well
    assert well or "interrupted" in str(problem)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "state")
    made.make()
    return made


def test_configuration_is_the_same_twice_and_private(layout: Layout) -> None:
    programs = {name: Path("/programs") / name for name in config.PROGRAMS}
    pki = Pki(layout.pki, "openssl")
    assert pki.ensure()
    configuration = Configuration(layout, programs, "/embedding-serving-x", "built.local/pause:embedded", Options())

    def files() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in layout.config.iterdir()}

    configuration.write(pki)
    first = files()
    assert not pki.ensure()
    configuration.write(pki)
    assert files() == first
    assert {file.stat().st_mode & 0o77 for file in (*layout.config.iterdir(), *layout.pki.glob("*.key"))} == {0}
    assert layout.state.stat().st_mode & 0o777 == 0o700

    plugin = tomllib.loads(first["containerd.toml"].decode())["plugins"]["io.containerd.grpc.v1.cri"]
    assert plugin["sandbox_image"] == "built.local/pause:embedded"
    assert yaml.safe_load(first["kubelet.yaml"])["cgroupRoot"] == "/embedding-serving-x"


def test_a_new_list_of_certificates_keeps_the_authority_that_running_parts_trust(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pki(layout.pki, "openssl").ensure()
    authority = (layout.pki / "ca.crt").read_bytes()
    (layout.pki / "admin.crt").unlink()
    monkeypatch.setattr("local.cluster.pki.CERTIFICATES", CERTIFICATES[:3])
    assert Pki(layout.pki, "openssl").ensure()
    assert (layout.pki / "ca.crt").read_bytes() == authority
    Pki(layout.pki, "openssl").admin_context()


def test_the_api_servers_certificate_is_good_for_loopback_and_its_service_name(layout: Layout) -> None:
    pki = Pki(layout.pki, "openssl")
    pki.ensure()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(layout.pki / "kube-apiserver.crt", layout.pki / "kube-apiserver.key")
    for name in ("127.0.0.1", "kubernetes.default.svc", "10.96.0.1"):
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client_side = pki.admin_context().wrap_bio(to_client, to_server, server_hostname=name)
        server_side = server.wrap_bio(to_server, to_client, server_side=True)
        ended = False
        for _ in range(5):
            for side in (client_side, server_side):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
            ended = client_side.cipher() is not None
        assert ended
        assert client_side.getpeercert()


def test_openssl_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="openssl is needed"):
        Pki(tmp_path / "pki", str(tmp_path / "no-openssl")).ensure()
