"""Rules over one object: what they accept, what they refuse, and what they say where a property is missing."""

from typing import Any

import pytest

from infra.core import rules
from infra.core.rules import OBJECT_RULES, UNKNOWN, UNKNOWN_VALUES, ObjectRule
from tests.core.kubernetes import (
    ABSENT,
    CONTAINER,
    POD,
    TEI,
    Changes,
    autoscaler,
    changed,
    deployment,
    network_policy,
    scaled_object,
    tei,
)

pytestmark = pytest.mark.core

RULES: dict[str, ObjectRule] = {rule.id: rule for rule in OBJECT_RULES}
HF_TOKEN = "hf_" + "a" * 34


def said(rule: str, given: dict[str, Any]) -> list[str]:
    verdict = rules.judge_object(RULES[rule], given)
    assert verdict.unknown is None
    assert {found.rule for found in verdict.violations} <= {rule}
    return [str(found) for found in verdict.violations]


def with_image(tag: str, changes: Changes = None) -> dict[str, Any]:
    return deployment({f"{CONTAINER}.image": f"{TEI}{tag}", **(changes or {})})


def on_gpu(product: str, tag: str = ":89-1.9.3") -> dict[str, Any]:
    return with_image(tag, {f"{POD}.nodeSelector": {"nvidia.com/gpu.product": product}})


def test_a_good_deployment_and_its_scaler_pass_every_rule() -> None:
    assert rules.judge([deployment(), network_policy(), scaled_object()]) == []


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_nothing_to_say_of_an_empty_object_or_one_it_does_not_know(rule: str) -> None:
    assert said(rule, {}) == []
    assert said(rule, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "rag"}}) == []


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "CronJob", "Pod", "ScaledObject", "PrometheusRule"])
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_survives_an_object_that_has_a_kind_and_nothing_else(rule: str, kind: str) -> None:
    assert said(rule, {"kind": kind, "spec": None}) == []


