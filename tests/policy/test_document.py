"""docs/policies.md says what the rules are."""

import pytest

from infra.core import rules
from infra.core.rules import ObjectRule, Rule
from local.paths import CHECKOUT

pytestmark = pytest.mark.policy

DOCUMENT = (CHECKOUT / "docs/policies.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("rule", rules.ALL, ids=lambda rule: rule.id)
def test_the_document_has_every_rule_with_its_levels(rule: Rule) -> None:
    about = "one object" if isinstance(rule, ObjectRule) else "objects together"
    levels = f"{rule.levels['dev']} | {rule.levels['prod']}"
    assert rule.levels["dev"] is rule.levels["local"]
    assert rule.levels["prod"] is rule.levels["staging"]
    assert f"| {rule.id} | {rule.title} | {about} | {levels} |" in DOCUMENT


def test_the_document_has_no_rule_that_is_gone() -> None:
    rows = [line for line in DOCUMENT.splitlines() if line.endswith((" mandatory |", " advisory |"))]
    assert len(rows) == len(rules.ALL) + 1
