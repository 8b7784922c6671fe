"""``need`` of a stack file: sizes in the plan, and refusals that say what to write instead."""

import copy
import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from infra.core import catalogue
from infra.core.capacity import Need, Request, Sizing, memory, node_of, size
from local.paths import CHECKOUT
from tests.core.plans import env, made, refused, refused_at, stack, workload

pytestmark = pytest.mark.core

LARGE, MISTRAL, RERANKER = "BAAI/bge-large-en-v1.5", "intfloat/e5-mistral-7b-instruct", "BAAI/bge-reranker-large"


def need(load: float = 300, p95: int = 512, **keys: Any) -> dict[str, Any]:
    return {"documentsPerSecond": load, "tokens": {"p50": min(280, p95), "p95": p95, "max": p95}, **keys}


# What a need becomes


def test_a_need_gives_replicas_budget_and_limits_of_the_capacity_planner() -> None:
    asked = need(latencyMs=800)
    planned = workload(need=asked, pool={"instanceType": "g6.2xlarge"})
    kinds = (node_of(catalogue.instance_types()["g6.2xlarge"]),)
    sizing = size(
        Request(Need.model_validate(asked), catalogue.models()[LARGE], catalogue.gpus()["L4"], node_kinds=kinds)
    )
    assert isinstance(sizing, Sizing)
    assert planned.replicas == sizing.replicas > 1
    assert planned.engine.limits.max_batch_tokens == sizing.max_batch_tokens
    assert env(planned)["MAX_BATCH_TOKENS"] == str(sizing.max_batch_tokens)
    assert env(planned)["MAX_BATCH_REQUESTS"] == str(sizing.max_batch_requests)
    assert env(planned)["MAX_CONCURRENT_REQUESTS"] == str(sizing.max_concurrent_requests)
    assert planned.capacity
    assert planned.capacity.cost == sizing.cost
    assert planned.capacity.latency == sizing.latency


def test_3000_documents_of_512_tokens_take_37_l4_in_a_stack_file_too() -> None:
    given_need = {"documentsPerSecond": 3000, "tokens": {"p50": 512, "p95": 512, "max": 512}}
    assert workload(need=given_need).replicas == 37
    line = refused_at(stack(need=given_need, replicas=1), "serving[0].replicas")
    assert "got 1; allowed: 37 or more" in line
    assert "times the peak of the hardware" in line


def test_waits_of_scaling_follow_from_the_plans_own_image_pull_and_startup() -> None:
    planned = workload(need=need(), pool={"imagePullSeconds": 400})
    assert planned.capacity
    ready = 400 + planned.budgets.startup
    assert planned.capacity.scaling.scale_up_period_seconds == ready
    assert planned.capacity.scaling.scale_down_stabilisation_seconds == 2 * ready


def test_without_need_and_replicas_there_is_one_replica_and_no_capacity() -> None:
    planned = workload()
    assert (planned.replicas, planned.capacity) == (1, None)
    assert "MAX_BATCH_REQUESTS" not in env(planned)


def test_sizes_beside_a_need_are_taken_where_they_meet_it() -> None:
    planned = workload(need=need(), replicas=9, maxBatchTokens=20_000, maxConcurrentRequests=900)
    limits = planned.engine.limits
    assert (planned.replicas, limits.max_batch_tokens, limits.max_concurrent_requests) == (9, 20_000, 900)


def test_a_plan_with_a_need_is_plain_values() -> None:
    plan = json.loads(json.dumps(made(stack(need=need(latencyMs=900))).to_dict()))
    capacity = plan["workloads"][0]["capacity"]
    assert capacity["need"]["documentsPerSecond"] == 300
    assert capacity["scaling"]["queue_threshold"] > 0


def test_a_rerankers_list_fits_the_places_that_a_need_gives() -> None:
    planned = workload(model=RERANKER, topK=500, need=need(1))
    assert planned.engine.limits.max_concurrent_requests == 1000


