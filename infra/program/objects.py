"""Kubernetes objects for which the SDK has no class."""

from collections.abc import Mapping
from typing import Any

import pulumi


class KubernetesObject(pulumi.CustomResource):
    """Any object, as the API server takes it: custom resources, and manifests of other projects."""

    def __init__(self, name: str, manifest: Mapping[str, Any], opts: pulumi.ResourceOptions | None = None) -> None:
        """``manifest`` may hold outputs; ``apiVersion`` and ``kind`` are text, since they decide the resource type."""
        group = manifest["apiVersion"]
        token = f"kubernetes:{group if '/' in group else f'core/{group}'}:{manifest['kind']}"
        super().__init__(token, name, dict(manifest), opts)
