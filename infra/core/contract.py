"""The stack output ``contract``: what was deployed and how to test it. Smoke tests read it and never guess."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from infra.core.plan import SERVICE_PORT, Plan, PlannedScaling, Workload

#: Raised when a field changes its meaning, so that a reader of another version says so instead of misreading.
VERSION = 4


@dataclass(frozen=True)
class ModelContract:
    """A model as clients ask for it."""

    id: str
    #: None: the engine's release decides.
    revision: str | None
    #: What clients name it.
    client_name: str
    kind: str
    dimension: int | None


@dataclass(frozen=True)
class WorkloadContract:
    """One workload as its clients and its tests see it. Seconds and bytes; no secret values, only names."""

    name: str
    engine: str
    version: str
    stand_in: bool
    topology: str
    #: image, port and readiness_path (None: its port has to be open) of the app that the engine is a sidecar of; None:
    #: the engine has pods of its own.
    app: dict[str, Any] | None
    image: str
    #: Container of the engine in its pods.
    container: str
    gpu: str | None
    models: tuple[ModelContract, ...]
    openai_api: bool
    #: Secret and key that hold the API key; None when clients need none.
    api_key_secret: str | None
    api_key_secret_key: str | None
    namespace: str
    deployment: str
    #: Leads to the engine, or to the app that it is a sidecar of.
    service: str
    service_port: int
    #: Where apps reach the engine, over gRPC host:port; their environment variable for it is the same in both
    #: topologies, as that of the API key (None: none is needed).
    url: str
    url_variable: str
    api_key_variable: str | None
    #: Where tests reach it by kubectl port-forward: the Service or the Deployment, and ports of engine and metrics.
    forward_to: str
    forward_port: int
    forward_metrics_port: int
    selector: dict[str, str]
    #: In quiet hours, and at most: the same where the workload is not scaled.
    replicas: int
    max_replicas: int
    #: http or grpc: what clients speak.
    protocol: str
    #: Texts per request that a reranker is asked for; None for other kinds, or where nobody says.
    top_k: int | None
    #: name, min, max, server_address, triggers (name, query, threshold) and waits in seconds; None: not scaled.
    scaling: dict[str, Any] | None
    metrics_port: str
    metrics_path: str
    limits: dict[str, Any]
    budgets: dict[str, int]

    @property
    def model(self) -> ModelContract:
        """The model of an engine that serves one; of others the first."""
        return self.models[0]


@dataclass(frozen=True)
class Contract:
    """A whole stack."""

    version: int
    stack: str
    environment: str
    namespace: str
    #: address, namespace (None: not said), labels, scrape_seconds; None: nothing is scraped.
    monitoring: dict[str, Any] | None
    #: Operators that the stack installed: name, version, namespace, images.
    addons: tuple[dict[str, Any], ...]
    workloads: tuple[WorkloadContract, ...]

    def with_secret_names(self, names: Mapping[str, str]) -> "Contract":
        """The same contract with the names that Secrets with API keys got; ``names`` maps workload to Secret."""
        workloads = (
            replace(workload, api_key_secret=names[workload.name]) if workload.name in names else workload
            for workload in self.workloads
        )
        return replace(self, workloads=tuple(workloads))

    def to_dict(self) -> dict[str, Any]:
        """The stack output."""
        return asdict(self)


def of(plan: Plan) -> Contract:
    """The contract of a plan."""
    return Contract(
        version=VERSION,
        stack=plan.stack,
        environment=plan.environment,
        namespace=plan.namespace,
        monitoring=asdict(plan.monitoring) if plan.monitoring else None,
        addons=tuple(asdict(addon) for addon in plan.addons),
        workloads=tuple(_workload(plan, workload) for workload in plan.workloads),
    )


def read(output: object) -> Contract:
    """The contract from a stack output.

    Raises ValueError when there is none, or when it was written by another version of the blueprint.
    """
    if not isinstance(output, Mapping):
        raise ValueError("the stack has no contract output: run pulumi up first")
    if output.get("version") != VERSION:
        raise ValueError(
            f"the stack was deployed with contract version {output.get('version')}, this checkout reads {VERSION}: "
            "run pulumi up from this checkout first"
        )
    try:
        workloads = tuple(
            WorkloadContract(**{**workload, "models": tuple(ModelContract(**model) for model in workload["models"])})
            for workload in output["workloads"]
        )
        return Contract(**{**output, "workloads": workloads, "addons": tuple(output["addons"])})
    except (KeyError, TypeError) as error:
        # The version is raised by hand, so a field may be missing without it.
        raise ValueError("the contract output lacks fields of this checkout: run pulumi up from it first") from error


def _scaling(scaling: PlannedScaling) -> dict[str, Any]:
    # As it comes back from a stack output, which knows lists only.
    return {**asdict(scaling), "triggers": [asdict(trigger) for trigger in scaling.triggers]}


def _workload(plan: Plan, workload: Workload) -> WorkloadContract:
    engine = workload.engine
    key, app = engine.api_key_secret, workload.app
    numbers = {port.name: port.number for port in engine.ports}
    forwarded = engine.ports[0].number if app else SERVICE_PORT
    # Over HTTP both are one port.
    own = engine.metrics[0]
    metrics = forwarded if own.port == engine.ports[0].name else numbers[own.port]
    return WorkloadContract(
        name=workload.name,
        engine=engine.engine,
        version=engine.version,
        stand_in=workload.stand_in,
        topology=workload.topology,
        app=({"image": app.image, "port": app.port.number, "readiness_path": app.readiness.path} if app else None),
        image=workload.image,
        container=engine.engine,
        gpu=workload.gpu,
        models=tuple(
            ModelContract(
                id=model.id,
                revision=model.revision,
                client_name=model.client_name,
                kind=model.kind,
                dimension=model.dimension,
            )
            for model in engine.models
        ),
        openai_api=engine.api.openai,
        api_key_secret=key.secret if key else None,
        api_key_secret_key=key.key if key else None,
        namespace=plan.namespace,
        deployment=workload.name,
        service=workload.service,
        service_port=SERVICE_PORT,
        url=workload.client.url,
        url_variable=workload.client.url_variable,
        api_key_variable=workload.client.api_key_variable,
        forward_to=f"deployment/{workload.name}" if app else f"service/{workload.service}",
        forward_port=forwarded,
        forward_metrics_port=metrics,
        selector=dict(workload.selector),
        replicas=workload.replicas,
        max_replicas=workload.max_replicas,
        protocol=engine.protocol,
        top_k=workload.top_k,
        scaling=_scaling(workload.scaling) if workload.scaling else None,
        metrics_port=workload.metrics_ports[0],
        metrics_path=own.path,
        limits=asdict(engine.limits),
        budgets=asdict(workload.budgets),
    )
