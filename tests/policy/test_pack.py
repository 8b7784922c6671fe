"""The pack as Python, without an engine: what a policy is given, what it reports, and at which level."""

import json
from typing import Any

import pytest
from pulumi_policy import (
    Policy,
    PolicyResource,
    PolicyResourceOptions,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy.policy import PolicyCustomTimeouts
from pulumi_policy.proxy import UNKNOWN_STRING_VALUE, unknown_checking_proxy

from infra.core import rules
from local.paths import CHECKOUT
from policies import pack
from tests.core.kubernetes import CONTAINER, deployment, network_policy, scaled_object

pytestmark = pytest.mark.policy

DEPLOYMENT = "kubernetes:apps/v1:Deployment"
OPTIONS = PolicyResourceOptions(False, [], None, [], PolicyCustomTimeouts(0, 0, 0), [])


class Engine:
    """Calls the policies as the engine does: every resource first, the stack at the end."""

    def __init__(self) -> None:
        self.policies: dict[str, Policy] = {policy.name: policy for policy in pack.policies()}
        self.resources: list[PolicyResource] = []
        self.reports: list[tuple[str, str, str | None]] = []

    def register(self, token: str, properties: dict[str, Any], outputs: dict[str, Any] | None = None) -> None:
        urn = f"urn:{token}::{len(self.resources)}"
        read = unknown_checking_proxy(properties)
        for policy in self.policies.values():
            if isinstance(policy, ResourceValidationPolicy):
                policy.validate(
                    ResourceValidationArgs(token, read, urn, "name", OPTIONS, None), self._reporter(policy, urn)
                )
        after = unknown_checking_proxy(outputs or properties)
        self.resources.append(PolicyResource(token, after, urn, "name", OPTIONS, None, None, [], {}))

    def finish(self) -> list[tuple[str, str, str | None]]:
        """What is said at the end of a stack that has a NetworkPolicy for its engines."""
        self.register("kubernetes:networking.k8s.io/v1:NetworkPolicy", network_policy())
        for policy in self.policies.values():
            if isinstance(policy, StackValidationPolicy):
                policy.validate(StackValidationArgs(self.resources), self._reporter(policy, None))
        return self.reports

    def _reporter(self, policy: Policy, urn: str | None) -> Any:
        return lambda message, about=None: self.reports.append((policy.name, message, about or urn))


def test_every_rule_is_a_policy_and_unknown_values_have_two() -> None:
    names = {rule.id for rule in rules.ALL}
    assert set(Engine().policies) == names | {"unknown-values", "unknown-values-in-stack"}


@pytest.mark.parametrize("environment", rules.ENVIRONMENTS)
def test_the_levels_file_of_an_environment_has_the_rules_levels(environment: str) -> None:
    levels = json.loads((CHECKOUT / f"policies/levels/{environment}.json").read_text(encoding="utf-8"))
    assert levels == {rule.id: rule.levels[environment] for rule in rules.ALL}


def test_no_policy_has_a_level_of_its_own_below_that_of_the_pack() -> None:
    assert {policy.enforcement_level for policy in Engine().policies.values()} == {None}


def test_a_good_object_is_accepted_and_a_bad_one_reported_with_its_urn() -> None:
    engine = Engine()
    engine.register(DEPLOYMENT, deployment())
    engine.register(DEPLOYMENT, deployment({f"{CONTAINER}.image": "app:latest", "metadata.name": "other"}))
    [(policy, message, urn)] = engine.finish()
    assert policy == "image-version"
    assert "Deployment rag/other" in message
    assert urn == f"urn:{DEPLOYMENT}::1"


def test_a_number_arrives_as_a_float_and_is_judged_as_a_whole_one() -> None:
    engine = Engine()
    limits = {"nvidia.com/gpu": 1.0}
    engine.register(DEPLOYMENT, deployment({f"{CONTAINER}.resources": {"limits": limits, "requests": limits}}))
    engine.register(DEPLOYMENT, deployment({f"{CONTAINER}.ports.0.containerPort": 8080.0, "metadata.name": "other"}))
    assert engine.finish() == []


@pytest.mark.parametrize(
    ("token", "properties"),
    [
        ("kubernetes:apps/v1:DeploymentPatch", deployment({f"{CONTAINER}.image": "app:latest"})),
        ("kubernetes:helm.sh/v4:Chart", {"chart": "keda"}),
        ("aws:ec2/instance:Instance", {"kind": "Deployment"}),
    ],
)
def test_case_93_what_is_no_single_object_is_left_to_the_objects_it_makes(
    token: str, properties: dict[str, Any]
) -> None:
    engine = Engine()
    engine.register(token, properties)
    assert engine.finish() == []


def test_case_94_an_unknown_value_is_a_violation() -> None:
    engine = Engine()
    engine.register(DEPLOYMENT, deployment({f"{CONTAINER}.image": UNKNOWN_STRING_VALUE}))
    found = {policy: (message, urn) for policy, message, urn in engine.finish()}
    message, urn = found.pop("unknown-values")
    assert urn == f"urn:{DEPLOYMENT}::0"
    assert "spec.template.spec.containers[0].image: not known" in message
    # Which pods serve a model is what rules about several objects ask, too.
    assert list(found) == ["unknown-values-in-stack"]


def test_case_94_an_unknown_value_between_objects_is_a_violation_too() -> None:
    engine = Engine()
    engine.register(DEPLOYMENT, deployment())
    engine.register(
        "kubernetes:keda.sh/v1alpha1:ScaledObject", scaled_object({"metadata.namespace": UNKNOWN_STRING_VALUE})
    )
    [(policy, message, _)] = engine.finish()
    assert policy == "unknown-values-in-stack"
    assert "ScaledObject embed: metadata.namespace: not known" in message


def test_an_unknown_value_that_no_rule_reads_is_accepted() -> None:
    engine = Engine()
    engine.register(DEPLOYMENT, deployment({"spec.template.spec.serviceAccountName": UNKNOWN_STRING_VALUE}))
    assert engine.finish() == []


def test_rules_about_several_objects_see_what_was_declared_and_not_the_defaults_of_the_server() -> None:
    engine = Engine()
    engine.register(DEPLOYMENT, deployment(), outputs=deployment({"spec.replicas": 1}))
    engine.register("kubernetes:keda.sh/v1alpha1:ScaledObject", scaled_object())
    assert engine.finish() == []
    engine.register(DEPLOYMENT, deployment({"spec.replicas": 1}))
    declared = engine.resources[-1].urn
    [(policy, _, urn)] = engine.finish()
    assert (policy, urn) == ("replicas-beside-scaler", declared)


def test_an_object_that_has_left_the_stack_is_not_judged() -> None:
    engine = Engine()
    engine.register(DEPLOYMENT, deployment({"spec.replicas": 1}))
    engine.register("kubernetes:keda.sh/v1alpha1:ScaledObject", scaled_object())
    engine.resources.pop()
    assert engine.finish() == []


def test_what_pulumi_ignores_is_no_part_of_the_object() -> None:
    # A Deployment that was given `replicas` before it was scaled keeps the old number in Pulumi's inputs.
    given = {"kind": "Deployment", "spec": {"replicas": 6, "paused": False}}
    found = pack.kubernetes_object(
        "kubernetes:apps/v1:Deployment", given, ["spec.replicas", "status.x", "spec.replicas.y"]
    )
    assert found == {"kind": "Deployment", "spec": {"paused": False}}