def test_a_need_for_a_pool_that_others_use_too_has_to_fit_beside_them() -> None:
    both = stack(pool={"instanceType": "g6.2xlarge", "nodes": 3}, need=need(300), resources={"cpu": 2})
    assert refused(both) == []
    both["serving"].append({"name": "other", "engine": "tei", "model": LARGE, "pool": "pool", "replicas": 1})
    assert "4 or more" in refused_at(both, "nodePools[0].nodes")


def test_the_need_of_the_documentation_has_a_plan() -> None:
    text = (CHECKOUT / "docs" / "capacity.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```yaml\n(need: .*?)```", text, re.DOTALL)
    assert workload(model="BAAI/bge-m3", **yaml.safe_load(block)).capacity


@pytest.mark.parametrize("latency", [90_000, 3_600_000])
@pytest.mark.parametrize("model", ["sentence-transformers/all-MiniLM-L6-v2", MISTRAL])
def test_an_objective_of_minutes_does_not_make_a_queue_of_minutes(model: str, latency: int) -> None:
    short = {"documentsPerSecond": 1, "tokens": {"p50": 1, "p95": 64, "max": 64}, "latencyMs": latency}
    planned = workload("H100", model=model, need=short)
    assert planned.capacity
    assert planned.engine.limits.max_concurrent_requests <= 65_536
    assert planned.capacity.latency.planned <= 61_000
    assert planned.budgets.longest_request <= 600


# What is refused


def test_lengths_are_said_once() -> None:
    given_stack = stack(need=need(), tokens={"p50": 10, "p95": 20})
    assert "serving[0].need.tokens" in refused_at(given_stack, "serving[0].tokens")


def test_a_need_on_cpu_nodes_and_in_float32_is_refused() -> None:
    assert "no GPU" in refused_at(stack(None, need=need()), "serving[0].need")
    assert "dtype: float16" in refused_at(stack(need=need(), dtype="float32"), "serving[0].need")


@pytest.mark.parametrize("load", [{}, {"documentsPerSecond": 1, "documentsPerMonth": 1}])
def test_a_need_has_one_load(load: dict[str, int]) -> None:
    line = refused_at(stack(need={**load, "tokens": {"p50": 1, "p95": 2}}), "serving[0].need")
    assert "allowed: one of documentsPerSecond and documentsPerMonth." in line


def test_texts_of_a_need_that_the_model_cuts_are_refused_unless_truncation_is_said() -> None:
    given_need = {"documentsPerSecond": 10, "tokens": {"p50": 100, "p95": 500, "max": 600}}
    assert "autoTruncate: true" in refused_at(stack(need=given_need), "serving[0].need.tokens.max")
    assert refused(stack(need=given_need, autoTruncate=True)) == []


def test_too_few_places_for_the_queue_threshold_are_refused() -> None:
    line = refused_at(stack(need=need(), maxConcurrentRequests=64), "serving[0].maxConcurrentRequests")
    least = int(line.split("allowed: ")[1].split(" ")[0])
    assert refused(stack(need=need(), maxConcurrentRequests=least)) == []


@pytest.mark.parametrize("model", ["BAAI/bge-m3", "BAAI/bge-small-en-v1.5", MISTRAL])
@pytest.mark.parametrize("gpu", ["T4", "A10G", "L4", "A100", "H100"])
@pytest.mark.parametrize("with_need", [False, True])
def test_a_budget_that_the_gpu_cannot_hold_is_refused_with_the_largest_that_it_can(
    model: str, gpu: str, with_need: bool
) -> None:
    known = catalogue.models()[model]
    largest = memory.largest_batch(known, catalogue.gpus()[gpu], "float16")
    if (model, gpu) == (MISTRAL, "T4"):
        assert largest < known.max_tokens
        return
    keys: dict[str, Any] = {"need": need(1)} if with_need else {}
    high = min(largest + 2000, 1_048_576)
    if high > largest:
        assert str(largest) in refused_at(
            stack(gpu, model=model, maxBatchTokens=high, **keys), "serving[0].maxBatchTokens"
        )
        assert not refused(stack(gpu, model=model, maxBatchTokens=largest, **keys))


