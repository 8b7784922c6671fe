"""Prints what a stack would deploy, and why each value that the stack file left open became what it is.

Reads the stack file and the catalogue only: no cluster, no Pulumi, no account.
"""

import argparse
import json
import sys

from infra.core import plan as planner
from infra.core import settings
from infra.core.plan import Plan, Workload
from scripts import console, stackfile
from scripts.command import run
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
    return [
        Table(
            "Pools",
            ("pool", "GPU", "nodes", "GPUs per node", "GPUs wanted"),
            [(pool.name, pool.gpu, pool.nodes, pool.gpus_per_node, pool.gpus_wanted) for pool in plan.pools],
        ),
        Table(
            "Workloads",
            ("workload", "engine", "model", "pool", "replicas", "GPUs"),
            [
                (
                    workload.name,
                    f"{workload.engine.engine} {workload.engine.version}{' (stand-in)' if workload.stand_in else ''}",
                    workload.model.id,
                    workload.pool,
                    workload.replicas,
                    workload.replicas * workload.engine.resources.gpus,
                )
                for workload in plan.workloads
            ],
        ),
        *(
            Table(
                f"Workload {workload.name}", ("value", "is", "why, where the stack file left it open"), _rows(workload)
            )
            for workload in plan.workloads
        ),
    ]


def _rows(workload: Workload) -> list[tuple[object, ...]]:
    """Values by the names that the stack file has for them, each with its reason if the plan chose it."""
    resources, limits, budgets = workload.engine.resources, workload.engine.limits, workload.budgets
    values: dict[str, object] = {
        "image": workload.image,
        "model": workload.model.id,
        "revision": workload.model.revision,
        "gpus": f"{resources.gpus} x {workload.gpu} per pod" if workload.gpu else "none: CPU",
        "replicas": workload.replicas,
        "service": workload.service,
        "requireApiKey": workload.engine.api.api_key,
        "resources.cpu": f"{resources.cpu_millicores}m",
        "resources.memory": f"{resources.memory_mib}Mi",
        "resources.ephemeralStorage": f"{resources.ephemeral_storage_mib}Mi",
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


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.plan",
        description=__doc__,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--stack", default="local", help="stacks/Pulumi.<STACK>.yaml (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the whole plan as JSON")
    arguments = parser.parse_args()
    plan = of(arguments.stack)
    if arguments.json:
        print(json.dumps(plan.to_dict(), indent=2))
        return 0
    where = f"context {plan.context}" if plan.context else "the current context of the kubeconfig"
    print(f"Stack {plan.stack} ({plan.environment}): namespace {plan.namespace} in {where}")
    for table in tables(plan):
        console.show(table)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
