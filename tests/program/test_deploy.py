"""What the program registers, under mocks: the plan's values, all of them and nothing else."""

from typing import Any

import pytest

from infra.core import plan, settings
from infra.core.plan import Plan
from infra.program.recording import Recorder, record
from tests import stacks

pytestmark = pytest.mark.program


def deployed(planned: Plan) -> tuple[Recorder, dict[str, Any]]:
    """What is registered for a plan with made-up secrets, and its contract."""
    return record(planned, {key: f"value-of-{key}" for key in ("apiKey", "huggingFaceToken")})


def planned(**changes: Any) -> Plan:
    return plan.make(settings.load(stacks.local(**changes)), name="local", secrets={"apiKey", "huggingFaceToken"})


def container(recorder: Recorder) -> dict[str, Any]:
    [deployment] = recorder.of_kind("Deployment")
    [only] = deployment["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def test_a_workload_without_keys_is_five_objects_in_a_namespace() -> None:
    recorder, _ = deployed(planned())
    kinds = sorted(found["kind"] for found in recorder.objects())
    assert kinds == ["Deployment", "Namespace", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"]


def test_a_workload_with_a_key_has_a_secret_and_the_contract_names_it() -> None:
    recorder, contract = deployed(planned(requireApiKey=True))
    [secret] = recorder.of_kind("Secret")
    assert secret["stringData"] == {"apiKey": "value-of-apiKey"}, "only the key that this workload needs"
    assert contract["workloads"][0]["api_key_secret"] == "embed-keys-0123abcd"
    [variable] = [found for found in container(recorder)["env"] if found["name"] == "API_KEY"]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "embed-keys-0123abcd", "key": "apiKey"}


def test_the_secret_reaches_the_engine_as_a_secret() -> None:
    recorder, _ = deployed(planned(requireApiKey=True))
    [resource] = [found for found in recorder.resources if found.typ == "kubernetes:core/v1:Secret"]
    assert resource.inputs["stringData"] != {"apiKey": "value-of-apiKey"}, "the value is wrapped as a secret"
    others = [found for found in recorder.resources if found is not resource]
    assert "value-of-apiKey" not in repr([found.inputs for found in others])


def test_types_and_names_are_what_state_files_hold() -> None:
    # A changed token or name replaces objects in every user's cluster: it needs an alias in the same commit.
    recorder, _ = deployed(planned(requireApiKey=True))
    assert sorted((found.typ, found.name) for found in recorder.resources) == [
        ("embedding-serving:serving:CentralizedWorkload", "embed"),
        ("kubernetes:apps/v1:Deployment", "embed"),
        ("kubernetes:core/v1:Namespace", "namespace"),
        ("kubernetes:core/v1:Secret", "embed-keys"),
        ("kubernetes:core/v1:Service", "embed"),
        ("kubernetes:core/v1:ServiceAccount", "embed"),
        ("kubernetes:networking.k8s.io/v1:NetworkPolicy", "embed"),
        ("kubernetes:policy/v1:PodDisruptionBudget", "embed"),
        ("pulumi:providers:kubernetes", "cluster"),
    ]


def test_pods_carry_what_the_plan_says() -> None:
    made = planned()
    recorder, _ = deployed(made)
    [workload] = made.workloads
    engine = container(recorder)
    assert engine["image"] == workload.image
    assert "command" not in engine, "TEI's entrypoint is a relative path and checks the GPU"
    assert "args" not in engine
    assert {found["name"]: found.get("value") for found in engine["env"]} == {
        found.name: found.value for found in workload.engine.env
    }
    assert (
        engine["resources"]["limits"]
        == engine["resources"]["requests"]
        == {
            "cpu": "500m",
            "memory": "1024Mi",
            "ephemeral-storage": f"{workload.engine.resources.ephemeral_storage_mib}Mi",
            "nvidia.com/gpu": "1",
        }
    )
    for name, probe in (
        ("startupProbe", workload.engine.probes.startup),
        ("readinessProbe", workload.engine.probes.readiness),
        ("livenessProbe", workload.engine.probes.liveness),
    ):
        assert engine[name] == {
            "httpGet": {"path": probe.path, "port": probe.port},
            "periodSeconds": probe.period_seconds,
            "timeoutSeconds": probe.timeout_seconds,
            "failureThreshold": probe.failure_threshold,
        }
    assert engine["lifecycle"] == {"preStop": {"sleep": {"seconds": workload.budgets.pre_stop}}}


def test_case_26_no_pod_gets_service_links() -> None:
    recorder, _ = deployed(planned())
    [deployment] = recorder.of_kind("Deployment")
    assert deployment["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_case_88_pulumi_waits_as_long_as_the_rollout_may_take() -> None:
    made = planned(replicas=2)
    recorder, _ = deployed(made)
    [workload] = made.workloads
    [deployment] = recorder.of_kind("Deployment")
    assert deployment["spec"]["progressDeadlineSeconds"] == workload.budgets.progress_deadline
    assert workload.budgets.rollout >= 2 * workload.budgets.progress_deadline


def test_selectors_meet_the_pods_of_this_workload_only() -> None:
    stack = stacks.local()
    stack["serving"].append({**stack["serving"][0], "name": "second"})
    recorder, _ = deployed(plan.make(settings.load(stack), name="local"))
    pods = {
        found["metadata"]["name"]: found["spec"]["template"]["metadata"]["labels"]
        for found in recorder.of_kind("Deployment")
    }
    selectors = [found["spec"]["selector"] for found in recorder.of_kind("Service")]
    selectors += [found["spec"]["selector"]["matchLabels"] for found in recorder.of_kind("PodDisruptionBudget")]
    selectors += [found["spec"]["selector"]["matchLabels"] for found in recorder.of_kind("Deployment")]
    for selector in selectors:
        assert sum(selector.items() <= labels.items() for labels in pods.values()) == 1


def test_a_label_of_the_workload_stays_off_its_pods() -> None:
    plain, _ = deployed(planned())
    labelled, _ = deployed(planned(labels={"team": "rag"}))
    [before], [after] = plain.of_kind("Deployment"), labelled.of_kind("Deployment")
    assert after["metadata"]["labels"]["team"] == "rag"
    assert before["spec"]["template"] == after["spec"]["template"]


def test_an_existing_namespace_is_used_and_not_created() -> None:
    stack = {**stacks.local(), "namespace": {"name": "rag", "create": False}}
    recorder, contract = deployed(plan.make(settings.load(stack), name="local"))
    assert recorder.of_kind("Namespace") == []
    assert {found["metadata"]["namespace"] for found in recorder.objects()} == {"rag"}
    assert contract["workloads"][0]["url"] == "http://embed.rag.svc.cluster.local:80"


def _operated(**changes: Any) -> Plan:
    """One scaled workload beside a Prometheus and a KEDA that are there already."""
    stack = stacks.local(scaling={"max": 2}, **changes)
    del stack["serving"][0]["replicas"]
    stack["addons"] = {"keda": "existing", "prometheus": "existing", "externalSecrets": "existing"}
    stack["monitoring"] = {
        "address": "http://prometheus.monitoring.svc:9090",
        "namespace": "monitoring",
        "podLabels": {"app.kubernetes.io/name": "prometheus"},
        "labels": {"release": "kps"},
    }
    if changes.get("requireApiKey"):
        stack["secrets"] = {"apiKey": {"storeName": "aws", "remoteKey": "rag/api", "property": "key"}}
    return plan.make(settings.load(stack), name="local")


def test_case_62_a_scaled_deployment_has_no_replicas() -> None:
    recorder, _ = deployed(_operated())
    [deployment] = recorder.of_kind("Deployment")
    assert "replicas" not in deployment["spec"]
    [scaled] = recorder.of_kind("ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert (scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"]) == (1, 2)


def test_case_61_every_trigger_says_what_its_fallback_rests_on() -> None:
    recorder, _ = deployed(_operated())
    [scaled] = recorder.of_kind("ScaledObject")
    assert scaled["spec"]["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert len(scaled["spec"]["triggers"]) == 2
    for trigger in scaled["spec"]["triggers"]:
        assert trigger["metricType"] == "AverageValue"
        assert trigger["metadata"]["ignoreNullValues"] == "false"
        assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_case_69_the_service_monitor_has_the_labels_that_prometheus_selects_by() -> None:
    recorder, _ = deployed(_operated())
    [monitor] = recorder.of_kind("ServiceMonitor")
    [service] = recorder.of_kind("Service")
    assert monitor["metadata"]["labels"]["release"] == "kps"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_case_27_only_named_clients_and_prometheus_get_through() -> None:
    recorder, _ = deployed(_operated(clients=[{"namespace": "rag", "podLabels": {"app": "api"}}]))
    [policy] = recorder.of_kind("NetworkPolicy")
    peers = [peer for rule in policy["spec"]["ingress"] for peer in rule["from"]]
    name = "kubernetes.io/metadata.name"
    assert peers == [
        {
            "namespaceSelector": {"matchLabels": {name: "rag"}},
            "podSelector": {"matchLabels": {"app": "api"}},
        },
        {
            "namespaceSelector": {"matchLabels": {name: "monitoring"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
        },
    ]
    assert all(rule["ports"] == [{"port": "http"}] for rule in policy["spec"]["ingress"])


def test_a_workload_without_clients_admits_prometheus_alone() -> None:
    recorder, _ = deployed(_operated(clients=[]))
    [policy] = recorder.of_kind("NetworkPolicy")
    [rule] = policy["spec"]["ingress"]
    [peer] = rule["from"]
    assert peer["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    assert peer["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}


def test_where_clients_are_not_named_the_port_is_open_to_whoever_reaches_it() -> None:
    recorder, _ = deployed(planned())
    [policy] = recorder.of_kind("NetworkPolicy")
    [rule] = policy["spec"]["ingress"]
    assert rule == {"ports": [{"port": "http"}]}


def test_a_secret_of_the_users_own_may_have_the_name_that_pulumi_would_give() -> None:
    stack = stacks.local(requireApiKey=True)
    stack["secrets"] = {"apiKey": {"secretName": "embed-keys", "key": "api-key"}}
    recorder, contract = deployed(plan.make(settings.load(stack), name="local"))
    assert recorder.of_kind("Secret") == []
    assert contract["workloads"][0]["api_key_secret"] == "embed-keys"
    [variable] = [found for found in container(recorder)["env"] if found["name"] == "API_KEY"]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "embed-keys", "key": "api-key"}


def test_a_secret_of_a_store_is_fetched_once_under_the_name_that_the_pod_reads() -> None:
    recorder, contract = deployed(_operated(requireApiKey=True))
    [external] = recorder.of_kind("ExternalSecret")
    assert external["spec"]["refreshPolicy"] == "CreatedOnce"
    assert external["spec"]["data"] == [{"secretKey": "apiKey", "remoteRef": {"key": "rag/api", "property": "key"}}]
    [variable] = [found for found in container(recorder)["env"] if found["name"] == "API_KEY"]
    made = external["spec"]["target"]["name"]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": made, "key": "apiKey"}
    assert contract["workloads"][0]["api_key_secret"] == made
    assert recorder.of_kind("Secret") == []


def test_a_new_version_of_an_existing_secret_is_another_pod_template() -> None:
    def template(version: str) -> dict[str, Any]:
        stack = stacks.local(requireApiKey=True)
        stack["secrets"] = {"apiKey": {"secretName": "rag-keys", "key": "api-key", "version": version}}
        recorder, contract = deployed(plan.make(settings.load(stack), name="local"))
        assert contract["workloads"][0]["api_key_secret"] == "rag-keys"
        [deployment] = recorder.of_kind("Deployment")
        made: dict[str, Any] = deployment["spec"]["template"]
        return made

    assert template("1") == template("1")
    assert template("1") != template("2")
    assert template("1")["spec"] == template("2")["spec"]


def test_a_grpc_workload_is_asked_by_grpc_and_scraped_on_its_metrics_port() -> None:
    recorder, _ = deployed(_operated(protocol="grpc"))
    probe = container(recorder)["readinessProbe"]
    assert probe["grpc"] == {"port": 8080, "service": "tei.v1.Embed"}
    assert "httpGet" not in probe
    [service] = recorder.of_kind("Service")
    assert [(port["name"], port["port"]) for port in service["spec"]["ports"]] == [("grpc", 80), ("metrics", 9000)]
    [monitor] = recorder.of_kind("ServiceMonitor")
    assert monitor["spec"]["endpoints"][0]["port"] == "metrics"


def test_every_image_of_an_operator_comes_from_the_mirror() -> None:
    given = stacks.committed("local")
    recorder, _ = deployed(plan.make(settings.load(given), name="local"))
    text = repr([found for found in recorder.objects() if found["kind"] != "CustomResourceDefinition"])
    for host in ("ghcr.io", "quay.io", "registry.k8s.io"):
        assert f"built.local/{host}/" in text
        assert f"'{host}/" not in text
        assert f"={host}/" not in text