# (rule, object, place, words of the message): every entry is refused with exactly this.
REFUSED = [
    ("image-and-gpu", on_gpu("Tesla-T4"), "image", ["T4", "7.5", "Use turing-1.9.3"]),
    ("image-and-gpu", on_gpu("NVIDIA-A10G"), "image", ["A10G", "8.6", "Use 86-1.9.3"]),
    ("image-and-gpu", on_gpu("NVIDIA-H100-80GB-HBM3-SHARED"), "image", ["H100", "Use hopper-1.9.3"]),
    ("image-and-gpu", on_gpu("Tesla-V100-SXM2-32GB"), "image", ["V100", "no image for this GPU"]),
    ("image-and-gpu", on_gpu("NVIDIA-L5"), "nvidia.com/gpu.product", ["'NVIDIA-L5'", "gpus.yaml"]),
    ("image-and-gpu", on_gpu("Tesla-T4", ":latest"), "image", ["latest", "T4"]),
    ("image-and-gpu", on_gpu("NVIDIA-L4", ":cpu-1.9.3"), "image", ["computes on the CPU"]),
    ("image-and-gpu", with_image("@sha256:" + "0" * 64), "image", ["does not say which GPU"]),
    ("image-and-gpu", with_image(":89-1.9.3", {f"{CONTAINER}.resources": ABSENT}), "image", ["use cpu-1.9.3"]),
    (
        "image-and-gpu",
        deployment({f"{POD}.nodeSelector": {"node.kubernetes.io/instance-type": "g5.xlarge"}}),
        "image",
        ["A10G", "node.kubernetes.io/instance-type"],
    ),
    (
        "image-and-gpu",
        deployment(
            {
                f"{POD}.nodeSelector": {"pool": "gpu"},
                f"{POD}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {
                                "key": "karpenter.k8s.aws/instance-gpu-name",
                                "operator": "In",
                                "values": ["l4", "t4"],
                            }
                        ]
                    }
                ],
            }
        ),
        "image",
        ["T4", "nodeAffinity karpenter.k8s.aws/instance-gpu-name"],
    ),
    ("image-version", with_image(":latest"), "image", ["'latest'"]),
    ("image-version", with_image(":cuda-latest"), "image", ["'cuda-latest'"]),
    ("image-version", with_image(""), "image", ["no tag, which means latest"]),
    ("image-version", with_image(":89-1.9"), "image", ["patch number"]),
    ("image-version", deployment({f"{CONTAINER}.image": "registry:5000/app"}), "image", ["no tag"]),
    ("image-version", deployment({f"{CONTAINER}.image": "app:stable"}), "image", ["'stable'"]),
    ("image-version", deployment({f"{CONTAINER}.image": ABSENT}), "image", ["there is no image"]),
    ("gpu-scheduling", deployment({f"{POD}.tolerations": ABSENT}), "tolerations", ["taint"]),
    ("gpu-scheduling", deployment({f"{POD}.tolerations.0.effect": "NoExecute"}), "tolerations", ["taint"]),
    ("gpu-scheduling", deployment({f"{POD}.nodeSelector": ABSENT}), "nodeSelector", ["which GPU"]),
    ("gpu-scheduling", deployment({f"{CONTAINER}.resources.limits": ABSENT}), "nvidia.com/gpu", ["only a request"]),
    (
        "gpu-scheduling",
        deployment({f"{CONTAINER}.resources.limits": {"nvidia.com/gpu": "0.5"}}),
        "nvidia.com/gpu",
        ["no whole number"],
    ),
    (
        "gpu-scheduling",
        deployment({f"{CONTAINER}.resources.requests": {"nvidia.com/gpu": 2}}),
        "nvidia.com/gpu",
        ["differs from the request 2"],
    ),
    ("probes", deployment({f"{CONTAINER}.startupProbe": ABSENT}), "startupProbe", ["liveness would restart"]),
    ("probes", deployment({f"{CONTAINER}.readinessProbe": ABSENT}), "readinessProbe", ["cannot answer"]),
    (
        "probes",
        deployment({f"{CONTAINER}.livenessProbe.httpGet.path": "/health"}),
        "livenessProbe.httpGet.path",
        ["after the running batch", "Use /metrics"],
    ),
    (
        "probes",
        deployment({f"{CONTAINER}.readinessProbe.httpGet.path": "/info"}),
        "readinessProbe.httpGet.path",
        ["/info", "401"],
    ),
    (
        "probes",
        deployment({f"{CONTAINER}.readinessProbe.timeoutSeconds": ABSENT}),
        "readinessProbe.timeoutSeconds",
        ["1 s is shorter than a batch"],
    ),
    (
        "probes",
        deployment({f"{CONTAINER}.readinessProbe.timeoutSeconds": 15}),
        "readinessProbe.periodSeconds",
        ["5 s is shorter than the timeout of 15 s"],
    ),
    (
        "probes",
        deployment({f"{CONTAINER}.startupProbe.httpGet.port": "metrics"}),
        "startupProbe: port",
        ["no port 'metrics'"],
    ),
    ("probes", deployment({f"{CONTAINER}.startupProbe.httpGet.port": 80}), "startupProbe: port", ["no port 80"]),
    (
        "probes",
        deployment(
            {
                f"{CONTAINER}.image": "nvcr.io/nvidia/tritonserver:25.07-py3",
                f"{CONTAINER}.livenessProbe.httpGet.path": "/v2/health/ready",
            }
        ),
        "livenessProbe.httpGet.path",
        ["Use /v2/health/live"],
    ),
    (
        "budgets",
        deployment({f"{CONTAINER}.startupProbe.failureThreshold": 60}),
        "spec.progressDeadlineSeconds",
        ["220 s", "(300 s)"],
    ),
    (
        "budgets",
        deployment({"spec.progressDeadlineSeconds": ABSENT, f"{CONTAINER}.startupProbe.failureThreshold": 120}),
        "spec.progressDeadlineSeconds",
        ["600 s", "(600 s)"],
    ),
    ("budgets", deployment({f"{CONTAINER}.lifecycle": ABSENT}), "preStop", ["requests still arrive"]),
    (
        "budgets",
        deployment({f"{CONTAINER}.lifecycle.preStop.sleep.seconds": 40}),
        "terminationGracePeriodSeconds",
        ["preStop wait of 40 s"],
    ),
    (
        "budgets",
        deployment(
            {
                f"{CONTAINER}.lifecycle.preStop": {"exec": {"command": ["sh", "-c", "sleep 30"]}},
                f"{POD}.terminationGracePeriodSeconds": ABSENT,
            }
        ),
        "terminationGracePeriodSeconds",
        ["30 s are over"],
    ),
    ("service-links", deployment({f"{POD}.enableServiceLinks": ABSENT}), "enableServiceLinks", ["Set it to false"]),
    ("service-links", deployment({f"{POD}.enableServiceLinks": True}), "enableServiceLinks", ["PROMETHEUS_PORT"]),
    ("secrets-in-env", tei(HF_TOKEN="made-up"), "env", ["HF_TOKEN is given in plain text"]),
    ("secrets-in-env", tei(MODEL_ID=HF_TOKEN), "env", ["MODEL_ID holds what looks like a credential"]),
    ("secrets-in-env", tei(NIM="nvapi-0123456789"), "env", ["looks like a credential"]),
    ("secrets-in-env", tei(PROXY="http://user:word@proxy:3128"), "env", ["looks like a credential"]),
    ("secrets-in-env", deployment({f"{CONTAINER}.args": ["--api-key", "word"]}), "args[0]", ["process list"]),
    ("secrets-in-env", deployment({f"{CONTAINER}.args": ["--hf-token=word"]}), "args[0]", ["process list"]),
    ("secrets-in-env", {"kind": "ConfigMap", "data": {"x": f"a={HF_TOKEN}"}}, "data[x]", ["Put it into a Secret"]),
    ("pod-security", deployment({f"{POD}.hostNetwork": True}), "hostNetwork", ["node"]),
    ("pod-security", deployment({f"{POD}.volumes.1": {"name": "w", "hostPath": {"path": "/w"}}}), "hostPath", []),
    ("pod-security", deployment({f"{POD}.securityContext.runAsNonRoot": ABSENT}), "runAsNonRoot", ["root"]),
    ("pod-security", deployment({f"{POD}.securityContext.seccompProfile": ABSENT}), "seccompProfile", []),
    ("pod-security", deployment({f"{POD}.securityContext.runAsUser": 0}), "runAsUser", ["0 is root"]),
    (
        "pod-security",
        deployment({f"{CONTAINER}.securityContext.allowPrivilegeEscalation": ABSENT}),
        "allowPrivilegeEscalation",
        ["Set it to false"],
    ),
    ("pod-security", deployment({f"{CONTAINER}.securityContext.capabilities": ABSENT}), "capabilities.drop", ["ALL"]),
    (
        "pod-security",
        deployment({f"{CONTAINER}.securityContext.capabilities.add": ["SYS_ADMIN"]}),
        "capabilities.add",
        [],
    ),
    ("pod-security", deployment({f"{CONTAINER}.securityContext.privileged": True}), "privileged", ["root"]),
    ("pod-security", deployment({f"{CONTAINER}.ports.0.hostPort": 8080}), "hostPort", ["node"]),
    ("batch-and-concurrency", tei(MAX_CONCURRENT_REQUESTS="16"), "MAX_CLIENT_BATCH_SIZE", ["32", "(16)", "429"]),
    ("batch-and-concurrency", tei(MAX_CLIENT_BATCH_SIZE="128"), "MAX_CLIENT_BATCH_SIZE", ["128", "(64)"]),
    (
        "batch-and-concurrency",
        tei(MAX_CLIENT_BATCH_SIZE="1024", MAX_CONCURRENT_REQUESTS=ABSENT),
        "MAX_CLIENT_BATCH_SIZE",
        ["(512)"],
    ),
    (
        "batch-and-concurrency",
        deployment({f"{CONTAINER}.args": ["--max-concurrent-requests", "8"]}),
        "MAX_CLIENT_BATCH_SIZE",
        ["(8)"],
    ),
    ("batch-and-concurrency", tei(MAX_CONCURRENT_REQUESTS="0"), "MAX_CONCURRENT_REQUESTS", ["'0' is no number above"]),
    ("batch-and-concurrency", tei(PAYLOAD_LIMIT="2MB"), "PAYLOAD_LIMIT", ["'2MB'"]),
    ("batch-and-concurrency", tei(TOKENIZATION_WORKERS=ABSENT), "TOKENIZATION_WORKERS", ["per core of the node"]),
    ("engine-settings", tei(HF_API_TOKEN="$(HF_TOKEN)"), "HF_API_TOKEN", ["Use HF_TOKEN"]),
    ("engine-settings", tei(AUTO_TRUNCATE="True"), "AUTO_TRUNCATE", ["'True'"]),
    ("engine-settings", tei(AUTO_TRUNCATE=ABSENT), "AUTO_TRUNCATE", ["release to release"]),
    ("engine-settings", tei(PORT="80"), "PORT", ["'80'", "1024"]),
    ("engine-settings", tei(PORT=ABSENT), "PORT", ["80"]),
    ("engine-settings", tei(PORT="tcp://10.0.0.1:80"), "PORT", ["tcp://"]),
    ("engine-settings", tei(LOG_LEVEL="info"), "LOG_LEVEL", ["prints its API key"]),
    ("engine-settings", tei(LOG_LEVEL=ABSENT), "LOG_LEVEL", ["prints its API key"]),
    ("engine-settings", tei(NVIDIA_DRIVER_CAPABILITIES="compute"), "NVIDIA_DRIVER_CAPABILITIES", ["utility"]),
    ("engine-settings", deployment({f"{CONTAINER}.command": ["text-embeddings-router"]}), "command", ["entrypoint"]),
    ("engine-settings", deployment({f"{CONTAINER}.workingDir": "/data"}), "workingDir", ["relative path"]),
]


