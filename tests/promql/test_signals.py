"""What the scaling queries make of fresh, loaded, starting, lost, restarted and scaled-in pods (case-03, 60, 65, 72).

A scrape is 15 s, so windows are 60 s: at 120 s they hold the scrapes at 75, 90, 105 and 120 s, values 6 to 9 of a
series.
"""

import pytest

from infra.core.engines.tei import signals
from tests.promql.synthetic import NAMESPACE, SCRAPE, SERVICE, Pod, Promtool

pytestmark = pytest.mark.promql

QUEUE = signals.queue_depth(NAMESPACE, SERVICE, SCRAPE)
OVERLOAD = signals.overload_rate(NAMESPACE, SERVICE, SCRAPE)
BOTH = pytest.mark.parametrize("query", [QUEUE, OVERLOAD], ids=["queue depth", "overload rate"])

#: One refusal a second.
REFUSING = {"overloaded": "0+15x40"}


@BOTH
def test_case_03_fresh_pods_that_have_served_nothing_give_zero(promtool: Promtool, query: str) -> None:
    promtool.expect(query, [Pod("a", "1x8"), Pod("b", "1x8")], 120, 0)


@BOTH
def test_a_fresh_pod_gives_zero_from_its_first_scrape(promtool: Promtool, query: str) -> None:
    promtool.expect(query, [Pod("a", "0x7 1")], 120, 0)


@BOTH
def test_case_60_nothing_is_said_when_every_scrape_fails(promtool: Promtool, query: str) -> None:
    pods = [Pod(name, "1x7 0", "40x7 stale", {"overloaded": "0+15x7 stale"}) for name in "ab"]
    promtool.expect(query, pods, 120, None)


@BOTH
def test_case_60_nothing_is_said_when_the_targets_have_vanished(promtool: Promtool, query: str) -> None:
    pods = [Pod(name, "1x7 stale", "40x7 stale", {"overloaded": "0+15x7 stale"}) for name in "ab"]
    promtool.expect(query, pods, 120, None)


@BOTH
def test_nothing_is_said_when_there_never_was_a_target(promtool: Promtool, query: str) -> None:
    promtool.expect(query, [], 120, None)


@BOTH
def test_nothing_is_said_while_the_first_pod_starts(promtool: Promtool, query: str) -> None:
    promtool.expect(query, [Pod("a", "0x8")], 120, None)


@BOTH
@pytest.mark.parametrize(
    "other",
    [
        {"service": "rerank"},
        {"namespace": "rag-staging"},
        # A matcher that is not anchored, or a regular expression, would take these too.
        {"service": "embed-large"},
        {"namespace": "my-rag"},
    ],
    ids=str,
)
def test_other_workloads_and_namespaces_do_not_count(promtool: Promtool, query: str, other: dict[str, str]) -> None:
    idle = Pod("a", "1x8", "0x8", {"overloaded": "7x8"})
    loaded = Pod("z", "1x8", "500x8", REFUSING, **other)
    lost = Pod("y", "1x7 0", "500x7 stale", {}, **other)
    promtool.expect(query, [idle, loaded, lost], 120, 0)
    promtool.expect(query, [loaded, lost], 120, None)


def test_the_queue_of_one_pod(promtool: Promtool) -> None:
    promtool.expect(QUEUE, [Pod("a", "1x8", "40x8")], 120, 40)


def test_queues_of_several_pods_add_up(promtool: Promtool) -> None:
    pods = [Pod("a", "1x8", "10x8"), Pod("b", "1x8", "20x8"), Pod("c", "1x8", "30x8"), Pod("fresh", "1x8")]
    promtool.expect(QUEUE, pods, 120, 60)


def test_a_pod_that_starts_beside_a_loaded_one_changes_nothing(promtool: Promtool) -> None:
    pods = [Pod("a", "1x8", "40x8"), Pod("starts", "_x3 0x4"), Pod("starts-too", "0x8")]
    promtool.expect(QUEUE, pods, 120, 40)


ONE_OF_THREE_LOST = [Pod("a", "1x40", "20x40"), Pod("b", "1x40", "40x40"), Pod("lost", "1x7 0x32", "90x7 stale")]


def test_case_72_a_pod_lost_of_three_counts_as_much_as_the_others_on_average(promtool: Promtool) -> None:
    promtool.expect(QUEUE, ONE_OF_THREE_LOST, 120, (20 + 40) * 3 / 2)


@pytest.mark.parametrize(("seconds", "queued"), [(285, 90), (300, 60)])
def test_a_lost_pod_is_forgotten_five_minutes_after_its_last_answer(
    promtool: Promtool, seconds: int, queued: int
) -> None:
    # It answered at 105 s for the last time.
    promtool.expect(QUEUE, ONE_OF_THREE_LOST, 105 + seconds, queued)


