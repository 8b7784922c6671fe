"""What only the cluster knows of a workload: pods, endpoints, logs, its Secret."""

import base64
import binascii
import json
import re
from dataclasses import dataclass
from typing import Any

from infra.core.contract import WorkloadContract
from infra.core.errors import counted
from scripts import pods
from scripts.access import Access, NotFoundError
from scripts.command import CommandError
from scripts.smoke import answers
from scripts.smoke.results import Check, NotProvenError, UnmetError

#: Enough for everything that an engine says before its first request.
_LOG_HEAD_BYTES = 256 * 1024
_LOG_BYTES = 4 * 1024 * 1024

_ON_CUDA = re.compile(r"Starting \w+ model on Cuda")
_ON_CPU = re.compile(r"Starting \w+ model on Cpu|Using CPU instead")
_STARTED = re.compile(r"Starting HTTP server|Starting \w+ model")


@dataclass(frozen=True)
class PodState:
    """Whether a pod gets requests, and how often its containers started again."""

    ready: bool
    restarts: int


class DeployedWorkload:
    """A workload of the contract, as the API server describes it."""

    def __init__(self, workload: WorkloadContract, access: Access) -> None:
        self._workload = workload
        self._access = access
        self._selector = ",".join(f"{key}={value}" for key, value in workload.selector.items())

    def checks(self) -> list[Check]:
        """What has to hold before anything is asked over HTTP."""
        return [
            Check("pods", self.pods),
            Check("endpoints", self.endpoints),
            *([Check("GPU in use", self.device)] if self._workload.gpu else []),
        ]

    def pods(self) -> str:
        """The Deployment runs the planned image in as many pods as planned."""
        workload = self._workload
        try:
            deployment = self._get("deployment", workload.deployment)
        except NotFoundError as error:
            raise UnmetError(str(error), "was it deleted by hand? pulumi up --refresh makes it again") from None
        pod = deployment["spec"]["template"]["spec"]
        images = [one["image"] for one in (*(pod.get("initContainers") or []), *pod["containers"])]
        if workload.image not in images:
            raise UnmetError(
                f"the image is {', '.join(images)}, planned {workload.image}",
                "somebody changed the Deployment: pulumi up --refresh sets it back",
            )
        status = deployment.get("status", {})
        ready, updated = status.get("readyReplicas", 0), status.get("updatedReplicas", 0)
        seen = status.get("observedGeneration") == deployment["metadata"].get("generation")
        planned = str(workload.replicas)
        if workload.scaling:
            planned = f"{workload.replicas} to {workload.max_replicas}"
        if not seen or min(ready, updated) < workload.replicas:
            raise UnmetError(
                f"{counted(ready, 'pod')} ready and {updated} up to date, planned {planned}; {self._trouble()}",
                f"kubectl -n {workload.namespace} describe pods -l {self._selector}",
            )
        if workload.scaling and ready > workload.max_replicas:
            raise UnmetError(
                f"{counted(ready, 'pod')} ready, planned {planned}",
                f"who scales beside KEDA? kubectl -n {workload.namespace} get hpa,scaledobject",
            )
        return f"{counted(ready, 'pod')} ready, planned {planned}; image {workload.image}"

    def endpoints(self) -> str:
        """The Service leads to the ready pods."""
        workload = self._workload
        slices = self._get("endpointslices", "-l", f"kubernetes.io/service-name={workload.service}")["items"]
        ready = {
            address
            for item in slices
            if item.get("ports")
            for endpoint in item.get("endpoints") or []
            if endpoint.get("conditions", {}).get("ready")
            for address in endpoint["addresses"]
        }
        if len(ready) < workload.replicas:
            raise UnmetError(
                f"Service {workload.service} leads to {counted(len(ready), 'ready pod')}, planned {workload.replicas}",
                f"compare kubectl -n {workload.namespace} get service {workload.service} -o wide with the labels of "
                "the pods; pulumi up --refresh sets them back",
            )
        return f"Service {workload.service} leads to {counted(len(ready), 'ready pod')}"

    def device(self) -> str:
        """TEI falls back to the CPU in silence: only its log says on what it runs."""
        workload = self._workload
        if workload.stand_in:
            raise NotProvenError("stand-in: it computes on the CPU, no GPU is behind the node's number")
        if workload.engine != "tei":
            raise NotProvenError(f"nobody recorded what {workload.engine} logs of its device")
        names = [pod["metadata"]["name"] for pod in self._pods() if pod["status"].get("phase") == "Running"]
        if not names:
            raise UnmetError("no pod runs", f"kubectl -n {workload.namespace} get pods -l {self._selector}")
        for name in names:
            place = ("-n", workload.namespace, "-c", workload.container)
            log = self._access.run("logs", name, *place, f"--limit-bytes={_LOG_HEAD_BYTES}")
            device_line(name, log)
        said = "1 pod says that it" if len(names) == 1 else f"{len(names)} pods say that they"
        return f"{said} started the model on Cuda"

    def states(self) -> dict[str, PodState]:
        """Pods that are not on their way out, by name."""
        return {
            pod["metadata"]["name"]: PodState(
                ready=any(
                    condition["type"] == "Ready" and condition["status"] == "True"
                    for condition in pod["status"].get("conditions") or []
                ),
                restarts=sum(one.get("restartCount", 0) for one in _containers(pod)),
            )
            for pod in self._pods()
        }

    def key_not_in_logs(self, key: str | None) -> str:
        """No container of a pod has printed the API key, before its last restart either. TEI does by default."""
        workload = self._workload
        if key is None:
            raise NotProvenError("the key is not known, see API key")
        if len(key) < answers.LEAST_KEY:
            raise NotProvenError(f"a key of {counted(len(key), 'character')} is found in any text")
        logs = 0
        for pod in self._pods():
            name = pod["metadata"]["name"]
            for status in _containers(pod):
                for previous in [False, True] if status.get("restartCount") else [False]:
                    log = self._log(name, status["name"], previous=previous)
                    if log is None:
                        continue
                    logs += 1
                    if key in log:
                        when = "before its last restart" if previous else "now"
                        raise UnmetError(
                            f"the log of {name}, container {status['name']}, {when}, holds the API key",
                            "everybody who reads logs has it: leave LOG_LEVEL as planned (no env in the stack file), "
                            "set another key, pulumi up",
                        )
        if not logs:
            raise NotProvenError("no pod has a log")
        return f"not in {counted(logs, 'log')} of the pods of {workload.deployment}"

    def _log(self, pod: str, container: str, *, previous: bool) -> str | None:
        """The first MiBs: keys are printed at the start, if at all. None: there is none."""
        of_previous = ["--previous"] if previous else []
        place = ["-n", self._workload.namespace, "-c", container, *of_previous, f"--limit-bytes={_LOG_BYTES}"]
        try:
            return self._access.run("logs", pod, *place)
        except NotFoundError:
            return None
        except CommandError as error:
            # Logs of containers that ended are removed with the container; a container that waits has none.
            if re.search(r"previous terminated container|is waiting to start", str(error)):
                return None
            raise

    def api_key(self) -> str | None:
        """The key that clients have to send; None when clients need none, or when it is not in its Secret."""
        workload = self._workload
        if not workload.api_key_secret or not workload.api_key_secret_key:
            return None
        try:
            secret = self._get("secret", workload.api_key_secret)
            return base64.b64decode(secret["data"][workload.api_key_secret_key], validate=True).decode() or None
        except (NotFoundError, KeyError, TypeError, binascii.Error, UnicodeDecodeError):
            return None

    def _get(self, *arguments: str) -> Any:
        return json.loads(self._access.run("get", *arguments, "-n", self._workload.namespace, "-o", "json"))

    def _pods(self) -> list[Any]:
        """Those that are not on their way out."""
        found = self._get("pods", "-l", self._selector)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def _trouble(self) -> str:
        """Why the first pod that is not ready is not."""
        for pod in self._pods():
            if (found := pods.trouble(pod)) is not None:
                return f"{pod['metadata']['name']}: {found[0]}"
        return "no pod says why"


def _containers(pod: Any) -> list[Any]:
    """Status of every container: a sidecar is an init container."""
    status = pod["status"]
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


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
