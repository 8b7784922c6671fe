"""The pack as Pulumi starts it. The constructor serves until the engine ends, so nothing here can be tested."""

from pulumi_policy import EnforcementLevel, PolicyPack

from policies.pack import NAME, policies

PolicyPack(NAME, policies=policies(), enforcement_level=EnforcementLevel.MANDATORY)
