"""Runs the program on Pulumi's mocks and records what it registers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pulumi
from pulumi.runtime import rpc
from pulumi.runtime.mocks import MockCallArgs, MockResourceArgs, Mocks, set_mocks


@dataclass
class Recorder(Mocks):
    """Keeps every registered resource; answers with its inputs and names unnamed objects as the provider does."""

    resources: list[MockResourceArgs] = field(default_factory=list)

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        """Records the resource."""
        self.resources.append(args)
        outputs = dict(args.inputs)
        if "metadata" in outputs and "name" not in outputs["metadata"]:
            outputs["metadata"] = {**outputs["metadata"], "name": f"{args.name}-0123abcd"}
        return f"{args.name}-id", outputs

    def call(self, args: MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        """The program asks no provider for anything."""
        raise AssertionError(f"unexpected call of {args.token}")

    def objects(self) -> list[dict[str, Any]]:
        """What would be sent to the API server, as plain Kubernetes objects."""
        return [
            {"metadata": {"name": f"{resource.name}-0123abcd"}, **_plain(resource.inputs)}
            for resource in self.resources
            if resource.typ.startswith("kubernetes:")
        ]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """The recorded objects of one kind."""
        return [found for found in self.objects() if found["kind"] == kind]


def start(stack: str = "local") -> Recorder:
    """A fresh recorder; everything registered from now on goes to it."""
    recorder = Recorder()
    set_mocks(recorder, project="embedding-serving", stack=stack, preview=False)
    return recorder


def _plain(value: Any) -> Any:
    """Values without Pulumi's secret envelope: these are the tests' own made-up secrets."""
    if isinstance(value, Mapping):
        if value.get(rpc._special_sig_key) == rpc._special_secret_sig:
            return _plain(value["value"])
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def secret(value: str) -> pulumi.Output[str]:
    """A secret config value."""
    return pulumi.Output.secret(value)
