"""From needs to sizes: single cases by hand, then properties over random needs."""

import math
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from infra.core import catalogue
from infra.core.capacity import Change, Need, Node, Pod, Request, Sizing, Unmet, nodes, physics, size, topologies
from infra.core.capacity.sizing import BATCH_TEXTS

pytestmark = pytest.mark.core

LARGE = "BAAI/bge-large-en-v1.5"
PRICED = [gpu for gpu in catalogue.gpus() if nodes.nodes_of(gpu)]


def need(*, tokens: int = 512, **values: object) -> Need:
    given_need: dict[str, object] = {"tokens": {"p50": tokens, "p95": tokens, "max": tokens}, **values}
    if not {"documentsPerSecond", "documentsPerMonth"} & set(given_need):
        given_need["documentsPerSecond"] = 100.0
    return Need.model_validate(given_need)


def request(wanted: Need | None = None, *, model: str = LARGE, gpu: str = "L4") -> Request:
    return Request(wanted or need(), catalogue.models()[model], catalogue.gpus()[gpu])


def met(asked: Request) -> Sizing:
    answer = size(asked)
    assert isinstance(answer, Sizing), answer
    return answer


def unmet(asked: Request) -> Unmet:
    answer = size(asked)
    assert isinstance(answer, Unmet)
    return answer


# The need


def test_a_need_reads_as_a_stack_file_writes_it() -> None:
    read = Need.model_validate(
        {"documentsPerSecond": 100, "tokens": {"p50": 280, "p95": 512}, "latencyMs": 400, "headroom": 0.2}
    )
    assert (read.load, read.latency_ms, read.usable, read.tokens.longest) == (100, 400, 0.8, 1024)