@pytest.mark.parametrize(("rule", "given", "place", "words"), REFUSED)
def test_what_cannot_work_is_refused_with_place_and_fix(
    rule: str, given: dict[str, Any], place: str, words: list[str]
) -> None:
    [message] = said(rule, given)
    assert [word for word in (place, *words) if word not in message] == []
    assert HF_TOKEN not in message
    others = {found.rule for found in rules.judge([given, network_policy()]) if found.rule != rule}
    assert others <= {"image-and-gpu", "image-version", "budgets", "engine-settings"}, "one mistake, one refusal"


@pytest.mark.parametrize(
    ("rule", "given"),
    [
        ("image-and-gpu", on_gpu("NVIDIA-L4", ":1.9.3")),
        ("image-and-gpu", on_gpu("NVIDIA-L40S", ":86-1.9.3-grpc")),
        ("image-and-gpu", on_gpu("NVIDIA-H100-80GB-HBM3", ":cuda-1.9.3")),
        ("image-and-gpu", deployment({f"{CONTAINER}.image": "nginx:1.29.1"})),
        ("image-and-gpu", with_image(":cpu-1.9.3", {f"{CONTAINER}.resources": ABSENT})),
        ("image-version", with_image("@sha256:" + "0" * 64)),
        ("image-version", with_image(":turing-1.9.3-grpc")),
        ("image-version", deployment({f"{CONTAINER}.image": "registry:5000/app:v1.2"})),
        ("gpu-scheduling", deployment({f"{POD}.tolerations": [{"operator": "Exists"}]})),
        ("gpu-scheduling", deployment({f"{CONTAINER}.resources": ABSENT, f"{POD}.tolerations": ABSENT})),
        ("probes", deployment({f"{CONTAINER}.livenessProbe": ABSENT})),
        ("probes", deployment({f"{CONTAINER}.livenessProbe": {"tcpSocket": {"port": 8080}}})),
        ("budgets", deployment({f"{CONTAINER}.lifecycle.preStop": {"exec": {"command": ["/drain"]}}})),
        ("secrets-in-env", tei(MAX_INPUT_TOKENS="512", REQUIRE_API_KEY="true", HF_TOKEN="$(OTHER)")),
        ("secrets-in-env", deployment({f"{CONTAINER}.args": ["--api-key", "$(API_KEY)", "--token-file=/x"]})),
        ("secrets-in-env", {"kind": "ConfigMap", "data": {"model": "BAAI/bge-small-en-v1.5"}}),
        ("pod-security", deployment({f"{CONTAINER}.securityContext.runAsNonRoot": True})),
        ("engine-settings", tei(LOG_LEVEL="warn")),
        ("engine-settings", tei(LOG_LEVEL="info", API_KEY=ABSENT)),
        ("engine-settings", tei(NVIDIA_DRIVER_CAPABILITIES="compute,utility")),
    ],
)
def test_what_works_is_accepted(rule: str, given: dict[str, Any]) -> None:
    assert said(rule, given) == []


