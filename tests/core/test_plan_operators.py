"""Operators, scaling, sources of secrets, clients and gRPC: what the plan makes of them, and what it refuses."""

from typing import Any

import pytest

from tests.core.plans import env, made, refused, refused_at, stack, workload

pytestmark = pytest.mark.core

KEDA = {"addons": {"keda": "install", "prometheus": "install"}}
NEED = {"documentsPerSecond": 3000, "tokens": {"p50": 280, "p95": 512, "max": 512}}


def scaled(*, changes: dict[str, Any] | None = None, scaling: dict[str, Any] | None = None, **keys: Any) -> Any:
    """A stack whose workload is scaled between 1 and 4 replicas."""
    return stack(changes={**KEDA, **(changes or {})}, scaling={"max": 4} if scaling is None else scaling, **keys)


# Operators and Prometheus


def test_operators_are_installed_with_images_from_the_mirror() -> None:
    given = scaled(changes={"images": {"mirrors": {"ghcr.io": "registry.acme.com/ghcr"}}})
    prometheus, keda = made(given).addons
    assert (prometheus.name, keda.name) == ("prometheus", "keda")
    assert keda.images["ghcr.io/kedacore/keda:2.20.2"] == "registry.acme.com/ghcr/kedacore/keda:2.20.2"
    assert all(image == mirrored for image, mirrored in prometheus.images.items())


def test_an_existing_operator_is_not_installed() -> None:
    changes = {
        "addons": {"keda": "existing", "prometheus": "existing"},
        "monitoring": {"address": "http://prom.monitoring.svc:9090", "labels": {"release": "kps"}},
    }
    plan = made(scaled(changes=changes))
    assert plan.addons == ()
    assert plan.monitoring is not None
    assert (plan.monitoring.address, plan.monitoring.labels) == ("http://prom.monitoring.svc:9090", {"release": "kps"})
    [planned] = plan.workloads
    assert planned.scaling is not None
    assert planned.scaling.server_address == "http://prom.monitoring.svc:9090"


def test_an_existing_prometheus_without_address_and_labels_is_refused_in_one_go() -> None:
    given = scaled(changes={"addons": {"keda": "existing", "prometheus": "existing"}})
    # Without the labels that it selects by, no engine would be scraped and nobody would say so.
    assert "release" in refused_at(given, "monitoring.labels")
    assert "http://prometheus.monitoring.svc" in refused_at(given, "monitoring.address")


@pytest.mark.parametrize("mode", [None, "install"])
def test_nobody_describes_a_prometheus_that_is_installed_or_absent(mode: str | None) -> None:
    changes = {"addons": {"prometheus": mode}, "monitoring": {"address": "http://prom.monitoring.svc:9090"}}
    assert "addons.prometheus: existing" in refused_at(stack(changes=changes), "monitoring.address")


@pytest.mark.parametrize(
    "address",
    [
        "prometheus:9090",
        "http://prometheus:9090",
        "http://prom.monitoring:9090",
        "https://prom.monitoring.svc:9090",
        "http://prom.monitoring.svc:99999",
        "http://prom.monitoring.svc:9090?x=1",
    ],
)
def test_case_98_an_address_that_may_not_resolve_where_keda_runs_is_refused(address: str) -> None:
    changes = {"addons": {"prometheus": "existing"}, "monitoring": {"address": address}}
    assert "a URL with service and namespace" in refused_at(stack(changes=changes), "monitoring.address")


# Scaling


def test_scaling_replaces_replicas_and_counts_at_its_maximum() -> None:
    plan = made(scaled(pool={"nodes": 4, "instanceType": "g6.2xlarge"}))
    [planned] = plan.workloads
    assert (planned.replicas, planned.max_replicas) == (1, 4)
    assert plan.pools[0].gpus_wanted == 4
    assert planned.budgets.rollout == 4 * planned.budgets.progress_deadline
    assert planned.scaling is not None
    assert (planned.scaling.min, planned.scaling.max) == (1, 4)
    assert [trigger.name for trigger in planned.scaling.triggers] == ["queue", "overload"]


