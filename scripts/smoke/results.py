"""What a smoke test found, and how people and CI read it."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any
from xml.etree import ElementTree as ET

from infra.core.contract import Contract, WorkloadContract
from scripts.access import ForbiddenError
from scripts.console import Table

#: What checks of operators and of Prometheus are listed under.
_SHARED = "operators"


class Status(StrEnum):
    """``NOT_PROVEN``: nothing is known, neither good nor bad; never counted as passed."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_PROVEN = "not proven"


class UnmetError(Exception):
    """The stack does not do what its contract says. ``next_step`` is what the reader can do about it."""

    def __init__(self, found: str, next_step: str) -> None:
        super().__init__(found)
        self.next_step = next_step


class UnreachableError(UnmetError):
    """No answer at all: what follows would fail for the same reason."""


class NotProvenError(Exception):
    """The check cannot say anything here; the message says why."""


class PendingError(Exception):
    """Not so yet: a scrape or a look of a controller may still bring it. ``final`` is what holds when it does not."""

    def __init__(self, final: UnmetError | NotProvenError) -> None:
        super().__init__(str(final))
        self.final = final


def patient(prove: Callable[[], str], seconds: float, pause: float = 1.0) -> Callable[[], str]:
    """``prove``, repeated while it raises PendingError; after ``seconds`` raises what that holds."""

    def prove_in_time() -> str:
        give_up = time.monotonic() + seconds
        while True:
            try:
                return prove()
            except PendingError as error:
                if time.monotonic() + pause > give_up:
                    raise error.final from None
                time.sleep(pause)

    return prove_in_time


@dataclass(frozen=True)
class Check:
    """``prove`` returns in words what it proved, or raises one of the errors above."""

    name: str
    prove: Callable[[], str]


@dataclass(frozen=True)
class Result:
    """One check of one workload. ``next_step`` is None unless it failed."""

    check: str
    status: Status
    found: str
    next_step: str | None
    seconds: float


@dataclass(frozen=True)
class WorkloadResults:
    """All checks of one workload, in the order in which they ran."""

    workload: WorkloadContract
    results: tuple[Result, ...]


def run(checks: Iterable[Check], secret: str | None = None) -> list[Result]:
    """Runs ``checks`` in order; after one that got no answer the others are not proven.

    ``secret`` is taken out of everything that is reported.
    """
    results: list[Result] = []
    unreachable: str | None = None
    for check in checks:
        if unreachable:
            results.append(Result(check.name, Status.NOT_PROVEN, f"not run: {unreachable} failed", None, 0.0))
            continue
        started = time.monotonic()
        next_step = None
        try:
            status, found = Status.PASSED, check.prove()
        except (NotProvenError, ForbiddenError) as reason:
            status, found = Status.NOT_PROVEN, str(reason)
        except UnmetError as error:
            status, found, next_step = Status.FAILED, str(error), error.next_step
            if isinstance(error, UnreachableError):
                unreachable = check.name
        if secret:
            found = found.replace(secret, "(the API key)")
            next_step = next_step and next_step.replace(secret, "(the API key)")
        results.append(Result(check.name, status, _line(found), next_step, time.monotonic() - started))
    return results


def _line(text: str) -> str:
    """One line of readable length: answers of a server may hold anything."""
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:297] + "..."


@dataclass(frozen=True)
class Report:
    """A smoke test of a whole stack."""

    contract: Contract
    workloads: Sequence[WorkloadResults]
    #: Operators and the Prometheus that all workloads share.
    shared: Sequence[Result] = ()

    @property
    def failed(self) -> bool:
        """Whether a check failed; what is not proven does not fail a test."""
        return bool(self.failures())

    def failures(self) -> list[tuple[str, Result]]:
        """The failed checks with the names of their workloads."""
        by_name = [(tested.workload.name, tested.results) for tested in self.workloads]
        every = [(_SHARED, self.shared), *by_name]
        return [(name, result) for name, results in every for result in results if result.status is Status.FAILED]

    def count(self, status: Status) -> int:
        """How many checks ended with ``status``."""
        every = [*self.shared, *(result for tested in self.workloads for result in tested.results)]
        return sum(result.status is status for result in every)

    def tables(self) -> list[Table]:
        """What all workloads share, if anything, and one per workload."""
        shared = [(f"Smoke test of what workloads of {self.contract.stack} share", self.shared)] if self.shared else []
        named = [
            (f"Smoke test of {tested.workload.name}: {describe(tested.workload)}", tested.results)
            for tested in self.workloads
        ]
        return [
            Table(title, ("check", "status", "what was found"), [(r.check, r.status, r.found) for r in results])
            for title, results in [*shared, *named]
        ]

    def summary(self) -> str:
        """One line."""
        return ", ".join(f"{self.count(status)} {status}" for status in Status)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "stack": self.contract.stack,
            "passed": not self.failed,
            "counts": {str(status): self.count(status) for status in Status},
            "shared": [asdict(result) for result in self.shared],
            "workloads": [
                {
                    "name": tested.workload.name,
                    "engine": tested.workload.engine,
                    "version": tested.workload.version,
                    "stand_in": tested.workload.stand_in,
                    "gpu": tested.workload.gpu,
                    "model": tested.workload.model.id,
                    "checks": [asdict(result) for result in tested.results],
                }
                for tested in self.workloads
            ],
        }

    def junit(self) -> str:
        """JUnit XML: a suite per workload and one for what they share, a case per check; what is not proven is skipped
        with its reason.
        """
        root = ET.Element("testsuites", name=f"smoke test of {self.contract.stack}")
        if self.shared:
            _suite(root, _SHARED, _SHARED, self.shared)
        for tested in self.workloads:
            name = tested.workload.name
            _suite(root, f"{name} ({describe(tested.workload)})", name, tested.results)
        ET.indent(root)
        return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ET.Element, title: str, name: str, results: Sequence[Result]) -> None:
    suite = ET.SubElement(root, "testsuite", name=title, tests=str(len(results)))
    suite.set("failures", str(sum(r.status is Status.FAILED for r in results)))
    suite.set("skipped", str(sum(r.status is Status.NOT_PROVEN for r in results)))
    suite.set("time", f"{sum(r.seconds for r in results):.3f}")
    for result in results:
        case = ET.SubElement(suite, "testcase", classname=name, name=result.check)
        case.set("time", f"{result.seconds:.3f}")
        match result.status:
            case Status.FAILED:
                failure = ET.SubElement(case, "failure", message=_xml(result.found))
                failure.text = _xml(result.next_step or "")
            case Status.NOT_PROVEN:
                ET.SubElement(case, "skipped", message=_xml(result.found))
            case Status.PASSED:
                ET.SubElement(case, "system-out").text = _xml(result.found)


def describe(workload: WorkloadContract) -> str:
    """Engine and version, and that it is a stand-in where it is one."""
    real = "STAND-IN for " if workload.stand_in else ""
    where = f"{workload.gpu}" if workload.gpu else "CPU"
    return f"{real}{workload.engine} {workload.version} on {where}{', no GPU behind it' if workload.stand_in else ''}"


def _xml(text: str) -> str:
    """Without the control characters that XML 1.0 cannot hold."""
    return "".join(character if character >= " " or character in "\t\n" else "?" for character in text)
