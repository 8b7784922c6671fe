"""`python -m scripts.capacity`: what a person at a shell sees, and its exit codes."""

import shlex
from collections.abc import Callable

import pytest

from scripts import capacity
from scripts.command import run

pytestmark = pytest.mark.core

Answer = tuple[int, str, str]
Ask = Callable[[str], Answer]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs the command with a line of arguments: exit code, stdout, stderr."""

    def answer(arguments: str) -> Answer:
        monkeypatch.setattr("sys.argv", ["capacity", *shlex.split(arguments)])
        code = run(capacity.main)
        out = capsys.readouterr()
        return code, out.out, out.err

    return answer


def test_3000_documents_on_one_l4_exit_with_1_and_the_arithmetic(ask: Ask) -> None:
    code, out, err = ask("--model BAAI/bge-large-en-v1.5 --gpu L4 --tokens 512 --docs-per-second 3000 --replicas 1")
    assert code == 1
    assert "2 x 302.3M x 512 + 4 x 24 x 1024 x 512^2 = 335 GFLOP" in out
    assert "119, 224, 361 documents/s" in out
    assert err.startswith("error: --replicas: got 1; allowed: 37 or more.")
    assert len(err.splitlines()) == 1


def test_enough_replicas_exit_with_0_and_cost_and_thresholds(ask: Ask) -> None:
    code, out, err = ask("--model BAAI/bge-large-en-v1.5 --gpu L4 --tokens 512 --docs-per-second 3000 --replicas 40")
    assert (code, err) == (0, "")
    assert "planned 40" in out
    assert "USD a month" in out
    assert "queued texts per replica" in out
    assert "each of 2 app replicas brings 1,500 documents/s, more than the 83.0 documents/s that one L4 " in out
    assert out.strip().endswith("there have to be 37 app replicas")


def test_without_a_gpu_all_are_compared_and_one_is_recommended(ask: Ask) -> None:
    code, out, _ = ask("--model BAAI/bge-large-en-v1.5 --tokens 512 --docs-per-second 3000 --apps 4")
    assert code == 0
    assert "recommended: centralized on L40S costs least" in out
    assert "sidecar" in out
    # No TEI image: V100 (compute capability 7.0), T4g (arm64), B300 (10.3).
    gpus = {line.split()[0] for line in out.splitlines() if "centralized  " in line}
    assert gpus.isdisjoint({"V100", "T4g", "B300"})
    assert {"T4", "A10G", "L4", "L40S", "A100", "H100"} <= gpus


def test_a_need_that_no_gpu_meets_exits_with_1(ask: Ask) -> None:
    code, out, err = ask("--model BAAI/bge-large-en-v1.5 --tokens 512 --docs-per-second 10 --latency-ms 0.1")
    assert code == 1
    assert out.count("cannot: --latency-ms: got 0.1") == len({line.split()[0] for line in out.splitlines()[2:]})
    assert err == (
        "error: no GPU meets the need as asked with BAAI/bge-large-en-v1.5; the table says why, GPU by GPU\n"
    )


def test_what_no_gpu_can_change_is_said_once_with_the_flag_that_was_given(ask: Ask) -> None:
    for given, flag in (("--tokens 9000", "--tokens"), ("--p50 9000", "--p50"), ("--p50 80 --p95 9000", "--p95")):
        code, out, err = ask(f"--model BAAI/bge-large-en-v1.5 {given} --docs-per-second 10")
        assert (code, out) == (1, "")
        assert err.startswith(f"error: {flag}: got 9000; allowed: 512 or less")
        assert len(err.splitlines()) == 1


def test_sidecars_that_need_more_app_replicas_than_there_are_say_how_many(ask: Ask) -> None:
    _, out, _ = ask("--model BAAI/bge-m3 --tokens 512 --docs-per-second 100")
    [row] = [line for line in out.splitlines() if line.split()[:2] == ["T4", "sidecar"]]
    assert row.endswith("takes 3 app replicas")
    assert out.strip().endswith(
        "more than the 44.7 documents/s that one T4 may be planned with; with a GPU beside each "
        "app replica there have to be 3 app replicas"
    )


def test_a_next_gpu_that_is_much_faster_is_named_with_both_latencies(ask: Ask) -> None:
    _, out, _ = ask("--model BAAI/bge-m3 --tokens 512 --docs-per-second 100")
    assert "the next GPU, L4, costs 23 USD more (1,175 USD) and answers within 810 ms in place of 1,504 ms;" in out


def test_the_table_of_app_replicas_ends_with_where_a_pool_pays(ask: Ask) -> None:
    _, out, _ = ask("--model BAAI/bge-m3 --tokens 512 --docs-per-second 10")
    assert "GPUs that more app replicas take, when each brings 5.00 of the 44.7 documents/s that one T4 " in out
    assert out.strip().endswith("centralized takes fewer GPUs from 3 app replicas on")


def test_without_arguments_an_example_is_given(ask: Ask) -> None:
    code, out, err = ask("")
    assert (code, out) == (1, "")
    assert 'make capacity ARGS="--model ' in err
    assert "ARGS=--help" in err
    assert len(err.splitlines()) == 1


def test_a_month_and_a_distribution_of_lengths_are_understood(ask: Ask) -> None:
    code, out, _ = ask("--model BAAI/bge-m3 --gpu l4 --p50 280 --p95 512 --max 900 --docs-per-month 5e7")
    assert code == 0
    assert "50,000,000 documents a month / 730 h = 19.0 documents/s" in out
    assert "p50 280, p95 512, longest 900" in out


def test_a_gpu_that_tei_does_not_serve_is_said(ask: Ask) -> None:
    _, out, _ = ask("--model BAAI/bge-large-en-v1.5 --gpu V100 --tokens 128 --docs-per-second 10")
    assert "TEI has no image that serves BAAI/bge-large-en-v1.5 on V100" in out


def test_an_instance_type_is_kept_where_it_is_named(ask: Ask) -> None:
    _, out, _ = ask("--model BAAI/bge-m3 --gpu L4 --tokens 512 --docs-per-second 100 --instance-type g6.2xlarge")
    assert "x g6.2xlarge" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--gpu L4 --tokens 5 --docs-per-second 1", "--model: got nothing; allowed: "),
        ("--model nobody/nothing --tokens 5 --docs-per-second 1", "--model: got nobody/nothing; allowed: "),
        ("--model BAAI/bge-m3 --gpu MI300X --tokens 5 --docs-per-second 1", "--gpu: got MI300X; allowed: "),
        ("--model BAAI/bge-m3 --docs-per-second 1", "give --tokens, or --p50 and --p95"),
        ("--model BAAI/bge-m3 --tokens 5 --p95 9 --docs-per-second 1", "give --tokens, or --p50 and --p95"),
        ("--model BAAI/bge-m3 --tokens 5", "Neither is given; allowed: one of --docs-per-second and --docs-per-month"),
        ("--model BAAI/bge-m3 --p50 9 --p95 5 --docs-per-second 1", "p50 9 is above p95 5"),
        ("--model BAAI/bge-m3 --tokens 5 --docs-per-second -1", "--docs-per-second: "),
        ("--model BAAI/bge-m3 --tokens 0 --docs-per-second 1", "--tokens: got 0; allowed: greater than"),
        ("--model BAAI/bge-m3 --tokens 5 --docs-per-second 1 --headroom 1", "--headroom: "),
        ("--model BAAI/bge-m3 --tokens 5 --docs-per-second 1 --replicas 0", "--replicas: got 0; allowed: 1 or more"),
        ("--model BAAI/bge-m3 --gpu L4 --tokens 5 --docs-per-second 1 --instance-type g5.xlarge", "allowed for L4: g6"),
        ("--model BAAI/bge-m3 --tokens 5 --docs-per-second 1 --instance-type g5.xlarge", "give --gpu too"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_allowed(ask: Ask, arguments: str, says: str) -> None:
    code, out, err = ask(arguments)
    assert code == 1
    assert out == ""
    assert len(err.splitlines()) == 1
    assert says in err


def test_measurements_are_shown_against_the_formula(ask: Ask) -> None:
    code, out, _ = ask("--measurements")
    assert code == 0
    assert "mlperf-l4-fp16" in out
    assert "(+8%)" in out
    assert "Triton + TensorRT INT8" in out
