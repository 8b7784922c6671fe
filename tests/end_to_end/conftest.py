"""One embedded cluster for all end-to-end tests, apart from the one of `make up`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from local import cluster, images, pulumi_host, toolchain
from local.cluster import Cluster
from local.paths import CHECKOUT, state_dir
from local.report import PlainReporter
from tests.end_to_end.deployment import IMAGES, Deployment, stack_of


@pytest.fixture(scope="session")
def programs() -> dict[str, Path]:
    """The toolchain, built if need be."""
    return toolchain.ensure(toolchain.EMBEDDED, PlainReporter())


@pytest.fixture(scope="session")
def embedded(programs: dict[str, Path]) -> Iterator[Cluster]:
    """A running cluster that is gone afterwards, whatever happens."""
    running = Cluster(state_dir() / "e2e" / "cluster", cluster.cluster_id(CHECKOUT / "tests" / "end_to_end"))
    try:
        running.up(PlainReporter(), programs, images.ensure(PlainReporter(), only=IMAGES))
        yield running
    finally:
        running.down(PlainReporter())
        for folder in (running.layout.state.parent, state_dir()):
            # The checkout's own cluster may be there as well.
            with contextlib.suppress(OSError):
                folder.rmdir()


@pytest.fixture(scope="session")
def environment(
    embedded: Cluster, programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Pulumi on a file backend of its own, kubectl and the kubeconfig."""
    state = tmp_path_factory.mktemp("pulumi")
    links = state / "bin"
    links.mkdir()
    for name in (*toolchain.CLIENT, "pulumi-language-python"):
        if path := programs.get(name):
            (links / name).symlink_to(path)
    return pulumi_host.environment(links, state) | {"KUBECONFIG": str(embedded.layout.kubeconfig)}


@pytest.fixture
def deployment(environment: dict[str, str], tmp_path: Path) -> Iterator[Deployment]:
    """A stack that does not exist yet, and that is destroyed afterwards."""
    with stack_of(Deployment(tmp_path, environment)) as made:
        yield made
