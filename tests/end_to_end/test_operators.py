"""Real operators on a real cluster: what scales, what stays when Prometheus is gone, which secret reaches which pod,
and what destroy leaves.

The tests share one deployment, in the order in which they stand here: the operators alone take two minutes to come up,
and replicas go back while other tests are at work.
"""

import base64
import copy
import json
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import requests

from infra.core import catalogue, contract
from infra.core.catalogue import ModelKind
from local import images
from local.cluster import Cluster, Options
from local.images import names
from local.report import PlainReporter
from scripts.access import Access
from scripts.load import Kind, Target
from scripts.smoke import run as smoke
from scripts.smoke.results import Status
from scripts.smoke.results import run as run_checks
from scripts.smoke.scaling import ScaledWorkload
from tests import stacks
from tests.end_to_end.deployment import IMAGES, Deployment, eventually, stack_of
from tests.end_to_end.load import BackgroundLoad, Seen, Watch

pytestmark = pytest.mark.cluster

NAMESPACE = "embedding-operators"
#: Kubernetes' own 15 s would only make the tests wait: what is counted here is looks of the autoscaler.
HPA_SECONDS = 5
OPTIONS = Options(gpus=5, hpa_sync_seconds=HPA_SECONDS)
#: Waiting texts that one replica is good for. With so many clients, of which a replica keeps eight at work, one replica
#: makes it ask for a second, two make it keep both, and none makes it ask for the third, which would go 60 s later.
QUEUE = 16
CLIENTS = 36
#: The window of the queries is 30 s, then comes this, then a look of the autoscaler.
STABILIZATION_SECONDS = 15
SCALING = {
    "min": 1,
    "max": 3,
    "queueThreshold": QUEUE,
    "scaleUpPeriodSeconds": 15,
    "scaleDownStabilizationSeconds": STABILIZATION_SECONDS,
}
SMALL = {"cpu": "200m", "memory": "1Gi"}
LABELS = {"team": "rag"}
KEY = "apiKey"
EXISTING = {"secretName": "keys-of-somebody-else", "key": "rerank"}
STORE = {"storeName": "embedding-operators-fake", "remoteKey": "rerank/key"}
FIRST, SECOND, THIRD, FOURTH = (f"a-key-that-must-not-leak-{number}" for number in (6101, 6102, 6103, 6104))
PROMETHEUS = ("prometheuses.monitoring.coreos.com", "embedding-serving", "--namespace", "monitoring")


def described(source: dict[str, Any], labels: dict[str, str] | None = None) -> dict[str, Any]:
    """The committed stack ``local`` with a gRPC workload, in a namespace of its own.

    source: where the key of the reranker comes from; nobody else wants one. labels: of the embedder.
    """
    stack = copy.deepcopy(stacks.committed("local"))
    stack["namespace"] = {"name": NAMESPACE}
    stack["nodePools"][0]["allocatable"]["gpus"] = OPTIONS.gpus
    committed = {workload["name"]: workload for workload in stack["serving"]}
    embed = committed["embed"] | {"scaling": SCALING, "labels": labels or {}}
    rerank = committed["rerank"] | {"resources": SMALL, "requireApiKey": True}
    grpc = {
        **{key: embed[key] for key in ("engine", "model", "pool", "maxBatchTokens", "longestRequestSeconds")},
        **{"name": "grpc", "protocol": "grpc", "resources": SMALL, "maxConcurrentRequests": 32},
    }
    stack["serving"] = [embed, rerank, grpc]
    stack["secrets"] = {KEY: source}
    return stack


@pytest.fixture(scope="module")
def with_operators(embedded: Cluster, programs: dict[str, Path]) -> Iterator[Cluster]:
    """The cluster of all tests with the operators' images, and more GPUs than other tests may have."""
    reporter = PlainReporter()
    larger = Cluster(embedded.layout.state, embedded.cluster_id, OPTIONS)
    own = (*(image.name for image in names.OPERATORS), *names.TEI_GRPC_NAMES)
    larger.up(reporter, programs, images.ensure(reporter, only=(*IMAGES, *own)))
    yield larger
    embedded.up(reporter, programs, images.ensure(reporter, only=IMAGES))


