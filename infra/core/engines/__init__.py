"""Engines: what each decides for one workload, by the name that a stack file gives it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from infra.core.engines import nim, tei
from infra.core.engines.request import Description, Request


@dataclass(frozen=True)
class Engine:
    """One engine. ``registry`` is the host of its images; ``hub`` says whether its models come from the hub."""

    describe: Callable[[Request[Any]], Description]
    registry: str
    hub: bool


ENGINES: Mapping[str, Engine] = {
    "tei": Engine(tei.describe, tei.images.REGISTRY, hub=True),
    "nim": Engine(nim.describe, nim.versions.REGISTRY, hub=False),
}