def test_more_replicas_than_a_workload_may_have_are_refused_with_the_load_that_fits() -> None:
    line = refused_at(stack(need=need(1e6)), "serving[0].need.documentsPerSecond")
    most = float(line.split("allowed: ")[1].split(" ")[0])
    assert 0.9 * 1000 <= workload(need=need(most)).replicas <= 1000
    month = {"documentsPerMonth": 1e13, "tokens": {"p50": 512, "p95": 512}}
    line = refused_at(stack(need=month), "serving[0].need.documentsPerMonth")
    month["documentsPerMonth"] = float(line.split("allowed: ")[1].split(" ")[0])
    assert 0.9 * 1000 <= workload(need=month).replicas <= 1000


def test_a_model_too_big_for_the_gpu_of_its_pool_names_gpus_that_tei_serves_it_on() -> None:
    model = {
        "id": "acme/big",
        "kind": "embedding",
        "architecture": "qwen3",
        "parametersM": 20_000,
        "layers": 40,
        "hidden": 5120,
        "maxTokens": 512,
        "pooling": "last-token",
    }
    given_stack = stack(
        "L4", model="acme/big", need=need(1), changes={"models": [model]}, pool={"instanceType": "g6.xlarge"}
    )
    line = next(line for line in refused(given_stack) if line.startswith("stack.nodePools[0].gpu: "))
    offered = line.split("allowed: ")[1].split(", with")[0].split(", ")
    assert "H100" in offered
    assert not {"B300", "V100", "T4g"} & set(offered)
    assert "stack.models[0]" in line


@pytest.mark.parametrize(
    ("pool", "path", "allowed"),
    [
        ({"instanceType": "g6.xlarge"}, "nodePools[0].instanceType", "g6.4xlarge"),
        (
            {"allocatable": {"cpu": 4, "memory": "9Gi", "gpus": 1}},
            "nodePools[0].allocatable",
            "instanceType g6.4xlarge",
        ),
    ],
)
def test_a_pod_that_no_node_of_its_pool_holds_is_refused_there_and_once(
    pool: dict[str, Any], path: str, allowed: str
) -> None:
    given_stack = stack(need=need(), pool=pool, resources={"cpu": 12, "memory": "20Gi"})
    assert allowed in refused_at(given_stack, path)
    assert len(refused(given_stack)) == 1


# Properties


def _needs() -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda load, p50, more, longest, latency, headroom: {
            "documentsPerSecond": load,
            "tokens": {"p50": p50, "p95": p50 + more, **({} if longest is None else {"max": p50 + more + longest})},
            **({} if latency is None else {"latencyMs": latency}),
            "headroom": headroom,
        },
        st.floats(0.01, 20_000),
        st.integers(1, 500),
        st.integers(0, 700),
        st.none() | st.integers(0, 4000),
        st.none() | st.floats(0.5, 5000),
        st.floats(0, 0.9),
    )


_stacks = st.builds(
    lambda model, gpu, pool, keys, asked: stack(gpu, model=model, need=asked, pool=pool, **keys),
    st.sampled_from([LARGE, RERANKER, "BAAI/bge-m3", "BAAI/bge-small-en-v1.5", MISTRAL]),
    st.sampled_from(["T4", "A10G", "L4", "A100", "H100"]),
    st.fixed_dictionaries(
        {},
        optional={
            "nodes": st.integers(1, 100),
            "allocatable": st.fixed_dictionaries(
                {"cpu": st.integers(1, 64), "memory": st.sampled_from(["4Gi", "30Gi"]), "gpus": st.integers(1, 8)}
            ),
        },
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "replicas": st.integers(0, 60),
            "maxBatchTokens": st.integers(1, 200_000),
            "maxConcurrentRequests": st.integers(32, 2000),
            "autoTruncate": st.booleans(),
        },
    ),
    _needs(),
)


