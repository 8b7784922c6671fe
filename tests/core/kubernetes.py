"""Kubernetes objects that every rule accepts, and ways to spoil them."""

import copy
from typing import Any

Object = dict[str, Any]
#: Dotted path -> value to put there.
Changes = dict[str, Any] | None
LABELS = {"app.kubernetes.io/name": "text-embeddings-inference", "app.kubernetes.io/instance": "embed"}
TEI = "ghcr.io/huggingface/text-embeddings-inference"


def _metadata() -> Object:
    return {"name": "embed", "namespace": "rag", "labels": dict(LABELS)}


def deployment(changes: Changes = None) -> Object:
    """TEI on an L4; ``changes`` are dotted paths and values: deployment({"spec.replicas": 2})."""
    return changed(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": _metadata(),
            "spec": {
                "progressDeadlineSeconds": 220,
                "selector": {"matchLabels": dict(LABELS)},
                "template": {"metadata": {"labels": dict(LABELS)}, "spec": _pod()},
            },
        },
        changes,
    )


def _pod() -> Object:
    return {
        "enableServiceLinks": False,
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "terminationGracePeriodSeconds": 40,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container()],
        "volumes": [{"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}}],
    }


def _container() -> Object:
    return {
        "name": "tei",
        "image": f"{TEI}:89-1.9.3",
        "env": [
            {"name": "MODEL_ID", "value": "BAAI/bge-small-en-v1.5"},
            {"name": "PORT", "value": "8080"},
            {"name": "MAX_CONCURRENT_REQUESTS", "value": "64"},
            {"name": "MAX_CLIENT_BATCH_SIZE", "value": "32"},
            {"name": "MAX_BATCH_TOKENS", "value": "16384"},
            {"name": "TOKENIZATION_WORKERS", "value": "1"},
            {"name": "AUTO_TRUNCATE", "value": "true"},
            {"name": "LOG_LEVEL", "value": "info,text_embeddings_router=warn,text_embeddings_router::http=info"},
            {"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "embed-keys", "key": "apiKey"}}},
        ],
        "ports": [{"name": "http", "containerPort": 8080}],
        "startupProbe": _probe("/health", 12),
        "readinessProbe": _probe("/health", 3),
        "livenessProbe": _probe("/metrics", 6),
        "lifecycle": {"preStop": {"sleep": {"seconds": 10}}},
        "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _probe(path: str, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": 5,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def service(changes: Changes = None) -> Object:
    return changed(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _metadata(),
            "spec": {"selector": dict(LABELS), "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
        },
        changes,
    )


def monitor(changes: Changes = None) -> Object:
    return changed(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "ServiceMonitor",
            "metadata": _metadata(),
            "spec": {"selector": {"matchLabels": dict(LABELS)}, "endpoints": [{"port": "http", "path": "/metrics"}]},
        },
        changes,
    )


def scaled_object(changes: Changes = None) -> Object:
    query = 'sum(te_queue_size{namespace="rag"}) + sum(rate(te_request_failure{err="overloaded"}[1m]))'
    return changed(
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": _metadata(),
            "spec": {
                "scaleTargetRef": {"name": "embed"},
                "minReplicaCount": 2,
                "maxReplicaCount": 4,
                "fallback": {"failureThreshold": 3, "replicas": 2, "behavior": "currentReplicasIfHigher"},
                "triggers": [
                    {
                        "type": "prometheus",
                        "metricType": "AverageValue",
                        "metadata": {
                            "serverAddress": "http://prometheus-operated.monitoring.svc.cluster.local:9090",
                            "query": query,
                            "threshold": "16",
                            "ignoreNullValues": "false",
                        },
                    }
                ],
            },
        },
        changes,
    )


def autoscaler(changes: Changes = None) -> Object:
    return changed(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": _metadata(),
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "embed"},
                "metrics": [{"type": "Pods", "pods": {"metric": {"name": "te_queue_size"}}}],
            },
        },
        changes,
    )


def budget(changes: Changes = None) -> Object:
    return changed(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": _metadata(),
            "spec": {
                "maxUnavailable": 1,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": {"matchLabels": dict(LABELS)},
            },
        },
        changes,
    )


def network_policy(changes: Changes = None) -> Object:
    """Admits the app's pods and Prometheus to the port http of TEI."""
    return changed(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": _metadata(),
            "spec": {
                "podSelector": {"matchLabels": dict(LABELS)},
                "policyTypes": ["Ingress"],
                "ingress": [
                    {
                        "from": [
                            {"podSelector": {"matchLabels": {"app": "rag-api"}}},
                            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
                        ],
                        "ports": [{"port": "http"}],
                    }
                ],
            },
        },
        changes,
    )


#: Stands for "take this away" in changes.
ABSENT = object()

POD = "spec.template.spec"
CONTAINER = f"{POD}.containers.0"


def changed(given: Object, changes: Changes) -> Object:
    """``given`` with values put in, or taken away, at dotted paths."""
    result = copy.deepcopy(given)
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        place: Any = result
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        key: Any = int(last) if isinstance(place, list) else last
        if value is ABSENT:
            del place[key]
        elif isinstance(place, list) and key == len(place):
            place.append(value)
        else:
            place[key] = value
    return result


def tei(**environment: Any) -> Object:
    """The Deployment with environment variables set, or taken away with ABSENT."""
    given = deployment()
    variables = given["spec"]["template"]["spec"]["containers"][0]["env"]
    kept = [entry for entry in variables if entry["name"] not in environment]
    kept += [{"name": name, "value": value} for name, value in environment.items() if value is not ABSENT]
    return changed(given, {f"{CONTAINER}.env": kept})
