"""Runs the program on Pulumi's mocks and keeps what it registers, for rendering, checks and tests. Creates nothing."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pulumi
from pulumi.runtime import rpc
from pulumi.runtime.mocks import MockCallArgs, MockResourceArgs, Mocks, set_mocks

from infra.core.plan import Plan
from infra.program import deploy

#: Pulumi names an object without a name by its resource and a random suffix; here the suffix is always the same.
SUFFIX = "-0123abcd"


@dataclass
class Recorder(Mocks):
    """Keeps every registered resource; answers with its inputs and names unnamed objects as the provider does."""

    resources: list[MockResourceArgs] = field(default_factory=list)

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        """Records the resource."""
        self.resources.append(args)
        return f"{args.name}-id", _named(args.name, args.inputs)

    def call(self, args: MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        """The program asks no provider for anything."""
        raise AssertionError(f"unexpected call of {args.token}")

    def objects(self, secret: str | None = None) -> list[dict[str, Any]]:
        """What would be sent to the API server, as plain Kubernetes objects.

        secret: stands where a secret value would; None for the values themselves.
        Raises ValueError for a resource that is no single object: what it would create is not known here.
        """
        found = []
        for resource in self.resources:
            if not resource.typ.startswith("kubernetes:"):
                continue
            if "kind" not in resource.inputs:
                raise ValueError(f"{resource.typ} {resource.name} is no single Kubernetes object and cannot be shown")
            plain: dict[str, Any] = _plain(_named(resource.name, resource.inputs), secret)
            if secret is not None and plain["kind"] == "Secret":
                # Whether or not Pulumi was told that they are secret.
                plain |= {key: _covered(plain[key], secret) for key in ("data", "stringData") if key in plain}
            found.append(plain)
        return found

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """The recorded objects of one kind, with the secret values that the program was given."""
        return [found for found in self.objects() if found["kind"] == kind]


def record(plan: Plan, secrets: Mapping[str, str]) -> tuple[Recorder, dict[str, Any]]:
    """Registers every resource of the plan; returns the recorder and the contract.

    ``secrets`` are values for the secret config keys of the plan. Made-up ones will do: nothing leaves this process.
    """
    # The mocks look for an event loop, which Python no longer makes by itself.
    asyncio.set_event_loop(asyncio.new_event_loop())
    recorder = Recorder()
    set_mocks(recorder, project="embedding-serving", stack=plan.stack, preview=False)
    contract: list[dict[str, Any]] = []

    @pulumi.runtime.test  # type: ignore[untyped-decorator]
    def run() -> pulumi.Output[None]:
        values = {key: pulumi.Output.secret(value) for key, value in secrets.items()}
        return deploy(plan, values).apply(contract.append)

    run()
    return recorder, contract[0]


def _named(name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if "kind" not in inputs or "name" in inputs.get("metadata", {}):
        return dict(inputs)
    return {**inputs, "metadata": {**inputs.get("metadata", {}), "name": f"{name}{SUFFIX}"}}


def _plain(value: Any, secret: str | None) -> Any:
    """Values as the provider sends them on, without Pulumi's secret envelope."""
    if isinstance(value, Mapping):
        if value.get(rpc._special_sig_key) == rpc._special_secret_sig:
            return _plain(value["value"], secret) if secret is None else _covered(value["value"], secret)
        return {key: _plain(item, secret) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, secret) for item in value]
    # Pulumi sends every number as a float; Kubernetes has whole ones only.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _covered(value: Any, secret: str) -> Any:
    """A secret mapping keeps its keys: they are no secret, and without them nobody could check the object."""
    return {key: _covered(item, secret) for key, item in value.items()} if isinstance(value, Mapping) else secret
