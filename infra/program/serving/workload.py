"""What every served workload consists of, whichever pods its engine runs in."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import pulumi
from pulumi_kubernetes.apps import v1 as apps
from pulumi_kubernetes.core import v1 as core
from pulumi_kubernetes.meta import v1 as meta
from pulumi_kubernetes.networking import v1 as networking
from pulumi_kubernetes.policy import v1 as policy

from infra.core.engines.spec import EnvVar, Mount
from infra.core.plan import ExternalSecret, PlannedMonitoring, PlannedScaling, Workload
from infra.program.objects import KubernetesObject
from infra.program.serving import pods

#: Resource types, as they stand in state files.
CENTRALIZED = "embedding-serving:serving:CentralizedWorkload"
SIDECAR = "embedding-serving:serving:SidecarWorkload"

_NAMESPACE_NAME = "kubernetes.io/metadata.name"
#: Changes where an existing Secret is said to have changed, so that the pods roll.
_SECRET_VERSIONS = "embedding-serving/secret-versions"  # noqa: S105 - name of an annotation


class ServedWorkload(pulumi.ComponentResource):
    """Everything of one workload: ServiceAccount, Secrets, Deployment, Service, PodDisruptionBudget, NetworkPolicy,
    ServiceMonitor and ScaledObject. Subclasses say what is in the pods, and where clients and Prometheus reach them.
    """

    #: Its own type, and that of the other topology.
    TYPE: str
    OTHER: str

    #: Name that the Secret got; None when the workload has no keys.
    secret_name: pulumi.Output[str] | None

    def __init__(
        self,
        name: str,
        workload: Workload,
        *,
        namespace: pulumi.Input[str],
        pull_secrets: Sequence[str],
        monitoring: PlannedMonitoring | None,
        secrets: Mapping[str, pulumi.Output[str]],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        # Another topology changes the objects in place: their names stay, so new ones could not be made beside them.
        other = pulumi.ResourceOptions(aliases=[pulumi.Alias(type_=self.OTHER)])
        super().__init__(self.TYPE, name, None, pulumi.ResourceOptions.merge(opts, other))
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
        external = [self._external_secret(one) for one in workload.external_secrets]
        # Without it the first pods would run unguarded.
        policy_object = self._network_policy(name, monitoring)
        deployment = apps.Deployment(
            name,
            metadata=self._metadata(),
            spec=apps.DeploymentSpecArgs(
                # What KEDA sets stands nowhere else, or every `pulumi up` would put it back.
                replicas=None if workload.scaling else workload.replicas,
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
                    metadata=meta.ObjectMetaArgs(
                        labels={**workload.pod_labels, **workload.selector},
                        annotations=(
                            {_SECRET_VERSIONS: workload.secret_versions} if workload.secret_versions else None
                        ),
                    ),
                    spec=self._pod(account.metadata.name, pull_secrets),
                ),
            ),
            # Where `replicas` was set before, leaving it out alone would make it 1 until KEDA has looked.
            opts=self._child(
                custom_timeouts=self._timeouts,
                depends_on=[*external, policy_object],
                ignore_changes=["spec.replicas"] if workload.scaling else None,
            ),
        )
        core.Service(
            name,
            metadata=self._metadata(workload.service),
            spec=core.ServiceSpecArgs(
                selector=workload.selector,
                ports=self._service_ports(),
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
        if monitoring:
            self._service_monitor(name, monitoring)
        if workload.scaling:
            # A Deployment that is not there yet would be reported as an error by KEDA.
            self._scaled_object(name, workload.scaling, deployment)
        self.register_outputs({"deployment": deployment.metadata.name})

    @abstractmethod
    def _containers(self) -> tuple[list[core.ContainerArgs], list[core.ContainerArgs]]:
        """Init containers and containers of a pod."""

    @abstractmethod
    def _service_ports(self) -> list[core.ServicePortArgs]:
        """Ports of the Service; that of the clients comes first."""

    @abstractmethod
    def _client_port(self) -> int | str:
        """Port of the pods that clients use."""

    @abstractmethod
    def _scraped_ports(self) -> list[int] | list[str]:
        """Ports of the pods that Prometheus reads, as `Workload.metrics_ports` has them."""

    def _child(
        self,
        custom_timeouts: pulumi.CustomTimeouts | None = None,
        depends_on: Sequence[pulumi.Resource] | None = None,
        ignore_changes: list[str] | None = None,
    ) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(
            parent=self, custom_timeouts=custom_timeouts, depends_on=depends_on, ignore_changes=ignore_changes
        )

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

    def _external_secret(self, planned: ExternalSecret) -> pulumi.Resource:
        remote = {"key": planned.remote_key} | ({"property": planned.property} if planned.property else {})
        return KubernetesObject(
            planned.name,
            {
                "apiVersion": "external-secrets.io/v1",
                "kind": "ExternalSecret",
                "metadata": {
                    "name": planned.name,
                    "namespace": self._namespace,
                    "labels": self._workload.labels,
                    # Pods that start before would wait for their Secret.
                    "annotations": {"pulumi.com/waitFor": "condition=Ready"},
                },
                "spec": {
                    # Pods of one generation read one value: a new one is another object of another name.
                    "refreshPolicy": "CreatedOnce",
                    "secretStoreRef": {"kind": planned.store_kind, "name": planned.store_name},
                    "target": {"name": planned.name, "creationPolicy": "Owner"},
                    "data": [{"secretKey": planned.key, "remoteRef": remote}],
                },
            },
            self._child(),
        )

    def _network_policy(self, name: str, monitoring: PlannedMonitoring | None) -> pulumi.Resource:
        workload = self._workload
        main = networking.NetworkPolicyPortArgs(port=self._client_port())
        ingress = []
        # A rule without peers lets everybody in, so a workload without any client has no rule.
        if workload.clients is None:
            ingress.append(networking.NetworkPolicyIngressRuleArgs(ports=[main]))
        elif workload.clients:
            clients = [_peer(client.namespace, client.pod_labels) for client in workload.clients]
            ingress.append(networking.NetworkPolicyIngressRuleArgs(from_=clients, ports=[main]))
        if monitoring:
            ports: list[int | str] = [*self._scraped_ports()]
            scraped = [networking.NetworkPolicyPortArgs(port=port) for port in dict.fromkeys(ports)]
            # Where its namespace is not said the plan has made sure that the port is open to everybody.
            peers = [_peer(monitoring.namespace, monitoring.pod_labels)] if monitoring.namespace else None
            ingress.append(networking.NetworkPolicyIngressRuleArgs(from_=peers, ports=scraped))
        return networking.NetworkPolicy(
            name,
            metadata=self._metadata(),
            spec=networking.NetworkPolicySpecArgs(
                pod_selector=meta.LabelSelectorArgs(match_labels=workload.selector),
                policy_types=["Ingress"],
                ingress=ingress,
            ),
            opts=self._child(),
        )

    def _service_monitor(self, name: str, monitoring: PlannedMonitoring) -> None:
        workload = self._workload
        KubernetesObject(
            name,
            {
                "apiVersion": "monitoring.coreos.com/v1",
                "kind": "ServiceMonitor",
                "metadata": {
                    "name": workload.name,
                    "namespace": self._namespace,
                    "labels": {**workload.labels, **monitoring.labels},
                },
                "spec": {
                    "selector": {"matchLabels": workload.selector},
                    "endpoints": [
                        {
                            "port": port,
                            "path": metrics.path,
                            "interval": f"{monitoring.scrape_seconds}s",
                            "scrapeTimeout": f"{monitoring.scrape_seconds}s",
                        }
                        for port, metrics in zip(workload.metrics_ports, workload.engine.metrics, strict=True)
                    ],
                },
            },
            self._child(),
        )

    def _scaled_object(self, name: str, scaling: PlannedScaling, deployment: pulumi.Resource) -> None:
        triggers = [
            {
                "type": "prometheus",
                "name": trigger.name,
                "metricType": "AverageValue",
                "metadata": {
                    "serverAddress": scaling.server_address,
                    "query": trigger.query,
                    "threshold": trigger.threshold,
                    # An answer without a number is an error and leads to the fallback; it is no idle workload.
                    "ignoreNullValues": "false",
                },
            }
            for trigger in scaling.triggers
        ]
        behavior = {
            "scaleUp": {
                "stabilizationWindowSeconds": 0,
                "policies": [{"type": "Percent", "value": 100, "periodSeconds": scaling.scale_up_period}],
            },
            "scaleDown": {
                "stabilizationWindowSeconds": scaling.scale_down_stabilization,
                "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
            },
        }
        KubernetesObject(
            name,
            {
                "apiVersion": "keda.sh/v1alpha1",
                "kind": "ScaledObject",
                "metadata": {
                    "name": scaling.name,
                    "namespace": self._namespace,
                    "labels": self._workload.labels,
                },
                "spec": {
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": self._workload.name},
                    "minReplicaCount": scaling.min,
                    "maxReplicaCount": scaling.max,
                    "fallback": {
                        "failureThreshold": scaling.fallback_failures,
                        "replicas": scaling.fallback_replicas,
                        "behavior": "currentReplicasIfHigher",
                    },
                    "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
                    "triggers": triggers,
                },
            },
            self._child(depends_on=[deployment]),
        )

    def _pod(self, account: pulumi.Input[str], pull_secrets: Sequence[str]) -> core.PodSpecArgs:
        workload = self._workload
        init_containers, containers = self._containers()
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
                fs_group=workload.engine.group,
                seccomp_profile=core.SeccompProfileArgs(type="RuntimeDefault"),
            ),
            init_containers=init_containers or None,
            containers=containers,
            volumes=[pods.volume(mount) for mount in self._mounts()],
        )

    def _mounts(self) -> list[Mount]:
        app = self._workload.app
        return [*self._workload.engine.mounts, *(app.mounts if app else ())]

    def _env(self, variable: EnvVar) -> core.EnvVarArgs:
        if variable.secret is None:
            return core.EnvVarArgs(name=variable.name, value=variable.value)
        secret = self.secret_name if variable.secret.made else variable.secret.secret
        return core.EnvVarArgs(
            name=variable.name,
            value_from=core.EnvVarSourceArgs(
                secret_key_ref=core.SecretKeySelectorArgs(name=secret, key=variable.secret.key)
            ),
        )


def _peer(namespace: str, pod_labels: Mapping[str, str]) -> networking.NetworkPolicyPeerArgs:
    return networking.NetworkPolicyPeerArgs(
        namespace_selector=meta.LabelSelectorArgs(match_labels={_NAMESPACE_NAME: namespace}),
        pod_selector=meta.LabelSelectorArgs(match_labels=pod_labels) if pod_labels else None,
    )