def test_a_maximum_that_does_not_fit_the_pool_is_refused_by_its_key() -> None:
    given = scaled(pool={"nodes": 3, "instanceType": "g6.2xlarge"})
    assert "serving[0].scaling.max: 4" in refused_at(given, "nodePools[0].nodes")


def test_thresholds_rest_on_a_batch_whose_size_the_engine_is_told() -> None:
    planned = made(scaled()).workloads[0]
    assert planned.scaling is not None
    texts, threshold = int(env(planned)["MAX_BATCH_REQUESTS"] or 0), int(planned.scaling.triggers[0].threshold)
    assert planned.engine.limits.max_concurrent_requests > 2 * texts + threshold


def test_a_threshold_that_the_queue_cannot_reach_is_refused_with_the_one_it_can() -> None:
    line = refused_at(
        scaled(maxConcurrentRequests=90, tokens={"p50": 512, "p95": 512}), "serving[0].maxConcurrentRequests"
    )
    [_, advised] = line.split("scaling.queueThreshold: ")
    threshold = int(advised.split(" ")[0])
    keys: dict[str, Any] = {"maxConcurrentRequests": 90, "tokens": {"p50": 512, "p95": 512}}
    assert refused(scaled(scaling={"max": 4, "queueThreshold": threshold}, **keys)) == []
    assert refused(scaled(scaling={"max": 4, "queueThreshold": threshold + 1}, **keys)) != []


def test_the_maximum_is_what_the_need_takes() -> None:
    fixed = workload(pool={"instanceType": "g6.2xlarge"}, need=NEED)
    [planned] = made(scaled(scaling={}, pool={"instanceType": "g6.2xlarge"}, need=NEED)).workloads
    assert planned.max_replicas == fixed.replicas > 1
    assert planned.replicas == 1


def test_a_maximum_below_the_need_is_refused() -> None:
    given = scaled(scaling={"max": 1}, pool={"instanceType": "g6.2xlarge"}, need=NEED)
    assert "need takes" in refused_at(given, "serving[0].scaling.max")


@pytest.mark.parametrize(
    ("keys", "path", "says"),
    [
        ({"scaling": {}}, "serving[0].scaling.max", "a number of replicas, or a need"),
        ({"scaling": {"min": 5, "max": 4}}, "serving[0].scaling.min", "4 or less"),
        ({"replicas": 2}, "serving[0].replicas", "absent, or no scaling"),
        (
            {"scaling": {"max": 4, "scaleDownStabilizationSeconds": 30}},
            "serving[0].scaling.scaleDownStabilizationSeconds",
            "or more",
        ),
        ({"changes": {"addons": {"prometheus": "install"}}}, "addons.keda", "install, or existing"),
        ({"changes": {"addons": {"keda": "install"}}}, "addons.prometheus", "install, or existing"),
    ],
)
def test_scaling_that_cannot_work_is_refused(keys: dict[str, Any], path: str, says: str) -> None:
    assert says in refused_at(scaled(**keys), path)


def test_case_66_no_replicas_in_quiet_hours_is_refused_because_nobody_would_ask_for_one() -> None:
    line = refused_at(scaled(scaling={"min": 0, "max": 4}), "serving[0].scaling.min")
    assert "counted by the replicas themselves" in line


def test_what_the_stack_file_says_of_thresholds_is_what_keda_is_told() -> None:
    scaling = {
        "min": 2,
        "max": 6,
        "queueThreshold": 10,
        "overloadPerSecond": 0.5,
        "scaleUpPeriodSeconds": 100,
        "scaleDownStabilizationSeconds": 2000,
    }
    [planned] = made(scaled(scaling=scaling)).workloads
    told = planned.scaling
    assert told is not None
    assert [trigger.threshold for trigger in told.triggers] == ["10", "0.5"]
    assert (told.scale_up_period, told.scale_down_stabilization) == (100, 2000)
    assert (told.min, told.max, told.fallback_replicas) == (2, 6, 2)


