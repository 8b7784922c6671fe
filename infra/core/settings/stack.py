"""A whole stack file."""

from typing import Literal

from pydantic import Field

from infra.core.settings.environment import (
    Addons,
    Cluster,
    CustomModel,
    Images,
    Monitoring,
    Namespace,
    NodePool,
    Secrets,
)
from infra.core.settings.texts import Section
from infra.core.settings.workloads import AnyWorkload


class Stack(Section):
    """One environment."""

    environment: Literal["local", "dev", "staging", "prod"] = Field(
        description="Decides the level of the policies; stand-ins are for local only, staging and prod want revisions"
    )
    cluster: Cluster
    namespace: Namespace = Field(default_factory=Namespace)
    node_pools: tuple[NodePool, ...] = Field(min_length=1)
    images: Images = Field(default_factory=Images)
    addons: Addons = Field(default_factory=Addons)
    monitoring: Monitoring = Field(default_factory=Monitoring)
    secrets: Secrets = Field(default_factory=Secrets)
    models: tuple[CustomModel, ...] = Field(default=(), description="Models that the catalogue does not know")
    serving: tuple[AnyWorkload, ...] = Field(min_length=1)
