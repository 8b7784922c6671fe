"""A cluster of the tests' own, beside the checkout's: other id, other state directory, same machinery."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from local import cluster, images, paths, toolchain
from local.cluster import Cluster
from local.images import names
from local.report import PlainReporter


class Lines:
    """A reporter that remembers what it was told."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.finished: list[str] = []

    def step(self, text: str) -> None:
        self.steps.append(text)

    def done(self, text: str, seconds: float) -> None:  # noqa: ARG002
        self.finished.append(text)


@dataclass(frozen=True)
class Kit:
    """What a cluster is made of, and clusters made of it."""

    programs: Mapping[str, Path]
    images: Mapping[str, Path]
    made: list[Cluster] = field(default_factory=list)

    def cluster(self, name: str) -> Cluster:
        """A cluster that is taken down when the session ends. What an interrupted session left of it is removed."""
        made = Cluster(paths.state_dir() / f"test-{name}", f"{cluster.cluster_id(paths.CHECKOUT)}-{name}")
        made.down(Lines())
        self.made.append(made)
        return made

    def up(self, which: Cluster) -> Lines:
        lines = Lines()
        which.up(lines, self.programs, self.images)
        return lines


@pytest.fixture(scope="session")
def kit() -> Iterator[Kit]:
    reporter = PlainReporter()
    programs = toolchain.ensure(cluster.PROGRAMS, reporter)
    kit = Kit(programs, images.ensure(reporter, (names.PAUSE, names.COREDNS)))
    yield kit
    for made in kit.made:
        made.down(Lines())


@pytest.fixture(scope="session")
def running(kit: Kit) -> Cluster:
    """A cluster that is up; tests leave it up."""
    made = kit.cluster("shared")
    kit.up(made)
    return made