@pytest.mark.parametrize(
    "keys",
    [
        {"scaling": {"max": 3}, "longestRequestSeconds": 1},
        {"scaling": {"max": 3, "queueThreshold": 2000}, "longestRequestSeconds": 5},
    ],
)
def test_no_number_is_advised_that_the_threshold_would_refuse(keys: dict[str, Any]) -> None:
    line = refused_at(scaled(**keys), "serving[0].longestRequestSeconds")
    if "maxConcurrentRequests: " in line:
        advised = int(line.split("maxConcurrentRequests: ")[1].split(".")[0])
        assert refused(scaled(maxConcurrentRequests=advised, **keys)) == []


def test_a_threshold_above_that_of_the_need_gets_the_places_that_it_takes() -> None:
    scaling = {"max": 4, "queueThreshold": 5000}
    need = {"documentsPerSecond": 200, "tokens": {"p50": 280, "p95": 512}, "latencyMs": 800}
    [planned] = made(scaled(scaling=scaling, pool={"instanceType": "g6.2xlarge"}, need=need)).workloads
    assert planned.engine.limits.max_concurrent_requests > 5000


def test_the_longest_wait_that_kubernetes_takes_is_enough() -> None:
    scaling = {"max": 4, "scaleDownStabilizationSeconds": 3600}
    assert refused(scaled(scaling=scaling, pool={"imagePullSeconds": 3600})) == []


def test_the_size_of_a_batch_can_be_said_and_moves_the_threshold() -> None:
    assert env(workload(maxBatchRequests=500))["MAX_BATCH_REQUESTS"] == "500"
    assert "MAX_BATCH_REQUESTS" not in env(workload())
    small, large = (made(scaled(maxBatchRequests=texts)).workloads[0] for texts in (16, 64))
    assert [env(one)["MAX_BATCH_REQUESTS"] for one in (small, large)] == ["16", "64"]
    assert small.scaling is not None
    assert large.scaling is not None
    assert int(small.scaling.triggers[0].threshold) < int(large.scaling.triggers[0].threshold)
    refused_at(
        stack(maxBatchRequests=16, need=NEED, pool={"instanceType": "g6.2xlarge"}), "serving[0].maxBatchRequests"
    )


def test_named_clients_need_a_named_prometheus() -> None:
    changes = {
        "addons": {"prometheus": "existing"},
        "monitoring": {"address": "http://prom.monitoring.svc:9090", "labels": {}},
    }
    assert refused(stack(changes=changes)) == []
    line = refused_at(stack(changes=changes, clients=[{"namespace": "rag"}]), "monitoring.namespace")
    assert "serving[0].clients" in line


def test_the_namespace_of_an_operator_is_no_namespace_for_workloads() -> None:
    changes = {**KEDA, "namespace": {"name": "monitoring"}}
    assert "goes when it does" in refused_at(stack(changes=changes), "namespace.name")


# Secrets


def test_a_key_of_an_existing_secret_is_read_from_there_and_no_other_is_made() -> None:
    source = {"secretName": "rag-keys", "key": "api-key", "version": "7"}
    [planned] = made(stack(requireApiKey=True, changes={"secrets": {"apiKey": source}})).workloads
    [reference] = [variable.secret for variable in planned.engine.env if variable.name == "API_KEY"]
    assert reference is not None
    assert (reference.secret, reference.key) == ("rag-keys", "api-key")
    assert planned.secret is None
    assert planned.secret_versions == "apiKey=7"


def test_a_secret_of_a_store_gets_another_name_with_every_change() -> None:
    def fetched(**changes: str) -> tuple[str, str]:
        source = {"storeName": "aws", "remoteKey": "rag/api", **changes}
        given = stack(
            requireApiKey=True,
            changes={"addons": {"externalSecrets": "existing"}, "secrets": {"apiKey": source}},
        )
        [planned] = made(given).workloads
        [secret] = planned.external_secrets
        [reference] = [variable.secret for variable in planned.engine.env if variable.name == "API_KEY"]
        assert reference is not None
        assert (reference.secret, reference.key) == (secret.name, "apiKey")
        return secret.name, secret.remote_key

    assert fetched() == fetched()
    names = {fetched()[0], fetched(version="2")[0], fetched(remoteKey="x")[0], fetched(property="p")[0]}
    assert len(names) == 4


