"""A TEI stand-in on loopback, started with the environment that the plan emits, and the contract that goes with it."""

import dataclasses
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest

from infra.core import contract, plan, settings
from infra.core.contract import WorkloadContract
from local import images
from local.paths import CHECKOUT
from local.report import PlainReporter
from scripts.smoke.results import Result
from scripts.smoke.results import run as run_checks
from scripts.smoke.tei import TeiService
from scripts.smoke.tei_grpc import TeiGrpcService
from tests import stacks

API_KEY = "the-key-of-this-test"
#: Gives up on a server that never starts; a start takes about a second.
_START_SECONDS = 120


@dataclass(frozen=True)
class Served:
    """A running stand-in and what its contract says."""

    contract: WorkloadContract
    url: str
    key: str | None

    def promising(self, **changes: Any) -> "Served":
        """The same server under a contract that says something else; ``limits`` are merged."""
        limits = self.contract.limits | changes.pop("limits", {})
        return replace(self, contract=changed(self.contract, limits=limits, **changes))

    def checked(self) -> dict[str, Result]:
        """All checks, by name."""
        return {r.check: r for r in run_checks(TeiService(self.contract, self.url, self.key).checks(), self.key)}


@dataclass(frozen=True)
class ServedGrpc:
    """A running stand-in of the gRPC build and what its contract says."""

    contract: WorkloadContract
    target: str
    metrics_url: str | None
    key: str | None

    def promising(self, **changes: Any) -> "ServedGrpc":
        """As of Served."""
        limits = self.contract.limits | changes.pop("limits", {})
        return replace(self, contract=changed(self.contract, limits=limits, **changes))

    def with_key(self, key: str) -> "ServedGrpc":
        return replace(self, key=key)

    def at(self, target: str) -> "ServedGrpc":
        return replace(self, target=target)

    def without_metrics(self) -> "ServedGrpc":
        return replace(self, metrics_url=None)

    def checked(self) -> dict[str, Result]:
        """All checks, by name."""
        service = TeiGrpcService(self.contract, self.target, self.key, self.metrics_url)
        return {r.check: r for r in run_checks(service.checks(), self.key)}


def planned(**changes: Any) -> tuple[plan.Plan, contract.Contract]:
    """Plan and contract of the stack ``local`` with changes to its workload."""
    made = plan.make(settings.load(stacks.local(**changes)), name="local", secrets=["apiKey"])
    return made, contract.of(made)


def changed(workload: WorkloadContract, **changes: Any) -> WorkloadContract:
    """``workload`` with other values of its fields, or of those of its only model."""
    [model] = workload.models
    fields = {field.name for field in dataclasses.fields(model)}
    inner = {key: value for key, value in changes.items() if key in fields}
    outer = {key: value for key, value in changes.items() if key not in fields}
    return replace(workload, models=(replace(model, **inner),), **outer)


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[..., Served]]:
    """Starts the stand-in as the pod of the stack ``local`` would, with changes to the workload; same ones once."""
    running: dict[str, Served] = {}
    with ExitStack() as stack:

        def start(**changes: Any) -> Served:
            if repr(changes) not in running:
                running[repr(changes)] = _start(stack, changes)
            return running[repr(changes)]

        yield start


@pytest.fixture(scope="session")
def serve_grpc() -> Iterator[Callable[..., ServedGrpc]]:
    """As serve, with the gRPC build."""
    running: dict[str, ServedGrpc] = {}
    with ExitStack() as stack:

        def start(**changes: Any) -> ServedGrpc:
            if repr(changes) not in running:
                running[repr(changes)] = _start_grpc(stack, changes)
            return running[repr(changes)]

        yield start


def _start(stack: ExitStack, changes: dict[str, Any]) -> Served:
    port = _free_port()
    workload = _run(stack, changes, "local.engines.tei", "Starting HTTP server", {"PORT": str(port)})
    return Served(workload, f"http://127.0.0.1:{port}", API_KEY if workload.api_key_secret else None)


def _start_grpc(stack: ExitStack, changes: dict[str, Any]) -> ServedGrpc:
    port, metrics_port = _free_port(), _free_port()
    # The plan of an HTTP workload lets no line of the gRPC server through.
    ports = {"PORT": str(port), "PROMETHEUS_PORT": str(metrics_port), "LOG_LEVEL": "info"}
    workload = _run(stack, changes, "local.engines.tei.grpc", "Starting gRPC server", ports)
    key = API_KEY if workload.api_key_secret else None
    return ServedGrpc(workload, f"127.0.0.1:{port}", f"http://127.0.0.1:{metrics_port}", key)


def _run(stack: ExitStack, changes: dict[str, Any], module: str, ready: str, ports: dict[str, str]) -> WorkloadContract:
    """Starts ``module`` and returns the contract once the log holds ``ready``."""
    made, agreed = planned(**changes)
    variables = {variable.name: variable.value or API_KEY for variable in made.workloads[0].engine.env}
    variables |= {
        **ports,
        "HOSTNAME": "127.0.0.1",
        "STAND_IN_MODELS": str(images.model_files(PlainReporter()).parent),
    }
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=CHECKOUT,
            env=kept | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    )
    said: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, said), daemon=True)
    reader.start()
    # The pipe is closed afterwards.
    stack.callback(reader.join)
    stack.callback(process.terminate)
    log: list[str] = []
    while not any(ready in line for line in log):
        log.append(said.get(timeout=_START_SECONDS))
        assert log[-1], "the stand-in ended before it was ready:\n" + "".join(log)
    return agreed.workloads[0]


def _read(process: "subprocess.Popen[str]", said: "queue.Queue[str]") -> None:
    for line in process.stdout or ():
        said.put(line)
    said.put("")


@pytest.fixture
def free_port() -> int:
    """A port of loopback on which nobody listens."""
    return _free_port()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port
