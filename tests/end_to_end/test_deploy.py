"""The program on a real cluster with the real Pulumi: what changes, what does not, what is refused, what is left."""

import base64
import copy
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import requests
from kubernetes.client import ApiException

from infra.core import plan, settings
from local.cluster import Cluster
from tests import stacks
from tests.end_to_end.deployment import Deployment, eventually
from tests.program.test_deploy import deployed

pytestmark = pytest.mark.cluster

NAMESPACE = "embedding-serving"
OTHER_MODEL = "BAAI/bge-small-en-v1.5"
#: It is slower than the stack's own, so that fewer texts can wait for as long as a request may take.
OTHER: dict[str, Any] = {"model": OTHER_MODEL, "maxConcurrentRequests": 8}
#: Two GPUs, two replicas: there is none to spare.
FULL = {"replicas": 2}


def test_a_second_up_changes_nothing_and_destroy_leaves_nothing(deployment: Deployment) -> None:
    deployment.up(stacks.local())
    again = deployment.pulumi("preview", "--expect-no-changes", "--diff")
    assert again.returncode == 0, again.stdout
    before = deployment.pods()
    deployment.up(stacks.local())
    assert set(deployment.pods()) == set(before)

    destroyed = deployment.pulumi("destroy", "--yes", "--skip-preview")
    assert destroyed.returncode == 0, destroyed.stdout
    with pytest.raises(ApiException) as gone:
        deployment.core.read_namespace(NAMESPACE)
    assert gone.value.status == 404
    state = json.loads(deployment.read("stack", "export"))
    kinds = {resource["type"] for resource in state["deployment"].get("resources", [])}
    assert kinds <= {"pulumi:pulumi:Stack"}


def test_pods_are_replaced_for_model_budget_and_secret_but_not_for_a_label(
    deployment: Deployment, embedded: Cluster
) -> None:
    first = {"apiKey": "key-number-one-for-tests"}
    deployment.up(stacks.local(requireApiKey=True), first)
    pods = deployment.pods()

    deployment.up(stacks.local(requireApiKey=True, labels={"team": "rag"}), first)
    assert set(deployment.pods()) == set(pods), "a label of the workload is no reason to start pods anew"

    changes: list[tuple[str, dict[str, Any], dict[str, str]]] = [
        ("batch budget", {"maxBatchTokens": 2048}, first),
        ("model", {"maxBatchTokens": 2048, **OTHER}, first),
        ("secret", {"maxBatchTokens": 2048, **OTHER}, {"apiKey": "key-number-two-for-tests"}),
    ]
    for what, change, secrets in changes:
        deployment.up(stacks.local(requireApiKey=True, **change), secrets)
        now = deployment.pods()
        assert not set(now) & set(pods), f"the {what} changed, so every pod is a new one"
        pods = now

    [workload] = deployment.workloads().values()
    assert workload.api_key_secret is not None
    stored = deployment.core.read_namespaced_secret(workload.api_key_secret, NAMESPACE)
    assert base64.b64decode(stored.data["apiKey"]).decode() == "key-number-two-for-tests"
    url = embedded.publish("e2e", NAMESPACE, workload.service, workload.service_port)

    def answer(key: str | None) -> int:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return requests.post(f"{url}/embed", json={"inputs": "hello"}, headers=headers, timeout=30).status_code

    # The pod with the old key may answer until it has drained.
    eventually(lambda: answer("key-number-one-for-tests") == 401, "the old key is refused")
    eventually(lambda: answer("key-number-two-for-tests") == 200, "the new key is accepted")
    assert answer("key-number-one-for-tests") == 401
    assert answer(None) == 401


def test_case_86_a_new_model_rolls_out_without_a_spare_gpu(deployment: Deployment) -> None:
    deployment.up(stacks.local(**FULL))
    before = deployment.pods()
    assert len(before) == 2
    deployment.up(stacks.local(**FULL, **OTHER))
    after = deployment.pods()
    assert len(after) == 2
    assert not set(before) & set(after)
    for pod in after.values():
        [container] = pod.spec.containers
        assert {found.name: found.value for found in container.env}["MODEL_ID"] == OTHER_MODEL


