"""Plans: pools, rollouts, names and budgets. Cases are those of docs: failure modes."""

import itertools
import math
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.core import catalogue
from infra.core.capacity import Pod, node_of
from infra.core.engines import tei
from infra.core.errors import RefusedError
from infra.core.plan import Workload
from tests import stacks
from tests.core.plans import BIG_NODE, made, refused, refused_at, stack, workload

pytestmark = pytest.mark.core


def test_the_committed_stack_local_has_a_plan_with_a_reason_for_every_choice() -> None:
    plan = made(stacks.committed("local"))
    planned, reranker = plan.workloads
    assert planned.stand_in
    assert reranker.engine.models[0].kind == "reranker"
    assert [addon.name for addon in plan.addons] == ["prometheus", "keda", "metrics-server", "external-secrets"]
    images = {image for addon in plan.addons for image in addon.images.values()}
    assert all(image.startswith("built.local/") for image in images)
    assert planned.image == "stand-in.local/huggingface/text-embeddings-inference:89-1.9.3"
    assert {"image", "dtype", "pooling", "revision", "startup", "drain", "rollout", "probes.timeout"} <= {
        reason.field for reason in planned.reasons
    }
    assert all(reason.value and reason.why for reason in planned.reasons)


def test_a_plan_is_plain_values() -> None:
    plan = made(stack()).to_dict()
    assert plan["workloads"][0]["engine"]["engine"] == "tei"


# Budgets: one number, one owner.


@cache
def every_plan() -> list[tuple[str, Workload]]:
    """All models of the catalogue on all its GPUs and on CPU, on a node that is known and one that is not."""
    found = []
    for model, gpu in itertools.product(catalogue.models(), [None, *catalogue.gpus()]):
        known = {"allocatable": {**BIG_NODE, "gpus": 1 if gpu else 0}, "imagePullSeconds": 0}
        for pool in ({}, known):
            try:
                [planned] = made(stack(gpu, model=model, replicas=3, pool=pool)).workloads
            except RefusedError:
                continue
            found.append((f"{model} on {gpu or 'cpu'}", planned))
    return found


def test_most_models_can_be_served_on_most_gpus() -> None:
    served = {name for name, _ in every_plan()}
    assert len(served) > 150
    for gpu in ("T4", "A10G", "L4", "A100", "L40S", "H100", "cpu"):
        assert f"BAAI/bge-large-en-v1.5 on {gpu}" in served
    assert "intfloat/e5-mistral-7b-instruct on A100" in served


def check_budgets(planned: Workload) -> None:
    """The inequalities of docs: one number, one owner."""
    budgets, probes = planned.budgets, planned.engine.probes
    # The first check comes with the start of the container, so that the kubelet kills after (threshold - 1) periods.
    killed_after = probes.startup.period_seconds * (probes.startup.failure_threshold - 1)
    assert budgets.startup <= killed_after < budgets.startup + 2 * probes.startup.period_seconds
    longest_start = probes.startup.period_seconds * probes.startup.failure_threshold
    assert budgets.progress_deadline >= budgets.image_pull + longest_start + budgets.termination_grace
    steps = math.ceil(planned.replicas / (planned.max_surge + planned.max_unavailable))
    assert budgets.rollout >= steps * budgets.progress_deadline
    assert budgets.termination_grace == budgets.pre_stop + budgets.longest_request
    assert budgets.pre_stop >= 5
    for probe in (probes.startup, probes.readiness):
        assert probe.path == "/health"
        assert probe.period_seconds >= probe.timeout_seconds >= 5
    assert (probes.liveness.path, probes.liveness.timeout_seconds) == ("/metrics", 5)
    # Kubernetes keeps these as 32-bit numbers.
    assert all(0 < number < 2**31 for number in (budgets.rollout, probes.startup.failure_threshold))


def test_case_88_budgets_cover_each_other_for_every_model_on_every_gpu() -> None:
    for name, planned in every_plan():
        try:
            check_budgets(planned)
        except AssertionError as error:
            raise AssertionError(name) from error


def test_no_budget_is_absurd_for_any_model_on_any_gpu() -> None:
    for name, planned in every_plan():
        budgets, engine = planned.budgets, planned.engine
        assert 120 <= budgets.startup <= 1800, name
        assert 30 <= budgets.longest_request <= 900, name
        assert engine.probes.readiness.timeout_seconds <= 450, name
        assert 1024 <= engine.resources.memory_mib <= 64 * 1024, name
        assert 500 <= engine.resources.cpu_millicores <= 8000, name
        assert engine.limits.max_concurrent_requests >= 2 * engine.limits.max_client_batch_size, name


