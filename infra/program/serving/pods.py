"""Parts of a pod, from planned values."""

from collections.abc import Callable, Mapping

from pulumi_kubernetes.core import v1 as core

from infra.core.engines.request import RUN_AS
from infra.core.engines.spec import EngineSpec, EnvVar, Mount, Port, Probe, Resources
from infra.core.plan import GPU_RESOURCE, PlannedApp

#: An environment variable of the plan, with the name that its Secret got.
Env = Callable[[EnvVar], core.EnvVarArgs]


def engine(planned: EngineSpec, image: str, env: Env, *, pre_stop: int | None, sidecar: bool) -> core.ContainerArgs:
    """The engine's container. ``pre_stop``: seconds that it waits before it is told to end."""
    numbers = {port.name: port.number for port in planned.ports}
    return core.ContainerArgs(
        name=planned.engine,
        image=image,
        image_pull_policy="IfNotPresent",
        # Of an init container: it starts before the app, goes on running, and ends after it.
        restart_policy="Always" if sidecar else None,
        env=[env(variable) for variable in planned.env],
        ports=_ports(*planned.ports),
        startup_probe=_probe(planned.probes.startup, numbers),
        readiness_probe=_probe(planned.probes.readiness, numbers),
        liveness_probe=_probe(planned.probes.liveness, numbers),
        lifecycle=None if pre_stop is None else _waits(pre_stop),
        resources=_resources(planned.resources),
        volume_mounts=_mounts(planned.mounts),
        security_context=_security(planned.user, planned.group),
    )


def app(planned: PlannedApp, env: Env, *, pre_stop: int) -> core.ContainerArgs:
    """The app's container, beside its engine."""
    numbers = {planned.port.name: planned.port.number}
    return core.ContainerArgs(
        name="app",
        image=planned.image,
        image_pull_policy="IfNotPresent",
        command=list(planned.command) or None,
        args=list(planned.args) or None,
        env=[env(variable) for variable in planned.env],
        ports=_ports(planned.port),
        startup_probe=_probe(planned.startup, numbers),
        readiness_probe=_probe(planned.readiness, numbers),
        liveness_probe=_probe(planned.liveness, numbers) if planned.liveness else None,
        lifecycle=_waits(pre_stop),
        resources=_resources(planned.resources),
        volume_mounts=_mounts(planned.mounts),
        security_context=_security(RUN_AS, RUN_AS),
    )


def volume(mount: Mount) -> core.VolumeArgs:
    """The volume behind a mount."""
    if mount.claim:
        claim = core.PersistentVolumeClaimVolumeSourceArgs(claim_name=mount.claim)
        return core.VolumeArgs(name=mount.name, persistent_volume_claim=claim)
    medium = "Memory" if mount.in_memory else None
    directory = core.EmptyDirVolumeSourceArgs(size_limit=f"{mount.size_mib}Mi", medium=medium)
    return core.VolumeArgs(name=mount.name, empty_dir=directory)


def _ports(*ports: Port) -> list[core.ContainerPortArgs]:
    return [core.ContainerPortArgs(name=port.name, container_port=port.number) for port in ports]


def _mounts(mounts: tuple[Mount, ...]) -> list[core.VolumeMountArgs]:
    return [core.VolumeMountArgs(name=mount.name, mount_path=mount.path) for mount in mounts]


def _waits(seconds: int) -> core.LifecycleArgs:
    return core.LifecycleArgs(pre_stop=core.LifecycleHandlerArgs(sleep=core.SleepActionArgs(seconds=seconds)))


def _security(user: int, group: int) -> core.SecurityContextArgs:
    return core.SecurityContextArgs(
        run_as_user=user,
        run_as_group=group,
        allow_privilege_escalation=False,
        read_only_root_filesystem=True,
        capabilities=core.CapabilitiesArgs(drop=["ALL"]),
    )


def _probe(probe: Probe, numbers: Mapping[str, int]) -> core.ProbeArgs:
    by_grpc = not probe.path and not probe.connects
    return core.ProbeArgs(
        http_get=core.HTTPGetActionArgs(path=probe.path, port=probe.port) if probe.path else None,
        tcp_socket=core.TCPSocketActionArgs(port=probe.port) if probe.connects else None,
        # Kubernetes takes no names here.
        grpc=core.GRPCActionArgs(port=numbers[probe.port], service=probe.service) if by_grpc else None,
        period_seconds=probe.period_seconds,
        timeout_seconds=probe.timeout_seconds,
        failure_threshold=probe.failure_threshold,
    )


def _resources(wanted: Resources) -> core.ResourceRequirementsArgs:
    amounts = {
        "cpu": f"{wanted.cpu_millicores}m",
        "memory": f"{wanted.memory_mib}Mi",
        "ephemeral-storage": f"{wanted.ephemeral_storage_mib}Mi",
    }
    if wanted.gpus:
        amounts[GPU_RESOURCE] = str(wanted.gpus)
    return core.ResourceRequirementsArgs(requests=amounts, limits=amounts)
