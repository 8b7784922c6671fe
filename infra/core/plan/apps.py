"""The app of a workload with topology: sidecar, and what an app of either topology is told of its engine."""

import math
from collections.abc import Callable

from infra.core import quantities, references
from infra.core.engines.spec import Beside, EngineSpec, EnvVar, Mount, Port, Probe, Reason, Resources
from infra.core.plan.addons import mirrored
from infra.core.plan.pools import Pool
from infra.core.plan.values import SERVICE_PORT, PlannedApp, PlannedClientSettings
from infra.core.settings import App, Images, Stack, Workload

#: path below the workload, given, allowed, why
Refuse = Callable[[str, object, str, str], None]

#: What an app gets where the stack file says nothing: a web service without a model of its own.
_CPU_MILLICORES = 500
_MEMORY_MIB = 512
_EPHEMERAL_MIB = 1024
#: /tmp is the only directory that an app can write to.
_TMP_MIB = 512
_PERIOD_SECONDS = 5


def check(workload: Workload, pool: Pool, refuse: Refuse) -> None:
    """Refuses an app without a sidecar, a sidecar without an app, and an app that cannot be deployed."""
    app = workload.app
    if workload.topology != "sidecar":
        if app is not None:
            why = f"topology is {workload.topology}: the engine has pods of its own, and its apps are deployed apart."
            refuse("app", "an app", "absent, or topology: sidecar", why)
        return
    if app is None:
        refuse(
            "app", None, "image and port of the app", "topology is sidecar: the engine runs in the pods of this app."
        )
        return
    reference = references.parse(app.image)
    if reference.digest is None and (reference.tag is None or references.floats(reference.tag)):
        refuse(
            "app.image",
            app.image,
            "a version such as 1.4.2 or a commit, or a digest",
            "Another tag names another image from one day to the next, and pods of one Deployment would differ.",
        )
    node = pool.one_node()
    if app.gpus and pool.gpu is None:
        refuse("app.gpus", app.gpus, "0, or a pool with a GPU", f"{pool.path}.gpu is absent: its nodes have none.")
    elif app.gpus and workload.need:
        why = "The need is met with pods of one GPU each, so that nodes and cost would be too few."
        refuse("app.gpus", app.gpus, "0, or replicas in place of need", why)
    elif node and app.gpus + 1 > node.gpus > 0 and app.gpus:
        refuse(
            "app.gpus",
            app.gpus,
            (f"{node.gpus - 1} or less" if node.gpus > 1 else "0") + ", or a pool with more GPUs per node",
            f"With the engine's the pod asks for {app.gpus + 1} GPUs, and {pool.offer('gpus')} gives a node "
            f"{node.gpus}: it would stay Pending.",
        )
    disk = app.resources.ephemeral_storage
    if disk and quantities.mebibytes(disk) < _TMP_MIB:
        why = f"The app's directory for temporary files may hold {_TMP_MIB}Mi, and the kubelet evicts pods above."
        refuse("app.resources.ephemeralStorage", disk, f"{_TMP_MIB}Mi or more", why)


def beside(workload: Workload, pool: Pool) -> Beside:
    """What the app adds to the pod of its engine; nothing where the engine has pods of its own."""
    app = app_of(workload)
    if app is None:
        return Beside()
    ready = pool.image_pull_seconds + _startup(app).failure_threshold * _PERIOD_SECONDS
    return Beside(_resources(app), ready, app.port)


def app_of(workload: Workload) -> App | None:
    """The app, where the engine is its sidecar."""
    return workload.app if workload.topology == "sidecar" else None