def test_a_pod_that_serves_nothing_is_judged_for_its_image_and_its_secrets_only() -> None:
    plain = {"kind": "Deployment", "spec": {"template": {"spec": {"containers": [{"image": "app"}]}}}}
    found = {violation.rule for violation in rules.judge([plain])}
    assert found == {"image-version"}


def test_init_containers_and_sidecars_are_judged_too() -> None:
    given = deployment({f"{POD}.initContainers": [{"name": "init", "image": "tools:latest"}]})
    [message] = said("image-version", given)
    assert "initContainers[0].image" in message


def test_case_05_two_engines_of_a_pod_need_ports_of_their_own() -> None:
    first = deployment()["spec"]["template"]["spec"]["containers"][0]
    second = changed(first, {"env": [*first["env"], {"name": "PORT", "value": "8081"}]})
    messages = said("engine-settings", deployment({f"{POD}.containers": [first, {**first}]}))
    assert [word in message for word, message in zip(("8080", "9000"), messages, strict=True)] == [True, True]
    [message] = said("engine-settings", deployment({f"{POD}.containers": [first, second]}))
    assert "9000 is the PROMETHEUS_PORT" in message
    second = changed(second, {"env": [*second["env"], {"name": "PROMETHEUS_PORT", "value": "9001"}]})
    assert said("engine-settings", deployment({f"{POD}.containers": [first, second]})) == []


