"""Smoke checks of NIM against the stand-in, which runs with the environment that the engine emits."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.core.contract import WorkloadContract, of
from local.engines import weights
from scripts.smoke.nim import NimService
from scripts.smoke.results import Result, Status
from scripts.smoke.results import run as run_checks
from tests.core.plans import made
from tests.local_engines.engine import HOST, Engine, free_port
from tests.scripts.conftest import changed

pytestmark = pytest.mark.local

KEY = "nvapi-the-key-of-this-test"


@dataclass(frozen=True)
class Served:
    """A running stand-in and what its contract says."""

    contract: WorkloadContract
    url: str

    def checked(self, **changes: Any) -> dict[str, Result]:
        """All checks, by name, under a contract with ``changes``."""
        return {r.check: r for r in run_checks(NimService(changed(self.contract, **changes), self.url).checks())}


def _serve(directory: Path, model: str, **changes: str) -> Iterator[Served]:
    plan = made(
        {
            "environment": "local",
            "cluster": {"provider": "existing"},
            "images": {"standInRegistry": "stand-in.local"},
            "nodePools": [{"name": "gpu", "gpu": "L4"}],
            "serving": [{"name": "nim", "engine": "nim", "model": model, "pool": "gpu", **changes}],
        },
        ("ngcApiKey",),
    )
    [planned], [contract] = plan.workloads, of(plan).workloads
    spec = planned.engine
    port = free_port()
    given = {variable.name: variable.value or KEY for variable in spec.env}
    #: What a pod has in a network and a file system of its own.
    elsewhere = {
        "NIM_HTTP_API_PORT": str(port),
        "NIM_SERVER_BIND_ADDR": f"{HOST}:{port}",
        "NIM_CACHE_PATH": str(directory),
        "NIM_ENGINE_MODEL_PATH": str(directory),
    }
    environment = given | {name: value for name, value in elsewhere.items() if name in given}
    environment |= {
        "STAND_IN_NIM_MODEL": model,
        "STAND_IN_NIM_VERSION": spec.tag,
        "STAND_IN_MODELS": str(weights.models_directory()),
        "STAND_IN_HOST": HOST,
        "STAND_IN_TRITON_METRICS_PORT": str(free_port()),
    }
    with Engine([], directory, environment=environment, port=port, hostname=None, module="local.engines.nim") as engine:
        engine.wait_until_ready()
        yield Served(contract, f"http://{HOST}:{port}")


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = "nvidia/llama-3.2-nv-embedqa-1b-v2"
    yield from _serve(tmp_path_factory.mktemp("embedder"), model, servedModelName="house-model")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from _serve(tmp_path_factory.mktemp("reranker"), "nvidia/llama-nemotron-rerank-vl-1b-v2")


def _not_passed(results: dict[str, Result]) -> dict[str, str]:
    return {name: result.found for name, result in results.items() if result.status is not Status.PASSED}


def test_every_check_passes_on_an_embedding_nim_of_1_x(embedder: Served) -> None:
    results = embedder.checked()
    assert _not_passed(results) == {}
    assert set(results) == {
        *("health", "model name", "query and passage", "input_type", "similar texts", "openai client", "metrics"),
    }
    assert "house-model" in results["model name"].found
    assert "2048 dimensions" in results["query and passage"].found


def test_every_check_passes_on_a_reranking_nim_of_2_x(reranker: Served) -> None:
    results = reranker.checked()
    assert _not_passed(results) == {}
    assert set(results) == {"health", "model name", "order of texts", "metrics"}


@pytest.mark.parametrize(
    ("changes", "check", "found"),
    [
        ({"dimension": 1024}, "query and passage", "2048 dimensions, the contract says 1024"),
        ({"dimension": 1024}, "openai client", "vectors of [2048] dimensions"),
        ({"client_name": "another"}, "model name", "'another'"),
        ({"client_name": "another"}, "input_type", "404"),
        ({"client_name": "another"}, "openai client", "404"),
        ({"metrics_path": "/metrics"}, "metrics", "GET /metrics: 404"),
        ({"metrics_path": "/v1/health/live"}, "metrics", "0 samples"),
    ],
)
def test_case_48_and_56_a_contract_that_says_something_else_fails(
    embedder: Served, changes: dict[str, Any], check: str, found: str
) -> None:
    result = embedder.checked(**changes)[check]
    assert result.status is Status.FAILED
    assert found in result.found
    assert result.next_step


def test_a_client_model_with_an_ending_hides_that_input_type_is_missing_and_is_found(embedder: Served) -> None:
    result = embedder.checked(client_name="house-model-query")["input_type"]
    assert (result.status, "expected 400" in result.found) == (Status.FAILED, True)


def test_an_embedding_nim_is_no_reranker(embedder: Served) -> None:
    result = embedder.checked(kind="reranker")["order of texts"]
    assert (result.status, "404" in result.found) == (Status.FAILED, True)


def test_nothing_more_is_asked_where_nobody_answers(embedder: Served) -> None:
    results = run_checks(NimService(embedder.contract, f"http://{HOST}:{free_port()}").checks())
    assert [result.status for result in results] == [Status.FAILED, *[Status.NOT_PROVEN] * (len(results) - 1)]
