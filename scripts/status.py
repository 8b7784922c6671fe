"""Shows the health of every part of the embedded cluster with its log, and what the stack `local` runs on it.

Exit code 1 if a part is not healthy, or when there is no cluster.
"""

import sys
from pathlib import Path

from local import cluster
from local.paths import CHECKOUT
from scripts import console, embedded
from scripts.command import CommandError, parser_of, run
from scripts.console import Table
from scripts.smoke import source
from scripts.smoke.cluster import DeployedWorkload
from scripts.smoke.results import UnmetError

_EXAMPLE = """example:
  make status
"""


def main() -> int:
    parser = parser_of("scripts.status", __doc__, _EXAMPLE)
    parser.parse_args()
    parts = cluster.status()
    if not parts:
        print("There is no embedded cluster here. make up makes one.")
        return 1
    console.show(
        Table(
            "Cluster",
            ("part", "health", "pid", "up for", "log"),
            [(p.name, p.detail, p.pid, _age(p.uptime), _shown(p.log)) for p in parts],
        )
    )
    healthy = all(part.healthy for part in parts)
    if not healthy:
        print("make up starts again what does not run.")
        return 1
    return 0 if _workloads() else 1


def _workloads() -> bool:
    """Shows the stack's pods; False if a workload is not as planned."""
    try:
        contract = source.from_stack(embedded.STACK, embedded.environment())
    except CommandError as error:
        print(f"No workloads: {error}")
        return True
    rows: list[tuple[object, ...]] = []
    well = True
    for workload in contract.workloads:
        try:
            state = DeployedWorkload(workload, embedded.access()).pods()
        except UnmetError as error:
            well, state = False, f"{error}; {error.next_step}"
        rows.append((workload.name, f"{workload.engine} {workload.version}", workload.stand_in, state))
    console.show(Table("Workloads", ("workload", "engine", "stand-in", "pods"), rows))
    return well


def _shown(log: Path | None) -> Path | None:
    """Relative to the checkout, where `make status` is run."""
    return log.relative_to(CHECKOUT) if log and log.is_relative_to(CHECKOUT) else log


def _age(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


if __name__ == "__main__":
    sys.exit(run(main))
