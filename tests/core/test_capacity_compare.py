"""All GPUs, both topologies, and the point from which sharing a pool pays."""

import math
from dataclasses import replace

import pytest

from infra.core import catalogue
from infra.core.capacity import Need, Option, Request, Sizing, compare, crossover, size, topologies
from infra.core.capacity.compare import CENTRALIZED, SIDECAR

pytestmark = pytest.mark.core


def request(load: float = 300.0, *, model: str = "BAAI/bge-large-en-v1.5", **more: object) -> Request:
    wanted = Need.model_validate({"documentsPerSecond": load, "tokens": {"p50": 512, "p95": 512, "max": 512}, **more})
    return Request(wanted, catalogue.models()[model], catalogue.gpus()["L4"])


def _month(option: Option) -> float:
    assert option.sizing
    assert option.sizing.cost.on_demand_month is not None
    return option.sizing.cost.on_demand_month


def test_every_priced_gpu_stands_in_the_table_in_both_topologies() -> None:
    found = compare(request(), apps=3)
    seen = {(option.gpu, option.topology) for option in found.options}
    priced = {row.gpu for row in catalogue.instance_types().values() if row.price_usd_h is not None and row.gpu_count}
    assert seen == {(gpu, topology) for gpu in priced for topology in (CENTRALIZED, SIDECAR)}


def test_the_cheapest_option_is_recommended_with_its_reason() -> None:
    found = compare(request(3000), apps=3)
    assert found.recommended
    assert _month(found.recommended) == min(_month(option) for option in found.options if option.sizing)
    assert (found.recommended.gpu, found.recommended.topology) == ("L40S", CENTRALIZED)
    assert "13 replicas on 13 x g6e.xlarge, 17,661 USD a month on demand" in found.reason
    assert "the next GPU, T4g, costs 3,188 USD more (20,849 USD)" in found.reason


def test_gpus_that_the_engine_does_not_run_on_are_left_out() -> None:
    found = compare(replace(request(), serves=lambda _, gpu: gpu.name != "T4"), apps=2)
    assert "T4" not in {option.gpu for option in found.options}


def test_gpus_that_cannot_meet_the_need_stand_in_the_table_with_their_reason() -> None:
    found = compare(request(10, model="intfloat/e5-mistral-7b-instruct"), apps=2)
    (t4, _) = (option for option in found.options if option.gpu == "T4")
    assert t4.sizing is None
    assert t4.unmet
    assert "T4 offers" in t4.unmet.refusals[0].why
    assert found.recommended
    assert found.recommended.gpu != "T4"


def test_nothing_is_recommended_where_no_gpu_meets_the_need() -> None:
    found = compare(request(10, latencyMs=0.5), apps=2)
    assert found.recommended is None
    assert found.reason == "No GPU meets the need as asked."


def test_a_rate_that_nobody_has_published_is_said_in_the_recommendation() -> None:
    found = compare(request(2000, model="BAAI/bge-small-en-v1.5"), apps=2)
    assert "measure first" in found.reason


def test_sidecars_cost_a_gpu_per_app_replica() -> None:
    found = compare(request(50), apps=6)
    counts = {
        option.topology: option.sizing.replicas for option in found.options if option.gpu == "L4" and option.sizing
    }
    assert counts == {CENTRALIZED: 2, SIDECAR: 6}


# Crossover


def _usable() -> float:
    sizing = size(request())
    assert isinstance(sizing, Sizing)
    return sizing.per_replica * sizing.request.need.usable


@pytest.mark.parametrize(
    ("busy", "apps"),
    [(0.05, 3), (0.5, 3), (0.66, 3), (0.7, 4), (0.74, 4), (0.76, 5), (0.79, 5), (0.82, 6), (0.9, 10), (0.94, 17)],
)
def test_the_crossover_is_where_idle_shares_add_up_to_a_gpu(busy: float, apps: int) -> None:
    """One over the idle share of a sidecar; never below three, because a shared pool keeps two replicas."""
    rows = topologies(busy * _usable(), _usable())
    assert crossover(rows) == apps == max(3, math.ceil(round(1 / (1 - busy), 6)))
    for row in rows:
        assert row.sidecar == row.apps
        assert (row.centralized < row.apps) == (row.apps >= apps)


def test_about_five_is_true_when_an_app_keeps_its_gpu_between_75_and_80_percent_busy() -> None:
    usable = _usable()
    fives = [busy for busy in range(1, 100) if crossover(topologies(busy / 100 * usable, usable)) == 5]
    assert fives == [76, 77, 78, 79, 80]


def test_about_five_is_true_when_the_whole_load_needs_four_gpus() -> None:
    """With a fixed load spread over the apps a pool takes what the load needs, sidecars one GPU per app replica."""
    usable = _usable()
    load = 3.5 * usable
    wins = []
    for apps in range(4, 21):
        found = topologies(load / apps, usable, [apps])[0]
        if found.sidecar is not None and found.centralized < found.sidecar:
            wins.append(apps)
    assert wins == list(range(5, 21))


def test_nearly_full_sidecars_are_as_good_as_a_pool() -> None:
    assert crossover(topologies(0.99 * _usable(), _usable())) is None


def test_a_sidecar_cannot_carry_more_than_its_gpu() -> None:
    row = topologies(1.5 * _usable(), _usable(), [4])[0]
    assert row.sidecar is None
    assert row.centralized == 6


def test_one_app_needs_no_second_replica() -> None:
    row = topologies(0.1 * _usable(), _usable(), [1])[0]
    assert row.centralized == row.sidecar == 1


def test_the_crossover_in_gpus_is_the_crossover_in_money_on_nodes_with_one_gpu() -> None:
    per_app = 0.78 * _usable()
    for apps in range(1, 21):
        costs = {
            option.topology: _month(option)
            for option in compare(
                replace(request(per_app * apps), serves=lambda _, gpu: gpu.name == "L4"), apps=apps
            ).options
        }
        assert (costs[CENTRALIZED] < costs[SIDECAR]) == (apps >= 5), apps


def test_eight_gpus_in_a_node_move_the_crossover_in_money() -> None:
    """Up to eight sidecars fit the node that the pool pays for anyway."""
    asked = replace(request(300), gpu=catalogue.gpus()["A100"])
    for apps, pool_wins in ((2, False), (8, False), (9, True)):
        costs = {
            option.topology: _month(option)
            for option in compare(replace(asked, serves=lambda _, gpu: gpu.name == "A100"), apps=apps).options
        }
        assert (costs[CENTRALIZED] < costs[SIDECAR]) is pool_wins
