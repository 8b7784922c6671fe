"""The pack in the real Pulumi engine: a bad stack is refused at preview, before anything is created."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.core import rules
from local.paths import CHECKOUT
from local.pulumi_host import environment
from tests.core.kubernetes import (
    ABSENT,
    CONTAINER,
    POD,
    autoscaler,
    budget,
    deployment,
    monitor,
    scaled_object,
    service,
    tei,
)
from tests.pulumi_host.conftest import bin_dir

pytestmark = pytest.mark.policy

__all__ = ["bin_dir"]

#: What the program of these tests turns into a value that is not known at preview.
UNKNOWN = "{{unknown}}"
PROGRAM = Path(__file__).with_name("program")
PACK = CHECKOUT / "policies"
Objects = list[dict[str, Any]]


@dataclass(frozen=True)
class Preview:
    code: int
    output: str

    def violations(self, level: str) -> set[str]:
        """Names of the policies that the engine reports at a level."""
        return set(re.findall(rf"- \[{level}\]\s+([a-z-]+)", self.output))


#: The provider previews against a server that does not answer, with a warning.
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: nobody, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: nobody, user: {}}]
contexts: [{name: nobody, context: {cluster: nobody, user: nobody}}]
current-context: nobody
"""


class Engine:
    """The CLI in a project of its own, with an empty stack."""

    def __init__(self, project: Path, stack: str, bin_dir: Path, state: Path) -> None:
        self.project = project
        self._variables = environment(bin_dir, state)
        kubeconfig = state / "kubeconfig"
        kubeconfig.write_text(KUBECONFIG)
        self._variables["KUBECONFIG"] = str(kubeconfig)
        self.run("stack", "init", stack).check_returncode()

    def preview(self, environment: str | None = None) -> Preview:
        """A preview under the pack, at the levels of an environment."""
        levels = ["--policy-pack-config", str(PACK / f"levels/{environment}.json")] if environment else []
        done = self.run("preview", "--policy-pack", str(PACK), *levels)
        return Preview(done.returncode, done.stdout + done.stderr)

    def preview_of(self, objects: Objects, environment: str | None = None) -> Preview:
        """The same of a program that registers ``objects``."""
        file = self.project / "Pulumi.test.yaml"
        kept = [line for line in file.read_text().splitlines() if line.startswith("encryptionsalt")]
        file.write_text("\n".join([*kept, f"config: {json.dumps({'policy-test:objects': objects})}", ""]))
        return self.preview(environment)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["pulumi", *arguments, "--non-interactive", "--color", "never"],
            cwd=self.project,
            env=self._variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def engine(bin_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    directory = tmp_path_factory.mktemp("policy")
    shutil.copytree(PROGRAM, directory / "program", ignore=shutil.ignore_patterns("__pycache__"))
    return Engine(directory / "program", "test", bin_dir, directory / "state")


@pytest.fixture
def blueprint(bin_dir: Path, tmp_path: Path) -> Engine:
    """The blueprint's own program with a copy of its stack files."""
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(CHECKOUT / "Pulumi.yaml", project)
    shutil.copytree(CHECKOUT / "stacks", project / "stacks")
    for name in ("infra", ".venv"):
        (project / name).symlink_to(CHECKOUT / name)
    return Engine(project, "local", bin_dir, tmp_path / "state")


GOOD = [deployment(), service(), monitor(), scaled_object(), budget()]

# Rule -> a stack that breaks it and no other rule.
BAD: dict[str, Objects] = {
    "image-and-gpu": [deployment({f"{POD}.nodeSelector": {"nvidia.com/gpu.product": "Tesla-T4"}})],
    "image-version": [deployment({f"{CONTAINER}.image": "ghcr.io/huggingface/text-embeddings-inference:89-1.9"})],
    "gpu-scheduling": [deployment({f"{POD}.tolerations": ABSENT})],
    "probes": [deployment({f"{CONTAINER}.livenessProbe.httpGet.path": "/health"})],
    "budgets": [deployment({f"{CONTAINER}.startupProbe.failureThreshold": 60})],
    "scaling-signal": [scaled_object({"spec.triggers.0.metadata.query": "sum(te_queue_length)"})],
    "secrets-in-env": [tei(HF_TOKEN="made-up")],
    "service-links": [deployment({f"{POD}.enableServiceLinks": ABSENT})],
    "pod-security": [deployment({f"{CONTAINER}.securityContext.capabilities": ABSENT})],
    "batch-and-concurrency": [tei(MAX_CONCURRENT_REQUESTS="16")],
    "engine-settings": [tei(AUTO_TRUNCATE="yes")],
    "replicas-beside-scaler": [deployment({"spec.replicas": 2}), scaled_object()],
    "one-scaler": [deployment(), scaled_object(), autoscaler({"spec.maxReplicas": 3})],
    "monitor-reaches-service": [deployment(), service(), monitor({"spec.endpoints.0.port": "metrics"})],
    "disruption-budget": [deployment(), budget({"spec.maxUnavailable": 0})],
    "unknown-values": [deployment({f"{CONTAINER}.image": UNKNOWN})],
    "unknown-values-in-stack": [deployment(), scaled_object({"spec.scaleTargetRef.name": UNKNOWN})],
}


def test_there_is_a_bad_stack_for_every_rule() -> None:
    assert set(BAD) == {rule.id for rule in rules.ALL} | {"unknown-values", "unknown-values-in-stack"}


def test_a_good_stack_is_accepted(engine: Engine) -> None:
    found = engine.preview_of(GOOD, "prod")
    assert found.code == 0, found.output
    assert (found.violations("mandatory"), found.violations("advisory")) == (set(), set())


@pytest.mark.parametrize("rule", BAD)
def test_a_bad_stack_is_refused_at_preview(engine: Engine, rule: str) -> None:
    found = engine.preview_of(BAD[rule], "prod")
    assert found.code != 0, found.output
    assert found.violations("mandatory") == {rule}, found.output
    assert "Traceback" not in found.output


def test_on_a_laptop_a_floating_tag_is_shown_and_accepted(engine: Engine) -> None:
    found = engine.preview_of(BAD["image-version"], "local")
    assert found.code == 0, found.output
    assert (found.violations("mandatory"), found.violations("advisory")) == (set(), {"image-version"})


def test_without_the_levels_of_an_environment_the_strictest_hold(engine: Engine) -> None:
    found = engine.preview_of(BAD["image-version"])
    assert found.code != 0
    assert found.violations("mandatory") == {"image-version"}


def test_the_stack_of_the_blueprint_itself_is_accepted_with_a_secret_and_without_a_cluster(blueprint: Engine) -> None:
    file = blueprint.project / "stacks/Pulumi.local.yaml"
    file.write_text(file.read_text().replace("engine: tei\n", "engine: tei\n        requireApiKey: true\n", 1))
    blueprint.run("config", "set", "--secret", "embedding-serving:apiKey", "made-up").check_returncode()
    found = blueprint.preview("prod")
    assert found.code == 0, found.output
    assert (found.violations("mandatory"), found.violations("advisory")) == (set(), set())
    assert "kubernetes:core/v1:Secret embed-keys create" in found.output
