"""kubectl from the host's side, with the kubeconfig that a user gets."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

PATIENCE = 60.0  # seconds before a wait counts as a failure

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}


class Kubectl:
    def __init__(self, program: Path, kubeconfig: Path) -> None:
        self._command = [str(program), "--kubeconfig", str(kubeconfig)]

    def try_(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *arguments], check=False, capture_output=True, text=True, input=stdin, timeout=PATIENCE
        )

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        done = self.try_(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self("get", *arguments, "-o", "json"))
        return answer

    def apply(self, *objects: dict[str, Any]) -> None:
        self("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))


def namespace(name: str) -> dict[str, Any]:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def pod(where: str, name: str, image: str, security: dict[str, Any] | None = None, gpus: int = 0) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": image, "imagePullPolicy": "Never"}
    container["securityContext"] = RESTRICTED if security is None else security
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": where}, "spec": spec}


def eventually(wanted: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not wanted():
        assert time.monotonic() < deadline, f"after {PATIENCE:.0f} s still not: {what}"
        time.sleep(0.2)
