"""Rules about the pod: GPU, probes, budgets, secrets, security."""

import re
from collections.abc import Iterable, Iterator

from infra.core import credentials
from infra.core.plan import GPU_RESOURCE
from infra.core.rules.images import GPU_RESOURCES, engine_of, serving, speaks_grpc, wants_gpu
from infra.core.rules.objects import Container, Object, Pod, pod_of, whole
from infra.core.rules.rule import ALWAYS_MANDATORY, MANDATORY_FROM_STAGING, Finding, ObjectRule


def _gpu_scheduling(given: Object) -> Iterable[Finding]:
    pod = pod_of(given)
    if pod is None:
        return
    holders = [container for container in pod.containers() if wants_gpu(container)]
    for container in holders:
        limits, requests = container.resources("limits"), container.resources("requests")
        for resource in sorted({key for key in (*limits, *requests) if key.startswith(GPU_RESOURCES)}):
            path = f"{container.path}.resources.limits[{resource}]"
            amount = limits.get(resource)
            if amount is None:
                yield Finding(path, "only a request is given", "Give the same number as a limit: GPUs are not shared")
            elif not whole(amount):
                yield Finding(path, f"{amount!r} is no whole number of GPUs", "Give 1 or more")
            elif resource in requests and whole(requests[resource]) != whole(amount):
                yield Finding(path, f"{amount!r} differs from the request {requests[resource]!r}", "Give one number")
    if not holders:
        return
    if not any(_tolerates(toleration) for toleration in pod.spec.get("tolerations", ())):
        yield Finding(
            f"{pod.path}.tolerations",
            f"GPU nodes carry the taint {GPU_RESOURCE}:NoSchedule and the pod does not tolerate it",
            f"Add {{key: {GPU_RESOURCE}, operator: Exists, effect: NoSchedule}}",
        )
    affinity = pod.spec.get("affinity", {}).get("nodeAffinity", {})
    if not pod.spec.get("nodeSelector") and "requiredDuringSchedulingIgnoredDuringExecution" not in affinity:
        yield Finding(
            f"{pod.path}.nodeSelector",
            "nothing says which GPU, so that the pod may land on one that its image does not start on",
            "Select nvidia.com/gpu.product or a label of the node pool",
        )


def _tolerates(toleration: Object) -> bool:
    if toleration.get("effect", "NoSchedule") != "NoSchedule":
        return False
    key = toleration.get("key")
    return key == GPU_RESOURCE or (not key and toleration.get("operator") == "Exists")


#: TEI paths that no API key protects; the first three wait behind the running batch.
_TEI_QUEUING = ("/health", "/ping", "/")
_TEI_PATHS = (*_TEI_QUEUING, "/metrics")
#: Recordings of TEI 1.9.3 under load: /health took 4.9 s in the median, and a timeout of 1 s failed 9 times of 12.
_TEI_TIMEOUT_SECONDS = 5


def _probes(given: Object) -> Iterable[Finding]:
    found = serving(given)
    if found is None or given.get("kind") in {"Job", "CronJob"}:
        return
    for container in found[1]:
        for probe, why in (
            ("startupProbe", "until it is there, liveness would restart a pod that still loads its model"),
            ("readinessProbe", "without it requests reach a pod that cannot answer"),
        ):
            if probe not in container.spec:
                yield Finding(f"{container.path}.{probe}", f"there is none: {why}", f"Add a {probe}")
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container.spec:
                yield from _probe(container, probe)


def _probe(container: Container, kind: str) -> Iterator[Finding]:
    spec, path = container.spec[kind], f"{container.path}.{kind}"
    target = spec.get("httpGet") or spec.get("tcpSocket") or spec.get("grpc") or {}
    port = target.get("port")
    ports = container.spec.get("ports", ())
    declared = {entry.get("name") for entry in ports} | {entry.get("containerPort") for entry in ports}
    if port is not None and (whole(port) if whole(port) is not None else port) not in declared:
        yield Finding(f"{path}: port", f"the container has no port {port!r}", "Name one of its ports")
    if "httpGet" not in spec:
        return
    where = str(target.get("path", "/"))
    if engine_of(container) == "tei" and not speaks_grpc(container):
        if where not in _TEI_PATHS:
            yield Finding(
                f"{path}.httpGet.path",
                f"TEI answers {where} with 404, or with 401 once it has an API key",
                f"Use /health, for liveness /metrics; public are {', '.join(_TEI_PATHS)}",
            )
        if kind == "livenessProbe" and where in _TEI_QUEUING:
            yield Finding(
                f"{path}.httpGet.path",
                f"TEI answers {where} after the running batch, so that load would restart the pod",
                "Use /metrics, which does not queue",
            )
        elif where in _TEI_QUEUING:
            timeout, period = spec.get("timeoutSeconds", 1), spec.get("periodSeconds", 10)
            if timeout < _TEI_TIMEOUT_SECONDS:
                yield Finding(
                    f"{path}.timeoutSeconds",
                    f"{timeout} s is shorter than a batch, and TEI answers {where} after it",
                    f"Give {_TEI_TIMEOUT_SECONDS} s or more, and more than the longest batch",
                )
            elif period < timeout:
                yield Finding(
                    f"{path}.periodSeconds",
                    f"{period} s is shorter than the timeout of {timeout} s: checks pile up, and more than 8 that wait "
                    "can abort TEI",
                    f"Give {timeout} s or more",
                )
    if engine_of(container) == "triton" and kind == "livenessProbe" and where == "/v2/health/ready":
        yield Finding(
            f"{path}.httpGet.path", "it fails while a model loads, so that the pod restarts", "Use /v2/health/live"
        )


