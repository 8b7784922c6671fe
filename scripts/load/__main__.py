"""Loads a workload of a deployed stack, or any server on loopback that speaks TEI's HTTP API, and shows latency,
throughput and errors by kind. Requests are never repeated.

On the embedded cluster the load goes through the Service and is balanced over its pods; elsewhere through kubectl
port-forward, which chooses one pod. Exit code 0 whenever something was measured, whatever failed in it.
"""

import argparse
import asyncio
import json
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from infra.core.capacity import TokenLengths
from infra.core.catalogue import ModelKind
from infra.core.contract import Contract, WorkloadContract
from infra.core.errors import counted, nearest_first, quoted
from local import cluster
from scripts import console, embedded
from scripts.access import Access, ForwardError
from scripts.command import CommandError, parser_of, run
from scripts.console import Table
from scripts.deployed import of_stack
from scripts.load import Closed, Open, Result, Shape, Summary, Target
from scripts.load import run as run_load
from scripts.load.results import Percentiles
from scripts.smoke.cluster import DeployedWorkload

_EXAMPLE = """examples:
  make load STACK=local ARGS="--workload embed --clients 40 --seconds 30"
  python -m scripts.load --stack local --rate 20 --seconds 60 --texts 8 --tokens 128:512 --json load.json
  python -m scripts.load --url http://127.0.0.1:3000 --kind reranker --clients 4
"""
_SECONDS = 30.0
_CLIENTS = 8
#: Beyond what the engine may take: network, port-forward.
_EXTRA_SECONDS = 10
#: Later starts than this, for one request in a hundred, are a busy machine and no longer a measurement.
_LATE_MS = 50


def main() -> int:
    arguments = _parser().parse_args()
    shape, tokens = _shape(arguments), _tokens(arguments.tokens)
    with _target(arguments, tokens) as (target, title, notes):
        with console.reporter() as reporter:
            started = time.monotonic()
            reporter.step(f"{shape} on {title}; Ctrl-C ends it and shows what was measured")
            result = measure(target, [shape])
            reporter.done(counted(result.total.requests, "request"), time.monotonic() - started)
        show(result, title, notes)
        _write(result, arguments.json)
    if result.ended_early == "interrupted":
        raise KeyboardInterrupt
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("scripts.load", __doc__, _EXAMPLE)
    add = parser.add_argument
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--stack", default="local", help="deployed Pulumi stack (default: %(default)s)")
    where.add_argument("--url", help="server on loopback in place of a stack")
    add("--workload", help="workload of the stack; needed where it has several")
    add("--context", help="context of the kubeconfig (default: that of the stack file, else current)")
    add("--kind", choices=("embedding", "sparse", "reranker"), help="with --url (default: embedding)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--clients", type=int, help=f"closed load: each waits for its answer (default: {_CLIENTS})")
    how.add_argument("--rate", type=float, help="open load: requests per second, whatever the server does")
    add("--seconds", type=float, default=_SECONDS, help="length of the load (default: %(default)s)")
    add("--max-in-flight", type=int, default=256, help="with --rate: most unanswered requests (default: %(default)s)")
    add("--texts", type=int, default=1, help="texts per request (default: %(default)s)")
    add("--tokens", metavar="N|P50:P95", default="128", help="lengths, special tokens included (default: %(default)s)")
    add(
        "--requests-per-connection",
        type=int,
        default=1,
        help="then a new one; kube-proxy balances connections, not requests (default: %(default)s)",
    )
    add("--timeout", type=float, help="seconds per request (default: what the engine may take, with --url 60)")
    add("--json", type=Path, metavar="FILE", help="write the result with its timeline as JSON")
    return parser


def _shape(arguments: argparse.Namespace) -> Shape:
    if arguments.rate is not None:
        return Open(arguments.rate, arguments.seconds, arguments.max_in_flight)
    return Closed(_CLIENTS if arguments.clients is None else arguments.clients, arguments.seconds)


def _tokens(given: str) -> TokenLengths:
    match = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", given)
    p50, p95 = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= p50 <= p95:
        raise CommandError(f"--tokens: got {quoted(given)}; allowed: one length as 128, or median and p95 as 128:512")
    return TokenLengths(p50=p50, p95=p95, max=p95 if p50 == p95 else None)


@contextmanager
def _target(arguments: argparse.Namespace, tokens: TokenLengths) -> Iterator[tuple[Target, str, Sequence[str]]]:
    """The target, how to call it, and what a reader has to know of the way to it."""
    if arguments.url is not None:
        if arguments.workload or arguments.context:
            raise CommandError("--workload and --context belong to --stack; with --url give --kind")
        target = Target(
            arguments.url,
            ModelKind(arguments.kind or "embedding"),
            "unknown",
            texts=arguments.texts,
            tokens=tokens,
            timeout_seconds=60 if arguments.timeout is None else arguments.timeout,
            requests_per_connection=arguments.requests_per_connection,
        )
        yield target, target.url, ()
        return
    if arguments.kind:
        raise CommandError("--kind belongs to --url; a workload's kind is that of its model")
    contract, access = of_stack(arguments.stack, arguments.context)
    workload = _workload(contract, arguments.workload)
    key = _key(workload, access)
    longest = workload.budgets["longest_request"] + _EXTRA_SECONDS
    with _way(workload, access, is_embedded=arguments.stack == embedded.STACK and access == embedded.access()) as way:
        url, note = way
        target = Target(
            url,
            ModelKind(workload.model.kind),
            workload.model.client_name,
            texts=arguments.texts,
            tokens=tokens,
            api_key=key,
            dimension=workload.model.dimension,
            timeout_seconds=longest if arguments.timeout is None else arguments.timeout,
            requests_per_connection=arguments.requests_per_connection,
        )
        notes = [note]
        if workload.stand_in:
            notes.append(
                f"{workload.name} is a stand-in that computes on the CPU: its times say nothing about the real engine "
                "or a GPU."
            )
        yield target, f"{workload.name} ({workload.model.client_name})", notes