def test_the_estimate_of_a_batch_lies_below_the_probes_timeout_for_every_plan() -> None:
    for name, planned in every_plan():
        [reason] = [reason for reason in planned.reasons if reason.field == "probes.timeout"]
        batch = float(reason.why.rsplit(" ", 2)[1])
        assert planned.engine.probes.readiness.timeout_seconds > batch, name
        assert planned.budgets.longest_request >= batch, name


@pytest.mark.parametrize(
    ("gpu", "model", "most"),
    [
        ("L4", "BAAI/bge-large-en-v1.5", 300),
        ("A100", "intfloat/e5-mistral-7b-instruct", 1500),
        (None, "BAAI/bge-small-en-v1.5", 300),
        (None, "BAAI/bge-m3", 1500),
    ],
)
def test_a_step_of_a_rollout_takes_minutes_beside_the_image_pull(gpu: str | None, model: str, most: int) -> None:
    pool: dict[str, Any] = {
        "imagePullSeconds": 0,
        "allocatable": {"cpu": "8", "memory": "32Gi", "gpus": 1 if gpu else 0},
    }
    assert workload(gpu, model=model, pool=pool).budgets.progress_deadline < most


@settings(deadline=None, derandomize=True, max_examples=150)
@given(
    model=st.sampled_from([name for name in catalogue.models() if not name.startswith("nvidia/")]),
    gpu=st.sampled_from(["T4", "A10G", "L4", "A100", "H100", None]),
    keys=st.fixed_dictionaries(
        {},
        optional={
            "replicas": st.integers(0, 50),
            "maxBatchTokens": st.integers(1, 100_000),
            "autoTruncate": st.booleans(),
            "maxConcurrentRequests": st.integers(1, 5000),
            "maxClientBatchSize": st.integers(1, 5000),
            "longestRequestSeconds": st.integers(1, 3600),
            "tokenizationWorkers": st.integers(1, 64),
            "resources": st.fixed_dictionaries({}, optional={"cpu": st.integers(1, 64)}),
            "rollout": st.fixed_dictionaries({"maxSurge": st.integers(0, 5), "maxUnavailable": st.integers(0, 5)}),
            "tokens": st.fixed_dictionaries({"p50": st.integers(1, 300), "p95": st.integers(1, 9000)}),
        },
    ),
)
def test_budgets_cover_each_other_for_whatever_a_user_writes(model: str, gpu: str | None, keys: dict[str, Any]) -> None:
    given_stack = stack(gpu, model=model, **keys)
    if not refused(given_stack):
        [planned] = made(given_stack).workloads
        check_budgets(planned)
        limits = planned.engine.limits
        assert limits.max_client_batch_size <= limits.max_concurrent_requests
        assert limits.max_batch_tokens >= limits.max_input_tokens


# Rollouts and pools.


def test_case_86_the_default_rollout_needs_no_spare_gpu() -> None:
    planned = workload(replicas=2)
    assert (planned.max_surge, planned.max_unavailable) == (0, 1)


def _two_gpus(**rollout: int) -> dict[str, Any]:
    allocatable = {"cpu": "8", "memory": "32Gi", "gpus": 2}
    return stack(pool={"nodes": 1, "allocatable": allocatable}, replicas=2, rollout=rollout, resources={"cpu": "2"})


def test_case_86_a_surge_without_a_spare_gpu_is_refused() -> None:
    assert refused(_two_gpus()) == []
    line = refused_at(_two_gpus(maxSurge=1, maxUnavailable=0), "nodePools[0].nodes")
    assert "2 or more, or rollout.maxSurge: 0" in line


def test_case_86_a_surge_with_a_spare_gpu_has_a_plan() -> None:
    given_stack = _two_gpus(maxSurge=1, maxUnavailable=0)
    given_stack["nodePools"][0]["nodes"] = 2
    assert refused(given_stack) == []


def test_a_rollout_that_can_replace_no_pod_is_refused() -> None:
    refused_at(stack(rollout={"maxSurge": 0, "maxUnavailable": 0}), "serving[0].rollout.maxUnavailable")