#: Kubernetes' own values where a Deployment or a pod gives none.
_PROGRESS_DEADLINE_SECONDS = 600
_GRACE_SECONDS = 30


def _budgets(given: Object) -> Iterable[Finding]:
    found = serving(given)
    if found is None or given.get("kind") in {"Job", "CronJob"}:
        return
    pod, containers = found
    grace = pod.spec.get("terminationGracePeriodSeconds", _GRACE_SECONDS)
    # Sidecars start one after the other, and main containers together when all have.
    sidecars = [container.path for container in pod.sidecars()]
    seconds = sum(_startup_seconds(container) for container in pod.sidecars())
    seconds += max((_startup_seconds(container) for container in pod.main()), default=0)
    for container in containers:
        if given["kind"] == "Deployment" and "startupProbe" in container.spec:
            deadline = given.get("spec", {}).get("progressDeadlineSeconds", _PROGRESS_DEADLINE_SECONDS)
            if deadline <= seconds:
                yield Finding(
                    "spec.progressDeadlineSeconds",
                    f"{deadline} s are over before the startup probe gives up ({seconds} s), so that the rollout "
                    "counts as failed while a pod still starts",
                    "Give more than image pull, startup and the drain of the old pod take together",
                )
        # A sidecar is told to end when the main containers have, so that their wait is its own.
        waiting = next(pod.main(), container) if container.path in sidecars else container
        pre_stop = waiting.spec.get("lifecycle", {}).get("preStop")
        path = f"{waiting.path}.lifecycle.preStop"
        if pre_stop is None:
            yield Finding(
                path,
                "there is none: requests still arrive while endpoints are removed, and the engine refuses them",
                "Add a sleep of 10 s",
            )
            continue
        wait = _sleep_seconds(pre_stop)
        if wait is not None and wait >= grace:
            yield Finding(
                f"{pod.path}.terminationGracePeriodSeconds",
                f"{grace} s are over when the preStop wait of {wait} s ends, so that running requests are killed",
                "Give the preStop wait and the longest request together",
            )


def _startup_seconds(container: Container) -> int:
    """What the startup probe allows; 0 where there is none."""
    probe = container.spec.get("startupProbe", {})
    if not probe:
        return 0
    return int(probe.get("initialDelaySeconds", 0)) + int(probe.get("periodSeconds", 10)) * int(
        probe.get("failureThreshold", 3)
    )


def _sleep_seconds(hook: Object) -> int | None:
    if "sleep" in hook:
        return whole(hook["sleep"].get("seconds"))
    command = " ".join(str(part) for part in hook.get("exec", {}).get("command", ()))
    match = re.search(r"\bsleep (\d+)", command)
    return int(match[1]) if match else None


def _service_links(given: Object) -> Iterable[Finding]:
    found = serving(given)
    if found is not None and found[0].spec.get("enableServiceLinks") is not False:
        yield Finding(
            f"{found[0].path}.enableServiceLinks",
            "a Service called `prometheus` would set PROMETHEUS_PORT=tcp://..., which TEI fails to parse",
            "Set it to false",
        )


_FROM_SECRET = "Put it into a Secret and refer to it by valueFrom.secretKeyRef"  # noqa: S105 - advice
_SECRET_FLAG = re.compile(r"^--(?:[a-z-]*-)?(token|api-key|password|secret)(?P<value>=.+)?$")