def test_case_86_the_same_with_a_surge_never_finishes(deployment: Deployment) -> None:
    # The negative control of the test above. The plan refuses this where it knows the number of nodes, so the pool
    # keeps it to itself; budgets are as small as they get.
    surge = stacks.local(**FULL)
    del surge["nodePools"][0]["nodes"]
    surge["nodePools"][0]["imagePullSeconds"] = 0
    deployment.up(surge)
    surge["serving"][0] |= {**OTHER, "rollout": {"maxSurge": 2, "maxUnavailable": 0}}
    deployment.write(surge)
    done = deployment.pulumi("up", "--yes", "--skip-preview")
    assert done.returncode != 0
    pending = [pod for pod in deployment.pods().values() if pod.status.phase == "Pending"]
    assert len(pending) == 2, done.stdout
    for pod in pending:
        [why] = [found for found in pod.status.conditions if found.type == "PodScheduled"]
        assert "Insufficient nvidia.com/gpu" in why.message
    assert "timed out waiting to be Ready" in done.stdout, done.stdout


def test_an_up_that_is_interrupted_converges_afterwards(deployment: Deployment) -> None:
    deployment.write(stacks.local())
    running = subprocess.Popen(
        deployment.command(
            "up", "--yes", "--skip-preview", "--stack", "e2e", "--config-file", str(deployment.config_file)
        ),
        env=dict(deployment.environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        eventually(lambda: bool(deployment.apps.list_namespaced_deployment(NAMESPACE).items), "a Deployment appears")
    finally:
        running.send_signal(signal.SIGINT)
        printed, _ = running.communicate()
    assert running.returncode != 0, printed
    deployment.up(stacks.local())
    again = deployment.pulumi("preview", "--expect-no-changes", "--diff")
    assert again.returncode == 0, again.stdout
    assert len(deployment.pods()) == 1


def test_a_wrong_stack_file_is_refused_in_one_line_each_and_creates_nothing(deployment: Deployment) -> None:
    wrong = stacks.local(dtype="float64", maxClientBatchSize=4096, replicas=3, replica=1)
    deployment.write(wrong)
    for command in (["preview"], ["up", "--yes", "--skip-preview"]):
        done = deployment.pulumi(*command)
        assert done.returncode != 0
        # Progress lines above the diagnostics repeat what is being said.
        told = done.stdout.partition("Diagnostics:")[2]
        assert told.count("stack.serving[0].dtype") == 1, done.stdout
        assert told.count("stack.serving[0].replica:") == 1
        assert "Traceback" not in done.stdout
    beyond = stacks.local(maxClientBatchSize=4096, replicas=3)
    deployment.write(beyond)
    done = deployment.pulumi("up", "--yes", "--skip-preview")
    assert "stack.serving[0].maxConcurrentRequests" in done.stdout
    assert "stack.nodePools[0].nodes" in done.stdout
    assert "Traceback" not in done.stdout
    with pytest.raises(ApiException):
        deployment.core.read_namespace(NAMESPACE)


def test_no_secret_is_readable_in_state_output_or_logs(
    deployment: Deployment, environment: dict[str, str], embedded: Cluster
) -> None:
    values = {"apiKey": "a-key-that-must-not-leak-7391", "huggingFaceToken": "a-token-that-must-not-leak-7392"}
    printed = deployment.up(stacks.local(requireApiKey=True), values)
    printed += deployment.pulumi("preview", "--diff").stdout
    printed += deployment.read("stack", "output", "--json")
    printed += deployment.read("stack", "export")
    printed += deployment.config_file.read_text()
    for pod in deployment.pods().values():
        printed += deployment.core.read_namespaced_pod_log(pod.metadata.name, NAMESPACE)
    assert "Ready" in printed, "the log of the engine was read"
    # Secrets with both values that the API server does not take: what is printed then is searched as well.
    failing = stacks.local(requireApiKey=True, model="acme/gated")
    failing["namespace"] = {"name": "not-there", "create": False}
    small = {"architecture": "bert", "parametersM": 10, "layers": 6, "hidden": 384, "maxTokens": 256, "dimension": 384}
    failing["models"] = [{"id": "acme/gated", "kind": "embedding", "pooling": "mean", "gated": True, **small}]
    deployment.write(failing, values)
    failed = deployment.pulumi("up", "--yes", "--skip-preview")
    assert failed.returncode != 0
    assert 'namespaces "not-there" not found' in failed.stdout, "the API server refuses, not the plan"
    printed += failed.stdout + deployment.read("stack", "export")
    state = Path(environment["PULUMI_HOME"]).parent
    files = [path for path in (*state.rglob("*"), *embedded.layout.logs.rglob("*")) if path.is_file()]
    for value in values.values():
        for encoded in (value, base64.b64encode(value.encode()).decode()):
            assert encoded not in printed
            assert not [str(path) for path in files if encoded.encode() in path.read_bytes()]


def test_a_secret_inside_the_structured_object_is_refused_and_in_no_state(deployment: Deployment) -> None:
    deployment.write(stacks.local())
    path = "embedding-serving:stack.serving[0].env.MY_VALUE"
    nested = deployment.pulumi("config", "set", "--secret", "--path", path, given="nested-9417")
    assert nested.returncode == 0, nested.stdout
    refused = deployment.pulumi("up", "--yes", "--skip-preview")
    assert refused.returncode != 0
    assert "embedding-serving:stack: got a secret inside the object" in refused.stdout
    assert "9417" not in refused.stdout + deployment.read("stack", "export")


def test_a_key_with_white_space_or_in_plain_text_is_refused_unread(deployment: Deployment) -> None:
    deployment.write(stacks.local(requireApiKey=True), {"apiKey": "trailing-newline-8141\n\n"})
    refused = deployment.pulumi("preview")
    assert refused.returncode != 0
    assert "embedding-serving:apiKey: got an empty value or white space around it" in refused.stdout
    assert "8141" not in refused.stdout
    deployment.write(stacks.local(requireApiKey=True))
    plain = deployment.pulumi("config", "set", "--plaintext", "embedding-serving:apiKey", given="plain-text-8142")
    assert plain.returncode == 0, plain.stdout
    refused = deployment.pulumi("preview")
    assert refused.returncode != 0
    assert "embedding-serving:apiKey: got a value in plain text" in refused.stdout
    assert "8142" not in refused.stdout


def test_every_rendered_object_passes_a_server_side_dry_run(environment: dict[str, str]) -> None:
    recorder, _ = deployed(plan.make(settings.load(stacks.local(requireApiKey=True)), name="local", secrets={"apiKey"}))
    objects = recorder.objects()
    [namespace] = [found for found in objects if found["kind"] == "Namespace"]
    # The others need it to be there, with its Pod Security labels; a dry run would not create it.
    namespace["metadata"]["name"] = "dry-run"
    for found in objects:
        if "namespace" in found["metadata"]:
            found["metadata"]["namespace"] = "dry-run"

    def kubectl(*arguments: str, items: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        return subprocess.run(
            ["kubectl", *arguments, "-f", "-"],
            env=environment,
            input=listed,
            capture_output=True,
            text=True,
            check=False,
        )

    made = kubectl("apply", items=[namespace])
    assert made.returncode == 0, made.stderr
    try:
        done = kubectl("apply", "--dry-run=server", items=objects)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("(server dry run)") == len(objects)
        assert "Warning" not in done.stderr, done.stderr
        # The negative control: Pod Security warns of a pod template that it would refuse.
        [lax] = [found for found in copy.deepcopy(objects) if found["kind"] == "Deployment"]
        del lax["spec"]["template"]["spec"]["securityContext"]
        warned = kubectl("apply", "--dry-run=server", items=[lax])
        assert "would violate PodSecurity" in warned.stderr
    finally:
        kubectl("delete", "--wait=true", items=[namespace])