def test_more_replicas_than_gpus_are_refused_with_the_nodes_they_need() -> None:
    pool = {"nodes": 1, "allocatable": {"cpu": "64", "memory": "256Gi", "gpus": 2}}
    line = refused_at(stack(pool=pool, replicas=5, resources={"cpu": "2"}), "nodePools[0].nodes")
    assert "3 or more" in line


def test_pods_are_counted_per_node_and_not_in_total() -> None:
    """3 pods of 5 cores are 15 of 16 cores, and still no node has room for two of them."""
    pool = {"nodes": 2, "allocatable": {"cpu": "8", "memory": "64Gi"}}
    line = refused_at(stack(None, pool=pool, replicas=3, resources={"cpu": "5"}), "nodePools[0].nodes")
    assert "3 or more" in line


@pytest.mark.parametrize(("resource", "amount", "most"), [("cpu", "8", "7500m"), ("memory", "32Gi", "32256Mi")])
def test_a_pod_as_big_as_its_node_is_refused_because_daemonsets_run_there(
    resource: str, amount: str, most: str
) -> None:
    pool = {"nodes": 1, "allocatable": {"cpu": "8", "memory": "32Gi"}}
    line = refused_at(stack(None, pool=pool, resources={resource: amount}), f"serving[0].resources.{resource}")
    assert f"allowed: {most} at most" in line
    assert "DaemonSets" in line
    assert refused(stack(None, pool=pool, resources={resource: most})) == []


def test_small_pods_are_bounded_by_the_pods_that_a_kubelet_runs() -> None:
    pool = {"nodes": 1, "allocatable": {"cpu": "512", "memory": "4Ti"}}
    many: dict[str, Any] = {
        "resources": {"cpu": "1", "memory": "4Gi"},
        "model": "sentence-transformers/all-MiniLM-L6-v2",
    }
    assert refused(stack(None, pool=pool, replicas=110 - 8, **many)) == []
    assert "2 or more" in refused_at(stack(None, pool=pool, replicas=110 - 7, **many), "nodePools[0].nodes")


def test_a_pod_that_asks_for_more_disk_than_its_node_has_is_refused() -> None:
    node = {"cpu": "32", "memory": "256Gi", "gpus": 1}
    small, large = ({"allocatable": {**node, "ephemeralStorage": size}} for size in ("10Gi", "40Gi"))
    keys: dict[str, Any] = {"gpu": "A100", "model": "intfloat/e5-mistral-7b-instruct"}
    line = refused_at(stack(pool=small, **keys), "serving[0].resources.ephemeralStorage")
    assert "allowed: 10240Mi at most, cache.existingClaim, or a pool with bigger disks" in line
    assert refused(stack(pool=large, **keys)) == []
    assert refused(stack(pool=small, cache={"existingClaim": "weights"}, **keys)) == []
    assert refused(stack(pool={"allocatable": node}, **keys)) == [], "a disk of which nobody says the size"


@pytest.mark.parametrize(("storage", "said"), [("19Gi", False), ("21Gi", True)])
def test_a_pod_that_eks_root_volumes_do_not_hold_by_default_has_a_reason_line(storage: str, said: bool) -> None:
    planned = workload("L4", pool={"instanceType": "g6.2xlarge"}, resources={"ephemeralStorage": storage})
    found = [reason.why for reason in planned.reasons if reason.field == "resources.ephemeralStorage"]
    assert ["450 GB of local NVMe" in why for why in found] == [True] * said


def test_a_pool_and_the_capacity_planner_agree_on_what_a_node_holds() -> None:
    kind = node_of(catalogue.instance_types()["g6.12xlarge"])
    for cores in (1, 2, 5, 11, 12):
        held = kind.holds(Pod(cores * 1000, 4096), shares=1)
        pool = {"nodes": 1, "instanceType": kind.name}
        keys: dict[str, Any] = {"pool": pool, "resources": {"cpu": str(cores), "memory": "4Gi"}}
        assert refused(stack("L4", replicas=held, **keys)) == []
        refused_at(stack("L4", replicas=held + 1, **keys), "nodePools[0].nodes")


def test_workloads_of_a_pool_share_its_nodes() -> None:
    pool = {"nodes": 1, "allocatable": {"cpu": "8", "memory": "64Gi", "gpus": 1}}
    given_stack = stack(pool=pool, resources={"cpu": "2"})
    given_stack["serving"].append({**given_stack["serving"][0], "name": "second"})
    assert "serving[0].replicas: 1, serving[1].replicas: 1" in refused_at(given_stack, "nodePools[0].nodes")