@pytest.fixture(scope="module")
def operators(
    with_operators: Cluster, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """The stack, deployed. At most one of a cluster can install operators."""
    made = Deployment(tmp_path_factory.mktemp("operators"), environment, "operators", NAMESPACE)
    with stack_of(made), ThreadPoolExecutor(1) as pool:
        started = time.monotonic()
        up = pool.submit(made.up, described(EXISTING))
        # Its pods come minutes after the namespace, when the operators are there.
        eventually(lambda: up.done() or NAMESPACE in there(made, "namespaces"), "the namespace of the stack", 120)
        if not up.done():
            put_secret(made, FIRST)
        up.result()
        print(f"\nup of operators and three workloads: {time.monotonic() - started:.0f} s")
        yield made


@pytest.fixture(scope="module")
def url(with_operators: Cluster, operators: Deployment) -> str:
    """The embedder's Service, through kube-proxy."""
    return with_operators.publish("operators-embed", NAMESPACE, "embed", 80)


@pytest.fixture(scope="module")
def watch(operators: Deployment) -> Iterator[Watch]:
    with Watch(operators.environment["KUBECONFIG"], NAMESPACE, "embed") as watching:
        yield watching


@dataclass
class Scaled:
    """A load that has made KEDA ask for more than one replica, and runs on."""

    load: BackgroundLoad
    replicas: int
    asked_seconds: float
    ready_seconds: float
    served_seconds: float


def scale(operators: Deployment, watch: Watch, url: str) -> Scaled:
    """Loads the embedder until every pod that KEDA asked for is Ready and has answered."""
    eventually(lambda: watch.seen[-1:] != [] and watch.seen[-1].replicas == 1, "one replica before the load", 150)
    load = BackgroundLoad(Target(url, ModelKind.EMBEDDING, "embed", dimension=384), CLIENTS)

    def asked(seen: Seen) -> bool:
        return seen.replicas > 1

    def ready(seen: Seen) -> bool:
        return asked(seen) and seen.ready == seen.replicas

    def all_served() -> bool:
        query = f'te_request_success{{namespace="{NAMESPACE}",service="embed"}} > 0'
        served = {sample["metric"]["pod"] for sample in prometheus(operators, query)}
        pods = [pod.metadata.name for pod in operators.pods("embed").values()]
        return len(pods) > 1 and served >= set(pods)

    try:
        eventually(lambda: watch.first(load.started, asked) is not None, "KEDA asks for another replica", 120)
        eventually(lambda: watch.first(load.started, ready) is not None, "the new pods are Ready", 120)
        eventually(all_served, "Prometheus has seen every pod answer", 60)
    except BaseException:
        load.stop()
        raise
    served = time.monotonic() - load.started
    when = [(watch.first(load.started, holds) or 0) - load.started for holds in (asked, ready)]
    return Scaled(load, watch.seen[-1].replicas, when[0], when[1], served)


@pytest.fixture(scope="module")
def scaled(operators: Deployment, watch: Watch, url: str) -> Iterator[Scaled]:
    done = scale(operators, watch, url)
    yield done
    done.load.stop()


@dataclass
class Updated:
    """A preview and an update while KEDA has set more than one replica. Times of time.monotonic()."""

    preview: subprocess.CompletedProcess[str]
    #: All that Pulumi printed, here and later.
    printed: str
    #: Pods by workload.
    before: dict[str, dict[str, Any]]
    started: float
    ended: float


@pytest.fixture(scope="module")
def updated(operators: Deployment, scaled: Scaled) -> Updated:
    """Applies the Deployment that KEDA scales, and names a new version of the reranker's key."""
    before = {workload: operators.pods(workload) for workload in ("embed", "rerank", "grpc")}
    started = time.monotonic()
    preview = operators.pulumi("preview", "--expect-no-changes", "--diff")
    printed = operators.up(described({**EXISTING, "version": "2"}, LABELS))
    return Updated(preview, preview.stdout + printed, before, started, time.monotonic())


@pytest.fixture(scope="module")
def outage(operators: Deployment, watch: Watch, url: str) -> float:
    """More than one replica, then no Prometheus, and no load either. Since when, in time.monotonic()."""
    again = scale(operators, watch, url)
    try:
        set_prometheus(operators, 0)
        gone = ("wait", "--for=delete", "pod/prometheus-embedding-serving-0")
        operators.kubectl(*gone, "--namespace=monitoring", "--timeout=90s")
        return time.monotonic()
    finally:
        again.load.stop()


def set_prometheus(operators: Deployment, replicas: int) -> None:
    """Its operator makes a deleted pod again at once; with no replica asked for it stays away."""
    operators.kubectl("patch", *PROMETHEUS, "--type=merge", "--patch", json.dumps({"spec": {"replicas": replicas}}))


def prometheus(operators: Deployment, query: str) -> list[Any]:
    path = "/api/v1/namespaces/monitoring/services/prometheus-operated:9090/proxy/api/v1/query?query="
    answer = json.loads(operators.kubectl("get", "--raw", path + urllib.parse.quote(query)))
    found: list[Any] = answer["data"]["result"]
    return found


def at_minimum(seen: Seen) -> bool:
    return seen.replicas == 1


def there(operators: Deployment, kind: str, namespace: str | None = None) -> set[str]:
    """Names of all objects of a kind, as kubectl calls it, or of those in a namespace."""
    where = f"--namespace={namespace}" if namespace else "--all-namespaces"
    found = json.loads(operators.kubectl("get", kind, where, "--output=json"))["items"]
    return {one["metadata"]["name"] for one in found}


def access(operators: Deployment, with_operators: Cluster) -> Access:
    return Access(kubeconfig=Path(operators.environment["KUBECONFIG"]), kubectl=with_operators.programs["kubectl"])


def keys_of(pods: dict[str, Any]) -> set[tuple[str, str]]:
    """Variable and Secret of everything secret that reaches containers of these pods, in whatever way."""
    found = set()
    for pod in pods.values():
        assert not [volume.name for volume in pod.spec.volumes or [] if volume.secret or volume.projected]
        for container in pod.spec.containers:
            assert not container.env_from
            for variable in container.env:
                if variable.value_from:
                    found.add((variable.name, variable.value_from.secret_key_ref.name))
    return found


def secret_value(operators: Deployment, name: str, key: str) -> str:
    return base64.b64decode(operators.core.read_namespaced_secret(name, NAMESPACE).data[key]).decode()


def answers(with_operators: Cluster, key: str | None) -> int:
    """What the reranker says to a request with this key."""
    url = with_operators.publish("operators-rerank", NAMESPACE, "rerank", 80)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"query": "a", "texts": ["b"]}
    try:
        return requests.post(f"{url}/rerank", json=body, headers=headers, timeout=30).status_code
    except requests.ConnectionError:
        # The only pod of the Service is being replaced.
        return 0


