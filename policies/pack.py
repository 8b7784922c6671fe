"""The rules of `infra.core.rules` as CrossGuard policies.

Object rules are resource policies: they see the inputs of one object and stop the deployment before it is created. Set
rules are stack policies: they run once everything is registered, at the end of a preview.

Pulumi turns a policy that reads an unknown value into an advisory note (pulumi-policy 1.21, `UnknownValueError`). So
values are read here once, unknown ones as `rules.UNKNOWN`, and what a rule cannot judge is a violation of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pulumi_policy import (
    Policy,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy.proxy import UnknownValueError

from infra.core import rules
from infra.core.rules import Object, ObjectRule, SetRule

NAME = "embedding-serving"
#: What the stack rules could not judge; a policy can report on resources or on the stack, not on both.
_UNKNOWN_IN_STACK = f"{rules.UNKNOWN_VALUES}-in-stack"


def policies() -> list[Policy]:
    """Every rule as a policy, at the pack's own level, which is mandatory.

    Levels of an environment come with --policy-pack-config policies/levels/ENVIRONMENT.json: the engine starts packs
    without the stack's configuration (pulumi 3.274, pulumi-policy 1.21), so that they cannot look it up.
    """
    seen: dict[str, Object] = {}
    return [
        *(_for_objects(rule) for rule in rules.OBJECT_RULES),
        ResourceValidationPolicy(
            rules.UNKNOWN_VALUES,
            "What a rule has to see is known at preview",
            _Unjudged(seen),
        ),
        *(_for_sets(rule, seen) for rule in rules.SET_RULES),
        StackValidationPolicy(
            _UNKNOWN_IN_STACK,
            "What a rule about several objects has to see is known at preview",
            lambda args, report: _report_unjudged(args, seen, report),
        ),
    ]


def kubernetes_object(resource_type: str, properties: Mapping[str, Any], ignored: Sequence[str] = ()) -> Object | None:
    """The Kubernetes object of a resource; None when it is none.

    ``ignored`` are property paths of `ignore_changes`: Pulumi repeats there what it once declared, and it declares no
    longer.

    Patches (kubernetes:apps/v1:DeploymentPatch) hold a part of an object that somebody else owns, and components hold
    none: Pulumi calls a policy for each of the objects that they are made of.
    """
    if not resource_type.startswith("kubernetes:") or resource_type.endswith("Patch") or "kind" not in properties:
        return None
    found: Object = _plain(properties)
    for path in ignored:
        *parents, last = path.split(".")
        holder: Any = found
        for part in parents:
            holder = holder.get(part, {}) if isinstance(holder, dict) else {}
        if isinstance(holder, dict):
            holder.pop(last, None)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _item(value, key) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_item(value, index) for index in range(len(value))]
    # Pulumi sends every number as a float; Kubernetes has whole ones only.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _item(values: Any, key: Any) -> Any:
    try:
        return _plain(values[key])
    except UnknownValueError:
        return rules.UNKNOWN


def _for_objects(rule: ObjectRule) -> ResourceValidationPolicy:
    def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
        given = kubernetes_object(args.resource_type, args.props, args.opts.ignore_changes)
        if given is not None:
            for violation in rules.judge_object(rule, given).violations:
                report(str(violation), None)

    return ResourceValidationPolicy(rule.id, rule.title, validate)


class _Unjudged:
    """Reports what object rules could not judge, and keeps each object as it was declared for the set rules.

    The stack policies themselves are shown outputs, in which the API server's defaults (replicas: 1) look like choices.
    """

    def __init__(self, seen: dict[str, Object]) -> None:
        self._seen = seen

    def __call__(self, args: ResourceValidationArgs, report: ReportViolation) -> None:
        given = kubernetes_object(args.resource_type, args.props, args.opts.ignore_changes)
        if given is None:
            return
        self._seen[args.urn] = given
        for unknown in rules.unknown_in(rules.OBJECT_RULES, given):
            report(str(unknown), None)


def _declared(args: StackValidationArgs, seen: Mapping[str, Object]) -> dict[str, Object]:
    """URN -> object of everything in the stack, as it was declared."""
    return {resource.urn: seen[resource.urn] for resource in args.resources if resource.urn in seen}


def _for_sets(rule: SetRule, seen: Mapping[str, Object]) -> StackValidationPolicy:
    def validate(args: StackValidationArgs, report: ReportViolation) -> None:
        declared = _declared(args, seen)
        urns = {id(given): urn for urn, given in declared.items()}
        for violation in rules.judge_set(rule, list(declared.values())).violations:
            report(str(violation), urns[id(violation.subject)])

    return StackValidationPolicy(rule.id, rule.title, validate)


def _report_unjudged(args: StackValidationArgs, seen: Mapping[str, Object], report: ReportViolation) -> None:
    for unknown in rules.unknown_between(rules.SET_RULES, list(_declared(args, seen).values())):
        report(str(unknown), None)
