"""`make plan` as a person runs it: two streams and an exit code."""

import importlib
import json
import shlex
import sys
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from local.paths import CHECKOUT
from scripts import capacity, command, plan, stackfile
from scripts.stackfile import StackFile
from tests import stacks
from tests.core import plans

pytestmark = pytest.mark.core


@dataclass(frozen=True)
class Done:
    """What is left of a command that ran."""

    code: int
    out: str
    err: str


class Run(Protocol):
    """Runs scripts.plan with arguments."""

    def __call__(self, *arguments: str) -> Done: ...


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["plan", *arguments])
        code = command.run(plan.main)
        return Done(code, *capsys.readouterr())

    return run


def test_the_plan_of_a_stack_says_what_runs_and_why(run: Run) -> None:
    done = run("--stack", "local")
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "l4 L4 1 4 4" in lines
    assert "embed tei 1.9.3 (stand-in) sentence-transformers/all-MiniLM-L6-v2 l4 1 to 3 3" in lines
    assert "maxClientBatchSize 32 TEI's default" in lines
    assert "maxConcurrentRequests 48" in lines, "a value of the stack file has no reason"


def test_json_is_the_whole_plan_and_nothing_else(run: Run) -> None:
    done = run("--json")
    assert json.loads(done.out)["workloads"][0]["engine"]["limits"]["max_client_batch_size"] == 32


def test_every_reason_of_the_plan_is_shown() -> None:
    made = plan.of("local")
    shown = {str(cell) for table in plan.tables(made) for row in table.rows for cell in row}
    assert {reason.why for workload in made.workloads for reason in workload.reasons} <= shown


def test_an_unknown_stack_is_one_line_and_exit_code_1(run: Run) -> None:
    done = run("--stack", "nope")
    assert done.code == 1
    assert done.out == ""
    assert done.err.startswith("error: no stack file stacks/Pulumi.nope.yaml: stacks with a file are ")
    assert done.err.count("\n") == 1


def test_each_refusal_is_one_line_on_stderr(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    wrong = stacks.local(maxClientBatchSize=65, pooling="cls")
    monkeypatch.setattr(stackfile, "read", {"wrong": StackFile("wrong", CHECKOUT, wrong, frozenset())}.__getitem__)
    done = run("--stack", "wrong")
    assert (done.code, done.out) == (1, "")
    keys = [line.split(":")[1].strip() for line in done.err.splitlines()]
    assert keys == ["stack.serving[0].pooling", "stack.serving[0].maxConcurrentRequests"]


@pytest.mark.parametrize("name", ["up", "down", "status", "plan", "smoke.__main__", "shell"])
def test_every_command_explains_itself_with_an_example(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"scripts.{name}").main()
    assert ended.value.code == 0
    assert "example" in capsys.readouterr().out


def _shown(changes: dict[str, Any] | None = None, **workload: Any) -> dict[str, dict[str, str]]:
    """Tables of a plan whose workload has a need: title -> first cell -> second cell."""
    need = {"documentsPerSecond": 3000, "tokens": {"p50": 280, "p95": 512, "max": 512}, "latencyMs": 800}
    given = plans.stack("L4", pool={"instanceType": "g6.2xlarge"}, need=need, changes=changes, **workload)
    return {table.title: {str(row[0]): str(row[1]) for row in table.rows} for table in plan.tables(plans.made(given))}


def test_a_need_is_shown_with_its_arithmetic_cost_and_date() -> None:
    tables = _shown()
    arithmetic = tables["Workload embed: how its need became sizes"]
    assert "335 GFLOP" in arithmetic["work"]
    assert tables["Workload embed"]["replicas"] in arithmetic["replicas"]
    assert "USD a month" in arithmetic["on demand"]
    assert "per million documents" in arithmetic["on demand"]
    assert "2026-07-20" in arithmetic["on demand"]
    assert "Workload embed: when KEDA asks for another replica" not in tables


def test_thresholds_of_scaling_are_shown_with_what_prometheus_is_asked() -> None:
    tables = _shown(changes={"addons": {"keda": "install", "prometheus": "install"}}, scaling={})
    thresholds = tables["Workload embed: when KEDA asks for another replica"]
    assert set(thresholds) == {"queue", "overload"}
    assert int(thresholds["queue"]) > 0
    [most] = [value for key, value in tables["Workload embed"].items() if key == "scaling.max"]
    assert tables["Workload embed"]["replicas"] == f"1 to {most}"


def test_the_command_that_compares_gpus_is_about_the_same_need(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = _shown()
    arithmetic = tables["Workload embed: how its need became sizes"]
    line = arithmetic["other GPUs"]
    arguments = shlex.split(line.removeprefix("make capacity ARGS=").strip('"'))
    monkeypatch.setattr(sys, "argv", ["capacity", *arguments, "--gpu", "L4", "--instance-type", "g6.2xlarge"])
    assert command.run(capacity.main) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert arithmetic["replicas"] in out
    assert arithmetic["latency"] in out


def test_a_model_of_the_users_own_has_no_command_that_compares() -> None:
    model = {
        "id": "acme/model",
        "kind": "embedding",
        "architecture": "bert",
        "parametersM": 110,
        "layers": 12,
        "hidden": 768,
        "maxTokens": 512,
        "pooling": "mean",
    }
    tables = _shown(model="acme/model", changes={"models": [model]})
    assert "other GPUs" not in tables["Workload embed: how its need became sizes"]
