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
from infra.core.settings.workloads import WORKLOADS, AnyWorkload, App, NimWorkload, Scaling, TeiWorkload, Workload

__all__ = [
    "MOST_REPLICAS",
    "WORKLOADS",
    "Addons",
    "Allocatable",
    "AnyWorkload",
    "App",
    "CustomModel",
    "Images",
    "Monitoring",
    "NimWorkload",
    "NodePool",
    "Scaling",
    "SecretSource",
    "Stack",
    "TeiWorkload",
    "Workload",
    "load",
    "schema",
]
