"""One embedded single-node Kubernetes: bring it up, look at it, publish a Service of it, take it down."""

import http.client
import json
import os
import platform
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from local.cluster import cgroups, config, dns, forwards, images
from local.cluster.api import Api
from local.cluster.config import Configuration, Layout, Options
from local.cluster.errors import ClusterError, PartFailedError
from local.cluster.forwards import Forward, Forwards
from local.cluster.init import NODE_NAME
from local.cluster.lock import exclusive
from local.cluster.namespaces import Namespaces, Part, Process
from local.cluster.pki import Pki, write_private
from local.report import Reporter

HEALTH_TIMEOUT = 120.0  # seconds for one part to answer; two busy cores need a fifth of it
NEWS_EVERY = 5.0  # seconds between lines about one wait
COREDNS_MANIFEST = Path(__file__).parent / "manifests" / "coredns.yaml"
NODE_PATH = f"/api/v1/nodes/{NODE_NAME}"
GPU_RESOURCE = "nvidia.com/gpu"
GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"
#: How many GPUs the node was to get: what it offers is lost whenever its kubelet registers anew.
GPUS_ANNOTATION = "embedding-serving/gpus"

#: A check returns None when all is well, else what is not.
Check = Callable[[], str | None]


@dataclass(frozen=True)
class PartStatus:
    """Health of one part. ``pid`` and ``uptime`` (seconds) are None for what has no process of its own on the host."""

    name: str
    healthy: bool
    detail: str
    pid: int | None
    uptime: float | None
    log: Path | None


@dataclass(frozen=True)
class Endpoint:
    """A health endpoint on the node's loopback. ``tls``: None, ``admin`` or ``unverified`` (self-signed)."""

    port: int
    path: str
    tls: str | None = None


ENDPOINTS = {
    "containerd": Endpoint(config.CONTAINERD_METRICS_PORT, "/v1/metrics"),
    "etcd": Endpoint(config.ETCD_PORT, "/health"),
    "kube-apiserver": Endpoint(config.API_PORT, "/readyz", "admin"),
    "kube-controller-manager": Endpoint(config.CONTROLLER_MANAGER_PORT, "/healthz", "unverified"),
    "kube-scheduler": Endpoint(config.SCHEDULER_PORT, "/readyz", "unverified"),
    "kubelet": Endpoint(config.KUBELET_HEALTH_PORT, "/healthz"),
    "kube-proxy": Endpoint(config.PROXY_HEALTH_PORT, "/livez"),
}


def require_root_on_linux() -> None:
    """Raises ClusterError, one line, where the embedded cluster cannot run."""
    if platform.system() == "Linux" and os.geteuid() == 0:
        return
    reason = "you are not root" if platform.system() == "Linux" else f"this is {platform.system()}"
    raise ClusterError(
        f"the embedded cluster needs Linux and root, and {reason}. Use a cluster that you have: in the stack file set "
        "`cluster: {provider: existing, context: NAME}` with NAME from `kubectl config get-contexts`, and the engines' "
        "official images"
    )


@dataclass(frozen=True)
class Launch:
    """What `up` waits for: something that was started, or found running (``child`` is None)."""

    reporter: Reporter
    name: str
    log: Path
    child: subprocess.Popen[bytes] | None
    check: Check

    def wait(self) -> None:
        """Wait until ``check`` is content, saying now and then what it says.

        Raises:
            PartFailedError: the part ended, or time is up.
        """
        begun = news = time.monotonic()
        while problem := _failure(self.check):
            if self.child and self.child.poll() is not None:
                raise PartFailedError(self.name, f"ended with status {self.child.returncode}", self.log)
            now = time.monotonic()
            if now - begun > HEALTH_TIMEOUT:
                raise PartFailedError(self.name, f"not healthy after {HEALTH_TIMEOUT:.0f} s: {problem}", self.log)
            if now - news > NEWS_EVERY:
                news = now
                self.reporter.step(f"waiting for {self.name}, {now - begun:.0f} s so far: {problem}")
            time.sleep(0.1)
        self.reporter.done(self.name, time.monotonic() - begun)


