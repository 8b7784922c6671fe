"""Embedded Kubernetes, the stack `local` on it, and a smoke test, in one command. A second run changes nothing.

Builds or finds the toolchain and the images, starts the cluster, runs a real `pulumi up`, publishes every Service on
loopback, tests it, and prints where everything is. Needs Linux and root; says how to go on where it has neither.
"""

import sys
import time
from collections.abc import Mapping

from infra.core.catalogue import ModelKind
from infra.core.contract import Contract, WorkloadContract
from infra.core.plan import Plan
from local import cluster, images, toolchain
from local.cluster.cluster import require_root_on_linux
from local.report import Reporter
from scripts import STARTED, console, deploy, embedded, plan, pods
from scripts.command import CommandError, parser_of, run
from scripts.console import Table
from scripts.smoke import monitoring, source
from scripts.smoke.run import show, test

_EXAMPLE = """examples:
  make up
  make up ARGS=--no-smoke
"""


def main() -> int:
    parser = parser_of("scripts.up", __doc__, _EXAMPLE)
    parser.add_argument("--no-smoke", action="store_true", help="do not test what was deployed")
    arguments = parser.parse_args()
    # What the cluster or the plan would refuse is said now, not after a build.
    require_root_on_linux()
    planned = plan.of(embedded.STACK)
    node = embedded.options(planned)
    with embedded.going_up():
        return _up(planned, node, smoke=not arguments.no_smoke)


def _up(planned: Plan, node: cluster.Options, *, smoke: bool) -> int:
    if not embedded.exists():
        # What an interrupted `make down` may have left describes objects of a cluster that is gone.
        embedded.remove()
    with console.reporter() as reporter:
        programs = toolchain.ensure(toolchain.EMBEDDED, reporter)
        built = images.ensure(reporter)
        cluster.of_checkout(node).up(reporter, programs, built)
    environment = embedded.environment(programs)
    try:
        deploy.up(embedded.STACK, environment)
    except (CommandError, KeyboardInterrupt):
        # Pulumi's own output does not say why a pod waits.
        for line in pods.troubles(embedded.access(), planned.namespace):
            print(f"  {line}", file=sys.stderr)
        raise
    contract = source.from_stack(embedded.STACK, environment)
    with console.reporter() as reporter:
        urls = _publish(contract, reporter)
        prometheus = publish_prometheus(contract, reporter)
    failed = False
    if smoke:
        report = test(contract, embedded.access(), burst=None)
        show(report)
        failed = report.failed
    tell(contract, urls, prometheus, time.monotonic() - STARTED)
    return 1 if failed else 0


def _publish(contract: Contract, reporter: Reporter) -> dict[str, str]:
    urls = {}
    for workload in contract.workloads:
        started = time.monotonic()
        urls[workload.name] = cluster.publish(
            workload.name, workload.namespace, workload.service, workload.service_port
        )
        reporter.done(f"{workload.name} published at {urls[workload.name]}", time.monotonic() - started)
    return urls


def publish_prometheus(contract: Contract, reporter: Reporter) -> str | None:
    """URL of the stack's Prometheus; None where there is none in the cluster."""
    place = monitoring.service_of(contract.monitoring["address"]) if contract.monitoring else None
    if place is None:
        return None
    started = time.monotonic()
    url = cluster.publish("prometheus", place.namespace, place.service, place.port) + place.path
    reporter.done(f"Prometheus published at {url}", time.monotonic() - started)
    return url


def workloads_table(contract: Contract, urls: Mapping[str, str]) -> Table:
    """What runs where."""
    return Table(
        "What runs",
        ("workload", "engine", "stand-in", "model", "pods", "GPU", "URL"),
        [
            (
                workload.name,
                f"{workload.engine} {workload.version}",
                workload.stand_in,
                workload.model.client_name,
                f"{workload.replicas} to {workload.max_replicas}" if workload.scaling else workload.replicas,
                f"{workload.gpu} (simulated)" if workload.gpu and workload.stand_in else workload.gpu,
                _shown_url(workload, urls.get(workload.name)),
            )
            for workload in contract.workloads
        ],
    )


def _shown_url(workload: WorkloadContract, url: str | None) -> str | None:
    # What gRPC clients take as their target has no scheme.
    return url.removeprefix("http://") if url and workload.protocol == "grpc" else url


def curl(workload: WorkloadContract, url: str) -> str:
    """A line that a person can paste. A key is read by that line, and is on no argument list."""
    path, body = {
        ModelKind.EMBEDDING: ("/v1/embeddings", f'{{"model": "{workload.model.client_name}", "input": "hello"}}'),
        ModelKind.SPARSE: ("/embed_sparse", '{"inputs": "hello"}'),
        ModelKind.RERANKER: ("/rerank", '{"query": "hello", "texts": ["good morning", "bananas"]}'),
        ModelKind.CLASSIFIER: ("/predict", '{"inputs": "hello"}'),
    }[ModelKind(workload.model.kind)]
    line = f"curl -s {url}{path} -H 'Content-Type: application/json' -d '{body}'"
    if workload.api_key_secret is None:
        return line
    return (
        f"kubectl -n {workload.namespace} get secret {workload.api_key_secret} "
        f"-o go-template='Authorization: Bearer {{{{index .data \"{workload.api_key_secret_key}\" | base64decode}}}}' "
        f"| {line} -H @-"
    )


def tell(contract: Contract, urls: Mapping[str, str], prometheus: str | None, seconds: float) -> None:
    """What a person reads at the end. ``prometheus`` is a URL."""
    console.show(workloads_table(contract, urls))
    if any(workload.stand_in for workload in contract.workloads):
        print("A stand-in computes with all-MiniLM-L6-v2 on the CPU, whatever model it is named after.")
    print("Try it:")
    for workload in contract.workloads:
        if workload.app is not None:
            print(f"  {workload.name}: its app answers at {urls[workload.name]}")
            continue
        if workload.protocol == "grpc":
            key = f", metadata authorization: Bearer KEY (Secret {workload.api_key_secret})"
            print(f"  {workload.name}: gRPC, services of tei.v1{key if workload.api_key_secret else ''}")
            continue
        if workload.api_key_secret is not None:
            print(f"  {workload.name}, inside make shell:")
        print(f"  {curl(workload, urls[workload.name])}")
    if prometheus:
        print(f"Prometheus: {prometheus}")
    print("Look around with kubectl and pulumi: make shell. What is healthy: make status. Remove it all: make down.")
    minutes, rest = divmod(round(seconds), 60)
    print(f"Up after {minutes} min {rest} s.")


if __name__ == "__main__":
    sys.exit(run(main))