def accepts(with_operators: Cluster, key: str) -> None:
    eventually(lambda: answers(with_operators, key) == 200, "the reranker accepts its key")


def put_secret(operators: Deployment, value: str) -> None:
    """The Secret of somebody else that the stack names."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": EXISTING["secretName"], "namespace": NAMESPACE},
        "stringData": {EXISTING["key"]: value},
    }
    operators.kubectl("apply", "--filename=-", given=json.dumps(secret))


def put_store(operators: Deployment, value: str) -> None:
    """A ClusterSecretStore of the provider that holds its values itself, which External Secrets has for tests."""
    data = [{"key": STORE["remoteKey"], "value": value}]
    store = {
        "apiVersion": "external-secrets.io/v1",
        "kind": "ClusterSecretStore",
        "metadata": {"name": STORE["storeName"]},
        "spec": {"provider": {"fake": {"data": data}}},
    }
    operators.kubectl("apply", "--filename=-", given=json.dumps(store))


def ask_store(operators: Deployment, name: str) -> None:
    """Another ExternalSecret of the same remote key, and its Secret."""
    wanted = {
        "apiVersion": "external-secrets.io/v1",
        "kind": "ExternalSecret",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "secretStoreRef": {"kind": "ClusterSecretStore", "name": STORE["storeName"]},
            "target": {"name": name},
            "data": [{"secretKey": KEY, "remoteRef": {"key": STORE["remoteKey"]}}],
        },
    }
    operators.kubectl("apply", "--filename=-", given=json.dumps(wanted))
    operators.kubectl("wait", "--for=condition=Ready", f"externalsecret/{name}", f"--namespace={NAMESPACE}")


def test_grpc_pods_are_ready_by_their_own_probes_and_every_target_is_up(
    operators: Deployment, with_operators: Cluster
) -> None:
    [pod] = operators.pods("grpc").values()
    assert pod.spec.containers[0].image.endswith("-grpc")
    assert pod.spec.containers[0].readiness_probe.grpc.service == "tei.v1.Embed"
    assert {found.type: found.status for found in pod.status.conditions}["Ready"] == "True"

    def up() -> dict[str, str]:
        found = prometheus(operators, f'up{{namespace="{NAMESPACE}"}} == 1')
        return {sample["metric"]["service"]: sample["metric"]["endpoint"] for sample in found}

    eventually(lambda: len(up()) == 3, "three targets are up")
    assert up() == {"embed": "http", "rerank": "http", "grpc": "metrics"}
    # The same over the engine's own protocol, by those who will look at it in production.
    output = contract.read(json.loads(operators.read("stack", "output", "--json"))["contract"])
    only = replace(output, workloads=(operators.workloads()["grpc"],))
    report = smoke.test(only, access(operators, with_operators), burst=False)
    smoke.show(report)
    assert not report.failed


def test_kubectl_top_shows_pods_of_the_stack(operators: Deployment) -> None:
    def top() -> bool:
        shown = operators.kubectl("top", "pods", "--namespace", NAMESPACE, "--no-headers")
        return {line.split("-")[0] for line in shown.splitlines()} >= {"embed", "rerank", "grpc"}

    eventually(top, "metrics-server has measured every workload")
    print(operators.kubectl("top", "pods", "--namespace", NAMESPACE))


def test_a_new_value_of_an_existing_secret_alone_reaches_no_pod(operators: Deployment, with_operators: Cluster) -> None:
    accepts(with_operators, FIRST)
    before = operators.pods("rerank")
    put_secret(operators, SECOND)
    assert secret_value(operators, EXISTING["secretName"], EXISTING["key"]) == SECOND
    assert (answers(with_operators, FIRST), answers(with_operators, SECOND)) == (200, 401)
    assert set(operators.pods("rerank")) == set(before)


def test_each_pod_gets_only_the_keys_that_it_needs(operators: Deployment) -> None:
    assert keys_of(operators.pods("rerank")) == {("API_KEY", EXISTING["secretName"])}
    assert keys_of(operators.pods("embed")) == set()
    assert keys_of(operators.pods("grpc")) == set()


def test_load_makes_keda_scale_and_every_pod_takes_part(scaled: Scaled) -> None:
    print(
        f"\n{CLIENTS} clients, {QUEUE} waiting texts per replica, looks every {HPA_SECONDS} s: after "
        f"{scaled.asked_seconds:.0f} s {scaled.replicas} replicas are asked for, after {scaled.ready_seconds:.0f} s "
        f"they are Ready, after {scaled.served_seconds:.0f} s each has answered"
    )
    assert scaled.replicas > 1


def test_case_62_pulumi_does_not_put_back_the_replicas_that_keda_has_set(
    operators: Deployment, scaled: Scaled, updated: Updated, watch: Watch
) -> None:
    assert updated.preview.returncode == 0, updated.preview.stdout
    assert operators.apps.read_namespaced_deployment("embed", NAMESPACE).metadata.labels["team"] == "rag"
    replicas = [seen.replicas for seen in watch.since(updated.started) if seen.at <= updated.ended]
    print(f"\npreview and up in {updated.ended - updated.started:.0f} s, replicas {sorted(set(replicas))}")
    assert min(replicas) >= scaled.replicas
    assert set(updated.before["embed"]) <= set(operators.pods("embed")), "no pod of the embedder was replaced"


def test_a_new_version_of_an_existing_secret_reaches_the_pods(
    operators: Deployment, with_operators: Cluster, updated: Updated
) -> None:
    assert not set(operators.pods("rerank")) & set(updated.before["rerank"])
    assert set(operators.pods("grpc")) == set(updated.before["grpc"]), "it has no key"
    accepts(with_operators, SECOND)
    assert answers(with_operators, FIRST) == 401


def test_no_request_fails_while_pods_are_added_but_for_overload(scaled: Scaled) -> None:
    result = scaled.load.stop()
    total = result.total
    failures = {str(kind): error.count for kind, error in total.errors.items()}
    p95 = total.latency_ms.p95 if total.latency_ms else 0
    print(
        f"\n{total.requests} requests in {total.seconds:.0f} s on {result.connections} connections: {total.succeeded} "
        f"answered, failures {failures or 'none'}, {total.unfinished} given up at the end; p95 {p95:.0f} ms"
    )
    assert total.succeeded > 0
    assert set(total.errors) <= {Kind.OVERLOADED}


def test_external_secrets_reach_pods(operators: Deployment, with_operators: Cluster, updated: Updated) -> None:
    before = operators.pods("rerank")
    put_store(operators, THIRD)
    updated.printed += operators.up(described(STORE, LABELS))
    assert not set(operators.pods("rerank")) & set(before)
    [made] = there(operators, "externalsecrets", NAMESPACE)
    assert keys_of(operators.pods("rerank")) == {("API_KEY", made)}
    assert secret_value(operators, made, KEY) == THIRD
    accepts(with_operators, THIRD)


def test_after_the_load_the_replicas_are_given_back(scaled: Scaled, watch: Watch) -> None:
    # It was stopped above, and pods of the reranker were replaced meanwhile.
    scaled.load.stop()
    ended = scaled.load.ended
    eventually(lambda: watch.first(ended, at_minimum) is not None, "back at one replica", 150)
    back = (watch.first(ended, at_minimum) or 0) - ended
    print(f"\nat the minimum {back:.0f} s after the load, of which {STABILIZATION_SECONDS} s stabilization")
    assert {seen.conditions.get("Fallback") for seen in watch.since(scaled.load.started)} == {"False"}


def test_a_new_value_in_the_store_reaches_pods_with_a_new_version_only(
    operators: Deployment, with_operators: Cluster, updated: Updated, outage: float
) -> None:
    # Prometheus is away meanwhile: both take their time, and neither needs the other.
    before = operators.pods("rerank")
    [first] = there(operators, "externalsecrets", NAMESPACE)
    put_store(operators, FOURTH)
    operators.kubectl("annotate", "externalsecret", first, f"--namespace={NAMESPACE}", "force-sync=now")
    # The negative control: who asks the store now is told the new value.
    ask_store(operators, "asked-later")
    assert secret_value(operators, "asked-later", KEY) == FOURTH
    assert secret_value(operators, first, KEY) == THIRD
    assert set(operators.pods("rerank")) == set(before)
    operators.kubectl("delete", "externalsecret", "asked-later", f"--namespace={NAMESPACE}")

    updated.printed += operators.up(described({**STORE, "version": "2"}, LABELS))
    assert not set(operators.pods("rerank")) & set(before)
    [second] = there(operators, "externalsecrets", NAMESPACE)
    assert second != first
    assert keys_of(operators.pods("rerank")) == {("API_KEY", second)}
    accepts(with_operators, FOURTH)
    assert answers(with_operators, THIRD) == 401
    eventually(
        lambda: first not in there(operators, "secrets", NAMESPACE),
        "the Secret of the old version goes with its ExternalSecret",
    )


def test_no_value_of_a_secret_is_in_state_output_or_preview(operators: Deployment, updated: Updated) -> None:
    printed = updated.printed + operators.pulumi("preview", "--diff").stdout
    printed += operators.read("stack", "output", "--json") + operators.read("stack", "export")
    [made] = there(operators, "externalsecrets", NAMESPACE)
    assert made in printed, "the state was read"
    for value in (FIRST, SECOND, THIRD, FOURTH):
        assert value not in printed
        assert base64.b64encode(value.encode()).decode() not in printed


def test_case_98_without_prometheus_replicas_stay_and_the_scaled_object_says_ready_all_the_same(
    operators: Deployment, with_operators: Cluster, outage: float, watch: Watch
) -> None:
    def fallback(seen: Seen) -> bool:
        return seen.conditions.get("Fallback") == "True"

    eventually(lambda: watch.first(outage, fallback) is not None, "KEDA falls back", 120)
    began = watch.first(outage, fallback) or 0
    eventually(lambda: time.monotonic() > began + 4 * HPA_SECONDS, "four more looks of the autoscaler", 120)
    seen = watch.since(outage)
    replicas = [one.replicas for one in seen]
    print(
        f"\nwithout Prometheus and without load for {time.monotonic() - outage:.0f} s: Fallback after "
        f"{began - outage:.0f} s, replicas {sorted(set(replicas))}"
    )
    assert min(replicas) >= replicas[0] > 1
    assert {one.conditions["Ready"] for one in seen} == {"True"}
    checks = ScaledWorkload(operators.workloads()["embed"], access(operators, with_operators), wait_seconds=0).checks()
    [smoke_check] = [result for result in run_checks(checks) if result.check == "ScaledObject"]
    assert smoke_check.status is Status.FAILED
    assert "Fallback" in smoke_check.found

    back = time.monotonic()
    set_prometheus(operators, 1)
    eventually(lambda: watch.first(back, lambda one: not fallback(one)) is not None, "KEDA falls back no more", 120)
    eventually(lambda: watch.first(back, at_minimum) is not None, "back at one replica", 150)
    times = [(watch.first(back, holds) or 0) - back for holds in (lambda one: not fallback(one), at_minimum)]
    print(f"Prometheus is back: Fallback False after {times[0]:.0f} s, at the minimum after {times[1]:.0f} s")


def test_destroy_leaves_nothing_but_the_definitions(operators: Deployment) -> None:
    # Of tests above, and not of the stack.
    operators.kubectl("delete", "clustersecretstores", "--all")
    started = time.monotonic()
    destroyed = operators.pulumi("destroy", "--yes", "--skip-preview")
    print(f"\ndestroy of operators and three workloads: {time.monotonic() - started:.0f} s")
    assert destroyed.returncode == 0, destroyed.stdout
    state = json.loads(operators.read("stack", "export"))
    assert {resource["type"] for resource in state["deployment"].get("resources", [])} <= {"pulumi:pulumi:Stack"}
    assert NAMESPACE not in there(operators, "namespaces")
    served = json.loads(operators.kubectl("get", "apiservices", "--output=json"))["items"]
    assert [one["metadata"]["name"] for one in served if "service" in one["spec"]] == []
    installed = [one for addon in catalogue.addons() for some in catalogue.addon_objects(addon) for one in some]
    for kind in {one["kind"].lower() for one in installed}:
        own = {one["metadata"]["name"] for one in installed if one["kind"].lower() == kind}
        left = there(operators, kind) & own
        # They stay, or the objects of other stacks would go with them.
        assert left == (own if kind == "customresourcedefinition" else set())
    for kind in ("scaledobjects", "servicemonitors", "externalsecrets", "clustersecretstores"):
        assert there(operators, kind) == set()
