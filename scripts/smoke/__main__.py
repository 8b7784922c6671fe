"""Smoke test of a deployed stack: reads its contract, reaches each Service through kubectl port-forward, and says what
works, what does not (and what to do), and what cannot be proven where it runs.

Works with every cluster that the kubeconfig reaches. Exit code 1 if a check failed.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from infra.core.contract import Contract
from scripts import embedded, stackfile
from scripts.access import Access
from scripts.command import CommandError, parser_of, run
from scripts.smoke import source
from scripts.smoke.run import show, test, write

_EXAMPLE = """examples:
  make smoke STACK=local
  python -m scripts.smoke --stack prod --no-overload --junit smoke.xml --json smoke.json
  pulumi stack output contract --json > contract.json && python -m scripts.smoke --contract contract.json
"""


def main() -> int:
    parser = parser_of("scripts.smoke", __doc__, _EXAMPLE)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--stack", default="local", help="Pulumi stack to test (default: %(default)s)")
    where.add_argument("--contract", type=Path, metavar="FILE", help="contract from a file instead of the stack")
    parser.add_argument("--context", help="context of the kubeconfig (default: that of the stack file, else current)")
    parser.add_argument(
        "--overload",
        action=argparse.BooleanOptionalAction,
        help="whether one pod of each workload gets more texts at a time than it takes, which its clients notice for "
        "seconds (default: in environments local and dev)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the results as JUnit XML")
    arguments = parser.parse_args()
    if arguments.contract:
        contract, access = source.from_file(arguments.contract), Access(context=arguments.context)
    else:
        contract, access = _of_stack(arguments.stack, arguments.context)
    report = test(contract, access, burst=arguments.overload)
    show(report)
    write(report, arguments.json, arguments.junit)
    return 1 if report.failed else 0


def _of_stack(stack: str, context: str | None) -> tuple[Contract, Access]:
    file = stackfile.read(stack)
    if stack == embedded.STACK and context is None and embedded.exists():
        return source.from_stack(stack, embedded.environment()), embedded.access()
    given: Any = file.given
    described = given.get("cluster") if isinstance(given, dict) else None
    planned = described.get("context") if isinstance(described, dict) else None
    if stack == embedded.STACK and not context and not planned:
        raise CommandError("there is no embedded cluster: make up makes one and deploys stack local to it")
    return source.from_stack(stack), Access(context=context or planned)


if __name__ == "__main__":
    sys.exit(run(main))
