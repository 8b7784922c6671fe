"""Operators that a stack installs, from the objects that their projects publish."""

from collections.abc import Mapping
from typing import Any

import pulumi

from infra.core import catalogue
from infra.core.plan import PlannedAddon
from infra.program.objects import KubernetesObject


class Addon(pulumi.ComponentResource):
    """Every object of one operator, each a resource of its own, so that previews and policies see it."""

    def __init__(self, addon: PlannedAddon, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("embedding-serving:addons:Addon", f"addon-{addon.name}", None, opts)
        definitions, objects = catalogue.addon_objects(addon.name)
        # Custom resources and whatever lies in the namespace need these to be there.
        # Definitions stay when the operator goes: without them every object of their kinds would be deleted, those of
        # other stacks too.
        first = [self._register(one, [], retain=True) for one in definitions]
        first += [self._register(one, []) for one in objects if one["kind"] == "Namespace"]
        for one in objects:
            if one["kind"] != "Namespace":
                self._register(_with_images(one, addon.images), first)
        self.register_outputs({"version": addon.version})

    def _register(
        self, one: Mapping[str, Any], after: list[pulumi.Resource], *, retain: bool = False
    ) -> pulumi.Resource:
        metadata = one["metadata"]
        name = "/".join(part for part in (metadata.get("namespace"), metadata["name"]) if part)
        return KubernetesObject(
            name, one, pulumi.ResourceOptions(parent=self, depends_on=after, retain_on_delete=retain)
        )


def _with_images(value: Any, images: Mapping[str, str]) -> Any:
    """The value with every image replaced: operators also get images as arguments and in their own resources."""
    if isinstance(value, dict):
        return {key: _with_images(item, images) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_images(item, images) for item in value]
    if isinstance(value, str):
        for image, mirrored in images.items():
            if value == image or value.endswith(f"={image}"):
                return value.removesuffix(image) + mirrored
    return value