def test_a_workload_that_needs_no_key_gets_none() -> None:
    given = stack(requireApiKey=True)
    given["addons"] = {"externalSecrets": "install"}
    given["secrets"] = {
        "apiKey": {"storeName": "aws", "remoteKey": "rag/api"},
        "huggingFaceToken": {"secretName": "hub", "key": "token"},
    }
    given["serving"].append({**given["serving"][0], "name": "open", "requireApiKey": False})
    protected, planned = made(given).workloads
    assert len(protected.external_secrets) == 1
    assert planned.external_secrets == ()
    assert planned.secret_versions == ""
    assert all(variable.secret is None for variable in planned.engine.env)


def test_a_source_that_no_workload_reads_is_refused() -> None:
    # The engine would run without the key that was meant for it.
    changes = {"secrets": {"apiKey": {"secretName": "rag-keys", "key": "api-key"}}}
    assert "serving[0].requireApiKey" in refused_at(stack(changes=changes), "secrets.apiKey")


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ({}, "secrets.apiKey"),
        ({"secretName": "a", "key": "k", "storeName": "s", "remoteKey": "r"}, "secrets.apiKey"),
        ({"secretName": "a"}, "secrets.apiKey.key"),
        ({"storeName": "s"}, "secrets.apiKey.remoteKey"),
        ({"secretName": "a", "key": "k", "property": "p"}, "secrets.apiKey.property"),
        ({"storeName": "s", "remoteKey": "r", "key": "k"}, "secrets.apiKey.key"),
    ],
)
def test_a_source_that_is_half_said_or_said_twice_is_refused(source: dict[str, str], path: str) -> None:
    changes = {"addons": {"externalSecrets": "install"}, "secrets": {"apiKey": source}}
    assert refused_at(stack(changes=changes, requireApiKey=True), path)


def test_a_store_needs_external_secrets() -> None:
    changes = {"secrets": {"apiKey": {"storeName": "aws", "remoteKey": "rag/api"}}}
    given = stack(changes=changes, requireApiKey=True)
    assert "secrets.apiKey.storeName" in refused_at(given, "addons.externalSecrets")


def test_a_secret_with_two_sources_is_refused() -> None:
    changes = {"secrets": {"apiKey": {"secretName": "rag-keys", "key": "api-key"}}}
    line = refused_at(stack(changes=changes, requireApiKey=True), "secrets.apiKey", ("apiKey",))
    assert "pulumi config rm embedding-serving:apiKey" in line


# Clients and gRPC


def test_clients_are_named_with_their_namespace() -> None:
    given = stack(clients=[{"podLabels": {"app": "rag"}}, {"namespace": "etl"}])
    [planned] = made(given).workloads
    assert planned.clients is not None
    assert [(one.namespace, one.pod_labels) for one in planned.clients] == [
        ("embedding-serving", {"app": "rag"}),
        ("etl", {}),
    ]
    assert workload().clients is None


def test_case_02_a_grpc_image_serves_metrics_on_a_port_of_its_own() -> None:
    planned = workload(protocol="grpc")
    assert planned.image.endswith(":89-1.9.3-grpc")
    assert [(port.name, port.number) for port in planned.engine.ports] == [("grpc", 8080), ("metrics", 9000)]
    assert env(planned)["PROMETHEUS_PORT"] == "9000"
    assert [metrics.port for metrics in planned.engine.metrics] == ["metrics"]
    assert planned.engine.probes.readiness.service == "tei.v1.Embed"
    assert not planned.engine.api.openai
    plain = workload()
    assert [metrics.port for metrics in plain.engine.metrics] == ["http"]
    assert "PROMETHEUS_PORT" not in env(plain)


def test_a_grpc_pod_whose_last_batch_failed_is_restarted() -> None:
    # Its health stays that of the last batch, and an unready pod is sent no other.
    probes = workload(protocol="grpc").engine.probes
    assert probes.liveness.path is None
    assert probes.liveness.service == probes.readiness.service
    assert probes.liveness.failure_threshold > probes.readiness.failure_threshold