def query(text: str) -> dict[str, Any]:
    return scaled_object({"spec.triggers.0.metadata.query": text})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sum(text_embeddings_inference_queue_size)", ["text_embeddings_inference_queue_size", "te_queue_size"]),
        ("sum(te_queue_sise)", ["te_queue_sise", "te_queue_size"]),
        ("rate(te_request_count_total[1m])", ["te_request_count_total", "te_request_count"]),
        ("sum(nv_inference_pending_requests)", ["nv_inference_pending_request_count"]),
        ("sum(te_request_failure)", ["te_request_failure only ever grows", "rate("]),
        ('sum(nv_inference_queue_duration_us{model="m"}) / 2', ["nv_inference_queue_duration_us only ever grows"]),
        ("", ["there is none"]),
    ],
)
def test_case_04_and_case_44_a_signal_that_does_not_exist_or_only_grows_is_refused(text: str, words: list[str]) -> None:
    [message] = said("scaling-signal", query(text))
    assert [word for word in ("spec.triggers[0].metadata.query", *words) if word not in message] == []


@pytest.mark.parametrize(
    "text",
    [
        "sum(te_queue_size) or (0 * count(up{job='te_no_metric'} == 1))",
        'sum(increase(te_request_failure{err="overloaded"}[2m]))',
        "histogram_quantile(0.9, sum by (le) (rate(te_request_queue_duration_bucket[1m])))",
        "sum(serving:te_queue:sum)",
        "sum(rate(app_requests_total[1m]))",
    ],
)
def test_signals_of_the_engines_and_of_others_are_accepted(text: str) -> None:
    assert said("scaling-signal", query(text)) == []


def test_alerts_and_autoscalers_name_metrics_that_exist() -> None:
    alerts = {"kind": "PrometheusRule", "spec": {"groups": [{"rules": [{"expr": "te_queue > 1"}, {"record": "x"}]}]}}
    [message] = said("scaling-signal", alerts)
    assert "spec.groups[0].rules[0].expr" in message
    metric = [{"type": "Pods", "pods": {"metric": {"name": "te_queue"}}}]
    [message] = said("scaling-signal", autoscaler({"spec.metrics": metric}))
    assert "te_queue_size" in message
    assert said("scaling-signal", autoscaler()) == []


def test_a_scaler_without_prometheus_is_not_asked_for_a_query() -> None:
    cron = scaled_object({"spec.triggers": [{"type": "cron", "metadata": {}}]})
    assert [said(rule, cron) for rule in ("scaling-signal", "scaling-query", "scaled-object")] == [[], [], []]


