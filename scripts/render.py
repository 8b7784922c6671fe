"""Writes what a stack puts into the cluster to manifests/<stack>/, one file per object, for review and for diffs.

Runs the program on a recording mock: no cluster, no Pulumi CLI, no passphrase. Secret values are not read; a marker
stands in their place. Operators come as their projects publish them: one file each below addons/, without their
CustomResourceDefinitions, which lie in infra/core/catalogue/addons/.
"""

import difflib
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import yaml

from infra.core import catalogue
from infra.core.plan import Plan
from infra.program.recording import SUFFIX, record
from local.paths import CHECKOUT
from scripts import plan as plans
from scripts import stackfile
from scripts.command import CommandError, parser_of, run

FOLDER = CHECKOUT / "manifests"
#: Base64 of no key, and it says why.
REDACTED = "REDACTED: a secret value, never rendered"

_EXAMPLE = """example:
  make render STACK=local
  python -m scripts.render --stack local --check
"""


def objects(plan: Plan) -> list[dict[str, Any]]:
    """The Kubernetes objects of a plan with every secret value replaced. Raises CommandError where one has no form."""
    # The values are made up, so that a leak shows this marker and not a key.
    recorder, _ = record(plan, dict.fromkeys(_secret_keys(plan), REDACTED))
    try:
        return recorder.objects(secret=REDACTED)
    except ValueError as error:
        raise CommandError(f"{error}: see infra/program/recording.py") from None


def _secret_keys(plan: Plan) -> set[str]:
    return {key for workload in plan.workloads if workload.secret for key in workload.secret.keys}


def _identity(one: dict[str, Any]) -> tuple[str, str, str, str]:
    metadata = one["metadata"]
    return one.get("apiVersion", ""), one["kind"], metadata.get("namespace", ""), metadata["name"]


def _order(one: dict[str, Any]) -> tuple[bool, str, str, str]:
    # Resources are registered concurrently, so their order is no fact. Whoever applies them needs Namespaces first.
    _, kind, namespace, name = _identity(one)
    return kind != "Namespace", kind, namespace, name


def _operators(plan: Plan) -> dict[tuple[str, str, str, str], str]:
    """Operator by object, for all objects of the operators that the plan installs."""
    return {
        _identity(one): addon.name
        for addon in plan.addons
        for part in catalogue.addon_objects(addon.name)
        for one in part
    }


def files(plan: Plan) -> dict[str, str]:
    """File name -> text of every object of a plan, the same from run to run."""
    operators = _operators(plan)
    made: list[dict[str, Any]] = []
    published: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in objects(plan):
        operator = operators.get(_identity(one))
        if operator is None:
            made.append(one)
        elif one["kind"] != "CustomResourceDefinition":
            published[operator].append(one)
    short = Counter(_short_name(one) for one in made)
    rendered: dict[str, str] = {}
    for one in made:
        name = _short_name(one)
        if short[name] > 1:
            name = f"{one['kind'].lower()}-{one['metadata'].get('namespace', 'default')}-{one['metadata']['name']}"
        if f"{name}.yaml" in rendered:
            raise CommandError(f"two objects would be manifests/{plan.stack}/{name}.yaml: give one another name")
        rendered[f"{name}.yaml"] = _text(plan.stack, one)
    for operator, its in published.items():
        where = f"infra/core/catalogue/addons/{operator}/crds.json"
        notes = [_note(plan.stack), f"Needs the CustomResourceDefinitions of {where}."]
        rendered[f"addons/{operator}.yaml"] = _commented(
            notes, "---\n".join(_body(one) for one in sorted(its, key=_order))
        )
    return dict(sorted(rendered.items()))


def _short_name(one: dict[str, Any]) -> str:
    # A name of RBAC may hold a colon, which some file systems refuse.
    return f"{one['kind']}-{one['metadata']['name']}".lower().replace(":", "-").removesuffix(SUFFIX)


def _text(stack: str, one: dict[str, Any]) -> str:
    notes = [_note(stack)]
    if one["metadata"]["name"].endswith(SUFFIX):
        notes.append(f"{SUFFIX} stands for the random suffix that Pulumi gives this object.")
    return _commented(notes, _body(one))


def _note(stack: str) -> str:
    return f"Rendered by `make render STACK={stack}` from stacks/Pulumi.{stack}.yaml; changes here are overwritten."


def _body(one: dict[str, Any]) -> str:
    return yaml.safe_dump(one, sort_keys=True, default_flow_style=False, width=120, allow_unicode=True)


def _commented(notes: list[str], body: str) -> str:
    return "".join(f"# {note}\n" for note in notes) + body


def write(plan: Plan, folder: Path) -> None:
    """Makes ``folder`` hold the rendered files and no other."""
    rendered = files(plan)
    folder.mkdir(parents=True, exist_ok=True)
    for stale in set(_existing(folder)) - set(rendered):
        (folder / stale).unlink()
    for name, text in rendered.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def differences(plan: Plan, folder: Path) -> list[str]:
    """A unified diff between the files in ``folder`` and what the program renders now; empty when they are equal."""
    rendered, there = files(plan), _existing(folder)
    lines: list[str] = []
    for name in sorted({*rendered, *there}):
        lines += difflib.unified_diff(
            there.get(name, "").splitlines(keepends=True),
            rendered.get(name, "").splitlines(keepends=True),
            f"manifests/{plan.stack}/{name}",
            f"rendered/{plan.stack}/{name}",
        )
    return lines


def _existing(folder: Path) -> dict[str, str]:
    found = sorted(folder.rglob("*.yaml"))
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in found}


def main() -> int:
    parser = parser_of("scripts.render", __doc__, _EXAMPLE)
    parser.add_argument(
        "--stack", nargs="+", default=stackfile.names(), help="stacks to render (default: every stack that has a file)"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail when manifests/ differs")
    arguments = parser.parse_args()
    stale = []
    for name in arguments.stack:
        plan = plans.of(name)
        if not arguments.check:
            write(plan, FOLDER / name)
            print(f"manifests/{name}: {len(_existing(FOLDER / name))} files")
        elif lines := differences(plan, FOLDER / name):
            sys.stdout.writelines(lines)
            stale.append(name)
    if stale:
        raise CommandError(f'manifests/ is not what the program renders: run make render STACK="{" ".join(stale)}"')
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
