"""What must not be deployed: one rule, one function, over plain Kubernetes objects.

The policy pack (policies/) and `make check` run the same rules. Object rules judge one object, set rules objects that
are deployed together. docs/policies.md lists them.
"""

from collections.abc import Iterable, Sequence

from infra.core.rules.images import IMAGE_AND_GPU, IMAGE_VERSION
from infra.core.rules.objects import UNKNOWN, Object
from infra.core.rules.pods import BUDGETS, GPU_SCHEDULING, POD_SECURITY, PROBES, SECRETS_IN_ENV, SERVICE_LINKS
from infra.core.rules.rule import (
    ENVIRONMENTS,
    UNKNOWN_VALUES,
    Finding,
    Level,
    ObjectRule,
    Rule,
    SetRule,
    Verdict,
    Violation,
    judge_object,
    judge_set,
    level,
)
from infra.core.rules.scaling import ONE_SCALER, REPLICAS_BESIDE_SCALER, SCALING_SIGNAL
from infra.core.rules.services import DISRUPTION_BUDGET, MONITOR_REACHES_SERVICE
from infra.core.rules.tei import BATCH_AND_CONCURRENCY, ENGINE_SETTINGS

__all__ = [
    "ENVIRONMENTS",
    "OBJECT_RULES",
    "SET_RULES",
    "UNKNOWN",
    "UNKNOWN_VALUES",
    "Finding",
    "Level",
    "Object",
    "ObjectRule",
    "Rule",
    "SetRule",
    "Verdict",
    "Violation",
    "judge",
    "judge_object",
    "judge_set",
    "level",
]

OBJECT_RULES: tuple[ObjectRule, ...] = (
    IMAGE_AND_GPU,
    IMAGE_VERSION,
    GPU_SCHEDULING,
    PROBES,
    BUDGETS,
    SCALING_SIGNAL,
    SECRETS_IN_ENV,
    SERVICE_LINKS,
    POD_SECURITY,
    BATCH_AND_CONCURRENCY,
    ENGINE_SETTINGS,
)
SET_RULES: tuple[SetRule, ...] = (REPLICAS_BESIDE_SCALER, ONE_SCALER, MONITOR_REACHES_SERVICE, DISRUPTION_BUDGET)


def judge(given: Sequence[Object], rules: Iterable[Rule] = (*OBJECT_RULES, *SET_RULES)) -> list[Violation]:
    """Every violation among objects that are deployed together, and what could not be judged (`unknown-values`)."""
    verdicts: list[Verdict] = []
    for rule in rules:
        if isinstance(rule, SetRule):
            verdicts.append(judge_set(rule, given))
        else:
            verdicts.extend(judge_object(rule, one) for one in given)
    found = [violation for verdict in verdicts for violation in verdict.violations]
    return found + [verdict.unknown for verdict in verdicts if verdict.unknown]
