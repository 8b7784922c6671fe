"""An engine behind a Service."""

from collections.abc import Mapping, Sequence

import pulumi
from pulumi_kubernetes.apps import v1 as apps
from pulumi_kubernetes.core import v1 as core
from pulumi_kubernetes.meta import v1 as meta
from pulumi_kubernetes.policy import v1 as policy

from infra.core.engines.spec import EngineSpec, EnvVar, Mount, Probe
from infra.core.plan import GPU_RESOURCE, RUN_AS, SERVICE_PORT, Workload


class CentralizedWorkload(pulumi.ComponentResource):
    """ServiceAccount, Secret, Deployment, Service and PodDisruptionBudget of one workload."""

    #: Name that the Secret got; None when the workload has no keys.
    secret_name: pulumi.Output[str] | None

    def __init__(
        self,
        name: str,
        workload: Workload,
        *,
        namespace: pulumi.Input[str],
        pull_secrets: Sequence[str],
        secrets: Mapping[str, pulumi.Output[str]],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("embedding-serving:serving:CentralizedWorkload", name, None, opts)
        self._workload = workload
        self._namespace = namespace
        self._timeouts = pulumi.CustomTimeouts(
            create=f"{workload.budgets.rollout}s",
            update=f"{workload.budgets.rollout}s",
            # Kubernetes removes a pod after its grace period at the latest; the rest is for finalizers.
            delete=f"{workload.budgets.termination_grace + 120}s",
        )
        account = core.ServiceAccount(
            name, metadata=self._metadata(), automount_service_account_token=False, opts=self._child()
        )
        self.secret_name = self._secret(name, secrets)
        deployment = apps.Deployment(
            name,
            metadata=self._metadata(),
            spec=apps.DeploymentSpecArgs(
                replicas=workload.replicas,
                revision_history_limit=3,
                progress_deadline_seconds=workload.budgets.progress_deadline,
                strategy=apps.DeploymentStrategyArgs(
                    type="RollingUpdate",
                    rolling_update=apps.RollingUpdateDeploymentArgs(
                        max_surge=workload.max_surge, max_unavailable=workload.max_unavailable
                    ),
                ),
                selector=meta.LabelSelectorArgs(match_labels=workload.selector),
                template=core.PodTemplateSpecArgs(
                    # Labels of the workload stay off the pods: a new label there would replace every pod.
                    metadata=meta.ObjectMetaArgs(labels={**workload.pod_labels, **workload.selector}),
                    spec=self._pod(account.metadata.name, pull_secrets),
                ),
            ),
            opts=self._child(custom_timeouts=self._timeouts),
        )
        core.Service(
            name,
            metadata=self._metadata(workload.service),
            spec=core.ServiceSpecArgs(
                selector=workload.selector,
                ports=[core.ServicePortArgs(name="http", port=SERVICE_PORT, target_port="http")],
            ),
            # The Service is ready when its endpoints are, so it waits as long as the Deployment does.
            opts=self._child(custom_timeouts=self._timeouts, depends_on=[deployment]),
        )
        policy.PodDisruptionBudget(
            name,
            metadata=self._metadata(),
            spec=policy.PodDisruptionBudgetSpecArgs(
                max_unavailable=1,
                # A pod that never becomes ready would otherwise keep its node from draining.
                unhealthy_pod_eviction_policy="AlwaysAllow",
                selector=meta.LabelSelectorArgs(match_labels=workload.selector),
            ),
            opts=self._child(),
        )
        self.register_outputs({"deployment": deployment.metadata.name})

    def _child(
        self,
        custom_timeouts: pulumi.CustomTimeouts | None = None,
        depends_on: Sequence[pulumi.Resource] | None = None,
    ) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, custom_timeouts=custom_timeouts, depends_on=depends_on)

    def _metadata(self, name: str | None = None) -> meta.ObjectMetaArgs:
        return meta.ObjectMetaArgs(
            name=name or self._workload.name, namespace=self._namespace, labels=self._workload.labels
        )

    def _secret(self, name: str, values: Mapping[str, pulumi.Output[str]]) -> pulumi.Output[str] | None:
        planned = self._workload.secret
        if planned is None:
            return None
        # Without a fixed name a changed value makes a new Secret under a new name: the pods roll to it one by one,
        # and a pod that restarts on the way still finds the old one.
        secret = core.Secret(
            f"{name}-keys",
            metadata=meta.ObjectMetaArgs(namespace=self._namespace, labels=self._workload.labels),
            string_data={key: values[key] for key in planned.keys},
            opts=self._child(),
        )
        return secret.metadata.name.apply(str)

    def _pod(self, account: pulumi.Input[str], pull_secrets: Sequence[str]) -> core.PodSpecArgs:
        workload, engine = self._workload, self._workload.engine
        return core.PodSpecArgs(
            service_account_name=account,
            automount_service_account_token=False,
            # A Service named `port` or `prometheus` would set PORT or PROMETHEUS_PORT, which TEI then fails to parse.
            enable_service_links=False,
            image_pull_secrets=[core.LocalObjectReferenceArgs(name=secret) for secret in pull_secrets],
            node_selector=workload.node_selector,
            tolerations=[
                core.TolerationArgs(
                    key=toleration.key,
                    operator=toleration.operator,
                    value=toleration.value,
                    effect=toleration.effect,
                )
                for toleration in workload.tolerations
            ],
            termination_grace_period_seconds=workload.budgets.termination_grace,
            security_context=core.PodSecurityContextArgs(
                run_as_non_root=True,
                run_as_user=RUN_AS,
                run_as_group=RUN_AS,
                fs_group=RUN_AS,
                seccomp_profile=core.SeccompProfileArgs(type="RuntimeDefault"),
            ),
            containers=[
                core.ContainerArgs(
                    name=engine.engine,
                    image=workload.image,
                    image_pull_policy="IfNotPresent",
                    env=[self._env(variable) for variable in engine.env],
                    ports=[core.ContainerPortArgs(name=port.name, container_port=port.number) for port in engine.ports],
                    startup_probe=_probe(engine.probes.startup),
                    readiness_probe=_probe(engine.probes.readiness),
                    liveness_probe=_probe(engine.probes.liveness),
                    lifecycle=core.LifecycleArgs(
                        pre_stop=core.LifecycleHandlerArgs(
                            sleep=core.SleepActionArgs(seconds=workload.budgets.pre_stop)
                        )
                    ),
                    resources=_resources(engine),
                    volume_mounts=[
                        core.VolumeMountArgs(name=mount.name, mount_path=mount.path) for mount in engine.mounts
                    ],
                    security_context=core.SecurityContextArgs(
                        allow_privilege_escalation=False,
                        read_only_root_filesystem=True,
                        capabilities=core.CapabilitiesArgs(drop=["ALL"]),
                    ),
                )
            ],
            volumes=[_volume(mount) for mount in engine.mounts],
        )

    def _env(self, variable: EnvVar) -> core.EnvVarArgs:
        if variable.secret is None:
            return core.EnvVarArgs(name=variable.name, value=variable.value)
        return core.EnvVarArgs(
            name=variable.name,
            value_from=core.EnvVarSourceArgs(
                secret_key_ref=core.SecretKeySelectorArgs(name=self.secret_name, key=variable.secret.key)
            ),
        )


