"""From a contract to a report."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.core.contract import Contract, WorkloadContract
from scripts import console
from scripts.access import Access, ForwardError
from scripts.command import CommandError
from scripts.smoke import monitoring, operators, overload
from scripts.smoke.cluster import DeployedWorkload
from scripts.smoke.monitoring import MonitoredWorkload, Prometheus
from scripts.smoke.nim import NimService
from scripts.smoke.overload import Burst
from scripts.smoke.results import Check, NotProvenError, Report, Result, UnmetError, WorkloadResults, run
from scripts.smoke.scaling import ScaledWorkload
from scripts.smoke.tei import TeiService
from scripts.smoke.tei_grpc import TeiGrpcService

#: Engines that this checkout has checks for.
_ENGINES = ("tei", "nim")
#: Environments whose clients nobody disturbs with a burst.
_QUIET = ("local", "dev")


def test(contract: Contract, access: Access, *, burst: bool | None) -> Report:
    """Tests every workload of ``contract`` in the cluster of ``access``.

    Args:
        burst: whether each workload gets more texts at a time than one pod takes; None: in environments local and dev.

    Raises CommandError when the cluster cannot be reached or read: then nothing is known of the stack.
    """
    if not contract.workloads:
        raise CommandError(f"the contract of stack {contract.stack} has no workloads: nothing to test")
    no_burst = _no_burst(contract, burst)
    tested = [(w, DeployedWorkload(w, access)) for w in contract.workloads]
    served = [_served(deployed, workload, access, no_burst) for workload, deployed in tested]
    # Scrapes and looks of the autoscaler come while the other workloads are tested.
    with monitoring.opened(contract, access) as prometheus:
        shared = run(operators.checks(contract, access))
        if prometheus:
            shared += run([Check("Prometheus", prometheus.reached)])
        watched = [_watched(contract, deployed, workload, access, prometheus) for workload, deployed in tested]
    results = [
        WorkloadResults(workload, (*before, *after))
        for (workload, _), before, after in zip(tested, served, watched, strict=True)
    ]
    return Report(contract, results, shared)


def _no_burst(contract: Contract, burst: bool | None) -> str | None:
    """Why no burst is sent; None where one is."""
    if burst is False:
        return "--no-overload was given"
    if burst is None and contract.environment not in _QUIET:
        return (
            f"it takes every place of a pod, which clients in {contract.environment} would notice; --overload sends it"
        )
    return None


def _served(
    deployed: DeployedWorkload, workload: WorkloadContract, access: Access, no_burst: str | None
) -> list[Result]:
    """Pods and Service, and what the engine answers."""
    if workload.replicas == 0:
        return run([Check("pods", _scaled_to_zero)])
    results = run(deployed.checks())
    if workload.engine not in _ENGINES:
        return [*results, *run([Check("engine", lambda: _unknown_engine(workload.engine))])]
    key = deployed.api_key()
    try:
        with _service(workload, access, key) as (service, url):
            checks = service.checks()
            if isinstance(service, NimService):
                checks.append(Check("overload", service.overload))
            elif no_burst is None:
                checks.append(Check("overload", Burst(workload, url, key, deployed.states).prove))
            else:
                checks.append(Check("overload", lambda: overload.skipped(no_burst)))
            results += run(checks, secret=key)
    except ForwardError as error:
        said = str(error)
        return [*results, *run([Check("port-forward", lambda: _no_forward(workload, said))])]
    if workload.api_key_secret:
        results += run([Check("API key in logs", lambda: deployed.key_not_in_logs(key))], secret=key)
    return results


@contextmanager
def _service(
    workload: WorkloadContract, access: Access, key: str | None
) -> Iterator[tuple[TeiService | TeiGrpcService | NimService, str]]:
    if workload.engine == "nim":
        with access.forward(workload.namespace, workload.forward_to, workload.forward_port) as url:
            yield NimService(workload, url, key), url
    elif workload.protocol == "grpc":
        ports = (workload.forward_port, workload.forward_metrics_port)
        with access.forward_ports(workload.namespace, workload.forward_to, *ports) as (url, metrics_url):
            yield TeiGrpcService(workload, url.removeprefix("http://"), key, metrics_url), url
    else:
        with access.forward(workload.namespace, workload.forward_to, workload.forward_port) as url:
            yield TeiService(workload, url, key), url


def _watched(
    contract: Contract,
    deployed: DeployedWorkload,
    workload: WorkloadContract,
    access: Access,
    prometheus: Prometheus | None,
) -> list[Result]:
    """What Prometheus and KEDA see once requests were answered."""
    if workload.replicas == 0:
        return []
    checks = []
    if prometheus and contract.monitoring:
        checks += MonitoredWorkload(workload, contract.monitoring, prometheus, deployed).checks()
    results = run(checks)
    if workload.scaling:
        results += run(ScaledWorkload(workload, access).checks())
    return results


def _no_forward(workload: WorkloadContract, said: str) -> str:
    raise UnmetError(
        f"kubectl port-forward to {workload.forward_to}: {said}",
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
    for name, result in report.failures():
        print(f"{name}, {result.check}: {result.found}\n  what to do: {result.next_step}")
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
