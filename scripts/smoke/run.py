"""From a contract to a report."""

import json
from pathlib import Path

from infra.core.contract import Contract, WorkloadContract
from scripts import console
from scripts.command import CommandError
from scripts.smoke.cluster import Access, Cluster
from scripts.smoke.results import Check, NotProvenError, Report, Result, Status, UnmetError, WorkloadResults, run
from scripts.smoke.tei import TeiService


def test(contract: Contract, access: Access) -> Report:
    """Tests every workload of ``contract`` in the cluster of ``access``.

    Raises CommandError when the cluster cannot be reached or read: then nothing is known of the stack.
    """
    if not contract.workloads:
        raise CommandError(f"the contract of stack {contract.stack} has no workloads: nothing to test")
    cluster = Cluster(access)
    return Report(contract, [WorkloadResults(w, tuple(_workload(cluster, w))) for w in contract.workloads])


def _workload(cluster: Cluster, workload: WorkloadContract) -> list[Result]:
    if workload.replicas == 0:
        return run([Check("pods", _scaled_to_zero)])
    results = run(cluster.checks(workload))
    if workload.engine != "tei":
        return [*results, *run([Check("engine", lambda: _unknown_engine(workload.engine))])]
    key = None
    if workload.api_key_secret and workload.api_key_secret_key:
        key = cluster.secret(workload.namespace, workload.api_key_secret, workload.api_key_secret_key)
    try:
        with cluster.forward(workload.namespace, workload.service, workload.service_port) as url:
            results += run(TeiService(workload, url, key).checks(), secret=key)
    except UnmetError as error:
        results.append(Result("port-forward", Status.FAILED, str(error), error.next_step, 0.0))
    return results


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
