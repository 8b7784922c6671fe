"""Says what a load takes: GPUs, replicas, batch budget, scaling thresholds and cost, with the arithmetic.

With --gpu the answer is about that GPU; without it all GPUs and both topologies are compared and one is recommended.
Exit code 1 when the need cannot be met as asked, with what would have to change. No cluster, no account, no stack file.
"""

import argparse
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import get_args

from pydantic import ValidationError

from infra.core import catalogue
from infra.core.capacity import (
    Comparison,
    Need,
    Request,
    Sizing,
    Unmet,
    compare,
    crossover,
    data,
    node_of,
    physics,
    size,
    topologies,
)
from infra.core.capacity.need import rounded
from infra.core.catalogue import Gpu, Model
from infra.core.engines.tei import images
from infra.core.errors import Refusal, RefusedError, counted, nearest_first, quoted
from scripts import console
from scripts.command import CommandError, parser_of, run
from scripts.console import Table

_EXAMPLE = """examples:
  make capacity ARGS="--model BAAI/bge-large-en-v1.5 --gpu L4 --tokens 512 --docs-per-second 3000 --replicas 1"
  python -m scripts.capacity --model BAAI/bge-m3 --p50 280 --p95 512 --docs-per-month 50e6 --latency-ms 400
  python -m scripts.capacity --measurements
"""
_MOST_APPS = 20
#: Flags by the key of the need or request that they set.
_FLAGS = {
    "replicas": "--replicas",
    "maxBatchTokens": "--max-batch-tokens",
    "nodes": "--nodes",
    "gpu": "--gpu",
    "gpuShares": "--gpu-shares",
    "instanceType": "--instance-type",
    "documentsPerSecond": "--docs-per-second",
    "documentsPerMonth": "--docs-per-month",
    "p50": "--p50",
    "p95": "--p95",
    "max": "--max",
    "tokens": "--tokens",
    "latencyMs": "--latency-ms",
    "headroom": "--headroom",
}


def main() -> int:
    parser = parser_of("scripts.capacity", __doc__, _EXAMPLE)
    add = parser.add_argument
    add("--model", help="hub id of a model of the catalogue")
    add("--gpu", help="GPU model, e.g. L4; default: compare all")
    add("--tokens", type=int, help="all texts have this length in tokens")
    add("--p50", type=int, help="median length in tokens, with --p95 in place of --tokens")
    add("--p95", type=int, help="95th percentile of the lengths")
    add("--max", type=int, help="longest text (default: twice p95)")
    add("--docs-per-second", type=float, help="texts (rerankers: pairs) per second at the peak")
    add("--docs-per-month", type=float, help="texts per month of 730 h, spread evenly")
    add("--latency-ms", type=float, help="milliseconds in the engine that 95 %% of the texts may take")
    add("--headroom", type=float, default=0.3, help="share of each replica kept free (default: %(default)s)")
    add("--replicas", type=int, help="replicas that there are; exit 1 if they do not suffice")
    add("--max-batch-tokens", type=int, help="token budget of a batch; default: 32 texts of p95")
    add("--instance-type", help="EC2 instance type of the nodes; default: the cheapest")
    add("--nodes", type=int, help="most nodes that there can be")
    add("--gpu-shares", type=int, default=1, help="replicas that share one GPU by time slicing (default: %(default)s)")
    add("--precision", choices=get_args(physics.Precision), default="float16", help="default: %(default)s")
    add("--apps", type=int, default=2, help="app replicas that the load comes from (default: %(default)s)")
    add("--measurements", action="store_true", help="only show what was published, against the formula")
    arguments = parser.parse_args()
    if len(sys.argv) == 1:
        raise CommandError(
            "give a model, the length of the texts and a load, as in make capacity "
            'ARGS="--model BAAI/bge-m3 --tokens 512 --docs-per-second 100"; ARGS=--help explains all flags'
        )
    if arguments.measurements:
        for table in measurement_tables():
            console.show(table)
        return 0
    flags = _flags(arguments)
    model, need = _model(arguments.model), _need(arguments, flags)
    for flag, least in (("replicas", 1), ("max_batch_tokens", 1), ("nodes", 1), ("apps", 1), ("gpu_shares", 1)):
        if (value := getattr(arguments, flag)) is not None and value < least:
            raise CommandError(f"--{flag.replace('_', '-')}: got {value}; allowed: {least} or more")
    request = Request(
        need,
        model,
        _gpu(arguments.gpu or "L4"),
        precision=arguments.precision,
        replicas=arguments.replicas,
        max_batch_tokens=arguments.max_batch_tokens,
        max_nodes=arguments.nodes,
        gpu_shares=arguments.gpu_shares,
        serves=images.serves,
    )
    if arguments.gpu is None:
        if arguments.instance_type:
            raise CommandError("--instance-type: give --gpu too; allowed without: none, all GPUs are compared")
        return _compare(request, arguments.apps, flags)
    if not images.serves(model, request.gpu):
        console.say(
            f"note: TEI has no image that serves {model.id} on {request.gpu.name}; the sizes hold for other engines"
        )
    return _one(_on_instance(request, arguments.instance_type), arguments.apps, flags)