def test_a_thousand_replicas_are_planned_in_no_time() -> None:
    pool = {"nodes": 1000, "allocatable": {"cpu": "8", "memory": "64Gi", "gpus": 1}}
    assert made(stack(pool=pool, replicas=1000)).pools[0].gpus_wanted == 1000


@pytest.mark.parametrize(("resource", "amount"), [("cpu", "5"), ("memory", "20Gi")])
def test_requests_that_fit_no_node_are_refused(resource: str, amount: str) -> None:
    given_stack = stack(pool={"instanceType": "g6.xlarge"}, resources={resource: amount})
    line = refused_at(given_stack, f"serving[0].resources.{resource}")
    assert "stack.nodePools[0].instanceType" in line


def test_cpu_and_memory_of_the_default_fit_the_smallest_node_of_every_family() -> None:
    for instance in catalogue.instance_types().values():
        pool = {"instanceType": instance.name}
        given_stack = stack(instance.gpu, pool=pool, model="BAAI/bge-large-en-v1.5")
        assert not [line for line in refused(given_stack) if ".resources." in line], instance.name


def test_memory_that_nobody_asked_for_is_called_planned_for_the_model() -> None:
    given_stack = stack(pool={"instanceType": "g6.xlarge"}, model="intfloat/e5-mistral-7b-instruct")
    line = refused_at(given_stack, "serving[0].resources.memory")
    assert "got nothing, planned 19200Mi for model intfloat/e5-mistral-7b-instruct;" in line


def test_a_misspelt_instance_type_is_answered_with_the_nearest_of_the_gpu() -> None:
    line = refused_at(stack("L4", pool={"instanceType": "g6.xlrage"}), "nodePools[0].instanceType")
    assert "allowed: g6.xlarge (nearest), g6.2xlarge, " in line
    assert "g5." not in line


@pytest.mark.parametrize(
    "pool",
    [{"instanceType": "g6.xlarge"}, {"nodeSelector": {"node.kubernetes.io/instance-type": "g6.xlarge"}}],
)
def test_what_goes_with_a_misspelt_gpu_is_not_refused_as_well(pool: dict[str, Any]) -> None:
    [line] = refused(stack("L44", pool=pool))
    assert line.startswith("stack.nodePools[0].gpu: got 'L44'; allowed: L4 (nearest), V100, ")


@pytest.mark.parametrize("kind", ["g4ad.xlarge", "g6", "m7i.large"])
def test_an_instance_type_without_nvidia_gpus_is_refused(kind: str) -> None:
    refused_at(stack(pool={"instanceType": kind}), "nodePools[0].instanceType")


def test_an_instance_type_with_another_gpu_is_refused() -> None:
    line = refused_at(stack("L4", pool={"instanceType": "g5.xlarge"}), "nodePools[0].instanceType")
    assert "g6.xlarge" in line


def test_an_instance_type_with_a_fraction_of_a_gpu_is_refused() -> None:
    refused_at(stack("L4", pool={"instanceType": "g6f.xlarge"}), "nodePools[0].instanceType")


@pytest.mark.parametrize(
    ("pool", "path"),
    [
        ({"instanceType": "g6.xlarge", "allocatable": {"cpu": 4, "memory": "8Gi"}}, "allocatable"),
        ({"allocatable": {"cpu": 4, "memory": "8Gi"}}, "allocatable.gpus"),
        ({"instanceType": "g6.xlarge", "arch": "arm64"}, "arch"),
        ({"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A10G"}}, "nodeSelector.nvidia.com/gpu.product"),
        (
            {"nodeSelector": {"node.kubernetes.io/instance-type": "g5.xlarge"}},
            "nodeSelector.node.kubernetes.io/instance-type",
        ),
    ],
)
def test_a_pool_that_contradicts_itself_is_refused(pool: dict[str, Any], path: str) -> None:
    refused_at(stack("L4", pool=pool), f"nodePools[0].{path}")


def test_gpus_of_a_pool_without_a_gpu_model_are_refused() -> None:
    pool = {"allocatable": {"cpu": 4, "memory": "8Gi", "gpus": 1}}
    refused_at(stack(None, pool=pool), "nodePools[0].allocatable.gpus")


