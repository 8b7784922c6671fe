"""The plan, written down as resources. Nothing here decides."""

from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

from infra.core import contract
from infra.core.plan import Plan
from infra.program.addons import Addon
from infra.program.serving import TOPOLOGIES

#: Pods of this namespace are held to the strictest Pod Security standard by the API server itself.
_POD_SECURITY = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}


def deploy(plan: Plan, secrets: Mapping[str, pulumi.Output[str]]) -> pulumi.Output[dict[str, Any]]:
    """Registers every resource of the plan.

    ``secrets`` holds the values of the secret config keys that the plan was made with. Returns the contract
    (``infra.core.contract``), with the names that Secrets got when they were created.
    """
    provider = kubernetes.Provider("cluster", context=plan.context)
    options = pulumi.ResourceOptions(provider=provider)
    # Custom resources of the workloads need their definitions, and on the way down the operators that let them go.
    operators = [Addon(addon, options) for addon in plan.addons]
    namespace: pulumi.Input[str] = plan.namespace
    if plan.create_namespace:
        namespace = kubernetes.core.v1.Namespace(
            "namespace",
            metadata=kubernetes.meta.v1.ObjectMetaArgs(
                name=plan.namespace,
                labels={"app.kubernetes.io/part-of": "embedding-serving", **_POD_SECURITY},
            ),
            opts=options,
        ).metadata.name
    workloads = {
        workload.name: TOPOLOGIES[workload.topology](
            workload.name,
            workload,
            namespace=namespace,
            pull_secrets=plan.pull_secrets,
            monitoring=plan.monitoring,
            secrets=secrets,
            opts=pulumi.ResourceOptions(provider=provider, depends_on=operators),
        )
        for workload in plan.workloads
    }
    names = {
        workload.name: made
        for workload in plan.workloads
        if (key := workload.engine.api_key_secret)
        and key.made
        and (made := workloads[workload.name].secret_name) is not None
    }
    return pulumi.Output.all(**names).apply(lambda created: contract.of(plan).with_secret_names(created).to_dict())