@pytest.mark.parametrize(
    ("given_need", "says"),
    [
        (
            {"tokens": {"p50": 1, "p95": 1}},
            "Neither is given; allowed: one of documentsPerSecond and documentsPerMonth",
        ),
        ({"documentsPerSecond": 1, "documentsPerMonth": 1, "tokens": {"p50": 1, "p95": 1}}, "Both are given"),
        ({"documentsPerSecond": 1, "tokens": {"p50": 9, "p95": 1}}, "p50 9 is above p95 1"),
        ({"documentsPerSecond": 1, "tokens": {"p50": 1, "p95": 9, "max": 2}}, "max 2 is below p95 9"),
        ({"documentsPerSecond": 1, "tokens": {"p50": 1, "p95": 9}, "latency": 2}, "latency"),
        ({"documents_per_second": 1, "tokens": {"p50": 1, "p95": 9}}, "documents_per_second"),
        ({"documentsPerSecond": math.nan, "tokens": {"p50": 1, "p95": 9}}, "documentsPerSecond"),
        ({"documentsPerSecond": 1, "tokens": {"p50": 1, "p95": 9}, "headroom": 1}, "headroom"),
    ],
)
def test_a_need_that_makes_no_sense_is_refused(given_need: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Need.model_validate(given_need)


def test_a_month_of_documents_is_spread_over_730_hours() -> None:
    assert need(documentsPerMonth=730 * 3600 * 5).load == pytest.approx(5)


# By hand


def test_3000_documents_of_512_tokens_take_37_l4_and_not_one() -> None:
    """3000 / (118.9 x 0.7) = 36.1: the range 119 to 361 of one L4 leaves no doubt."""
    assert met(request(need(documentsPerSecond=3000))).replicas == 37


def test_one_l4_for_3000_documents_is_refused_with_the_arithmetic() -> None:
    answer = unmet(replace(request(need(documentsPerSecond=3000)), replicas=1))
    (refusal,) = answer.refusals
    assert refusal.path == "replicas"
    assert refusal.given == "1"
    assert refusal.allowed == "37 or more"
    assert "times the peak of the hardware" in refusal.why
    assert any("335 GFLOP" in line for line in answer.arithmetic)
    assert any("119, 224, 361" in line for line in answer.arithmetic)


def test_the_seeds_budget_of_16384_tokens_is_the_case_of_512_tokens() -> None:
    sizing = met(request(need(tokens=512)))
    assert sizing.max_batch_tokens == BATCH_TEXTS * 512 == 16384
    assert sizing.max_batch_requests == 32


def test_the_budget_follows_the_distribution_and_not_its_longest_text() -> None:
    wanted = Need.model_validate({"documentsPerSecond": 10, "tokens": {"p50": 90, "p95": 200, "max": 512}})
    sizing = met(request(wanted))
    assert sizing.max_batch_tokens == 32 * 200
    assert sizing.max_batch_requests == 32 * 200 // 90


def test_an_objective_bounds_the_texts_of_a_batch_to_those_that_were_timed() -> None:
    wanted = {"documentsPerSecond": 10, "tokens": {"p50": 90, "p95": 200, "max": 512}, "latencyMs": 2000}
    assert met(request(Need.model_validate(wanted))).max_batch_requests == BATCH_TEXTS


def test_a_load_of_whole_replicas_takes_no_further_one() -> None:
    """Floating point makes 3.0000000000000004 of 3 x 1."""
    one = met(request(need(documentsPerSecond=1)))
    for replicas in range(1, 200):
        load = replicas * one.per_replica * need().usable
        assert met(request(need(documentsPerSecond=load))).replicas == replicas
        [row] = topologies(one.per_replica * need().usable / 3, one.per_replica * need().usable, [3 * replicas])
        assert row.centralized == max(replicas, 2)


def test_the_budget_holds_the_longest_text_that_the_model_takes() -> None:
    sizing = met(request(need(tokens=64), model="BAAI/bge-m3"))
    assert sizing.max_batch_tokens == 8192
    # The number of texts bounds the step where the tokens do not.
    assert sizing.max_batch_requests == 32


def test_a_latency_objective_makes_batches_smaller() -> None:
    relaxed, tight = met(request()), met(request(need(latencyMs=200)))
    assert tight.max_batch_tokens < relaxed.max_batch_tokens
    assert tight.latency.planned <= 200 < relaxed.latency.planned
    assert tight.latency.floor < tight.latency.step


def test_an_objective_below_the_floor_is_refused_with_one_that_holds() -> None:
    answer = unmet(request(need(latencyMs=2)))
    (refusal,), (change,) = answer.refusals, answer.changes
    assert refusal.path == "need.latencyMs"
    assert change == Change("need.latencyMs", 29)
    assert "4.47 ms at the best published efficiency" in refusal.why


def test_the_given_budget_is_refused_where_it_does_not_fit_with_the_largest_that_does() -> None:
    asked = replace(request(need(tokens=4096), model="intfloat/e5-mistral-7b-instruct"), max_batch_tokens=65536)
    answer = unmet(asked)
    (refusal,), (change,) = answer.refusals, answer.changes
    assert refusal.path == "maxBatchTokens"
    assert change is not None
    assert refusal.allowed == f"{change.value} or less"
    assert met(replace(asked, max_batch_tokens=change.value)).memory.fits
    per_mib = 2**20 // (4096 * 40) + 1
    assert isinstance(size(replace(asked, max_batch_tokens=change.value + per_mib)), Unmet)


def test_a_budget_below_the_models_longest_text_is_refused() -> None:
    (refusal,) = unmet(replace(request(model="BAAI/bge-m3"), max_batch_tokens=4096)).refusals
    assert refusal.allowed == "8192 or more"


def test_a_model_that_does_not_fit_names_gpus_that_hold_it_cheapest_first() -> None:
    answer = unmet(request(model="intfloat/e5-mistral-7b-instruct", gpu="T4"))
    assert answer.changes == (Change("gpu", "L4"),)
    assert answer.refusals[0].allowed.startswith("L4, A10G, L40S")


def test_a_model_that_no_gpu_holds_has_no_way_out() -> None:
    huge = catalogue.models()[LARGE].model_copy(update={"parameters_m": 400_000.0})
    answer = unmet(replace(request(), model=huge))
    assert answer.changes == (None,)
    assert answer.remedy is None
    assert "a smaller model" in answer.refusals[0].allowed


def test_texts_longer_than_the_model_takes_are_refused_and_not_cut_silently() -> None:
    (refusal,) = unmet(request(need(tokens=2000))).refusals
    assert refusal.path == "need.tokens.p95"
    assert "512 or less" in refusal.allowed


def test_several_mistakes_are_refused_at_once() -> None:
    asked = replace(request(need(documentsPerSecond=3000, latencyMs=2)), replicas=2, max_batch_tokens=100, max_nodes=1)
    answer = unmet(asked)
    assert [refusal.path for refusal in answer.refusals] == ["maxBatchTokens", "need.latencyMs", "replicas", "nodes"]


def test_refusals_lie_beside_the_need_in_a_stack_file() -> None:
    asked = replace(request(need(documentsPerSecond=3000, latencyMs=2)), replicas=1, path="stack.serving[0].need")
    paths = [refusal.path for refusal in unmet(asked).refusals]
    assert paths == ["stack.serving[0].need.latencyMs", "stack.serving[0].replicas"]


def test_a100s_come_in_nodes_of_eight_and_the_idle_ones_are_paid() -> None:
    sizing = met(request(need(documentsPerSecond=10), gpu="A100"))
    assert (sizing.replicas, sizing.fleet.nodes, sizing.fleet.node.gpus) == (1, 1, 8)
    assert sizing.cost.on_demand_month == pytest.approx(21.957642 * 730)
    assert any("7 GPUs idle" in line for line in sizing.arithmetic)


def test_cost_is_price_times_nodes_times_hours_and_per_million_of_the_load() -> None:
    sizing = met(request(need(documentsPerSecond=3000)))
    assert sizing.cost.on_demand_month == pytest.approx(37 * 0.8048 * 730)
    assert sizing.cost.spot_month == pytest.approx(37 * 0.439 * 730)
    assert sizing.cost.on_demand_per_million == pytest.approx(37 * 0.8048 / 3600 / 3000 * 1e6)


def test_no_spot_price_is_guessed() -> None:
    sizing = met(request(gpu="T4"))
    assert sizing.cost.spot_month is None
    assert sizing.cost.spot_per_million is None


def test_a_pod_that_fits_no_node_names_node_types_that_hold_it() -> None:
    small = tuple(node for node in nodes.nodes_of("L4") if node.name == "g6.xlarge")
    asked = replace(request(), node_kinds=small, pod=Pod(cpu_m=2000, memory_mib=40_000))
    answer = unmet(asked)
    assert answer.changes == (Change("instanceType", "g6.4xlarge"),)
    assert "g6.4xlarge" in answer.refusals[0].allowed


def test_nodes_of_a_users_own_cluster_need_no_price() -> None:
    own = Node("rack", gpus=2, cpu_m=32000, memory_mib=128_000, max_pods=110, price=None, spot=None)
    sizing = met(replace(request(need(documentsPerSecond=300)), node_kinds=(own,)))
    assert (sizing.replicas, sizing.fleet.nodes) == (4, 2)
    assert sizing.cost.on_demand_month is None


def test_nodes_hold_only_what_their_cpu_holds() -> None:
    thin = Node("thin", gpus=8, cpu_m=4500, memory_mib=900_000, max_pods=110, price=1.0, spot=None)
    assert thin.holds(Pod(cpu_m=2000, memory_mib=1000), shares=1) == 2


def test_shared_gpus_halve_the_rate_and_the_nodes_stay() -> None:
    alone = met(request(need(documentsPerSecond=300)))
    shared = met(replace(request(need(documentsPerSecond=300)), gpu_shares=2, pod=Pod(1000, 3000)))
    assert shared.per_replica == pytest.approx(alone.per_replica / 2)
    assert shared.latency.step == pytest.approx(alone.latency.step * 2)
    assert shared.fleet.per_node == 2
    assert shared.fleet.nodes == alone.fleet.nodes


def test_too_many_replicas_on_one_gpu_are_refused_with_how_many_fit() -> None:
    asked = replace(request(), gpu_shares=40)
    (refusal,), (change,) = unmet(asked).refusals, unmet(asked).changes
    assert change is not None
    assert refusal.allowed == f"{change.value} or less"
    fits = size(replace(asked, gpu_shares=change.value, pod=Pod(10, 100)))
    assert isinstance(fits, Sizing)


def test_more_tokens_than_any_server_has_shown_is_said() -> None:
    fast = met(request(model="BAAI/bge-small-en-v1.5", gpu="H100"))
    slow = met(request(gpu="L4"))
    assert any(line.startswith("caution: ") for line in fast.arithmetic)
    assert not any(line.startswith("caution: ") for line in slow.arithmetic)


# Scaling


def test_the_queue_threshold_is_what_fits_between_two_steps_and_the_objective() -> None:
    sizing = met(request(need(latencyMs=1000)))
    slack = 1000 - 2 * sizing.latency.step
    assert sizing.scaling.queue_threshold == math.floor(slack / 1000 * sizing.per_replica)
    assert sizing.latency.planned <= 1000


def test_without_an_objective_one_step_may_queue() -> None:
    sizing = met(request())
    assert sizing.scaling.queue_threshold == 32
    assert sizing.latency.planned == pytest.approx(3 * sizing.latency.step)


def test_waits_follow_from_how_long_a_replica_takes_to_be_ready() -> None:
    slow = met(replace(request(), ready_seconds=600)).scaling
    fast = met(replace(request(), ready_seconds=30)).scaling
    assert (slow.scale_up_period_seconds, slow.scale_down_stabilisation_seconds) == (600, 1200)
    assert (fast.scale_up_period_seconds, fast.scale_down_stabilisation_seconds) == (30, 300)


# Properties


def _request(
    *,
    load: float,
    p50: int,
    above_p50: int,
    above_p95: int | None,
    latency: float | None,
    headroom: float,
    model: str,
    gpu: str,
    precision: Literal["float16", "int8"],
    shares: int,
) -> Request:
    tokens = {"p50": p50, "p95": p50 + above_p50}
    if above_p95 is not None:
        tokens["max"] = p50 + above_p50 + above_p95
    wanted = Need.model_validate(
        {"documentsPerSecond": load, "tokens": tokens, "latencyMs": latency, "headroom": headroom}
    )
    return Request(wanted, catalogue.models()[model], catalogue.gpus()[gpu], precision=precision, gpu_shares=shares)


def _settled(
    asked: Request, replicas: int | None, batch_tokens: int | None, most_nodes: int | None, kind: int | None
) -> Request:
    kinds = nodes.nodes_of(asked.gpu.name)
    return replace(
        asked,
        replicas=replicas,
        max_batch_tokens=batch_tokens,
        max_nodes=most_nodes,
        node_kinds=None if kind is None else (kinds[kind % len(kinds)],),
    )


#: Requests in which the planner is free to choose.
_open_requests = st.builds(
    _request,
    load=st.floats(0.01, 100_000),
    p50=st.integers(1, 600),
    above_p50=st.integers(0, 800),
    above_p95=st.none() | st.integers(0, 9000),
    latency=st.none() | st.floats(0.5, 20_000),
    headroom=st.floats(0, 0.9),
    model=st.sampled_from(sorted(catalogue.models())),
    gpu=st.sampled_from(PRICED),
    precision=st.sampled_from(("float16", "int8")),
    shares=st.integers(1, 4),
)
#: Requests in which a user has settled some of it, possibly badly.
_requests = st.builds(
    _settled,
    _open_requests,
    replicas=st.none() | st.integers(1, 500),
    batch_tokens=st.none() | st.integers(1, 200_000),
    most_nodes=st.none() | st.integers(1, 100),
    kind=st.none() | st.integers(0, 20),
)


_property = settings(derandomize=True, deadline=None, max_examples=150)


@_property
@given(asked=_open_requests, more=st.floats(1, 50))
def test_more_load_never_needs_less(asked: Request, more: float) -> None:
    small = size(asked)
    assume(isinstance(small, Sizing))
    assert isinstance(small, Sizing)
    changed = asked.need.model_copy(update={"documents_per_second": asked.need.load * more})
    large = met(replace(asked, need=changed))
    assert large.replicas >= small.replicas
    assert large.fleet.nodes * large.fleet.node.gpus >= math.ceil(small.replicas / asked.gpu_shares)
    assert (large.cost.on_demand_month or 0) >= (small.cost.on_demand_month or 0)


@_property
@given(asked=_open_requests, longer=st.tuples(*[st.integers(0, 300)] * 3))
def test_longer_texts_never_get_cheaper(asked: Request, longer: tuple[int, int, int]) -> None:
    before = size(asked)
    assume(isinstance(before, Sizing))
    assert isinstance(before, Sizing)
    tokens = asked.need.tokens
    p95 = tokens.p95 + longer[1]
    p50 = min(tokens.p50 + longer[0], p95)
    changed = tokens.model_copy(update={"p50": p50, "p95": p95, "max": max(p95, tokens.longest + longer[2])})
    after = size(replace(asked, need=asked.need.model_copy(update={"tokens": changed})))
    if isinstance(after, Sizing):
        assert after.per_replica <= before.per_replica * (1 + 1e-9)
        assert after.replicas >= before.replicas
        assert (after.cost.on_demand_month or 0) >= (before.cost.on_demand_month or 0)


@_property
@given(asked=_open_requests, factor=st.floats(0.1, 1))
def test_a_tighter_objective_never_needs_fewer_replicas(asked: Request, factor: float) -> None:
    before = size(asked)
    assume(asked.need.latency_ms is not None and isinstance(before, Sizing))
    assert isinstance(before, Sizing)
    assert asked.need.latency_ms
    tighter = asked.need.model_copy(update={"latency_ms": asked.need.latency_ms * factor})
    after = size(replace(asked, need=tighter))
    if isinstance(after, Sizing):
        assert after.replicas >= before.replicas


@_property
@given(asked=_requests)
def test_a_plan_keeps_every_promise(asked: Request) -> None:
    sizing = size(asked)
    assume(isinstance(sizing, Sizing))
    assert isinstance(sizing, Sizing)
    wanted = asked.need
    assert sizing.replicas * sizing.per_replica * wanted.usable >= wanted.load * (1 - 1e-9)
    assert sizing.memory.fits
    assert sizing.max_batch_tokens >= max(asked.model.max_tokens, wanted.tokens.p95)
    if wanted.latency_ms is not None:
        assert sizing.latency.planned <= wanted.latency_ms * (1 + 1e-6)
    # The queue gauge leaves out the running and the prefetched batch: it has to be able to reach the threshold.
    room = sizing.max_concurrent_requests - 2 * sizing.max_batch_requests
    assert sizing.scaling.queue_threshold < room
    assert sizing.fleet.nodes * sizing.fleet.per_node >= sizing.replicas
    assert sizing.fleet.nodes <= (asked.max_nodes or math.inf)
    assert sizing.per_replica <= sizing.rates.wall * 1.0001 or wanted.tokens.p50 < wanted.tokens.p95


@_property
@given(asked=_open_requests, latency=st.floats(500, 100_000), share=st.floats(0.001, 1))
def test_under_an_objective_no_batch_of_texts_up_to_p95_takes_longer_than_the_planned_step(
    asked: Request, latency: float, share: float
) -> None:
    asked = replace(asked, need=asked.need.model_copy(update={"latency_ms": latency}))
    sizing = size(asked)
    assume(isinstance(sizing, Sizing))
    assert isinstance(sizing, Sizing)
    launch = physics.launch_seconds(asked.model)
    for length in {asked.need.tokens.p50, max(1, round(share * asked.need.tokens.p95)), asked.need.tokens.p95}:
        texts = min(sizing.max_batch_requests, sizing.max_batch_tokens // length)
        each = physics.seconds_per_text(asked.model, asked.gpu, length, asked.precision)
        assert asked.gpu_shares * (launch + texts * each) * 1000 <= sizing.latency.step * (1 + 1e-9)


@settings(derandomize=True, deadline=None, max_examples=250)
@given(asked=_requests)
def test_refused_needs_get_a_plan_when_the_named_changes_are_made(asked: Request) -> None:
    answer = size(asked)
    assume(isinstance(answer, Unmet))
    assert isinstance(answer, Unmet)
    for refusal, change in zip(answer.refusals, answer.changes, strict=True):
        assert change is not None, refusal
        # The value of the change is the first thing that the text allows.
        assert refusal.allowed.startswith(str(change.value)) or str(change.value) in refusal.allowed.split(", ")
        asked = change.apply(asked)
    assert met(asked) == answer.remedy