def test_gpu_pods_select_the_product_and_tolerate_its_taint() -> None:
    planned = workload("A10", pool={"taints": [{"key": "team", "value": "rag", "effect": "NoExecute"}]})
    assert planned.gpu == "A10G"
    assert planned.node_selector == {"nvidia.com/gpu.product": "NVIDIA-A10G"}
    assert [(t.key, t.operator, t.value, t.effect) for t in planned.tolerations] == [
        ("nvidia.com/gpu", "Exists", None, "NoSchedule"),
        ("team", "Equal", "rag", "NoExecute"),
    ]


def test_pods_of_a_pool_with_an_instance_type_select_the_label_that_every_cloud_sets() -> None:
    """Amazon's EKS images write no nvidia.com/gpu.product: that takes GPU feature discovery."""
    planned = workload("L4", pool={"instanceType": "g6.2xlarge"})
    assert planned.node_selector == {"node.kubernetes.io/instance-type": "g6.2xlarge"}
    [reason] = [reason for reason in planned.reasons if reason.field == "nodeSelector"]
    assert reason.value == "node.kubernetes.io/instance-type=g6.2xlarge"


def test_a_selector_of_the_users_own_is_taken_as_it_is() -> None:
    assert workload(pool={"nodeSelector": {"pool": "gpu"}}).node_selector == {"pool": "gpu"}


# Names, labels, images, secrets.


def test_names_are_used_once() -> None:
    given_stack = stack()
    given_stack["serving"].append(dict(given_stack["serving"][0]))
    given_stack["nodePools"].append(dict(given_stack["nodePools"][0]))
    refused_at(given_stack, "serving[1].name")
    refused_at(given_stack, "nodePools[1].name")


def test_services_are_used_once() -> None:
    given_stack = stack(serviceName="shared")
    given_stack["serving"].append({**given_stack["serving"][0], "name": "shared", "serviceName": None})
    assert "serving[0].serviceName" in refused_at(given_stack, "serving[1].name")


@pytest.mark.parametrize("label", ["app.kubernetes.io/name", "app.kubernetes.io/instance", "pod-template-hash"])
def test_labels_that_select_pods_are_refused(label: str) -> None:
    for key in ("labels", "podLabels"):
        changed: dict[str, Any] = {key: {label: "mine"}}
        refused_at(stack(**changed), f"serving[0].{key}.{label}")


def test_a_pod_label_does_not_change_the_selector_or_the_other_objects() -> None:
    plain, labelled = workload(), workload(podLabels={"team": "rag"})
    assert labelled.pod_labels == {"team": "rag"}
    assert (labelled.selector, labelled.labels) == (plain.selector, plain.labels)


@pytest.mark.parametrize("name", ["default", "kube-system"])
def test_case_92_a_namespace_that_every_cluster_has_is_not_created(name: str) -> None:
    refused_at(stack(changes={"namespace": {"name": name}}), "namespace.name")
    assert refused(stack(changes={"namespace": {"name": name, "create": False}})) == []


def test_case_90_a_workload_without_replicas_has_a_plan() -> None:
    assert workload(replicas=0).budgets.rollout > 0


@pytest.mark.parametrize("environment", ["dev", "staging", "prod"])
def test_stand_ins_are_refused_outside_the_local_environment(environment: str) -> None:
    changes = {"environment": environment, "images": {"standInRegistry": "stand-in.local"}}
    refused_at(stack(changes=changes), "images.standInRegistry")


def test_a_mirror_takes_the_place_of_the_registry() -> None:
    planned = workload(changes={"images": {"mirrors": {"ghcr.io": "registry.acme.com/ghcr"}}})
    assert planned.image == "registry.acme.com/ghcr/huggingface/text-embeddings-inference:89-1.9.3"


def test_a_mirror_of_a_registry_that_nothing_comes_from_is_refused() -> None:
    refused_at(stack(changes={"images": {"mirrors": {"docker.io": "registry.acme.com"}}}), "images.mirrors.docker.io")


def test_a_digest_pins_the_image() -> None:
    digest = "sha256:" + "0a" * 32
    assert workload(digest=digest).image.endswith(f":89-1.9.3@{digest}")
    changes = {"environment": "local", "images": {"standInRegistry": "stand-in.local"}}
    refused_at(stack(digest=digest, changes=changes), "serving[0].digest")


def test_pull_secrets_are_named_once() -> None:
    refused_at(stack(changes={"images": {"pullSecrets": ["a", "a"]}}), "images.pullSecrets[1]")


