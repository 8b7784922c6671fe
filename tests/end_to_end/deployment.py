"""A stack of the real program, deployed by the real Pulumi to the embedded cluster of the tests."""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from infra.core import contract
from infra.core.contract import WorkloadContract
from local.images import names
from local.paths import CHECKOUT

STACK = "e2e"
#: What stacks without operators run.
IMAGES = (names.PAUSE, names.COREDNS, names.RAG_APP, *names.TEI_NAMES, *(image.name for image in names.NIM_IMAGES))


def eventually(holds: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Waits for an event in the cluster; fails by saying what did not happen."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"did not happen within {seconds:.0f} s: {what}")
        time.sleep(0.2)


@dataclass
class Deployment:
    """Runs Pulumi on one stack file and looks at the cluster. ``environment`` holds KUBECONFIG and Pulumi's backend."""

    directory: Path
    environment: Mapping[str, str]
    stack: str = STACK
    namespace: str = "embedding-serving"

    def __post_init__(self) -> None:
        self.config_file = self.directory / f"Pulumi.{self.stack}.yaml"
        api = config.new_client_from_config(self.environment["KUBECONFIG"])
        self.core = client.CoreV1Api(api)
        self.apps = client.AppsV1Api(api)

    def command(self, *arguments: str) -> list[str]:
        """The command line of the CLI for this stack."""
        return ["pulumi", *arguments, "--cwd", str(CHECKOUT), "--non-interactive", "--color", "never"]

    def pulumi(
        self, *arguments: str, stack_file: bool = True, given: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs the CLI to its end. Both streams come back in ``stdout``."""
        file = ["--config-file", str(self.config_file)] if stack_file else []
        return self._run(self.command(*arguments, "--stack", self.stack, *file), given)

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        """Runs a kubectl command that has to succeed; returns what it printed."""
        done = self._run(["kubectl", *arguments], given)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def _run(self, command: list[str], given: str | None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=dict(self.environment),
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def read(self, *arguments: str) -> str:
        """Runs a command that only reads the state, and has to succeed; returns what it printed."""
        done = self.pulumi(*arguments, stack_file=False)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def write(self, stack: dict[str, Any], secrets: Mapping[str, str] | None = None) -> None:
        """Writes the stack file; secrets are encrypted by the CLI, which reads them from its standard input."""
        kept = yaml.safe_load(self.config_file.read_text()) if self.config_file.exists() else {}
        salt = {key: kept[key] for key in ("encryptionsalt",) if key in kept}
        self.config_file.write_text(yaml.safe_dump({**salt, "config": {"embedding-serving:stack": stack}}))
        for key, value in (secrets or {}).items():
            done = self.pulumi("config", "set", "--secret", f"embedding-serving:{key}", given=value)
            assert done.returncode == 0, done.stdout

    def up(self, stack: dict[str, Any], secrets: Mapping[str, str] | None = None) -> str:
        """``pulumi up`` that has to succeed; returns what it printed."""
        self.write(stack, secrets)
        done = self.pulumi("up", "--yes", "--skip-preview")
        assert done.returncode == 0, done.stdout
        return done.stdout

    def workloads(self) -> dict[str, WorkloadContract]:
        """The workloads of the contract that was deployed, by name."""
        found = contract.read(json.loads(self.read("stack", "output", "--json"))["contract"])
        return {workload.name: workload for workload in found.workloads}

    def pods(self, workload: str | None = None) -> dict[str, Any]:
        """The pods that are not on their way out, by UID: all of the namespace, or those of one workload."""
        selector = f"app.kubernetes.io/instance={workload}" if workload else ""
        found = self.core.list_namespaced_pod(self.namespace, label_selector=selector).items
        return {pod.metadata.uid: pod for pod in found if pod.metadata.deletion_timestamp is None}


@contextlib.contextmanager
def stack_of(deployment: Deployment) -> Iterator[Deployment]:
    """Makes the stack, empty as it is, and destroys it afterwards with everything that was deployed to it."""
    done = deployment.pulumi("stack", "init", stack_file=False)
    assert done.returncode == 0, done.stdout
    # The CLI writes the new stack's salt beside the committed stack files; the test keeps it in its own.
    shutil.move(CHECKOUT / "stacks" / f"Pulumi.{deployment.stack}.yaml", deployment.config_file)
    try:
        yield deployment
    finally:
        started = time.monotonic()
        done = deployment.pulumi("destroy", "--yes", "--skip-preview")
        removed = deployment.pulumi("stack", "rm", "--yes", stack_file=False)
        print(f"{deployment.stack} destroyed in {time.monotonic() - started:.0f} s", file=sys.stderr)
        assert done.returncode == 0, done.stdout
        assert removed.returncode == 0, removed.stdout
