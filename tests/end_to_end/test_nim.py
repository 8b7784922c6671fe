"""NIM on the embedded cluster: pods that Pod Security restricted admits, with the environment that the plan emits.

The images are the project's stand-ins, which say so; what they prove is all that is around a NIM, and nothing of it.
"""

import copy
import json
from typing import Any

import pytest

from infra.core import contract
from local.cluster import Cluster
from scripts.access import Access
from scripts.smoke.results import Report, Status
from scripts.smoke.run import test as smoke_test
from tests import stacks
from tests.end_to_end.deployment import Deployment
from tests.end_to_end.test_sidecar import ANSWER, APP, answer

pytestmark = pytest.mark.cluster

KEY = {"ngcApiKey": "nvapi-the-key-of-the-end-to-end-test"}
EMBEDDER = "nvidia/nv-embedqa-e5-v5"
RERANKER = "nvidia/llama-nemotron-rerank-vl-1b-v2"


def nim(name: str, model: str, memory: str, **changes: Any) -> dict[str, Any]:
    resources = {"cpu": "300m", "memory": memory}
    given = {"name": name, "engine": "nim", "model": model, "pool": "l4", "longestRequestSeconds": 20}
    return {**given, "resources": resources, **changes}


def stack(*workloads: dict[str, Any]) -> dict[str, Any]:
    return {**copy.deepcopy(stacks.local()), "serving": list(workloads)}


def smoke(deployment: Deployment, embedded: Cluster) -> Report:
    made = contract.read(json.loads(deployment.read("stack", "output", "--json"))["contract"])
    report = smoke_test(made, Access(kubeconfig=embedded.layout.kubeconfig), burst=False)
    assert not report.failed, report.failures()
    return report


def passed(report: Report, workload: str) -> set[str]:
    [tested] = [one for one in report.workloads if one.workload.name == workload]
    return {result.check for result in tested.results if result.status is Status.PASSED}


def test_an_embedding_and_a_reranking_nim_are_deployed_and_pass_the_smoke_test(
    deployment: Deployment, embedded: Cluster
) -> None:
    deployment.up(stack(nim("embed", EMBEDDER, "1536Mi"), nim("rerank", RERANKER, "4Gi")), KEY)
    report = smoke(deployment, embedded)
    common = {"pods", "endpoints", "health", "model name", "metrics"}
    assert passed(report, "embed") == {*common, "query and passage", "input_type", "similar texts", "openai client"}
    assert passed(report, "rerank") == {*common, "order of texts"}

    for name, model in (("embed", EMBEDDER), ("rerank", RERANKER)):
        [pod] = deployment.pods(name).values()
        [container] = pod.spec.containers
        assert container.image.startswith(f"stand-in.local/nim/{model}:")
        identity = deployment.kubectl("-n", deployment.namespace, "exec", pod.metadata.name, "--", "id")
        assert "uid=1000" in identity
        assert "2000" in identity
        mounts = {mount.mount_path for mount in container.volume_mounts}
        assert "/dev/shm" in mounts
        log = deployment.kubectl("-n", deployment.namespace, "logs", pod.metadata.name)
        assert "stand-in for the NIM" in log
        assert KEY["ngcApiKey"] not in log
    again = deployment.pulumi("preview", "--expect-no-changes", "--diff")
    assert again.returncode == 0, again.stdout


def test_a_nim_is_the_sidecar_of_an_app_that_speaks_openais_api(deployment: Deployment, embedded: Cluster) -> None:
    # A NIM listens on 8000, and the containers of a pod share ports.
    app = {**APP, "port": 9000, "env": {"PORT": "9000", "EMBED_MODEL": EMBEDDER}}
    deployment.up(stack(nim("embed", EMBEDDER, "1536Mi", topology="sidecar", app=app)), KEY)
    workload = deployment.workloads()["embed"]
    assert workload.url == "http://localhost:8000"
    [pod] = deployment.pods("embed").values()
    [engine], [container] = pod.spec.init_containers, pod.spec.containers
    assert (engine.name, engine.restart_policy) == ("nim", "Always")
    assert {variable.name for variable in container.env} == {"EMBED_URL", "EMBED_MODEL", "PORT"}
    url = embedded.publish("nim-app", deployment.namespace, workload.service, workload.service_port)
    assert answer(url) == ANSWER
    report = smoke(deployment, embedded)
    assert {"pods", "endpoints", "query and passage", "input_type", "openai client"} <= passed(report, "embed")
