"""What only the cluster knows: pods, endpoints, logs, Secrets; and the way to a Service. Works with any cluster."""

import base64
import binascii
import os
import queue
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import kubernetes
import urllib3
from kubernetes.client.exceptions import ApiException

from infra.core.contract import WorkloadContract
from scripts.command import CommandError
from scripts.smoke.results import Check, NotProvenError, UnmetError

_API_TIMEOUT = 15
_FORWARD_TIMEOUT = 30
#: Enough for everything that an engine says before its first request.
_LOG_HEAD_BYTES = 256 * 1024

_ON_CUDA = re.compile(r"Starting \w+ model on Cuda")
_ON_CPU = re.compile(r"Starting \w+ model on Cpu|Using CPU instead")
_STARTED = re.compile(r"Starting HTTP server|Starting \w+ model")
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ->")


@dataclass(frozen=True)
class Access:
    """How to reach a cluster. ``kubeconfig`` None: KUBECONFIG or ~/.kube/config; ``context`` None: the current one."""

    kubeconfig: Path | None = None
    context: str | None = None
    kubectl: Path | None = None


class Cluster:
    """Reads from the API server. Raises CommandError when it cannot be reached at all."""

    def __init__(self, access: Access) -> None:
        self._access = access
        # The client reads KUBECONFIG when it is imported; tests and `make up` set it later.
        self._kubeconfig = str(access.kubeconfig or os.environ.get("KUBECONFIG") or Path("~/.kube/config").expanduser())
        try:
            client = kubernetes.config.new_client_from_config(config_file=self._kubeconfig, context=access.context)
        except kubernetes.config.ConfigException as error:
            raise CommandError(self._no_config(str(error))) from None
        if urlsplit(client.configuration.host).hostname in {"127.0.0.1", "localhost"}:
            # A proxy of the environment would be asked for its own loopback.
            client.configuration.proxy = None
        client.configuration.retries = False
        client = kubernetes.client.ApiClient(client.configuration)
        self._apps = kubernetes.client.AppsV1Api(client)
        self._core = kubernetes.client.CoreV1Api(client)
        self._discovery = kubernetes.client.DiscoveryV1Api(client)
        self._host = client.configuration.host
        self._call("the version", kubernetes.client.VersionApi(client).get_code)

    def checks(self, workload: WorkloadContract) -> list[Check]:
        """What has to hold before anything is asked over HTTP."""
        return [
            Check("pods", lambda: self.pods(workload)),
            Check("endpoints", lambda: self.endpoints(workload)),
            *([Check("GPU in use", lambda: self.device(workload))] if workload.gpu else []),
        ]

    def pods(self, workload: WorkloadContract) -> str:
        """The Deployment runs the planned image in as many pods as planned."""
        name, namespace = workload.deployment, workload.namespace
        try:
            deployment = self._call(
                f"Deployment {namespace}/{name}", self._apps.read_namespaced_deployment, name, namespace
            )
        except NotFoundError as error:
            raise UnmetError(f"{error}", "was it deleted by hand? pulumi refresh, then pulumi up") from None
        images = [container.image for container in deployment.spec.template.spec.containers]
        if workload.image not in images:
            raise UnmetError(
                f"the image is {', '.join(images)}, planned {workload.image}",
                "somebody changed the Deployment: pulumi up --refresh sets it back",
            )
        status = deployment.status
        ready, updated = status.ready_replicas or 0, status.updated_replicas or 0
        up_to_date = status.observed_generation == deployment.metadata.generation
        if not up_to_date or min(ready, updated) < workload.replicas:
            raise UnmetError(
                f"{ready} pods ready and {updated} up to date, planned {workload.replicas}; {self._trouble(workload)}",
                f"kubectl -n {namespace} describe pods -l {_selector(workload)}",
            )
        return f"{ready} pods ready, planned {workload.replicas}; image {workload.image}"

    def endpoints(self, workload: WorkloadContract) -> str:
        """The Service leads to the ready pods."""
        slices = self._call(
            f"endpoints of Service {workload.namespace}/{workload.service}",
            self._discovery.list_namespaced_endpoint_slice,
            workload.namespace,
            label_selector=f"kubernetes.io/service-name={workload.service}",
        )
        ready = sum(
            1 for item in slices.items for endpoint in item.endpoints or [] if endpoint.conditions.ready and item.ports
        )
        if ready < workload.replicas:
            raise UnmetError(
                f"Service {workload.service} leads to {ready} ready pods, planned {workload.replicas}",
                f"compare kubectl -n {workload.namespace} get service {workload.service} -o wide with the labels of "
                "the pods; pulumi up --refresh sets them back",
            )
        return f"Service {workload.service} leads to {ready} ready pods"

    def device(self, workload: WorkloadContract) -> str:
        """TEI falls back to the CPU in silence: only its log says on what it runs."""
        if workload.stand_in:
            raise NotProvenError("stand-in: it computes on the CPU, no GPU is behind the node's number")
        names = [pod.metadata.name for pod in self._pods(workload) if pod.status.phase == "Running"]
        if not names:
            raise UnmetError("no pod runs", f"kubectl -n {workload.namespace} get pods -l {_selector(workload)}")
        for name in names:
            log = self._call(
                f"log of pod {name}",
                self._core.read_namespaced_pod_log,
                name,
                workload.namespace,
                limit_bytes=_LOG_HEAD_BYTES,
            )
            device_line(name, log)
        return f"{len(names)} pods say that they started the model on Cuda"

    def secret(self, namespace: str, name: str, key: str) -> str | None:
        """One value of a Secret; None when it is not there."""
        try:
            secret = self._call(f"Secret {namespace}/{name}", self._core.read_namespaced_secret, name, namespace)
        except NotFoundError:
            return None
        try:
            return base64.b64decode((secret.data or {})[key]).decode()
        except (KeyError, binascii.Error, UnicodeDecodeError):
            return None

    @contextmanager
    def forward(self, namespace: str, service: str, port: int) -> Iterator[str]:
        """URL on loopback that leads to one pod of the Service; ends with the context."""
        kubectl = self._access.kubectl or shutil.which("kubectl")
        if not kubectl:
            raise CommandError("kubectl is not on PATH: install it, or run `make toolchain`")
        command = [str(kubectl), "--kubeconfig", self._kubeconfig]
        if ":" in self._kubeconfig:
            # A list of files is understood in the variable only.
            command = [str(kubectl)]
        if self._access.context:
            command += ["--context", self._access.context]
        command += ["-n", namespace, "port-forward", "--address", "127.0.0.1", f"service/{service}", f":{port}"]
        environment = os.environ | {"KUBECONFIG": self._kubeconfig}
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True, env=environment
            )
            lines: queue.Queue[str | None] = queue.Queue()
            # kubectl prints a line per connection: somebody has to read them or it stops when the pipe is full.
            threading.Thread(target=_drain, args=(process, lines), daemon=True).start()
            try:
                yield f"http://127.0.0.1:{_port(lines, errors, f'{namespace}/{service}')}"
            finally:
                process.terminate()
                process.wait()

    def _pods(self, workload: WorkloadContract) -> list[Any]:
        found = self._call(
            "pods", self._core.list_namespaced_pod, workload.namespace, label_selector=_selector(workload)
        )
        return list(found.items)

    def _trouble(self, workload: WorkloadContract) -> str:
        """Why the first pod that is not ready is not."""
        for pod in self._pods(workload):
            states = [status.state for status in pod.status.container_statuses or []]
            for waiting in (state.waiting for state in states if state and state.waiting):
                return f"{pod.metadata.name}: {waiting.reason} {waiting.message or ''}".rstrip()
            for condition in pod.status.conditions or []:
                if condition.type in {"PodScheduled", "Ready"} and condition.status != "True" and condition.message:
                    return f"{pod.metadata.name}: {condition.message}"
        return "no pod says why"

    def _call(self, what: str, call: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options, _request_timeout=_API_TIMEOUT)
        except ApiException as error:
            if error.status == 404:
                raise NotFoundError(f"{what} does not exist") from None
            hint = {
                401: "the kubeconfig's credentials are not valid (any more): log in to the cluster again",
                403: "this user may not read it: use one who may get it, or another --context",
            }.get(error.status, "try again; if it stays, look at the API server")
            raise CommandError(f"{what}: the API server at {self._host} says {error.status}: {hint}") from None
        except (urllib3.exceptions.HTTPError, OSError):
            raise CommandError(
                f"the API server at {self._host} does not answer: is the cluster up (make status), and is this the "
                f"right context of {self._kubeconfig}?"
            ) from None

    def _no_config(self, error: str) -> str:
        if not any(Path(part).expanduser().exists() for part in self._kubeconfig.split(":")):
            return f"no kubeconfig at {self._kubeconfig}: run make up, or set KUBECONFIG to that of your cluster"
        if self._access.context and "context" in error:
            return (
                f"{self._kubeconfig} has no context {self._access.context}: kubectl config get-contexts shows those "
                "there are; name one with --context"
            )
        return f"{self._kubeconfig} is of no use ({' '.join(error.split())}): check it with kubectl config view"