def _workload(contract: Contract, name: str | None) -> WorkloadContract:
    found = {workload.name: workload for workload in contract.workloads}
    if name is None and len(found) == 1:
        return contract.workloads[0]
    if name not in found:
        given = "nothing" if name is None else quoted(name)
        raise CommandError(
            f"--workload: got {given}; allowed: {nearest_first(name or '', found) or 'none, the stack has none'}"
        )
    return found[name]


def _key(workload: WorkloadContract, access: Access) -> str | None:
    if workload.engine != "tei":
        raise CommandError(f"{workload.name} runs {workload.engine}; this checkout can load tei only")
    key = DeployedWorkload(workload, access).api_key()
    if key is None and workload.api_key_secret:
        raise CommandError(
            f"Secret {workload.namespace}/{workload.api_key_secret} has no key {workload.api_key_secret_key}: "
            "make smoke says more"
        )
    return key


@contextmanager
def _way(workload: WorkloadContract, access: Access, *, is_embedded: bool) -> Iterator[tuple[str, str]]:
    """URL on loopback, and what lies between it and the pods."""
    # The Service of a sidecar leads to its app.
    if is_embedded and workload.app is None:
        url = cluster.publish(workload.name, workload.namespace, workload.service, workload.service_port)
        yield url, f"Through Service {workload.service} and kube-proxy, which chooses a pod for each connection."
        return
    try:
        with access.forward(workload.namespace, workload.forward_to, workload.forward_port) as url:
            yield url, f"Through kubectl port-forward: all requests went to one pod of {workload.forward_to}."
    except ForwardError as error:
        raise CommandError(
            f"kubectl port-forward to {workload.forward_to}: {error}; make smoke says which pods are ready"
        ) from None


def measure(target: Target, shapes: Sequence[Shape]) -> Result:
    """Runs the load; Ctrl-C ends it early."""

    async def interruptible() -> Result:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, stop.set)
        try:
            return await run_load(target, shapes, stop)
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    return asyncio.run(interruptible())


def show(result: Result, title: str, notes: Sequence[str] = ()) -> None:
    """Tables and notes on stdout."""
    for table in tables(result, title):
        console.show(table)
    total = result.total
    for note in notes:
        console.say(note)
    opened = f"{counted(result.connections, 'connection')} opened for {counted(total.requests, 'request')}"
    console.say(f"{opened} of {counted(result.texts_per_request, 'text')}, {_shown(result.tokens)}.")
    if total.start_lag_ms is not None and total.start_lag_ms.p99 > _LATE_MS:
        console.say(
            f"This machine was busy: 1 % of the requests went out {total.start_lag_ms.p99:.0f} ms or more after they "
            "were due, and their latency includes that."
        )
    if result.ended_early:
        console.say(f"Ended early: {result.ended_early}; the numbers are of what was measured until then.")


def tables(result: Result, title: str) -> list[Table]:
    """What was measured, and errors where there were any."""
    shown = result.shapes if len(result.shapes) == 1 else (*result.shapes, result.total)
    columns = ("load", "seconds", "requests", "succeeded", "failed", "not started", "unfinished", "requests/s")
    measured = Table(
        f"Load on {title}",
        (*columns, "texts/s", "p50 ms", "p95 ms", "p99 ms", "max ms"),
        [_row(summary) for summary in shown],
    )
    if not result.total.errors:
        return [measured]
    errors = [(kind, error.count, error.example) for kind, error in result.total.errors.items()]
    return [measured, Table("Errors", ("kind", "requests", "the first one said"), errors)]


def _row(summary: Summary) -> tuple[object, ...]:
    times = _milliseconds(summary.latency_ms)
    return (
        *(summary.shape, f"{summary.seconds:.1f}", summary.requests, summary.succeeded, summary.failed),
        *(summary.not_started, summary.unfinished),
        *(f"{summary.requests_per_second:.1f}", f"{summary.texts_per_second:.1f}", *times),
    )


def _milliseconds(found: Percentiles | None) -> tuple[str | None, ...]:
    if found is None:
        return (None,) * 4
    return tuple(f"{value:.1f}" for value in (found.p50, found.p95, found.p99, found.max))


def _shown(tokens: dict[str, int | None]) -> str:
    if tokens["p50"] == tokens["p95"]:
        return f"{tokens['p50']} tokens each"
    return f"half of {tokens['p50']} tokens, 95 % of up to {tokens['p95']}"


def _write(result: Result, path: Path | None) -> None:
    if path is None:
        return
    try:
        path.write_text(json.dumps(result.to_dict(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(run(main))