def _as_told(given_stack: dict[str, Any], line: str) -> None:
    """Changes ``given_stack`` as the first alternative of a refusal says."""
    path, rest = line.removeprefix("stack.").split(": got ", 1)
    told = rest.split("; allowed: ", 1)[1]
    embed, pool = given_stack["serving"][0], given_stack["nodePools"][0]
    number = re.match(r"[\d.]+(?= or )", told)
    match path:
        case "nodePools[0].gpu":
            pool["gpu"] = re.split(r",|\. ", told)[0]
            pool.pop("allocatable", None)
        case "nodePools[0].allocatable":
            found = re.search(r"such as instanceType ([\w.-]+)", told)
            assert found, line
            pool["instanceType"] = found[1].rstrip(".")
            del pool["allocatable"]
        case "nodePools[0].nodes":
            assert number, line
            pool["nodes"] = int(number[0])
        case "serving[0].pool":
            # A model that the GPU cannot run: another pool, of which the stack has none.
            found = re.search(r"\((A100), A10G", told)
            assert found, line
            pool["gpu"] = found[1]
            pool.pop("allocatable", None)
        case "serving[0].need.tokens.p95":
            assert number, line
            tokens = embed["need"]["tokens"]
            tokens["p95"] = int(number[0])
            tokens["p50"] = min(tokens["p50"], tokens["p95"])
            tokens.pop("max", None)
        case "serving[0].resources.cpu" | "serving[0].resources.memory":
            assert "a pool with bigger nodes" in told
            pool.pop("allocatable", None)
        case "serving[0].need.tokens.max":
            embed["autoTruncate"] = True
        case _:
            assert number, line
            *sections, key = path.removeprefix("serving[0].").split(".")
            section = embed
            for name in sections:
                section = section[name]
            section[key] = float(number[0]) if key.startswith(("documents", "latency")) else int(number[0])


@settings(derandomize=True, deadline=None, max_examples=200)
@given(_stacks)
def test_a_refused_need_gets_a_plan_when_the_stack_file_is_changed_as_told(original: dict[str, Any]) -> None:
    given_stack = copy.deepcopy(original)
    lines = refused(given_stack)
    assume(lines)
    told = []
    # Another GPU has other nodes and another speed, so what it is asked for is said in a second and third answer.
    for _ in range(4):
        told += lines
        for line in lines:
            _as_told(given_stack, line)
        lines = refused(given_stack)
        if not lines:
            break
    assert lines == [], "\n".join(told)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(_stacks)
def test_a_planned_need_is_met_by_what_is_deployed(given_stack: dict[str, Any]) -> None:
    assume(not refused(given_stack))
    plan = made(given_stack)
    [planned] = plan.workloads
    limits, capacity = planned.engine.limits, planned.capacity
    assert capacity
    assert 0 < capacity.utilisation <= 1 - given_stack["serving"][0]["need"]["headroom"] + 1e-9
    batch_requests = int(env(planned)["MAX_BATCH_REQUESTS"] or 0)
    assert limits.max_concurrent_requests > 2 * batch_requests + capacity.scaling.queue_threshold
    assert limits.max_batch_tokens <= memory.largest_batch(
        catalogue.models()[planned.engine.models[0].id], catalogue.gpus()[planned.gpu or ""], "float16"
    )
    assert plan.pools[0].gpus_wanted == planned.replicas


# What is shown


def _expected(gpu: str | None = "L4", **keys: Any) -> tuple[str, str]:
    [reason] = [reason for reason in workload(gpu, **keys).reasons if reason.field == "expected"]
    return reason.value, reason.why


def test_the_plan_says_what_a_deployment_without_need_can_be_expected_to_serve() -> None:
    value, why = _expected(replicas=2)
    assert value == "238 · 447 documents/s"
    assert "2 replicas with texts of 512 tokens (the model's longest)" in why
    value, why = _expected(tokens={"p50": 50, "p95": 128})
    assert "128 tokens (tokens.p95)" in why


def test_expectations_beyond_what_was_published_say_so() -> None:
    assert "measure first" in _expected("H100", model="BAAI/bge-small-en-v1.5")[1]
    assert "measure first" not in _expected()[1]


def test_expectations_of_stand_ins_float32_and_cpu_nodes_are_honest() -> None:
    local: dict[str, Any] = {"environment": "local", "images": {"standInRegistry": "stand-in.local"}}
    assert "the stand-in computes on the CPU" in _expected(changes=local, longestRequestSeconds=600)[1]
    assert _expected(dtype="float32")[0] == "not known"
    assert "lower estimate" in _expected(None)[1]
