"""The load generator against servers that behave in every way that a load test has to tell apart."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer

from infra.core.capacity import TokenLengths
from infra.core.catalogue import ModelKind
from local import images
from local.paths import CHECKOUT
from local.report import PlainReporter
from scripts.command import CommandError
from scripts.load import Closed, Kind, Open, Result, Shape, Target, generator, results, run, tei
from scripts.load.results import percentiles
from tests.local_engines.engine import Engine
from tests.scripts.http_server import (
    TWO_VECTORS,
    Behaviour,
    Request,
    Server,
    answer,
    half_an_answer,
    hang_up,
    in_turn,
    never,
    no_http,
    reset,
    serving,
)

pytestmark = pytest.mark.local

GOOD = answer(200, TWO_VECTORS)
KEEP = 1_000_000


def _target(url: str, **changes: Any) -> Target:
    return replace(Target(url, ModelKind.EMBEDDING, "some/model", texts=2, dimension=2), **changes)


def _loaded(behave: Behaviour, shapes: Shape | Sequence[Shape], **changes: Any) -> tuple[Result, Server]:
    async def load() -> tuple[Result, Server]:
        async with serving(behave) as server:
            return await run(_target(server.url, **changes), shapes), server

    return asyncio.run(load())


def _counts(result: Result) -> dict[str, int]:
    return {kind: error.count for kind, error in result.total.errors.items()}


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "PAUSE_AFTER_ERROR_SECONDS", 0)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behave", "kind", "example"),
    [
        (answer(429, b'{"error":"Model is overloaded"}'), Kind.OVERLOADED, '{"error":"Model is overloaded"}'),
        (answer(503, b""), Kind.UNAVAILABLE, "no text"),
        (answer(422, b"batch size 33 >\nmaximum"), "status 422", "batch size 33 > maximum"),
        (answer(500, b"x" * 5000), "status 500", "x" * 200),
        (answer(307, b""), "status 307", "no text"),
        (reset, Kind.RESET, "reset by peer"),
        (hang_up, Kind.RESET, "Server disconnected"),
        (half_an_answer, Kind.RESET, "payload"),
        (never, Kind.TIMEOUT, "no answer in time"),
        (no_http, Kind.UNEXPECTED, "no HTTP"),
        (answer(200, b"[[0.6,0.8]]"), Kind.UNEXPECTED, "1 vectors for 2 texts"),
        (answer(200, b"<html>"), Kind.UNEXPECTED, "no list of vectors"),
    ],
)
def test_each_way_to_fail_is_counted_by_its_kind_and_sent_once(behave: Behaviour, kind: str, example: str) -> None:
    result, server = _loaded(in_turn(GOOD, behave, GOOD), Closed(1, requests=3), timeout_seconds=0.5)
    assert _counts(result) == {kind: 1}
    assert example in result.total.errors[kind].example
    assert (result.total.requests, result.total.succeeded, result.total.unfinished) == (3, 2, 0)
    assert len(server.requests) == 3


@pytest.mark.parametrize("behave", [reset, hang_up])
def test_a_dropped_connection_that_had_served_before_is_a_kind_of_its_own_and_not_tried_again(
    behave: Behaviour,
) -> None:
    result, server = _loaded(in_turn(GOOD, behave, GOOD), Closed(1, requests=3), requests_per_connection=KEEP)
    assert _counts(result) == {Kind.RESET_REUSED: 1}
    assert len(server.requests) == 3
    assert server.connections == 2


def test_nobody_listening_is_connection_refused(free_port: int) -> None:
    result = asyncio.run(run(_target(f"http://127.0.0.1:{free_port}"), Closed(2, requests=4)))
    assert _counts(result) == {Kind.REFUSED: 4}
    assert result.total.latency_ms is None
    assert result.connections == 0


def test_a_client_waits_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "PAUSE_AFTER_ERROR_SECONDS", 3600)
    result, _ = _loaded(answer(503, b""), Closed(1, seconds=0.3))
    assert result.total.requests == 1


def test_errors_of_all_kinds_in_one_load_are_told_apart() -> None:
    mixed = in_turn(answer(429, b""), reset, answer(429, b""), answer(503, b""), answer(413, b""), GOOD)
    result, server = _loaded(mixed, Closed(3, requests=30))
    assert _counts(result) == {Kind.OVERLOADED: 2, Kind.RESET: 1, Kind.UNAVAILABLE: 1, "status 413": 1}
    assert result.total.failed + result.total.succeeded == 30 == len(server.requests)


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "body", "wrong"),
    [
        ("embedding", b"[[0.6,0.8],[1e-3,-1]]", None),
        ("embedding", b" [ [0.6, 0.8],\n [1, 2] ]\n", "no list of vectors"),
        ("embedding", b"[[0.6, 0.8],\n [1, 2]]\n", None),
        ("embedding", b"[[0.6,0.8]]", "1 vectors for 2 texts"),
        ("embedding", b"[[0.6,0.8],[1,2],[1,2]]", "3 vectors for 2 texts"),
        ("embedding", b"[[0.6,0.8],[1,2,3]]", "5 numbers for 2 texts of 2 dimensions"),
        ("embedding", b"[[0.6,null],[1,2]]", "NaN or infinity"),
        ("embedding", b'[["a",0],[1,2]]', "not only numbers"),
        ("embedding", b"", "no list of vectors"),
        ("sparse", b'[[{"index":1,"value":0.5}],[{"index":2,"value":0.5},{"index":7,"value":1}]]', None),
        ("sparse", b'[[],[{"index":2,"value":0.5}]]', None),
        ("sparse", b'[[{"index":1,"value":0.5}]]', "1 sparse vectors for 2 texts"),
        ("sparse", b'[[{"index":1,"value":null}],[]]', "NaN or infinity"),
        ("sparse", b'[[{"index":1}],[]]', "without an index or a value"),
        ("sparse", b'{"error":"x"}', "no list of sparse vectors"),
        ("reranker", b'[{"index":1,"score":0.9},{"index":0,"score":0.1}]', None),
        ("reranker", b'[{"index":1,"score":0.9}]', "1 scores for 2 texts"),
        ("reranker", b'[{"index":1,"score":0.9},{"index":1,"score":0.9}]', "not one per text"),
        ("reranker", b'[{"index":1,"score":null},{"index":0,"score":0.1}]', "NaN or infinity"),
        ("reranker", b'[{"index":1},{"index":0}]', "no list of scores"),
        ("reranker", b"[1,2", "no list of scores"),
    ],
)
def test_an_answer_has_to_have_one_result_per_text(kind: str, body: bytes, wrong: str | None) -> None:
    found = tei.checker(_target("http://127.0.0.1", kind=ModelKind(kind)))(body)
    assert found == wrong if wrong is None else found is not None and wrong in found


def test_without_a_known_dimension_all_vectors_have_to_be_of_one_length() -> None:
    check = tei.checker(_target("http://127.0.0.1", dimension=None))
    assert check(b"[[1,2,3],[1,2,3]]") is None
    assert check(b"[[1,2,3],[1,2]]") == "5 numbers for 2 texts"


# -- texts -------------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_texts_and_another_one_others() -> None:
    target = _target("http://127.0.0.1", tokens=TokenLengths(p50=20, p95=60))
    assert tei.bodies(target) == tei.bodies(replace(target))
    assert tei.bodies(target) != tei.bodies(replace(target, seed=1))
    assert len(set(tei.bodies(target))) == len(tei.bodies(target))


@pytest.mark.parametrize("kind", [ModelKind.EMBEDDING, ModelKind.RERANKER])
def test_texts_have_the_lengths_that_were_asked_for_special_tokens_included(kind: ModelKind) -> None:
    tokenizer = Tokenizer.from_file(str(images.model_files(PlainReporter()) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    target = _target("http://127.0.0.1", kind=kind, tokens=TokenLengths(p50=40, p95=120), texts=5)
    lengths = []
    for body in map(json.loads, tei.bodies(target)):
        for text in body.get("inputs") or body["texts"]:
            sides = (body["query"], text) if kind is ModelKind.RERANKER else (text,)
            lengths.append(len(tokenizer.encode(*sides).ids))
    found = percentiles(lengths)
    assert found is not None
    assert (len(lengths), found.p50, found.p95) == (500, 40, 116)
    assert 120 < found.max <= 240


def test_bodies_of_many_long_texts_stay_within_memory() -> None:
    target = _target("http://127.0.0.1", texts=32, tokens=TokenLengths(p50=8192, p95=8192, max=8192))
    assert 1 <= len(tei.bodies(target)) < 100
    assert sum(map(len, tei.bodies(target))) <= 8 * 2**20


def test_requests_cycle_through_the_bodies_in_order() -> None:
    _, server = _loaded(GOOD, Closed(1, requests=103))
    bodies = tei.bodies(_target("http://127.0.0.1"))
    assert [request.body for request in server.requests] == [*bodies, *bodies[:3]]
    assert all(request.head.startswith("POST /embed HTTP/1.1\r\n") for request in server.requests)


# -- schedules ---------------------------------------------------------------------------------------------------------


def test_an_open_load_sends_on_while_nothing_is_answered() -> None:
    everything_there = asyncio.Event()

    async def wait_for_all(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.number == 19:
            everything_there.set()
        await everything_there.wait()
        await GOOD(request, writer)

    result, server = _loaded(wait_for_all, Open(rate=100, seconds=0.2))
    assert (result.total.succeeded, server.most_in_work) == (20, 20)
    # The first one was due 19 intervals before the last one, which it waited for.
    assert result.total.latency_ms is not None
    assert result.total.latency_ms.max >= 190


def test_latency_counts_from_when_a_request_was_due_also_when_it_went_out_late() -> None:
    async def stall_everything_once(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.number == 0:
            # The generator runs in this thread too and can send nothing meanwhile.
            time.sleep(0.3)
        await GOOD(request, writer)

    result, _ = _loaded(stall_everything_once, Open(rate=100, seconds=0.5))
    assert result.total.succeeded == 50
    assert result.total.latency_ms is not None
    assert result.total.start_lag_ms is not None
    # 30 of the 50 were due in the stall, ten of them in its first 100 ms.
    assert result.total.latency_ms.p95 >= 200
    assert result.total.start_lag_ms.p95 >= 200


def test_what_cannot_be_sent_because_too_much_is_in_flight_is_counted_and_not_made_up_for() -> None:
    async def slow(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        await GOOD(request, writer)

    result, server = _loaded(slow, Open(rate=200, seconds=0.2, max_in_flight=5))
    assert server.most_in_work == 5
    assert len(server.requests) == result.total.requests == result.total.succeeded
    assert result.total.requests + result.total.not_started == 40
    assert result.total.not_started > 0
    assert sum(point.not_started for point in result.timeline) == result.total.not_started


def test_a_closed_load_keeps_as_many_requests_in_flight_as_it_has_clients() -> None:
    async def yielding(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.01)
        await GOOD(request, writer)

    result, server = _loaded(yielding, Closed(4, requests=22))
    assert (result.total.requests, result.total.texts, server.most_in_work) == (22, 44, 4)


def test_a_spike_is_one_schedule_with_numbers_for_each_part() -> None:
    result, server = _loaded(GOOD, [Open(20, 0.2), Closed(3, requests=30), Open(10, 0.3)])
    assert [(part.shape, part.requests) for part in result.shapes] == [
        *(("20 requests/s", 4), ("3 clients", 30), ("10 requests/s", 3)),
    ]
    assert result.total.requests == 37 == len(server.requests)
    assert result.total.seconds == pytest.approx(sum(part.seconds for part in result.shapes))
    assert sum(point.started for point in result.timeline) == 37
    assert sum(point.succeeded for point in result.timeline) == 37
    assert result.shapes[0].start_lag_ms is not None
    assert result.shapes[1].start_lag_ms is None


def test_a_part_does_not_wait_for_the_answers_of_the_part_before() -> None:
    second_part = asyncio.Event()

    async def first_waits_for_second(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.number == 0:
            await second_part.wait()
        else:
            second_part.set()
        await GOOD(request, writer)

    result, _ = _loaded(first_waits_for_second, [Closed(1, seconds=0.1), Closed(1, requests=1)])
    assert [part.succeeded for part in result.shapes] == [1, 1]
    # It came after the window in which it was sent.
    assert result.shapes[0].requests_per_second == 0


@pytest.mark.parametrize(("kept", "connections"), [(1, 40), (5, 8), (KEEP, 4)])
def test_connections_are_counted_and_closed_as_asked(kept: int, connections: int) -> None:
    async def together(request: Request, writer: asyncio.StreamWriter) -> None:
        # All clients are under way before the first one is answered.
        await asyncio.sleep(0.01)
        await GOOD(request, writer)

    result, server = _loaded(together, Closed(4, requests=40), requests_per_connection=kept)
    assert result.connections == server.connections == connections


def test_percentiles_are_values_that_were_measured() -> None:
    found = percentiles(range(1, 201))
    assert found is not None
    assert (found.p50, found.p95, found.p99, found.max) == (100, 190, 198, 200)
    assert percentiles([]) is None
    one = percentiles([7.0])
    assert one is not None
    assert (one.p50, one.p99) == (7.0, 7.0)


# -- ends --------------------------------------------------------------------------------------------------------------


def test_a_load_ends_when_no_more_requests_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (generator, results):
        monkeypatch.setattr(module, "MOST_REQUESTS", 25)
    result, server = _loaded(GOOD, [Closed(2, seconds=3600), Closed(1, seconds=3600)])
    assert result.ended_early == "25 requests, more are not kept"
    # A client that has looked already may still send one.
    assert 25 <= len(server.requests) == result.total.requests <= 26
    assert len(result.shapes) == 1
    assert result.total.seconds < 3600


def test_stopping_gives_up_what_is_in_flight_and_keeps_what_was_measured() -> None:
    async def load() -> Result:
        stop = asyncio.Event()

        async def then_stop(request: Request, writer: asyncio.StreamWriter) -> None:
            if request.number < 5:
                await GOOD(request, writer)
            else:
                stop.set()
                await asyncio.Event().wait()

        async with serving(then_stop) as server:
            return await run(_target(server.url), Closed(1, seconds=3600), stop)

    result = asyncio.run(load())
    assert result.ended_early == "interrupted"
    assert (result.total.requests, result.total.succeeded, result.total.unfinished) == (6, 5, 1)
    assert 0 < result.total.seconds < 3600


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Closed(0, seconds=1), "clients: got 0; allowed: 1 to 4,096"),
        (lambda: Closed(5000, seconds=1), "clients: got 5000"),
        (lambda: Closed(1), "got neither"),
        (lambda: Closed(1, seconds=1, requests=1), "got both"),
        (lambda: Closed(1, seconds=float("nan")), "seconds: got nan"),
        (lambda: Closed(1, seconds=float("inf")), "seconds: got inf"),
        (lambda: Closed(1, requests=2_000_001), "requests: got 2000001; allowed: 1 to 2,000,000"),
        (lambda: Open(0, 1), "rate: got 0"),
        (lambda: Open(float("nan"), 1), "rate: got nan"),
        (lambda: Open(1000, 3600), "3,600,000; allowed: 2,000,000"),
        (lambda: Open(1, 1, max_in_flight=0), "max in flight: got 0"),
        (lambda: _target("http://127.0.0.1:1", texts=0), "texts: got 0"),
        (lambda: _target("http://127.0.0.1:1", kind=ModelKind.CLASSIFIER), "kind: got classifier"),
        (lambda: _target("http://127.0.0.1:1", timeout_seconds=0), "timeout: got 0"),
        (lambda: _target("http://127.0.0.1:1", requests_per_connection=0), "requests per connection: got 0"),
        (lambda: tei.bodies(_target("http://127.0.0.1:1", tokens=TokenLengths(p50=2, p95=9))), "allowed: 3 or more"),
    ],
)
def test_a_load_that_cannot_be_run_is_refused_in_one_line(make: Callable[[], object], said: str) -> None:
    with pytest.raises(CommandError) as refused:
        make()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_schedule_of_too_many_requests_in_all_is_refused() -> None:
    target = _target("http://127.0.0.1:1")
    with pytest.raises(CommandError, match="3,000,000 requests; allowed: 2,000,000"):
        asyncio.run(run(target, [Closed(1, requests=1_500_000), Closed(1, requests=1_500_000)]))
    with pytest.raises(CommandError, match="no shapes"):
        asyncio.run(run(target, []))


@pytest.mark.parametrize(
    "url",
    [
        *("http://example.com", "http://10.0.0.1:80", "http://0.0.0.0:80", "http://[fe80::1]:80", "https://127.0.0.1"),
        *("127.0.0.1:80", "http://", "http://user:secret@127.0.0.1", "http://127.0.0.1.example.com", "http://[::1"),
        *("http://127.0.0.1:99999", "http://127.0.0.1/?key=secret", "file:///etc/passwd"),
    ],
)
def test_load_goes_to_loopback_only(url: str) -> None:
    with pytest.raises(CommandError) as refused:
        _target(url)
    assert "allowed: http://127.0.0.1:PORT" in str(refused.value)
    assert "user:secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:80", "http://localhost:3000/", "http://[::1]:80", "http://127.8.8.8"]
)
def test_all_of_loopback_is_allowed(url: str) -> None:
    assert _target(url).url == url


# -- keys --------------------------------------------------------------------------------------------------------------


def test_the_key_is_sent_and_shown_nowhere() -> None:
    key = "a-key-that-nobody-may-see"

    async def tell_it(request: Request, writer: asyncio.StreamWriter) -> None:
        line = next(line for line in request.head.splitlines() if line.startswith("Authorization"))
        await answer(401, line.encode())(request, writer)

    result, server = _loaded(tell_it, Closed(1, requests=1), api_key=key)
    assert f"Authorization: Bearer {key}\r\n" in server.requests[0].head
    assert result.total.errors["status 401"].example == "Authorization: Bearer ***"
    assert key not in json.dumps(result.to_dict()) + repr(result) + repr(_target(server.url, api_key=key))


def test_without_a_key_no_header_is_sent() -> None:
    _, server = _loaded(GOOD, Closed(1, requests=1))
    assert "authorization" not in server.requests[0].head.lower()


def test_a_key_that_no_header_can_carry_is_refused_without_showing_it() -> None:
    with pytest.raises(CommandError) as refused:
        _target("http://127.0.0.1:1", api_key="half\nanother")
    assert "half" not in str(refused.value)


# -- TEI ---------------------------------------------------------------------------------------------------------------


def _stand_in(model: str, *arguments: str) -> Engine:
    models = str(images.model_files(PlainReporter()).parent)
    return Engine(["--model-id", model, *arguments], CHECKOUT, environment={"STAND_IN_MODELS": models})


def test_the_tei_stand_in_answers_embeddings_and_says_what_it_refuses() -> None:
    limits = ("--max-client-batch-size", "5", "--max-concurrent-requests", "6")
    with _stand_in("sentence-transformers/all-MiniLM-L6-v2", *limits, "--api-key", "a-key") as engine:
        engine.wait_until_ready()
        url = f"http://127.0.0.1:{engine.port}"
        target = Target(url, ModelKind.EMBEDDING, "m", texts=4, dimension=384, api_key="a-key")
        good = asyncio.run(run(replace(target, tokens=TokenLengths(p50=20, p95=60)), Closed(1, requests=8)))
        assert (good.total.succeeded, good.total.texts, good.total.errors) == (8, 32, {})
        other_dimension = asyncio.run(run(replace(target, dimension=768), Closed(1, requests=1)))
        assert other_dimension.total.errors[Kind.UNEXPECTED].example == "1536 numbers for 4 texts of 768 dimensions"
        too_many = asyncio.run(run(replace(target, texts=6), Closed(1, requests=1)))
        assert "batch size 6 > maximum allowed batch size 5" in too_many.total.errors["status 422"].example
        wrong_kind = asyncio.run(run(replace(target, kind=ModelKind.SPARSE), Closed(1, requests=1)))
        assert _counts(wrong_kind) == {"status 424": 1}
        without_key = asyncio.run(run(replace(target, api_key=None), Closed(1, requests=1)))
        assert _counts(without_key) == {"status 401": 1}
        # Six places, and each of the twenty requests wants five.
        flood = asyncio.run(run(replace(target, texts=5), Closed(20, requests=20)))
        assert set(_counts(flood)) == {Kind.OVERLOADED}
        assert flood.total.succeeded > 0
        assert flood.total.failed + flood.total.succeeded == 20
        assert "overloaded" in flood.total.errors[Kind.OVERLOADED].example


def test_the_tei_stand_in_answers_rerank() -> None:
    with _stand_in("BAAI/bge-reranker-base") as engine:
        engine.wait_until_ready()
        target = Target(f"http://127.0.0.1:{engine.port}", ModelKind.RERANKER, "m", texts=3)
        result = asyncio.run(run(replace(target, tokens=TokenLengths(p50=30, p95=40)), Closed(2, requests=6)))
    assert (result.total.succeeded, result.total.texts, result.total.errors) == (6, 18, {})
