"""Prints what a stack would deploy, and why each value that the stack file left open became what it is.

Reads the stack file and the catalogue only: no cluster, no Pulumi, no account.
"""

import json
import sys
from collections.abc import Iterator

from infra.core import catalogue, settings
from infra.core import plan as planner
from infra.core.plan import Capacity, Plan, PlannedApp, Workload
from scripts import console, stackfile
from scripts.command import parser_of, run
from scripts.console import Table

_EXAMPLE = """example:
  make plan STACK=local
  python -m scripts.plan --stack local --json | jq '.workloads[].image'
"""


def of(name: str) -> Plan:
    """The plan of the stack ``name``. Raises CommandError for the file and RefusedError for what it asks for."""
    file = stackfile.read(name)
    return planner.make(settings.load(file.given), name=name, secrets=file.secrets)


def tables(plan: Plan) -> list[Table]:
    """The plan as a person reads it."""
    monitoring = plan.monitoring
    return [
        Table(
            "Pools",
            ("pool", "GPU", "nodes", "GPUs per node", "GPUs wanted"),
            [(pool.name, pool.gpu, pool.nodes, pool.gpus_per_node, pool.gpus_wanted) for pool in plan.pools],
        ),
        *(
            [
                Table(
                    "Operators that this stack installs",
                    ("operator", "version", "namespace"),
                    [(addon.name, addon.version, addon.namespace) for addon in plan.addons],
                )
            ]
            if plan.addons
            else []
        ),
        *(
            [
                Table(
                    "Prometheus",
                    ("address", "namespace", "labels of ServiceMonitors", "scraped every"),
                    [
                        (
                            monitoring.address,
                            monitoring.namespace,
                            ", ".join(f"{key}={value}" for key, value in monitoring.labels.items())
                            or "none: it takes all",
                            f"{monitoring.scrape_seconds} s",
                        )
                    ],
                )
            ]
            if monitoring
            else []
        ),
        Table(
            "Workloads",
            ("workload", "engine", "model", "pool", "replicas", "GPUs"),
            [
                (
                    workload.name,
                    f"{workload.engine.engine} {workload.engine.version}{' (stand-in)' if workload.stand_in else ''}",
                    ", ".join(model.id for model in workload.engine.models),
                    workload.pool,
                    _replicas(workload),
                    workload.max_replicas * workload.pod_resources.gpus,
                )
                for workload in plan.workloads
            ],
        ),
        *(table for workload in plan.workloads for table in _of(workload)),
    ]


def _of(workload: Workload) -> Iterator[Table]:
    columns = ("value", "is", "why, if not given")
    yield Table(f"Workload {workload.name}", columns, _rows(workload))
    capacity, scaling = workload.capacity, workload.scaling
    if scaling:
        yield Table(
            f"Workload {workload.name}: when KEDA asks for another replica",
            ("signal", "per replica", "asked of Prometheus"),
            [(trigger.name, trigger.threshold, trigger.query) for trigger in scaling.triggers],
        )
    if capacity is None:
        return
    lines = [tuple(line.split(": ", 1)) for line in capacity.arithmetic]
    compare = [("other GPUs", command)] if (command := _comparison(workload, capacity)) else []
    yield Table(f"Workload {workload.name}: how its need became sizes", ("of", "arithmetic"), [*lines, *compare])


def _comparison(workload: Workload, capacity: Capacity) -> str | None:
    """The command that compares all GPUs for the same need; it knows the models of the catalogue only."""
    [model] = workload.engine.models
    if model.id not in catalogue.models():
        return None
    need = capacity.need
    values = {
        "model": model.id,
        **need["tokens"],
        "docs-per-second": need.get("documentsPerSecond"),
        "docs-per-month": need.get("documentsPerMonth"),
        "latency-ms": need.get("latencyMs"),
        "headroom": need["headroom"],
    }
    flags = " ".join(f"--{flag} {_short(value)}" for flag, value in values.items() if value is not None)
    return f'make capacity ARGS="{flags}"'


def _short(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _models(workload: Workload) -> dict[str, object]:
    models = workload.engine.models
    if len(models) == 1:
        return {"model": models[0].id, "revision": models[0].revision or "that of the engine's release"}
    return {f"models.{model.client_name}": f"{model.id} {model.revision or ''}".strip() for model in models}


def _replicas(workload: Workload) -> object:
    return f"{workload.replicas} to {workload.max_replicas}" if workload.scaling else workload.replicas


def _rows(workload: Workload) -> list[tuple[object, ...]]:
    """Values by the names that the stack file has for them, each with its reason if the plan chose it."""
    resources, limits, budgets = workload.engine.resources, workload.engine.limits, workload.budgets
    app = workload.app
    values: dict[str, object] = {
        "topology": workload.topology,
        "image": workload.image,
        **_models(workload),
        "gpus": f"{workload.pod_resources.gpus} x {workload.gpu} per pod" if workload.gpu else "none: CPU",
        "replicas": _replicas(workload),
        "service": workload.service,
        "protocol": workload.engine.protocol,
        "requireApiKey": workload.engine.api.api_key,
        "resources.cpu": f"{resources.cpu_millicores}m",
        "resources.memory": f"{resources.memory_mib}Mi",
        "resources.ephemeralStorage": f"{resources.ephemeral_storage_mib}Mi",
        **(_app(app) if app else {}),
        "maxInputTokens": limits.max_input_tokens,
        "autoTruncate": limits.auto_truncate,
        "maxClientBatchSize": limits.max_client_batch_size,
        "maxConcurrentRequests": limits.max_concurrent_requests,
        "maxBatchTokens": limits.max_batch_tokens,
        "payloadLimit": f"{limits.payload_bytes} bytes",
        "imagePull": f"{budgets.image_pull} s",
        "startup": f"{budgets.startup} s",
        "longestRequest": f"{budgets.longest_request} s",
        "drain": f"{budgets.termination_grace} s",
        "progressDeadline": f"{budgets.progress_deadline} s",
        "rollout": f"{budgets.rollout} s",
    }
    why = {reason.field: reason.why for reason in workload.reasons}
    others = [(reason.field, reason.value, reason.why) for reason in workload.reasons if reason.field not in values]
    return [*((name, value, why.get(name, "")) for name, value in values.items()), *others]


def _app(app: PlannedApp) -> dict[str, object]:
    return {
        "app.image": app.image,
        "app.port": app.port.number,
        "app.resources.cpu": f"{app.resources.cpu_millicores}m",
        "app.resources.memory": f"{app.resources.memory_mib}Mi",
        "app.resources.ephemeralStorage": f"{app.resources.ephemeral_storage_mib}Mi",
        "app.startupSeconds": f"{app.startup_seconds} s",
        "app.longestRequestSeconds": f"{app.longest_request_seconds} s",
    }


def main() -> int:
    parser = parser_of("scripts.plan", __doc__, _EXAMPLE)
    parser.add_argument("--stack", default="local", help="stacks/Pulumi.<STACK>.yaml (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the whole plan as JSON")
    arguments = parser.parse_args()
    plan = of(arguments.stack)
    if arguments.json:
        print(json.dumps(plan.to_dict(), indent=2))
        return 0
    where = f"context {plan.context}" if plan.context else "the current context of the kubeconfig"
    console.say(f"Stack {plan.stack} ({plan.environment}): namespace {plan.namespace} in {where}")
    for table in tables(plan):
        console.show(table)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
