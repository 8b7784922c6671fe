"""What a user may write under ``embedding-serving:stack``. Unknown keys are refused with their path.

The file that users see is camelCase, as Pulumi and Kubernetes are; ``stacks/schema.json`` is generated from these
models. Choices are made in the plan, not here: an absent value stays None and the plan says what it became and why.
"""

from infra.core.settings.environment import (
    Addons,
    Allocatable,
    CustomModel,
    Images,
    Monitoring,
    NodePool,
    SecretSource,
)
from infra.core.settings.reading import load, schema
from infra.core.settings.stack import Stack
from infra.core.settings.texts import (
    MOST_REPLICAS,
)
from infra.core.settings.workloads import App, Scaling, TeiWorkload

__all__ = [
    "MOST_REPLICAS",
    "Addons",
    "Allocatable",
    "App",
    "CustomModel",
    "Images",
    "Monitoring",
    "NodePool",
    "Scaling",
    "SecretSource",
    "Stack",
    "TeiWorkload",
    "load",
    "schema",
]
