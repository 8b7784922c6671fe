"""A stack of the real program, deployed by the real Pulumi to the embedded cluster of the tests."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config

from local.paths import CHECKOUT

STACK = "e2e"


@dataclass
class Deployment:
    """Runs Pulumi on one stack file and looks at the cluster. ``environment`` holds KUBECONFIG and Pulumi's backend."""

    directory: Path
    environment: Mapping[str, str]

    def __post_init__(self) -> None:
        self.config_file = self.directory / f"Pulumi.{STACK}.yaml"
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
        return subprocess.run(
            self.command(*arguments, "--stack", STACK, *file),
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

    def pods(self, namespace: str = "embedding-serving") -> dict[str, Any]:
        """The pods that are not on their way out, by UID."""
        found = self.core.list_namespaced_pod(namespace).items
        return {pod.metadata.uid: pod for pod in found if pod.metadata.deletion_timestamp is None}