def _secrets_in_env(given: Object) -> Iterable[Finding]:
    pod = pod_of(given)
    if given.get("kind") == "ConfigMap":
        for key, value in given.get("data", {}).items():
            if credentials.VALUE.search(str(value)):
                yield Finding(f"data[{key}]", "it holds what looks like a credential", "Put it into a Secret")
    if pod is None:
        return
    for container in pod.containers():
        for index, variable in enumerate(container.spec.get("env", ())):
            if "value" not in variable:
                continue
            name, value = str(variable.get("name", "")), str(variable["value"])
            path = f"{container.path}.env[{index}].value"
            if credentials.VALUE.search(value):
                yield Finding(path, f"{name} holds what looks like a credential, in plain text", _FROM_SECRET)
            elif credentials.NAME.search(name) and not re.fullmatch(r"\$\(\w+\)|true|false", value):
                yield Finding(path, f"{name} is given in plain text", _FROM_SECRET)
        for section in ("command", "args"):
            parts = [str(part) for part in container.spec.get(section, ())]
            for index, part in enumerate(parts):
                flag = _SECRET_FLAG.match(part)
                following = parts[index + 1] if index + 1 < len(parts) else "--"
                given_here = flag and (flag["value"] or not following.startswith("--"))
                text = (flag["value"] or following) if flag else ""
                if credentials.VALUE.search(part) or (given_here and not re.search(r"\$\(\w+\)", text)):
                    yield Finding(
                        f"{container.path}.{section}[{index}]",
                        "a credential on the command line is readable in every process list",
                        _FROM_SECRET + ", as an environment variable",
                    )


_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def _pod_security(given: Object) -> Iterable[Finding]:
    # The standard's own list: https://kubernetes.io/docs/concepts/security/pod-security-standards/ (restricted).
    found = serving(given)
    if found is None:
        return
    pod = found[0]
    context = pod.spec.get("securityContext", {})
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.spec.get(field):
            yield Finding(f"{pod.path}.{field}", "the pod shares it with the node", "Remove it")
    for index, volume in enumerate(pod.spec.get("volumes", ())):
        for kind in set(volume) - {"name"} - _VOLUMES:
            yield Finding(
                f"{pod.path}.volumes[{index}].{kind}", f"{kind} volumes are not allowed", "Use emptyDir or a claim"
            )
    if context.get("runAsUser") == 0:
        yield Finding(f"{pod.path}.securityContext.runAsUser", "0 is root", "Give a number of 10000 or more")
    for container in pod.containers():
        yield from _container_security(pod, container, context)


def _container_security(pod: Pod, container: Container, of_pod: Object) -> Iterator[Finding]:
    own = container.spec.get("securityContext", {})
    path = f"{container.path}.securityContext"
    if own.get("privileged"):
        yield Finding(f"{path}.privileged", "the container is root on the node", "Remove it")
    if own.get("allowPrivilegeEscalation") is not False:
        yield Finding(f"{path}.allowPrivilegeEscalation", "it is not forbidden", "Set it to false")
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()):
        yield Finding(f"{path}.capabilities.drop", "capabilities of the container stay", "Drop ALL")
    if set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
        yield Finding(f"{path}.capabilities.add", "it adds more than NET_BIND_SERVICE", "Add none: ports above 1024")
    if own.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is not True:
        yield Finding(
            f"{pod.path}.securityContext.runAsNonRoot",
            "nothing keeps the image from running as root",
            "Set it to true, with runAsUser",
        )
    if own.get("runAsUser") == 0:
        yield Finding(f"{path}.runAsUser", "0 is root", "Give a number of 10000 or more")
    profile = own.get("seccompProfile", of_pod.get("seccompProfile", {})).get("type")
    if profile not in {"RuntimeDefault", "Localhost"}:
        yield Finding(f"{pod.path}.securityContext.seccompProfile", "no system call is filtered", "RuntimeDefault")
    for index, port in enumerate(container.spec.get("ports", ())):
        if port.get("hostPort"):
            yield Finding(f"{container.path}.ports[{index}].hostPort", "it opens a port of the node", "Remove it")


GPU_SCHEDULING = ObjectRule(
    "gpu-scheduling",
    "What holds a GPU has a limit, tolerates the taint of GPU nodes and selects them",
    ALWAYS_MANDATORY,
    _gpu_scheduling,
)
PROBES = ObjectRule("probes", "Engines have probes that neither lie nor kill", ALWAYS_MANDATORY, _probes)
BUDGETS = ObjectRule("budgets", "Startup, rollout and drain fit into each other", MANDATORY_FROM_STAGING, _budgets)
SERVICE_LINKS = ObjectRule("service-links", "Engines get no service links", ALWAYS_MANDATORY, _service_links)
SECRETS_IN_ENV = ObjectRule("secrets-in-env", "No secret in plain text", ALWAYS_MANDATORY, _secrets_in_env)
POD_SECURITY = ObjectRule(
    "pod-security", "Serving pods meet the Pod Security standard `restricted`", MANDATORY_FROM_STAGING, _pod_security
)