def test_lost_starting_and_fresh_pods_at_once(promtool: Promtool) -> None:
    pods = [*ONE_OF_THREE_LOST, Pod("starts", "0x8"), Pod("fresh", "1x8")]
    promtool.expect(QUEUE, pods, 120, (20 + 40 + 0) * 4 / 3)


def test_a_pod_scaled_in_within_the_window_is_gone(promtool: Promtool) -> None:
    promtool.expect(QUEUE, [Pod("a", "1x8", "40x8"), Pod("gone", "1x7 stale", "80x7 stale")], 120, 40)


@pytest.mark.parametrize(
    "values", ["_x4 0 0 40 0", "_x4 40 0 0 0", "_x4 0 0 0 40"], ids=["third", "first", "last of the window"]
)
def test_a_queue_that_one_scrape_of_four_saw_counts_for_a_quarter_wherever_it_was(
    promtool: Promtool, values: str
) -> None:
    promtool.expect(QUEUE, [Pod("a", "1x8", "0 " + values)], 120, 10)


def test_a_queue_is_forgotten_after_the_window(promtool: Promtool) -> None:
    promtool.expect(QUEUE, [Pod("a", "1x8", "0x3 40 0x3")], 120, 0)


def test_a_pod_that_two_monitors_scrape_counts_once(promtool: Promtool) -> None:
    twice = [Pod("a", "1x8", "40x8", REFUSING, endpoint=endpoint) for endpoint in ("http", "8080")]
    promtool.expect(QUEUE, [*twice, Pod("b", "1x8", "5x8")], 120, 45)
    promtool.expect(OVERLOAD, [*twice, Pod("b", "1x8")], 120, 1)


def test_refusals_per_second_add_up_over_pods(promtool: Promtool) -> None:
    pods = [
        Pod("a", "1x8", failures=REFUSING),
        Pod("b", "1x8", failures={"overloaded": "100+30x8"}),
        Pod("c", "1x8", failures={"overloaded": "7x8"}),
        Pod("d", "1x8"),
    ]
    promtool.expect(OVERLOAD, pods, 120, 3)


def test_failures_of_other_kinds_are_no_overload(promtool: Promtool) -> None:
    other = {"validation": "0+15x8", "batch_size": "_x4 6x3"}
    promtool.expect(OVERLOAD, [Pod("a", "1x8", "0x8", other)], 120, 0)


def test_refusals_beside_a_starting_pod_and_a_lost_one(promtool: Promtool) -> None:
    serving = [Pod(name, "1x8", failures=REFUSING) for name in "ab"]
    starts = Pod("starts", "0x8")
    promtool.expect(OVERLOAD, [*serving, starts], 120, 2)
    promtool.expect(OVERLOAD, [*serving, starts, Pod("lost", "1x7 0", "", {"overloaded": "0+15x7 stale"})], 120, 3)


def test_refusals_of_a_pod_scaled_in_within_the_window_are_gone(promtool: Promtool) -> None:
    gone = Pod("gone", "1x7 stale", failures={"overloaded": "0+15x7 stale"})
    promtool.expect(OVERLOAD, [Pod("a", "1x8", failures=REFUSING), gone], 120, 1)


@pytest.mark.parametrize(("at", "refused"), [(105, 0), (120, 6), (150, 6), (165, 0)])
def test_the_first_refusals_ever_are_counted_once_and_forgotten_after_the_window(
    promtool: Promtool, at: int, refused: int
) -> None:
    promtool.expect(OVERLOAD, [Pod("a", "1x20", "0x20", {"overloaded": "_x8 6x12"})], at, refused / 60)


def test_the_first_refusals_beside_other_failures(promtool: Promtool) -> None:
    failures = {"validation": "50x20", "overloaded": "_x8 6x12"}
    promtool.expect(OVERLOAD, [Pod("a", "1x20", "0x20", failures)], 120, 6 / 60)


def test_refusals_before_a_pod_was_first_scraped_are_not_counted(promtool: Promtool) -> None:
    # Prometheus was restarted, or the ServiceMonitor is new: 100,000 refusals of last week are no overload.
    promtool.expect(OVERLOAD, [Pod("a", "_x5 1x3", failures={"overloaded": "_x5 100000x3"})], 120, 0)


def test_a_restarted_server_counts_from_zero(promtool: Promtool) -> None:
    # 500 until 60 s, no answer at 75 s, and the new server had refused 6 by 105 s. The window has values from 90 s on,
    # and rate() extrapolates by half a scrape before that.
    restarted = {"overloaded": "500x4 stale _ 6 6"}
    promtool.expect(OVERLOAD, [Pod("a", "1x4 0 1 1 1", "", restarted)], 120, 6 * 37.5 / 30 / 60)


