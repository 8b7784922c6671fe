"""An app and the engine beside it: what the plan makes of them, and what it refuses."""

from typing import Any

import pytest

from infra.core import contract
from tests.core.plans import made, refused, refused_at, stack

pytestmark = pytest.mark.core

APP: dict[str, Any] = {"image": "ghcr.io/acme/rag-api:1.4.2", "port": 8000}
NODE = {"cpu": "8", "memory": "32Gi", "gpus": 1}


def sidecar(app: dict[str, Any] | None = None, *, gpu: str | None = "L4", **keys: Any) -> dict[str, Any]:
    return stack(gpu, topology="sidecar", app={**APP, **(app or {})}, **keys)


def planned(app: dict[str, Any] | None = None, **keys: Any) -> Any:
    [workload] = made(sidecar(app, **keys), ("apiKey",)).workloads
    assert workload.app is not None
    return workload


def test_the_engine_is_described_alike_in_both_topologies() -> None:
    [centralized] = made(stack()).workloads
    beside = planned()
    assert (beside.engine.env, beside.engine.ports, beside.engine.probes, beside.engine.limits) == (
        centralized.engine.env,
        centralized.engine.ports,
        centralized.engine.probes,
        centralized.engine.limits,
    )


@pytest.mark.parametrize(
    ("protocol", "variable", "beside", "apart"),
    [
        ("http", "EMBED_URL", "http://localhost:8080", "http://embed.embedding-serving.svc.cluster.local:80"),
        ("grpc", "EMBED_ADDRESS", "localhost:8080", "embed.embedding-serving.svc.cluster.local:80"),
    ],
)
def test_the_variable_that_names_the_engine_is_the_same_in_both_topologies(
    protocol: str, variable: str, beside: str, apart: str
) -> None:
    [of_sidecar] = contract.of(made(sidecar(protocol=protocol))).workloads
    [of_service] = contract.of(made(stack(protocol=protocol))).workloads
    assert (of_sidecar.url_variable, of_sidecar.url) == (variable, beside)
    assert (of_service.url_variable, of_service.url) == (variable, apart)
    assert planned(protocol=protocol).app.env[0].value == beside


def test_an_app_on_the_port_of_the_engine_keeps_it() -> None:
    found = planned(app={**APP, "port": 8080})
    assert found.engine.ports[0].number == 8081
    assert {variable.name: variable.value for variable in found.engine.env}["PORT"] == "8081"
    assert found.app is not None
    assert found.app.env[0].value == "http://localhost:8081"


def test_a_name_with_hyphens_becomes_a_variable() -> None:
    given = sidecar(name="local-embed")
    [workload] = made(given).workloads
    assert workload.client.url_variable == "LOCAL_EMBED_URL"


def test_the_app_gets_the_api_key_and_nothing_else_of_the_engine() -> None:
    workload = planned(requireApiKey=True)
    assert [variable.name for variable in workload.app.env] == ["EMBED_URL", "EMBED_API_KEY"]
    assert workload.app.env[1].secret == workload.engine.api_key_secret
    assert [variable.name for variable in planned({"env": {"TEAM": "rag"}}).app.env] == ["EMBED_URL", "TEAM"]


def test_the_budgets_hold_the_app_and_the_engine() -> None:
    [apart] = made(stack(longestRequestSeconds=60)).workloads
    workload = planned({"longestRequestSeconds": 40, "startupSeconds": 100}, longestRequestSeconds=60)
    budgets = workload.budgets
    assert budgets.termination_grace == budgets.pre_stop + 40 + 60
    start = workload.app.startup
    assert start.period_seconds * (start.failure_threshold - 1) >= 100
    pull = budgets.image_pull
    assert budgets.progress_deadline - apart.budgets.progress_deadline == (
        pull + start.period_seconds * start.failure_threshold + 40
    )


def test_an_app_takes_as_long_as_its_engine_unless_it_says_otherwise() -> None:
    assert planned(longestRequestSeconds=77).app.longest_request_seconds == 77


def test_scaling_waits_for_the_app_as_well() -> None:
    operated: dict[str, Any] = {
        "addons": {"keda": "existing", "prometheus": "existing"},
        "monitoring": {"address": "http://prometheus.monitoring.svc:9090", "labels": {}},
    }
    scaled: dict[str, Any] = {"scaling": {"max": 2}, "changes": operated}
    [apart] = made(stack(**scaled)).workloads
    beside = planned(**scaled)
    assert apart.scaling is not None
    assert beside.scaling.triggers == apart.scaling.triggers
    assert beside.scaling.scale_up_period > apart.scaling.scale_up_period


def test_an_app_without_a_path_is_ready_when_its_port_is_open() -> None:
    app = planned().app
    assert (app.readiness.connects, app.readiness.path, app.liveness) == (True, None, None)
    app = planned({"readinessPath": "/ready", "livenessPath": "/live"}).app
    assert (app.readiness.connects, app.readiness.path, app.startup.path) == (False, "/ready", "/ready")
    assert app.liveness is not None
    assert app.liveness.path == "/live"


