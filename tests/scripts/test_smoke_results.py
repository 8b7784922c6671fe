"""What a report says, and to whom."""

import json
from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest

from scripts.smoke import results
from scripts.smoke.results import (
    Check,
    NotProvenError,
    PendingError,
    Report,
    Status,
    UnmetError,
    UnreachableError,
    WorkloadResults,
)
from tests.scripts.conftest import planned

pytestmark = pytest.mark.core


def _good() -> str:
    return "all is well"


def _unknown() -> str:
    raise NotProvenError("nobody knows")


def _bad() -> str:
    raise UnmetError("wrong <answer>\nwith a\x00 second line", "turn it off and on")


def _gone() -> str:
    raise UnreachableError("no answer", "start it")


def _report(*checks: Check) -> Report:
    _, agreed = planned()
    return Report(agreed, [WorkloadResults(agreed.workloads[0], tuple(results.run(checks)))])


def test_only_a_failed_check_fails_the_test() -> None:
    assert not _report(Check("a", _good), Check("b", _unknown)).failed
    assert _report(Check("a", _good), Check("b", _bad)).failed


def test_what_is_not_proven_is_not_counted_as_passed() -> None:
    report = _report(Check("a", _good), Check("b", _unknown), Check("c", _bad))
    assert [report.count(status) for status in Status] == [1, 1, 1]
    assert report.summary() == "1 passed, 1 failed, 1 not proven"


def test_after_no_answer_the_rest_is_not_proven_and_does_not_run() -> None:
    found = results.run([Check("a", _good), Check("b", _gone), Check("c", _good)])
    assert [result.status for result in found] == [Status.PASSED, Status.FAILED, Status.NOT_PROVEN]
    assert found[2].found == "not run: b failed"


def test_a_secret_is_taken_out_of_what_was_found() -> None:
    (result,) = results.run([Check("a", lambda: "the server said s3cret")], secret="s3cret")
    assert result.found == "the server said (the API key)"


def test_a_secret_is_taken_out_of_the_next_step_too() -> None:
    def bad() -> str:
        raise UnmetError("bad", "ask for s3cret")

    (result,) = results.run([Check("a", bad)], secret="s3cret")
    assert result.next_step == "ask for (the API key)"


def _pending(answers: list[str | Exception]) -> Callable[[], str]:
    def prove() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return prove


def test_what_may_still_come_is_asked_for_again_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.smoke.results.time.sleep", lambda _: None)
    late = PendingError(UnmetError("not yet", "wait"))
    assert results.patient(_pending([late, late, "there"]), seconds=60)() == "there"


@pytest.mark.parametrize("final", [UnmetError("never came", "look"), NotProvenError("nobody says")])
def test_what_does_not_come_ends_as_what_it_is(final: UnmetError | NotProvenError) -> None:
    with pytest.raises(type(final), match=str(final)):
        results.patient(_pending([PendingError(final)]), seconds=0)()


def test_a_failure_for_good_is_not_repeated() -> None:
    with pytest.raises(UnmetError, match="for good"):
        results.patient(_pending([UnmetError("for good", "look"), "there"]), seconds=60)()


def test_a_failed_operator_fails_the_test_and_is_in_every_form_of_the_report() -> None:
    _, agreed = planned()
    workload = WorkloadResults(agreed.workloads[0], tuple(results.run([Check("a", _good)])))
    report = Report(agreed, [workload], results.run([Check("operator keda", _bad), Check("Prometheus", _unknown)]))
    assert report.failed
    assert report.summary() == "1 passed, 1 failed, 1 not proven"
    assert [(name, result.check) for name, result in report.failures()] == [("operators", "operator keda")]
    assert [check["check"] for check in report.to_dict()["shared"]] == ["operator keda", "Prometheus"]
    assert report.tables()[0].title == "Smoke test of what workloads of local share"
    suite = ET.fromstring(report.junit())[0]  # noqa: S314
    assert [suite.get(key) for key in ("name", "tests", "failures", "skipped")] == ["operators", "2", "1", "1"]


def test_an_answer_of_any_length_becomes_one_readable_line() -> None:
    (result,) = results.run([Check("a", lambda: "word\n" * 1000)])
    assert len(result.found) == 300
    assert "\n" not in result.found


def test_json_says_which_engine_is_a_stand_in_and_has_every_check() -> None:
    told = json.loads(json.dumps(_report(Check("a", _good), Check("b", _bad)).to_dict()))
    assert told["passed"] is False
    assert told["counts"] == {"passed": 1, "failed": 1, "not proven": 0}
    (workload,) = told["workloads"]
    assert workload["stand_in"] is True
    assert [check["status"] for check in workload["checks"]] == ["passed", "failed"]
    assert workload["checks"][1]["next_step"] == "turn it off and on"


def test_junit_has_a_case_per_check_with_failures_and_skips() -> None:
    root = ET.fromstring(_report(Check("a", _good), Check("b", _unknown), Check("c", _bad)).junit())  # noqa: S314
    (suite,) = root
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert "STAND-IN" in str(suite.get("name"))
    kinds = {case.get("name"): [child.tag for child in case] for case in suite}
    assert kinds == {"a": ["system-out"], "b": ["skipped"], "c": ["failure"]}
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("message", "").startswith("wrong <answer> with a")
    assert failure.text == "turn it off and on"


def test_the_table_says_that_a_stand_in_is_one() -> None:
    (table,) = _report(Check("a", _good)).tables()
    assert "STAND-IN for tei 1.9.3" in table.title