def test_case_94_a_value_that_is_not_known_is_reported_once_and_not_passed() -> None:
    given = deployment({f"{CONTAINER}.image": UNKNOWN})
    verdict = rules.judge_object(RULES["image-version"], given)
    assert (verdict.violations, verdict.unknown) == ((), "spec.template.spec.containers[0].image")
    found = next(one for one in rules.judge([given, network_policy()]) if one.subject is given)
    assert found.rule == UNKNOWN_VALUES
    assert str(found).startswith("Deployment rag/embed: spec.template.spec.containers[0].image: not known")
    assert "image-and-gpu, image-version, probes, budgets" in str(found)


def test_an_unknown_value_that_no_rule_needs_is_accepted() -> None:
    given = deployment({f"{POD}.serviceAccountName": UNKNOWN, "metadata.uid": UNKNOWN})
    assert rules.judge([given, network_policy()]) == []


def test_what_was_found_before_an_unknown_value_is_still_said() -> None:
    given = deployment({f"{POD}.tolerations": ABSENT, f"{POD}.nodeSelector": UNKNOWN})
    verdict = rules.judge_object(RULES["gpu-scheduling"], given)
    assert len(verdict.violations) == 1
    assert verdict.unknown == "spec.template.spec.nodeSelector"


def as_sidecar(changes: Changes = None) -> dict[str, Any]:
    """The engine as a native sidecar of an app."""
    given = deployment()
    pod = given["spec"]["template"]["spec"]
    [engine] = pod["containers"]
    app = {
        "name": "app",
        "image": "ghcr.io/acme/rag-api:1.4.2",
        "ports": [{"name": "app", "containerPort": 8000}],
        "startupProbe": {"tcpSocket": {"port": "app"}, "periodSeconds": 5, "failureThreshold": 13},
        "lifecycle": {"preStop": {"sleep": {"seconds": 10}}},
        "securityContext": engine["securityContext"],
    }
    del engine["lifecycle"]
    pod["initContainers"], pod["containers"] = [{**engine, "restartPolicy": "Always"}], [app]
    return changed(given, changes)


SIDECAR = f"{POD}.initContainers.0"


def test_a_good_sidecar_passes_every_rule() -> None:
    assert rules.judge([as_sidecar(), network_policy(), scaled_object()]) == []


@pytest.mark.parametrize(
    ("rule", "changes", "place"),
    [
        ("probes", {f"{SIDECAR}.startupProbe": ABSENT}, "initContainers[0].startupProbe"),
        ("probes", {f"{SIDECAR}.livenessProbe.httpGet.path": "/health"}, "initContainers[0].livenessProbe.httpGet"),
        ("gpu-scheduling", {f"{POD}.tolerations": ABSENT}, "tolerations"),
        ("image-and-gpu", {f"{SIDECAR}.image": f"{TEI}:turing-1.9.3"}, "initContainers[0].image"),
        ("engine-settings", {f"{SIDECAR}.workingDir": "/x"}, "initContainers[0].workingDir"),
        ("service-links", {f"{POD}.enableServiceLinks": ABSENT}, "enableServiceLinks"),
        ("pod-security", {f"{CONTAINER}.securityContext": ABSENT}, "containers[0].securityContext"),
        ("budgets", {f"{CONTAINER}.lifecycle": ABSENT}, "containers[0].lifecycle.preStop"),
        # 60 s of the engine, then 65 s of the app.
        ("budgets", {"spec.progressDeadlineSeconds": 125}, "progressDeadlineSeconds"),
    ],
)
def test_an_engine_is_found_as_a_native_sidecar(rule: str, changes: dict[str, Any], place: str) -> None:
    found = said(rule, as_sidecar(changes))
    assert found, "nothing is said"
    assert all(place in line for line in found), found


def test_an_init_container_that_ends_is_no_engine_that_serves() -> None:
    # Kubernetes refuses probes there.
    ends = as_sidecar({f"{SIDECAR}.restartPolicy": ABSENT, f"{SIDECAR}.startupProbe": ABSENT})
    assert said("probes", ends) == []
    assert said("budgets", ends) == []