def test_gpus_of_app_and_engine_add_up() -> None:
    pool: dict[str, Any] = {"allocatable": {**NODE, "gpus": 2}, "nodes": 2}
    plan = made(sidecar({"gpus": 1}, pool=pool, replicas=2))
    assert plan.pools[0].gpus_wanted == 4
    assert plan.workloads[0].pod_resources.gpus == 2
    line = refused_at(sidecar({"gpus": 1}, pool=pool, replicas=3), "nodePools[0].nodes")
    assert "allowed: 3 or more" in line


def test_cpu_and_memory_of_app_and_engine_add_up_on_the_node() -> None:
    pool: dict[str, Any] = {"allocatable": NODE}
    sizes: dict[str, Any] = {"resources": {"cpu": "4", "memory": "8Gi"}}
    assert refused(sidecar({"resources": {"cpu": "3", "memory": "8Gi"}}, pool=pool, **sizes)) == []
    line = refused_at(sidecar({"resources": {"cpu": "4"}}, pool=pool, **sizes), "serving[0].resources.cpu")
    assert "3500m at most, less for app.resources.cpu, or a pool with bigger nodes" in line
    assert "the app 4000m (app.resources.cpu)" in line
    line = refused_at(sidecar({"resources": {"memory": "28Gi"}}, pool=pool, **sizes), "serving[0].resources.memory")
    assert "app.resources.memory" in line


def test_the_engine_leaves_the_app_its_cores() -> None:
    [apart] = made(stack(pool={"allocatable": NODE})).workloads
    beside = planned({"resources": {"cpu": "2"}}, pool={"allocatable": NODE})
    assert beside.engine.resources.cpu_millicores == apart.engine.resources.cpu_millicores - 2000


def test_an_image_of_the_app_comes_through_its_mirror() -> None:
    images = {"images": {"mirrors": {"docker.io": "registry.acme.com/hub"}}}
    workload = planned({"image": "docker.io/acme/rag-api:1.4.2"}, changes=images)
    assert workload.app.image == "registry.acme.com/hub/acme/rag-api:1.4.2"
    assert refused_at(stack(changes=images), "images.mirrors.docker.io")


# (app, keys of the workload, place, words)
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"image": "ghcr.io/acme/rag-api:latest"}, {}, "app.image", "a version such as 1.4.2"),
    ({"image": "ghcr.io/acme/rag-api"}, {}, "app.image", "a version such as 1.4.2"),
    ({"image": "ghcr.io/acme/rag-api:stable"}, {}, "app.image", "a version such as 1.4.2"),
    ({"image": "rag-api:1.4.2"}, {}, "app.image", "a registry host"),
    ({"port": 9000}, {"protocol": "grpc"}, "app.port", "The engine listens on 8080, 9000"),
    ({"port": 80}, {}, "app.port", "1024"),
    ({"env": {"EMBED_URL": "http://elsewhere"}}, {}, "app.env.EMBED_URL", "follows the topology"),
    ({"gpus": 1}, {"gpu": None}, "app.gpus", "its nodes have none"),
    ({"gpus": 1}, {"pool": {"allocatable": NODE}}, "app.gpus", "the pod asks for 2 GPUs"),
    (
        {"gpus": 1},
        {"need": {"documentsPerSecond": 10, "tokens": {"p50": 100, "p95": 200}}},
        "app.gpus",
        "pods of one GPU each",
    ),
    ({"resources": {"ephemeralStorage": "100Mi"}}, {}, "app.resources.ephemeralStorage", "512Mi or more"),
    ({"readinessPath": "ready"}, {}, "app.readinessPath", "a path such as /ready"),
]


@pytest.mark.parametrize(("app", "keys", "place", "words"), REFUSED, ids=[str(row[0]) for row in REFUSED])
def test_an_app_that_cannot_be_deployed_is_refused_where_it_stands(
    app: dict[str, Any], keys: dict[str, Any], place: str, words: str
) -> None:
    assert words in refused_at(sidecar(app, **keys), f"serving[0].{place}")


def test_the_variable_of_the_key_is_free_where_there_is_no_key() -> None:
    assert planned().client.api_key_variable is None


def test_a_sidecar_needs_an_app_and_a_service_has_none() -> None:
    assert "the engine runs in the pods of this app" in refused_at(stack(topology="sidecar"), "serving[0].app")
    assert "absent, or topology: sidecar" in refused_at(stack(app=APP), "serving[0].app")


def test_tests_reach_the_engine_of_a_sidecar_beside_its_service() -> None:
    [found] = contract.of(made(sidecar(protocol="grpc"))).workloads
    assert found.app == {"image": APP["image"], "port": 8000, "readiness_path": None}
    assert (found.forward_to, found.forward_port, found.forward_metrics_port) == ("deployment/embed", 8080, 9000)
    [found] = contract.of(made(stack(protocol="grpc", serviceName="vectors"))).workloads
    assert found.app is None
    assert (found.forward_to, found.forward_port, found.forward_metrics_port) == ("service/vectors", 80, 9000)
    [found] = contract.of(made(stack())).workloads
    assert found.forward_port == found.forward_metrics_port