def planned(
    workload: Workload,
    engine: EngineSpec,
    client: PlannedClientSettings,
    images: Images,
    *,
    reasons: list[Reason],
    refuse: Refuse,
) -> PlannedApp | None:
    """The app beside its engine, with what it is told of it; None where the engine has pods of its own."""
    app = app_of(workload)
    if app is None:
        return None
    taken = {port.number for port in engine.ports}
    if app.port in taken:
        why = f"The engine listens on {', '.join(map(str, sorted(taken)))}, and the containers of a pod share ports."
        refuse("app.port", app.port, "another port", why)
    told = [EnvVar(client.url_variable, client.url)]
    key = engine.api_key_secret
    if client.api_key_variable and key:
        told.append(EnvVar(client.api_key_variable, secret=key))
    for name in app.env:
        if name in {variable.name for variable in told}:
            refuse(f"app.env.{name}", "a value", "absent", "The plan sets it, so that it follows the topology.")
    longest = app.longest_request_seconds or engine.longest_request_seconds
    resources = _resources(app)
    for field, given, value in (
        ("cpu", app.resources.cpu, f"{resources.cpu_millicores}m"),
        ("memory", app.resources.memory, f"{resources.memory_mib}Mi"),
        ("ephemeralStorage", app.resources.ephemeral_storage, f"{resources.ephemeral_storage_mib}Mi"),
    ):
        if given is None:
            reasons.append(Reason(f"app.resources.{field}", value, "nothing is known of the app"))
    if app.readiness_path is None:
        reasons.append(Reason("app.readinessPath", "none", "the app counts as ready when its port is open"))
    if app.longest_request_seconds is None:
        reasons.append(Reason("app.longestRequestSeconds", f"{longest} s", "as long as the engine may take"))
    startup = _startup(app)
    return PlannedApp(
        image=mirrored(app.image, images),
        command=app.command,
        args=app.args,
        env=(*told, *(EnvVar(name, value) for name, value in app.env.items())),
        port=Port("app", app.port),
        startup=startup,
        readiness=Probe(
            app.readiness_path,
            "app",
            _PERIOD_SECONDS,
            _PERIOD_SECONDS,
            3,
            connects=app.readiness_path is None,
        ),
        liveness=Probe(app.liveness_path, "app", 10, _PERIOD_SECONDS, 6) if app.liveness_path else None,
        mounts=(Mount("app-tmp", "/tmp", size_mib=_TMP_MIB),),  # noqa: S108 - inside the pod
        resources=resources,
        startup_seconds=app.startup_seconds,
        longest_request_seconds=longest,
    )


def client_settings(workload: Workload, engine: EngineSpec, stack: Stack) -> PlannedClientSettings:
    """What an app needs to know of the engine: the same variables in both topologies, named after the workload."""
    prefix = workload.name.upper().replace("-", "_")
    if workload.topology == "sidecar":
        address = f"localhost:{engine.ports[0].number}"
    else:
        address = f"{workload.service}.{stack.namespace.name}.svc.cluster.local:{SERVICE_PORT}"
    over_http = engine.protocol == "http"
    return PlannedClientSettings(
        url_variable=f"{prefix}_URL" if over_http else f"{prefix}_ADDRESS",
        # What gRPC clients dial is a host and a port.
        url=f"http://{address}" if over_http else address,
        api_key_variable=f"{prefix}_API_KEY" if engine.api.api_key else None,
    )


def _startup(app: App) -> Probe:
    return Probe(
        app.readiness_path,
        "app",
        _PERIOD_SECONDS,
        _PERIOD_SECONDS,
        math.ceil(app.startup_seconds / _PERIOD_SECONDS) + 1,
        connects=app.readiness_path is None,
    )


def _resources(app: App) -> Resources:
    given = app.resources
    return Resources(
        cpu_millicores=quantities.millicores(given.cpu) if given.cpu else _CPU_MILLICORES,
        memory_mib=quantities.mebibytes(given.memory) if given.memory else _MEMORY_MIB,
        ephemeral_storage_mib=(
            quantities.mebibytes(given.ephemeral_storage) if given.ephemeral_storage else _EPHEMERAL_MIB
        ),
        gpus=app.gpus,
    )