def _probe(probe: Probe) -> core.ProbeArgs:
    return core.ProbeArgs(
        http_get=core.HTTPGetActionArgs(path=probe.path, port=probe.port),
        period_seconds=probe.period_seconds,
        timeout_seconds=probe.timeout_seconds,
        failure_threshold=probe.failure_threshold,
    )


def _resources(engine: EngineSpec) -> core.ResourceRequirementsArgs:
    wanted = engine.resources
    amounts = {
        "cpu": f"{wanted.cpu_millicores}m",
        "memory": f"{wanted.memory_mib}Mi",
        "ephemeral-storage": f"{wanted.ephemeral_storage_mib}Mi",
    }
    if wanted.gpus:
        amounts[GPU_RESOURCE] = str(wanted.gpus)
    return core.ResourceRequirementsArgs(requests=amounts, limits=amounts)


def _volume(mount: Mount) -> core.VolumeArgs:
    if mount.claim:
        claim = core.PersistentVolumeClaimVolumeSourceArgs(claim_name=mount.claim)
        return core.VolumeArgs(name=mount.name, persistent_volume_claim=claim)
    medium = "Memory" if mount.in_memory else None
    directory = core.EmptyDirVolumeSourceArgs(size_limit=f"{mount.size_mib}Mi", medium=medium)
    return core.VolumeArgs(name=mount.name, empty_dir=directory)