def measurement_tables() -> list[Table]:
    """Published rows against the formula, and the indicative rows with the text length that they hold for."""
    published = [
        (row.id, row.role, row.gpu, row.tokens, _measured(row), _predicted(row), row.note or row.system)
        for row in data.published().values()
    ]
    indicative = [
        (row.stack, row.model, row.gpu, row.per_second, row.p95_ms, row.holds.typical, row.holds.best, row.holds.wall)
        for row in data.indicative()
    ]
    return [
        Table("Published", ("row", "role", "GPU", "tokens", "measured", "formula", "remark"), published),
        Table(
            "Indicative: possible only up to so many tokens per text, at 33 %, 62 % and 100 % of peak",
            ("stack", "model", "GPU", "documents/s", "p95 ms", "33 %", "62 %", "100 %"),
            indicative,
        ),
    ]


def _measured(row: data.Published) -> str:
    return f"{row.per_second:g}/s" if row.per_second is not None else f"{row.latency_ms:g} ms"


def _predicted(row: data.Published) -> str | None:
    predicted = data.predict(row)
    if predicted is None or row.role == "calibrates":
        return "is set by it" if row.role == "calibrates" else None
    measured = row.per_second or row.latency_ms or 0
    unit = "/s" if row.per_second is not None else " ms"
    return f"{rounded(predicted)}{unit} ({predicted / measured - 1:+.0%})"


def _one(request: Request, apps: int, flags: Mapping[str, str]) -> int:
    answer = size(request)
    title = f"{request.model.id} on {request.gpu.name}"
    if isinstance(answer, Unmet):
        lines = [line for line in answer.arithmetic if not line.startswith("refused: ")]
        console.show(_arithmetic(f"{title}: cannot be met as asked", lines))
        raise RefusedError(_by_flag(answer.refusals, flags))
    console.show(_arithmetic(title, answer.arithmetic))
    _show_topologies(answer, apps)
    return 0


def _compare(request: Request, apps: int, flags: Mapping[str, str]) -> int:
    found = compare(request, apps=apps)
    unmet = {option.unmet.refusals for option in found.options if option.unmet}
    if found.recommended is None and len(unmet) == 1:
        # What no GPU changes needs no table of GPUs.
        raise RefusedError(_by_flag(unmet.pop(), flags))
    console.show(_comparison(request, found, apps, flags))
    if found.recommended is None or found.recommended.sizing is None:
        raise CommandError(f"no GPU meets the need as asked with {request.model.id}; the table says why, GPU by GPU")
    console.say(f"recommended: {found.reason}")
    best = found.recommended
    console.show(_arithmetic(f"{request.model.id}, {best.topology} on {best.gpu}", found.recommended.sizing.arithmetic))
    _show_topologies(found.recommended.sizing, apps)
    return 0


def _flags(arguments: argparse.Namespace) -> dict[str, str]:
    """Flags by key, as the user gave them: one length may stand for all three."""
    if arguments.tokens is not None:
        return {**_FLAGS, "p50": "--tokens", "p95": "--tokens", "max": _FLAGS["max" if arguments.max else "tokens"]}
    if arguments.p95 is None:
        return {**_FLAGS, "p95": "--p50"}
    return {**_FLAGS, "p50": "--p95"} if arguments.p50 is None else _FLAGS


def _by_flag(refusals: Iterable[Refusal], flags: Mapping[str, str]) -> list[Refusal]:
    """Refusals with the flag in place of the key of a stack file."""
    return [replace(refusal, path=flags.get(refusal.path.rpartition(".")[2], refusal.path)) for refusal in refusals]


def _arithmetic(title: str, lines: list[str] | tuple[str, ...]) -> Table:
    return Table(title, ("of", "arithmetic"), [tuple(line.split(": ", 1)) for line in lines if ": " in line])