def test_a_reset_between_two_scrapes_counts_from_zero(promtool: Promtool) -> None:
    promtool.expect(OVERLOAD, [Pod("a", "1x8", "", {"overloaded": "500x6 0 15"})], 120, 15 * 60 / 45 / 60)


def test_a_restarted_server_that_refuses_nothing_gives_zero(promtool: Promtool) -> None:
    for at in (90, 105, 120, 135, 150):
        promtool.expect(OVERLOAD, [Pod("a", "1x4 0 1x9", "", {"overloaded": "500x4 stale"})], at, 0)


def test_refusals_around_a_failed_scrape_are_counted(promtool: Promtool) -> None:
    # 15 between 75 and 90 s, 30 over the failed scrape.
    refusing = {"overloaded": "0+15x6 stale 120"}
    promtool.expect(OVERLOAD, [Pod("a", "1x6 0 1", "", refusing)], 120, 1)


def test_refusals_while_scrapes_failed_for_longer_than_the_window_are_not_counted(promtool: Promtool) -> None:
    # When in those minutes they happened is not known; 75 s and 120 s are the scrapes around the gap.
    pod = Pod("a", "1x2 0x4 1", "", {"overloaded": "100x2 stale _x4 9000"})
    promtool.expect(OVERLOAD, [pod], 120, 0)


@pytest.mark.parametrize("seconds", [1, 5, 30, 60])
def test_queries_hold_for_other_scrape_intervals(promtool: Promtool, seconds: int) -> None:
    # The series are scraped every 15 s all the same; what counts is that no window is too short or malformed.
    pod = Pod("a", "1x40", "40x40", {"overloaded": "7x40"})
    promtool.expect(signals.queue_depth(NAMESPACE, SERVICE, seconds), [pod], 600, 40)
    promtool.expect(signals.overload_rate(NAMESPACE, SERVICE, seconds), [pod], 600, 0)


# Why the queries are no simpler, and that promtool would notice.


def test_case_65_a_query_without_a_sum_gives_several_elements(promtool: Promtool) -> None:
    pods = [Pod("a", "1x8", "10x8"), Pod("b", "1x8", "10x8")]
    verdict = promtool.judge("te_queue_size", pods, 120, {"{}": 20})
    assert verdict.returncode != 0
    assert verdict.stdout.count('pod="') + verdict.stderr.count('pod="') == 2


def test_a_plain_sum_says_nothing_of_fresh_pods(promtool: Promtool) -> None:
    promtool.expect("sum(te_queue_size)", [Pod("a", "1x8")], 120, None)


def test_a_sum_or_vector_0_takes_lost_pods_for_idle_ones(promtool: Promtool) -> None:
    promtool.expect("sum(te_queue_size) or vector(0)", [Pod("a", "1x7 0", "40x7 stale")], 120, 0)


def test_a_plain_sum_loses_the_share_of_a_lost_pod(promtool: Promtool) -> None:
    promtool.expect("sum(te_queue_size)", ONE_OF_THREE_LOST, 120, 60)


def test_a_share_for_every_pod_that_is_not_up_would_scale_on_pods_that_start(promtool: Promtool) -> None:
    pods = [Pod("a", "1x8", "40x8"), Pod("starts", "0x8")]
    promtool.expect("sum(te_queue_size) * count(up) / count(up == 1)", pods, 120, 80)


def test_a_plain_rate_misses_the_first_refusals(promtool: Promtool) -> None:
    plain = 'sum(rate(te_request_failure{err="overloaded"}[60s]))'
    promtool.expect(plain, [Pod("a", "1x20", "0x20", {"overloaded": "_x8 6x12"})], 150, 0)


@pytest.mark.parametrize(
    ("pods", "wrong"),
    [
        ([Pod("a", "1x8", "40x8")], {"{}": 41}),
        ([Pod("a", "1x8", "40x8")], {}),
        ([Pod("a", "1x8", "40x8")], {'{pod="a"}': 40}),
        ([Pod("a", "1x8")], {}),
        ([Pod("a", "1x7 0", "40x7 stale")], {"{}": 0}),
    ],
    ids=["another number", "nothing for a number", "labels", "nothing for zero", "zero for nothing"],
)
def test_promtool_refuses_a_wrong_answer(promtool: Promtool, pods: list[Pod], wrong: dict[str, float]) -> None:
    verdict = promtool.judge(QUEUE, pods, 120, wrong)
    assert verdict.returncode != 0
    assert "FAILED" in verdict.stdout + verdict.stderr
