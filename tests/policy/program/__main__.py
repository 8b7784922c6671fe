"""Registers the objects of the config key `objects` through the provider's own classes, as a user's program would."""

import pulumi
from pulumi_kubernetes import apiextensions, apps, autoscaling, core, networking, policy

#: Stands in `objects` for a value that nobody knows at preview.
UNKNOWN = "{{unknown}}"
CLASSES = {
    "ConfigMap": core.v1.ConfigMap,
    "Deployment": apps.v1.Deployment,
    "HorizontalPodAutoscaler": autoscaling.v2.HorizontalPodAutoscaler,
    "NetworkPolicy": networking.v1.NetworkPolicy,
    "PodDisruptionBudget": policy.v1.PodDisruptionBudget,
    "Service": core.v1.Service,
}


def resolved(value: object) -> object:
    if isinstance(value, dict):
        return {key: resolved(item) for key, item in value.items()}
    if isinstance(value, list):
        return [resolved(item) for item in value]
    return pulumi.Output.from_input(pulumi.output.UNKNOWN) if value == UNKNOWN else value


for index, given in enumerate(pulumi.Config().require_object("objects")):
    fields = resolved(given)
    assert isinstance(fields, dict)
    kind, version = fields.pop("kind"), fields.pop("apiVersion")
    name = f"{kind.lower()}-{index}"
    if kind in CLASSES:
        CLASSES[kind](name, **fields)
    else:
        apiextensions.CustomResource(name, api_version=version, kind=kind, **fields)
