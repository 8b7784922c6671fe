"""What a rule is, and what it says."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from infra.core.rules import objects
from infra.core.rules.objects import Object, UnknownValueError


class Level(StrEnum):
    """What a violation does: an advisory one is shown, a mandatory one stops the deployment."""

    ADVISORY = "advisory"
    MANDATORY = "mandatory"


#: The environments of a stack file.
ENVIRONMENTS = ("local", "dev", "staging", "prod")
#: For what cannot work, or leaks, in any environment.
ALWAYS_MANDATORY: Mapping[str, Level] = dict.fromkeys(ENVIRONMENTS, Level.MANDATORY)
#: For what a trial may do without and what others rely on may not.
MANDATORY_FROM_STAGING: Mapping[str, Level] = {
    **ALWAYS_MANDATORY,
    "local": Level.ADVISORY,
    "dev": Level.ADVISORY,
}


@dataclass(frozen=True)
class Finding:
    """What is wrong at one place of an object, and how to put it right. Never repeats the value of a secret."""

    path: str
    problem: str
    fix: str


@dataclass(frozen=True)
class ObjectRule:
    """Judges one object at a time, so that it stops a deployment before the object is created."""

    id: str
    title: str
    levels: Mapping[str, Level]
    check: Callable[[Object], Iterable[Finding]]


@dataclass(frozen=True)
class SetRule:
    """Judges objects together; findings come with the object that they are about."""

    id: str
    title: str
    levels: Mapping[str, Level]
    check: Callable[[Sequence[Object]], Iterable[tuple[Object, Finding]]]


Rule = ObjectRule | SetRule


@dataclass(frozen=True)
class Violation:
    """A finding of a rule. ``subject`` is the object as it was given to the rule."""

    rule: str
    subject: Object
    finding: Finding

    def __str__(self) -> str:
        found = self.finding
        return f"{objects.title(self.subject)}: {found.path}: {found.problem}. {found.fix}"


@dataclass(frozen=True)
class Verdict:
    """What a rule says. ``unknown`` is the place of the value for want of which it could not be judged to the end."""

    violations: tuple[Violation, ...]
    unknown: str | None = None


#: Id under which it is reported what rules could not judge.
UNKNOWN_VALUES = "unknown-values"


def judge_object(rule: ObjectRule, given: Object) -> Verdict:
    """What ``rule`` says of one object; values may be `objects.UNKNOWN`."""
    violations: list[Violation] = []
    try:
        for finding in rule.check(objects.guarded(given)):
            violations.append(Violation(rule.id, given, finding))
    except UnknownValueError as unknown:
        return Verdict(tuple(violations), unknown.path)
    return Verdict(tuple(violations))


def judge_set(rule: SetRule, given: Sequence[Object]) -> Verdict:
    """What ``rule`` says of objects that are deployed together. ``unknown`` starts with the title of an object."""
    as_read = [objects.guarded(one, f"{objects.title(one)}: ") for one in given]
    originals = {id(read): original for read, original in zip(as_read, given, strict=True)}
    violations: list[Violation] = []
    try:
        for subject, finding in rule.check(as_read):
            violations.append(Violation(rule.id, originals[id(subject)], finding))
    except UnknownValueError as unknown:
        return Verdict(tuple(violations), unknown.path)
    return Verdict(tuple(violations))


def unknown_in(rules: Iterable[ObjectRule], given: Object) -> list[Violation]:
    """The values of one object that ``rules`` need and that are not known, each once."""
    return _unknown(given, ((rule.id, judge_object(rule, given).unknown) for rule in rules))


def unknown_between(rules: Iterable[SetRule], given: Sequence[Object]) -> list[Violation]:
    """The same of objects that are deployed together; the subject is the whole stack."""
    return _unknown({"kind": "Stack"}, ((rule.id, judge_set(rule, given).unknown) for rule in rules))


def _unknown(subject: Object, found: Iterable[tuple[str, str | None]]) -> list[Violation]:
    wanted: dict[str, list[str]] = defaultdict(list)
    for rule, path in found:
        if path is not None:
            wanted[path].append(rule)
    problem = "not known before another resource exists, so that nobody can judge"
    fix = "Give it as a plain value, not as an output of a resource"
    return [
        Violation(UNKNOWN_VALUES, subject, Finding(path, f"{problem} {', '.join(names)}", fix))
        for path, names in wanted.items()
    ]
