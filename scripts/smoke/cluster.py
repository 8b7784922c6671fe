"""What only the cluster knows of a workload: pods, endpoints, logs, its Secret."""

import base64
import binascii
import json
import re
from typing import Any

from infra.core.contract import WorkloadContract
from infra.core.errors import counted
from scripts import pods
from scripts.access import Access, NotFoundError
from scripts.smoke.results import Check, NotProvenError, UnmetError

#: Enough for everything that an engine says before its first request.
_LOG_HEAD_BYTES = 256 * 1024

_ON_CUDA = re.compile(r"Starting \w+ model on Cuda")
_ON_CPU = re.compile(r"Starting \w+ model on Cpu|Using CPU instead")
_STARTED = re.compile(r"Starting HTTP server|Starting \w+ model")


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
        images = [container["image"] for container in deployment["spec"]["template"]["spec"]["containers"]]
        if workload.image not in images:
            raise UnmetError(
                f"the image is {', '.join(images)}, planned {workload.image}",
                "somebody changed the Deployment: pulumi up --refresh sets it back",
            )
        status = deployment.get("status", {})
        ready, updated = status.get("readyReplicas", 0), status.get("updatedReplicas", 0)
        seen = status.get("observedGeneration") == deployment["metadata"].get("generation")
        if not seen or min(ready, updated) < workload.replicas:
            raise UnmetError(
                f"{counted(ready, 'pod')} ready and {updated} up to date, planned {workload.replicas}; "
                + self._trouble(),
                f"kubectl -n {workload.namespace} describe pods -l {self._selector}",
            )
        return f"{counted(ready, 'pod')} ready, planned {workload.replicas}; image {workload.image}"

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
        names = [pod["metadata"]["name"] for pod in self._pods() if pod["status"].get("phase") == "Running"]
        if not names:
            raise UnmetError("no pod runs", f"kubectl -n {workload.namespace} get pods -l {self._selector}")
        for name in names:
            log = self._access.run("logs", name, "-n", workload.namespace, f"--limit-bytes={_LOG_HEAD_BYTES}")
            device_line(name, log)
        said = "1 pod says that it" if len(names) == 1 else f"{len(names)} pods say that they"
        return f"{said} started the model on Cuda"

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