def test_a_key_that_is_required_and_not_set_is_refused_with_the_command_that_sets_it() -> None:
    given_stack = stack(requireApiKey=True)
    assert "pulumi config set --secret embedding-serving:apiKey" in refused_at(given_stack, "serving[0].requireApiKey")
    [planned] = made(given_stack, ("apiKey",)).workloads
    assert planned.secret is not None
    assert planned.secret.keys == ("apiKey",)


def _custom(**keys: Any) -> dict[str, Any]:
    model = {
        "id": "acme/model",
        "kind": "embedding",
        "architecture": "bert",
        "parametersM": 110,
        "layers": 12,
        "hidden": 768,
        "maxTokens": 512,
    }
    return {"models": [{**model, **keys}]}


def test_a_model_of_ones_own_is_planned() -> None:
    changes = _custom(dimension=768, pooling="mean", revision="refs/pr/4")
    planned = workload(model="acme/model", changes=changes)
    [model] = planned.engine.models
    assert (model.dimension, model.revision) == (768, "refs/pr/4")
    assert "refs/pr/4" in {variable.value for variable in planned.engine.env if variable.name == "REVISION"}


def test_a_model_that_the_hub_gates_needs_a_token() -> None:
    changes = _custom(pooling="mean", gated=True)
    refused_at(stack(model="acme/model", changes=changes), "serving[0].model")
    assert made(stack(model="acme/model", changes=changes), ("huggingFaceToken",)).workloads[0].secret is not None


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"kind": "reranker", "dimension": 768}, "dimension"),
        ({"kind": "reranker", "pooling": "cls"}, "pooling"),
        ({"kind": "embedding", "pooling": "splade"}, "pooling"),
        ({"kind": "sparse", "pooling": "mean"}, "pooling"),
        ({"kind": "generator"}, "kind"),
        ({"id": "BAAI/bge-m3"}, "id"),
    ],
)
def test_a_model_that_contradicts_itself_is_refused(keys: dict[str, Any], path: str) -> None:
    refused_at(stack(changes=_custom(**keys)), f"models[0].{path}")


def test_pooling_that_nobody_names_is_asked_for() -> None:
    refused_at(stack(model="acme/model", changes=_custom()), "serving[0].pooling")


def test_an_unknown_model_is_refused() -> None:
    assert "stack.models" in refused_at(stack(model="acme/none"), "serving[0].model")


def test_an_unknown_model_is_answered_with_the_nearest_and_all_that_tei_serves() -> None:
    line = refused_at(stack(model="bge-m3"), "serving[0].model")
    assert "allowed: BAAI/bge-m3 (nearest), " in line
    served = [model for model in catalogue.models() if not model.startswith("nvidia/")]
    assert all(model in line for model in served)
    assert "nvidia/" not in line


def test_one_node_one_gpu_and_one_step_are_written_in_the_singular() -> None:
    pool = {"nodes": 1, "allocatable": {"cpu": "8", "memory": "64Gi", "gpus": 1}}
    assert "No room on 1 node with 8 CPU, 64Gi and 1 GPU (" in refused_at(
        stack(pool=pool, replicas=2), "nodePools[0].nodes"
    )
    reasons = {reason.field: reason.why for reason in workload().reasons}
    assert reasons["rollout"].startswith("1 step of 1 pod;")


def test_an_unknown_pool_is_refused_with_the_pools_there_are() -> None:
    given_stack = stack()
    given_stack["serving"][0]["pool"] = "other"
    assert "pool (stack.nodePools[0].name)" in refused_at(given_stack, "serving[0].pool")


@pytest.mark.parametrize("environment", ["staging", "prod"])
def test_staging_and_prod_serve_no_model_whose_revision_nobody_names(environment: str) -> None:
    unpinned = next(model.id for model in catalogue.models().values() if tei.on_the_hub(model) and not model.revision)
    changes = {"environment": environment}
    line = refused_at(stack(model=unpinned, gpu="H100", changes=changes), "serving[0].revision")
    assert "a commit of the weights" in line
    assert refused(stack(model=unpinned, gpu="H100", changes=changes, revision="c9745ed")) == []
    pinned = next(model.id for model in catalogue.models().values() if tei.on_the_hub(model) and model.revision)
    assert refused(stack(model=pinned, changes=changes)) == []


def test_elsewhere_the_plan_says_that_the_revision_is_not_pinned() -> None:
    unpinned = next(model.id for model in catalogue.models().values() if tei.on_the_hub(model) and not model.revision)
    reasons = {reason.field: reason.why for reason in workload("H100", model=unpinned).reasons}
    assert "not pinned" in reasons["revision"]
