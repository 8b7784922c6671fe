"""The pack as Pulumi starts it. The constructor serves until the engine ends, so nothing here can be tested."""

from pulumi_policy import PolicyPack

from policies.pack import NAME, environment, policies

PolicyPack(NAME, policies=policies(environment()))