class Cluster:
    """The cluster ``cluster_id`` with everything it writes below ``state``; the id names its cgroup and its ports."""

    def __init__(self, state: Path, cluster_id: str, options: Options | None = None) -> None:
        self.cluster_id = cluster_id
        self.options = options or Options()
        self.layout = Layout(state)
        self.cgroup = f"embedding-serving-{cluster_id}"
        self.context = f"embedding-serving-{cluster_id}"
        self._programs_file = state / "programs.json"
        self._lock = state.with_name(f"{state.name}.lock")
        self._forwards = Forwards(cluster_id, self.layout.published)
        self._use(self._recorded_programs())

    # -- commands ----------------------------------------------------------------------------------------------------

    def up(self, reporter: Reporter, programs: Mapping[str, Path], image_files: Mapping[str, Path]) -> None:
        """Start what does not run, leave alone what does, return when pods can run.

        Args:
            programs: absolute path per name in ``config.PROGRAMS``; ``cni-plugins`` is a directory.
            image_files: OCI tar per image name; must have one called ``pause`` and one called ``coredns``.

        Raises:
            ClusterError: with what failed and, for a part, the end of its log.
        """
        require_root_on_linux()
        with exclusive(self._lock):
            self._use(dict(programs))
            configuration = self._configure(image_files)
            self._start_namespaces(reporter)
            api_server_started = self._start_control_plane(reporter, configuration, image_files)
            self._start_clients(reporter, configuration, api_server_started)
            self._start_dns(reporter, image_files)
            self._restore_forwards(reporter)

    def status(self) -> list[PartStatus]:
        """Health of every part; empty when there is no cluster."""
        require_root_on_linux()
        if not self.layout.state.exists():
            return []
        init = self.namespaces.init_pid()
        age = next((p.age for p in self.namespaces.processes() if p.pid == init), None)
        parts = self.namespaces.parts()
        found = [
            PartStatus(
                "namespaces", init is not None, "running" if init else "not running", init, age, self.namespaces.log
            )
        ]
        for name in ENDPOINTS:
            found.append(self._part_status(name, parts.get(name), self._endpoint_check(name)))
        for entry in self._forwards.all().values():
            part = forwards.part_name(entry.name)
            found.append(self._part_status(part, parts.get(part), self._forward_check(entry)))
        kubelet = next(part for part in found if part.name == "kubelet")
        problem = _failure(self._node_check(0)) or _failure(self._gpus_check)
        detail = problem or self._node_summary()
        if problem is None and not kubelet.healthy:
            detail = f"last reported by its kubelet, which does not report now: {detail}"
        found.append(PartStatus("node", problem is None and kubelet.healthy, detail, None, None, None))
        problem = _failure(self._dns_check)
        answers = f"answers on {config.DNS_ADDRESS}"
        found.append(PartStatus("coredns", problem is None, problem or answers, None, None, None))
        return found

    def down(self, reporter: Reporter) -> bool:
        """End every process and remove everything but the build cache. Returns whether there was anything.

        Raises:
            ClusterError: something could not be ended or removed.
        """
        require_root_on_linux()
        with exclusive(self._lock):
            started = time.monotonic()
            runs = self.namespaces.init_pid() is not None
            there = runs or self.layout.state.exists()
            if runs:
                reporter.step("ending every process of the cluster")
                self.namespaces.stop()
            cgroups.remove(self.cgroup)
            if self.layout.state.exists():
                reporter.step(f"removing {self.layout.state}")
                shutil.rmtree(self.layout.state)
            if there:
                reporter.done("the embedded cluster is gone", time.monotonic() - started)
            return there

    def publish(self, name: str, namespace: str, service: str, port: int) -> str:
        """Make a port of a Service reachable on the host's loopback and return its URL. The same twice is the same URL.

        Raises:
            ClusterError: the cluster does not run, or it has no such Service or port.
        """
        require_root_on_linux()
        if name == forwards.API_SERVER:
            raise ClusterError(f"the name {name} is taken by the API server's own port")
        with exclusive(self._lock):
            address = self._service_address(namespace, service, port)
            if address is None:
                raise ClusterError(f"there is no Service {namespace}/{service} with port {port} and a cluster IP")
            entry, _ = self._ensure_forward(Forward(name, 0, address, port, namespace, service))
            return f"http://127.0.0.1:{entry.listen}"

    def execute(self, command: Sequence[str]) -> int:
        """Run a command in the cluster's namespaces, with kubectl and ctr on PATH; returns its exit status."""
        require_root_on_linux()
        kubeconfig = self.layout.inside(f"config/{config.ADMIN_KUBECONFIG}")
        environment = {
            "PATH": self.namespaces.search_path(),
            "KUBECONFIG": kubeconfig,
            "CONTAINERD_ADDRESS": config.CONTAINERD_SOCKET,
            "CONTAINERD_NAMESPACE": "k8s.io",
        }
        return self.namespaces.interactive(command, environment)

    # -- steps of up -------------------------------------------------------------------------------------------------

    def _use(self, programs: dict[str, Path]) -> None:
        self.programs = programs
        self.namespaces = Namespaces(self.cluster_id, self.layout.state, programs)
        self.pki = Pki(self.layout.pki, str(programs.get("openssl", "openssl")))
        self.api = Api(self.namespaces, self.pki)
        self.store = images.ImageStore(self.namespaces, self.layout.imported)

    def _recorded_programs(self) -> dict[str, Path]:
        try:
            recorded: dict[str, str] = json.loads(self._programs_file.read_text())
        except (FileNotFoundError, PermissionError):
            return {}
        return {name: Path(path) for name, path in recorded.items()}

    def _configure(self, image_files: Mapping[str, Path]) -> Configuration:
        pause, _ = images.named(image_files, "pause"), images.named(image_files, "coredns")
        if missing := [name for name in config.PROGRAMS if name not in self.programs]:
            raise ClusterError(f"the cluster needs programs that it was not given: {', '.join(missing)}")
        self.layout.make()
        cgroups.create(self.cgroup)
        write_private(self._programs_file, json.dumps({n: str(p) for n, p in self.programs.items()}, indent=1))
        self.pki.ensure()
        configuration = Configuration(self.layout, self.programs, f"/{self.cgroup}", pause, self.options)
        configuration.write(self.pki)
        return configuration

    def _start_namespaces(self, reporter: Reporter) -> None:
        pid = self.namespaces.init_pid()
        if pid and self.namespaces.ready(pid):
            return
        if pid:
            reporter.step("namespaces are half made, by an `up` that was interrupted: making them again")
            self.namespaces.stop()
        started = time.monotonic()
        self.namespaces.start()
        reporter.done("namespaces with their own processes, mounts and network", time.monotonic() - started)

    def _start_control_plane(
        self, reporter: Reporter, configuration: Configuration, image_files: Mapping[str, Path]
    ) -> bool:
        """Whether the API server had to be started."""
        etcd = self._launch(reporter, configuration.etcd())
        containerd = self._launch(reporter, configuration.containerd())
        etcd.wait()
        api_server = self._launch(reporter, configuration.api_server())
        containerd.wait()
        self._import(reporter, image_files)
        api_server.wait()
        forward = self._restore_forward(reporter, Forward(forwards.API_SERVER, 0, "127.0.0.1", config.API_PORT))
        kubeconfig = self.pki.kubeconfig("admin", f"https://127.0.0.1:{forward.listen}", self.context)
        write_private(self.layout.kubeconfig, kubeconfig)
        return api_server.child is not None

    def _import(self, reporter: Reporter, image_files: Mapping[str, Path]) -> None:
        missing = self.store.missing(image_files)
        if missing:
            started = time.monotonic()
            size = sum(tar.stat().st_size for tar in set(missing.values())) / 1e6
            reporter.step(f"importing {size:.0f} MB of images under {len(missing)} names")
            self.store.load(missing)
            reporter.done("images", time.monotonic() - started)

    def _start_clients(self, reporter: Reporter, configuration: Configuration, api_server_started: bool) -> None:
        """Everything that watches the API server. After it was away, clients that stayed would wait out a back-off
        that has grown to more than a minute; started again, they work at once.
        """
        begun = time.time()
        controllers = (configuration.controller_manager(), configuration.scheduler())
        kubelet, *others = (
            self._launch(reporter, part, again=api_server_started) for part in (configuration.kubelet(), *controllers)
        )
        for launch in (*others, kubelet):
            launch.wait()
        # A kubelet that has just started clears what it does not know of (the GPUs) when it registers again.
        node_check = self._node_check(begun if kubelet.child else 0)
        Launch(reporter, "node", kubelet.log, kubelet.child, node_check).wait()
        wanted = {GPUS_ANNOTATION: str(self.options.gpus)}
        self.api.merge(NODE_PATH, {"metadata": {"labels": self.options.node_labels(), "annotations": wanted}})
        gpus = {GPU_RESOURCE: str(self.options.gpus) if self.options.gpus else None}
        self.api.merge(f"{NODE_PATH}/status", {"status": {"capacity": gpus, "allocatable": gpus}})
        self._launch(reporter, configuration.proxy(), again=api_server_started).wait()

    def _start_dns(self, reporter: Reporter, image_files: Mapping[str, Path]) -> None:
        manifest = COREDNS_MANIFEST.read_text().replace("IMAGE", images.named(image_files, "coredns"))
        self.api.apply(manifest)
        Launch(reporter, "coredns", self.layout.log("kubelet"), None, self._dns_check).wait()

    def _restore_forwards(self, reporter: Reporter) -> None:
        for entry in self._forwards.all().values():
            if entry.name == forwards.API_SERVER:
                continue
            address = self._service_address(entry.namespace, entry.service, entry.port)
            if address is None:
                reporter.step(f"{entry.name} is published no more: Service {entry.namespace}/{entry.service} is gone")
                if running := self.namespaces.parts().get(forwards.part_name(entry.name)):
                    self.namespaces.end(running)
                self._forwards.forget(entry.name)
                continue
            wanted = Forward(entry.name, 0, address, entry.port, entry.namespace, entry.service)
            self._restore_forward(reporter, wanted)

    def _restore_forward(self, reporter: Reporter, wanted: Forward) -> Forward:
        known = wanted.name in self._forwards.all()
        entry, started = self._ensure_forward(wanted)
        if known and started:
            part = forwards.part_name(entry.name)
            reporter.step(f"{part} was not running, started again on 127.0.0.1:{entry.listen}")
        return entry

    def _ensure_forward(self, wanted: Forward) -> tuple[Forward, bool]:
        """Start the forward unless it runs. Returns it with ``listen`` filled in, and whether it was started."""
        part = wanted.part()
        running = self.namespaces.parts().get(part.name)
        recorded = self._forwards.all().get(wanted.name)
        if running and recorded and running.spec == part.spec() and self._forward_check(recorded)() is None:
            return recorded, False
        if running:
            self.namespaces.end(running)
        with self._forwards.listener(wanted.name) as listener:
            listen = listener.getsockname()[1]
            entry = Forward(wanted.name, listen, wanted.address, wanted.port, wanted.namespace, wanted.service)
            self._forwards.keep(entry)
            self.namespaces.spawn(part, self.layout.log(part.name), stdin=listener.fileno())
        return entry, True

    def _launch(self, reporter: Reporter, part: Part, again: bool = False) -> Launch:
        """Start a part unless it runs with today's configuration (``again``: even then); say why it is started."""
        log, check = self.layout.log(part.name), self._endpoint_check(part.name)
        running = self.namespaces.parts().get(part.name)
        current = running is not None and running.spec == part.spec()
        if current and not again:
            return Launch(reporter, part.name, log, None, check)
        if running:
            reason = "the API server was away" if current else "its configuration changed"
            reporter.step(f"{part.name}: {reason}, starting it again")
            self.namespaces.end(running)
        elif log.exists():
            reporter.step(f"{part.name} was not running, starting it again (its log: {log})")
        return Launch(reporter, part.name, log, self.namespaces.spawn(part, log), check)

    # -- checks ------------------------------------------------------------------------------------------------------

    def _endpoint_check(self, name: str) -> Check:
        endpoint = ENDPOINTS[name]

        def check() -> str | None:
            context = None
            if endpoint.tls == "admin":
                context = self.pki.admin_context()
            elif endpoint.tls == "unverified":
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            status, body = self.namespaces.request(endpoint.port, endpoint.path, context, timeout=5)
            return None if status == 200 else f"{endpoint.path} says {status} {_last_line(body)}"

        return check

    def _forward_check(self, entry: Forward) -> Check:
        def check() -> str | None:
            connection = http.client.HTTPConnection("127.0.0.1", entry.listen, timeout=5)
            try:
                connection.connect()
            finally:
                connection.close()
            return None

        return check

    def _node_check(self, heartbeat_after: float) -> Check:
        def check() -> str | None:
            node = self.api.get(NODE_PATH)
            if node is None:
                return "the node has not registered yet"
            conditions = [c for c in node["status"].get("conditions", []) if c["type"] == "Ready"]
            if not conditions or conditions[0]["status"] != "True":
                return conditions[0]["message"] if conditions else "the node has no Ready condition yet"
            heartbeat = datetime.strptime(conditions[0]["lastHeartbeatTime"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
            # Heartbeats have whole seconds.
            return None if heartbeat.timestamp() >= int(heartbeat_after) else "the node's last report is from before"

        return check

    def _dns_check(self) -> str | None:
        """Asks through the Service address: the answer needs CoreDNS, the API server and kube-proxy."""
        name = f"kubernetes.default.svc.{config.CLUSTER_DOMAIN}"
        try:
            return self.namespaces.in_network(lambda: dns.problem(config.DNS_ADDRESS, name))
        except OSError as error:
            return f"no answer from {config.DNS_ADDRESS} ({error})"

    def _part_status(self, name: str, process: Process | None, check: Check) -> PartStatus:
        log = self.layout.log(name)
        if process is None:
            return PartStatus(name, False, "not running", None, None, log)
        problem = _failure(check)
        return PartStatus(name, problem is None, problem or "healthy", process.pid, process.age, log)

    def _gpus_check(self) -> str | None:
        return gpus_problem(self.api.get(NODE_PATH) or {})

    def _node_summary(self) -> str:
        node = self.api.get(NODE_PATH) or {}
        gpus = _gpus(node)
        if gpus == "0":
            return "Ready; no GPUs"
        product = node["metadata"].get("labels", {}).get(GPU_PRODUCT_LABEL)
        return f"Ready; {gpus} simulated {'GPU' if gpus == '1' else 'GPUs'} ({product} on the label, no device)"

    def _service_address(self, namespace: str, service: str, port: int) -> str | None:
        found = self.api.get(f"/api/v1/namespaces/{namespace}/services/{service}")
        address: str | None = found["spec"].get("clusterIP") if found else None
        has_port = found and any(entry["port"] == port for entry in found["spec"].get("ports", []))
        return address if has_port and address != "None" else None


def gpus_problem(node: Mapping[str, Any]) -> str | None:
    """What is wrong with the GPUs that a node object offers, after an `up` that was interrupted."""
    wanted = node.get("metadata", {}).get("annotations", {}).get(GPUS_ANNOTATION)
    offered = _gpus(node)
    # A cluster that an earlier checkout started has GPUs and no annotation.
    if offered == wanted or (wanted is None and offered != "0"):
        return None
    return "Ready, but make up was interrupted before it set the node's GPUs"


def _gpus(node: Mapping[str, Any]) -> str:
    gpus: str = node.get("status", {}).get("allocatable", {}).get(GPU_RESOURCE, "0")
    return gpus


def _failure(check: Check) -> str | None:
    """What a check says; not being able to ask is a failure too."""
    try:
        return check()
    except ConnectionRefusedError:
        return "does not answer"
    except (OSError, http.client.HTTPException, ClusterError) as error:
        return str(error)


def _last_line(body: bytes) -> str:
    lines = body.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else ""
