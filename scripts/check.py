"""Judges what a stack puts into the cluster: by the rules of the policy pack, and on request by outside judges.

Needs no cluster and no Pulumi CLI. Mandatory violations fail, advisory ones are shown; the stack file's environment
says which is which (docs/policies.md). Outside judges look at manifests/ (docs/judges.md).
"""

import sys

from infra.core import rules
from infra.core.plan import Plan
from infra.core.rules import UNKNOWN_VALUES, Level, Violation
from local import judges
from local.judges import suppressions
from scripts import console, render, stackfile
from scripts import plan as plans
from scripts.command import CommandError, parser_of, run

_EXAMPLE = """example:
  make check STACK=local
  python -m scripts.check --stack local --judges
"""
_RULES = {rule.id: rule for rule in rules.ALL}


def violations(plan: Plan) -> list[tuple[Level, Violation]]:
    """What the rules say of a plan's objects, with the level of each in the plan's environment."""
    return [(_level(found, plan.environment), found) for found in rules.judge(render.objects(plan))]


def _level(found: Violation, environment: str) -> Level:
    return Level.MANDATORY if found.rule == UNKNOWN_VALUES else _RULES[found.rule].levels[environment]


def _by_judges(stack: str) -> list[str]:
    """Complaints about manifests/<stack> that no suppression covers."""
    folder = render.FOLDER / stack
    if not folder.is_dir():
        raise CommandError(f"there is no manifests/{stack}: run make render STACK={stack}")
    with console.reporter() as reporter:
        complaints = judges.complaints(folder, reporter)
    return [str(complaint) for complaint in suppressions.not_suppressed(complaints, suppressions.read())]


def main() -> int:
    parser = parser_of("scripts.check", __doc__, _EXAMPLE)
    parser.add_argument(
        "--stack", nargs="+", default=stackfile.names(), help="stacks to judge (default: every stack that has a file)"
    )
    parser.add_argument(
        "--judges", action="store_true", help=f"ask {' and '.join(judges.JUDGES)} about manifests/ as well"
    )
    arguments = parser.parse_args()
    refused = 0
    for name in arguments.stack:
        found = violations(plans.of(name))
        for level, violation in found:
            print(f"{name}: {level} {violation.rule}: {violation}")
        complaints = _by_judges(name) if arguments.judges else []
        for complaint in complaints:
            print(f"{name}: {complaint}")
        mandatory = sum(level is Level.MANDATORY for level, _ in found)
        refused += mandatory + len(complaints)
        print(f"{name}: {len(_RULES)} rules, {mandatory} mandatory and {len(found) - mandatory} advisory violations")
        if arguments.judges:
            print(f"{name}: {', '.join(judges.JUDGES)}: {len(complaints)} complaints that are not suppressed")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(run(main))
