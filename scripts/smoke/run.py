"""From a contract to a report."""

import json
from pathlib import Path

from infra.core.contract import Contract, WorkloadContract
from scripts import console
from scripts.access import Access, ForwardError
from scripts.command import CommandError
from scripts.smoke.cluster import DeployedWorkload
from scripts.smoke.results import Check, NotProvenError, Report, Result, UnmetError, WorkloadResults, run
from scripts.smoke.tei import TeiService


def test(contract: Contract, access: Access) -> Report:
    """Tests every workload of ``contract`` in the cluster of ``access``.

    Raises CommandError when the cluster cannot be reached or read: then nothing is known of the stack.
    """
    if not contract.workloads:
        raise CommandError(f"the contract of stack {contract.stack} has no workloads: nothing to test")
    return Report(contract, [WorkloadResults(w, tuple(_workload(w, access))) for w in contract.workloads])


def _workload(workload: WorkloadContract, access: Access) -> list[Result]:
    if workload.replicas == 0:
        return run([Check("pods", _scaled_to_zero)])
    deployed = DeployedWorkload(workload, access)
    results = run(deployed.checks())
    if workload.engine != "tei":
        return [*results, *run([Check("engine", lambda: _unknown_engine(workload.engine))])]
    key = deployed.api_key()
    try:
        with access.forward(workload.namespace, workload.service, workload.service_port) as url:
            return [*results, *run(TeiService(workload, url, key).checks(), secret=key)]
    except ForwardError as error:
        said = str(error)
        return [*results, *run([Check("port-forward", lambda: _no_forward(workload, said))])]


def _no_forward(workload: WorkloadContract, said: str) -> str:
    raise UnmetError(
        f"kubectl port-forward to Service {workload.service}: {said}",
        "is one of its pods Running (see pods), and may this user create pods/portforward?",
    )


def _scaled_to_zero() -> str:
    raise NotProvenError("planned with 0 replicas: nothing runs that could be asked")


def _unknown_engine(engine: str) -> str:
    raise UnmetError(f"this checkout has no checks for the engine {engine}", "test with the checkout that deployed it")


def show(report: Report) -> None:
    """Tables, what to do about each failure, and a summary, on stdout."""
    for table in report.tables():
        console.show(table)
    for workload, result in report.failures():
        print(f"{workload.name}, {result.check}: {result.found}\n  what to do: {result.next_step}")
    if names := [tested.workload.name for tested in report.workloads if tested.workload.stand_in]:
        print(f"Stand-ins, not the real engine: {', '.join(names)}. What they do says nothing about speed or GPUs.")
    print(f"Smoke test of stack {report.contract.stack}: {report.summary()}")


def write(report: Report, json_file: Path | None, junit_file: Path | None) -> None:
    """The files for CI. Raises CommandError when one cannot be written."""
    for path, text in (
        (json_file, json.dumps(report.to_dict(), indent=2) + "\n"),
        (junit_file, report.junit()),
    ):
        if path is None:
            continue
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{path} cannot be written: {error.strerror}") from None