class NotFoundError(UnmetError):
    """The object is not in the cluster."""

    def __init__(self, found: str) -> None:
        super().__init__(found, "pulumi refresh, then pulumi up")


def device_line(pod: str, log: str) -> None:
    """Raises UnmetError unless ``log`` (its beginning) says that the model runs on CUDA, and on nothing else."""
    next_step = (
        "the pod serves from the CPU: look for nvidia-smi, driver and device plugin on its node, then delete the pod"
    )
    if found := _ON_CPU.search(log):
        raise UnmetError(f"{pod} says {found[0]!r}", next_step)
    if _ON_CUDA.search(log):
        return
    if _STARTED.search(log):
        raise UnmetError(f"{pod} does not say that it started the model on Cuda", next_step)
    raise NotProvenError(
        f"the log of {pod} no longer holds the start: restart the pod and run the test again to know its device"
    )


def _selector(workload: WorkloadContract) -> str:
    return ",".join(f"{key}={value}" for key, value in workload.selector.items())


def _drain(process: "subprocess.Popen[str]", lines: "queue.Queue[str | None]") -> None:
    for line in process.stdout or ():
        lines.put(line)
    lines.put(None)


def _port(lines: "queue.Queue[str | None]", errors: IO[bytes], what: str) -> int:
    while True:
        try:
            line = lines.get(timeout=_FORWARD_TIMEOUT)
        except queue.Empty:
            line = None
        if line is None:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().splitlines()
            raise UnmetError(
                f"kubectl port-forward to {what}: {said[-1] if said else 'no answer'}",
                "is a pod of the Service Running, and may this user create pods/portforward?",
            )
        if match := _FORWARDING.match(line):
            return int(match[1])
