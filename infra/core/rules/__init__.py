"""What must not be deployed: one rule, one function, over plain Kubernetes objects.

The policy pack (policies/) and `make check` run the same rules. Object rules judge one object, set rules objects that
are deployed together. docs/policies.md lists them.
"""

from collections.abc import Sequence

from infra.core.rules.images import IMAGE_AND_GPU, IMAGE_VERSION
from infra.core.rules.keda import SCALED_OBJECT, SCALING_QUERY
from infra.core.rules.network import NETWORK_POLICY
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
    unknown_between,
    unknown_in,
)
from infra.core.rules.scaling import GPU_SCALING, ONE_SCALER, REPLICAS_BESIDE_SCALER, SCALE_TO_ZERO, SCALING_SIGNAL
from infra.core.rules.services import DISRUPTION_BUDGET, MONITOR_REACHES_SERVICE
from infra.core.rules.tei import BATCH_AND_CONCURRENCY, ENGINE_SETTINGS

__all__ = [
    "ALL",
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
    "unknown_between",
    "unknown_in",
]

OBJECT_RULES: tuple[ObjectRule, ...] = (
    IMAGE_AND_GPU,
    IMAGE_VERSION,
    GPU_SCHEDULING,
    PROBES,
    BUDGETS,
    SCALING_SIGNAL,
    SCALING_QUERY,
    SCALED_OBJECT,
    SECRETS_IN_ENV,
    SERVICE_LINKS,
    POD_SECURITY,
    BATCH_AND_CONCURRENCY,
    ENGINE_SETTINGS,
)
SET_RULES: tuple[SetRule, ...] = (
    REPLICAS_BESIDE_SCALER,
    ONE_SCALER,
    GPU_SCALING,
    SCALE_TO_ZERO,
    MONITOR_REACHES_SERVICE,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
)

ALL: tuple[Rule, ...] = (*OBJECT_RULES, *SET_RULES)


def judge(given: Sequence[Object]) -> list[Violation]:
    """Every violation among objects that are deployed together, and what could not be judged (`unknown-values`)."""
    verdicts = [judge_object(rule, one) for rule in OBJECT_RULES for one in given]
    verdicts += [judge_set(rule, given) for rule in SET_RULES]
    found = [violation for verdict in verdicts for violation in verdict.violations]
    for one in given:
        found += unknown_in(OBJECT_RULES, one)
    return found + unknown_between(SET_RULES, given)