def _comparison(request: Request, found: Comparison, apps: int, flags: Mapping[str, str]) -> Table:
    rows: list[tuple[object, ...]] = []
    for option in found.options:
        sizing = option.sizing
        if sizing is None:
            refusals = _by_flag(option.unmet.refusals, flags) if option.unmet else []
            row = (option.gpu, "both", "-", "-", "-", "-", "-", "-", f"cannot: {' '.join(map(str, refusals[:1]))}")
            if row not in rows:
                rows.append(row)
            continue
        remark = f"{_usd(sizing.cost.on_demand_per_million, 2)} USD/million"
        if option.topology == "sidecar" and sizing.replicas > apps:
            remark += f", takes {sizing.replicas} app replicas"
        cost, fleet = sizing.cost, sizing.fleet
        rows.append(
            (
                option.gpu,
                option.topology,
                sizing.replicas,
                f"{fleet.nodes} x {fleet.node.name}",
                f"{sizing.utilisation:.0%}",
                f"{sizing.latency.planned:.0f} ms",
                _usd(cost.on_demand_month, 0),
                _usd(cost.spot_month, 0),
                remark + (", recommended" if option is found.recommended else ""),
            )
        )
    columns = ("GPU", "topology", "replicas", "nodes", "busy", "latency", "USD/month", "spot", "remark")
    load = f"{rounded(request.need.load)} documents/s from {counted(apps, 'app replica')}"
    return Table(f"{request.model.id}: {load}, TEI", columns, rows)


def _show_topologies(sizing: Sizing, apps: int) -> None:
    per_app = sizing.load / apps
    usable = sizing.per_replica * sizing.request.need.usable
    one = f"{rounded(usable)} documents/s that one {sizing.request.gpu.name} may be planned with"
    if per_app > usable:
        console.say(
            f"sidecars: each of {counted(apps, 'app replica')} brings {rounded(per_app)} documents/s, more than the "
            f"{one}; with a GPU beside each app replica there have to be "
            f"{counted(math.ceil(sizing.load / usable), 'app replica')}"
        )
        return
    rows = topologies(per_app, usable, range(1, _MOST_APPS + 1))
    console.show(
        Table(
            f"GPUs that more app replicas take, when each brings {rounded(per_app)} of the {one}",
            ("app replicas", "centralized", "sidecar"),
            [(row.apps, row.centralized, row.sidecar) for row in rows],
        )
    )
    point = crossover(rows)
    if point:
        console.say(f"centralized takes fewer GPUs from {counted(point, 'app replica')} on")
    else:
        console.say(f"sidecars take no more GPUs up to {_MOST_APPS} app replicas")


def _usd(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _model(name: str | None) -> Model:
    model = catalogue.models().get(name or "")
    if model is None:
        known = nearest_first(name or "", catalogue.models())
        raise CommandError(f"--model: got {name or 'nothing'}; allowed: {known}")
    return model


def _gpu(name: str) -> Gpu:
    gpu = catalogue.find_gpu(name)
    if gpu is None:
        raise CommandError(f"--gpu: got {name}; allowed: {nearest_first(name, catalogue.gpus())}")
    return gpu


def _on_instance(request: Request, name: str | None) -> Request:
    if name is None:
        return request
    instance = catalogue.instance_types().get(name)
    if instance is None or instance.gpu != request.gpu.name:
        of = [row.name for row in catalogue.instance_types().values() if row.gpu == request.gpu.name and row.gpu_count]
        raise CommandError(f"--instance-type: got {name}; allowed for {request.gpu.name}: {nearest_first(name, of)}")
    return replace(request, node_kinds=(node_of(instance),))


def _need(arguments: argparse.Namespace, flags: Mapping[str, str]) -> Need:
    if (arguments.tokens is None) == (arguments.p50 is None and arguments.p95 is None):
        raise CommandError("length of the texts: give --tokens, or --p50 and --p95")
    p50, p95 = arguments.p50 or arguments.p95, arguments.p95 or arguments.p50
    tokens = {
        "p50": p50 if arguments.tokens is None else arguments.tokens,
        "p95": p95 if arguments.tokens is None else arguments.tokens,
        "max": arguments.max or arguments.tokens,
    }
    given = {
        "documentsPerSecond": arguments.docs_per_second,
        "documentsPerMonth": arguments.docs_per_month,
        "tokens": tokens,
        "latencyMs": arguments.latency_ms,
        "headroom": arguments.headroom,
    }
    try:
        return Need.model_validate(given)
    except ValidationError as invalid:
        messages = []
        for error in invalid.errors(include_url=False):
            flag = flags[str(error["loc"][-1])] if error["loc"] else "load"
            given_here = f"got {quoted(error['input'])}; allowed: " if error["loc"] else ""
            text = re.sub("^(Value error,|Input should be) ", given_here, error["msg"]).replace(
                "documentsPerSecond", "--docs-per-second"
            )
            messages.append(f"{flag}: {text.replace('documentsPerMonth', '--docs-per-month')}")
        raise CommandError("; ".join(dict.fromkeys(messages))) from None


if __name__ == "__main__":
    sys.exit(run(main))
