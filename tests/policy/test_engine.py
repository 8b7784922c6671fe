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
    changed,
    deployment,
    monitor,
    network_policy,
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
        return {policy for policy, _ in self.places(level)}

    def places(self, level: str) -> list[tuple[str, str]]:
        """Each violation at a level: name of the policy, and namespace of the object (empty where it has none)."""
        # - [mandatory]  rule  (type: resource)
        #   title
        #   Kind namespace/name: place: what is wrong
        found = re.findall(rf"- \[{level}\] +([a-z-]+).*\n.*\n *\w+(?: ([a-z-]+)/)?", self.output)
        return [(policy, where) for policy, where in found]


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


GOOD = [deployment(), service(), monitor(), scaled_object(), budget(), network_policy()]
CPU_TRIGGER = {"type": "cpu", "metricType": "Utilization", "metadata": {"value": "60"}}

# Rule -> a stack that breaks it and no other rule.
BAD: dict[str, Objects] = {
    "image-and-gpu": [deployment({f"{POD}.nodeSelector": {"nvidia.com/gpu.product": "Tesla-T4"}})],
    "image-version": [deployment({f"{CONTAINER}.image": "ghcr.io/huggingface/text-embeddings-inference:89-1.9"})],
    "gpu-scheduling": [deployment({f"{POD}.tolerations": ABSENT})],
    "probes": [deployment({f"{CONTAINER}.livenessProbe.httpGet.path": "/health"})],
    "budgets": [deployment({f"{CONTAINER}.startupProbe.failureThreshold": 60})],
    "scaling-signal": [scaled_object({"spec.triggers.0.metadata.query": "sum(te_queue_length)"})],
    "scaling-query": [scaled_object({"spec.triggers.0.metadata.query": "te_queue_size"})],
    "scaled-object": [scaled_object({"spec.triggers.0.metadata.ignoreNullValues": ABSENT})],
    "secrets-in-env": [tei(HF_TOKEN="made-up")],
    "service-links": [deployment({f"{POD}.enableServiceLinks": ABSENT})],
    "pod-security": [deployment({f"{CONTAINER}.securityContext.capabilities": ABSENT})],
    "batch-and-concurrency": [tei(MAX_CONCURRENT_REQUESTS="16")],
    "engine-settings": [tei(AUTO_TRUNCATE="yes")],
    "replicas-beside-scaler": [deployment({"spec.replicas": 2}), scaled_object()],
    "one-scaler": [deployment(), scaled_object(), autoscaler({"spec.maxReplicas": 3})],
    "gpu-scaling": [deployment(), scaled_object({"spec.triggers.1": CPU_TRIGGER})],
    "scale-to-zero": [deployment(), scaled_object({"spec.minReplicaCount": 0})],
    "monitor-reaches-service": [deployment(), service(), monitor({"spec.endpoints.0.port": "metrics"})],
    "disruption-budget": [deployment(), budget({"spec.maxUnavailable": 0})],
    "network-policy": [deployment(), network_policy({"spec.podSelector.matchLabels": {"app": "rag-api"}})],
}
UNKNOWN_VALUES: Objects = [
    deployment({f"{CONTAINER}.image": UNKNOWN}),
    deployment({"metadata.name": "other"}),
    scaled_object({"spec.scaleTargetRef.name": UNKNOWN}),
    network_policy(),
]


def test_there_is_a_bad_stack_for_every_rule() -> None:
    assert set(BAD) == {rule.id for rule in rules.ALL}


def test_a_good_stack_is_accepted(engine: Engine) -> None:
    found = engine.preview_of(GOOD, "prod")
    assert found.code == 0, found.output
    assert (found.violations("mandatory"), found.violations("advisory")) == (set(), set())


@pytest.fixture(scope="module")
def refused(engine: Engine) -> Preview:
    """All bad stacks in one preview, each in a namespace with the name of the rule that it breaks."""
    together = []
    for rule, objects in BAD.items():
        for given in objects if rule == "network-policy" else [*objects, network_policy()]:
            together.append(changed(given, {"metadata.namespace": rule}))
    return engine.preview_of(together, "prod")


@pytest.mark.parametrize("rule", BAD)
def test_a_bad_stack_is_refused_at_preview_by_its_rule_alone(refused: Preview, rule: str) -> None:
    assert [policy for policy, where in refused.places("mandatory") if where == rule] == [rule], refused.output


def test_a_preview_with_mandatory_violations_fails_and_says_nothing_else(refused: Preview) -> None:
    assert refused.code != 0, refused.output
    assert sorted(refused.places("mandatory")) == sorted((rule, rule) for rule in BAD)
    assert refused.violations("advisory") == set()
    assert "Traceback" not in refused.output


def test_case_94_values_that_are_not_known_at_preview_are_refused(engine: Engine) -> None:
    found = engine.preview_of(UNKNOWN_VALUES, "prod")
    assert found.code != 0, found.output
    assert found.violations("mandatory") == {"unknown-values", "unknown-values-in-stack"}, found.output


def test_on_a_laptop_a_floating_tag_is_shown_and_accepted(engine: Engine) -> None:
    found = engine.preview_of([*BAD["image-version"], network_policy()], "local")
    assert found.code == 0, found.output
    assert (found.violations("mandatory"), found.violations("advisory")) == (set(), {"image-version"})


def test_without_the_levels_of_an_environment_the_strictest_hold(engine: Engine) -> None:
    found = engine.preview_of([*BAD["image-version"], network_policy()])
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
