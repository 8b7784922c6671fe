"""Settings and catalogue in, values out. Every choice and every refusal happens here; components only write it down."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from infra.core import catalogue, quantities
from infra.core.catalogue import Gpu, Model
from infra.core.engines import tei
from infra.core.engines.spec import EngineSpec, Reason
from infra.core.errors import Refusal, RefusedError, quoted
from infra.core.settings import Allocatable, CustomModel, Images, NodePool, Stack, TeiWorkload

#: Taint that GPU nodes carry by convention, with any value; the admission plugin of managed clusters adds the same.
GPU_RESOURCE = "nvidia.com/gpu"
GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"
SERVICE_PORT = 80
#: User and group of the engine process: images run as root unless told, Pod Security `restricted` refuses that.
RUN_AS = 10001

#: Until every kube-proxy and client knows that a pod is going away (endpoint propagation), requests still arrive.
_PROPAGATION_SECONDS = 10
#: TEI's image is 1-3 GB compressed; published pulls of images of 8-15 GB take 2-6 minutes (aws-facts, cold starts).
_IMAGE_PULL_SECONDS = 600
#: What kubelet and scheduler add to each step of a rollout.
_SLACK_SECONDS = 30


@dataclass(frozen=True)
class Toleration:
    """A taint that the pod accepts."""

    key: str
    operator: str
    effect: str
    value: str | None = None


@dataclass(frozen=True)
class PlannedModel:
    """The model as it is deployed."""

    id: str
    kind: str
    dimension: int | None
    max_tokens: int
    revision: str


@dataclass(frozen=True)
class Budgets:
    """Seconds that each step may take; one number, one owner."""

    image_pull: int
    startup: int
    #: preStop wait, then the longest request.
    pre_stop: int
    longest_request: int
    termination_grace: int
    #: Deployment's progressDeadlineSeconds: one step of a rollout.
    progress_deadline: int
    #: Pulumi's create and update timeout: all steps.
    rollout: int


@dataclass(frozen=True)
class PlannedSecret:
    """A Secret that the program creates from secret configuration: Kubernetes key -> config key. No values."""

    name: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Workload:
    """One engine behind one Service."""

    name: str
    topology: str
    pool: str
    gpu: str | None
    engine: EngineSpec
    model: PlannedModel
    image: str
    stand_in: bool
    replicas: int
    max_surge: int
    max_unavailable: int
    service: str
    labels: dict[str, str]
    pod_labels: dict[str, str]
    selector: dict[str, str]
    node_selector: dict[str, str]
    tolerations: tuple[Toleration, ...]
    secret: PlannedSecret | None
    budgets: Budgets
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class PlannedPool:
    """How much of a pool the workloads ask for. ``nodes`` is None where the stack file does not say."""

    name: str
    gpu: str | None
    nodes: int | None
    gpus_per_node: int | None
    gpus_wanted: int


@dataclass(frozen=True)
class Plan:
    """A whole stack."""

    stack: str
    environment: str
    context: str | None
    namespace: str
    create_namespace: bool
    pull_secrets: tuple[str, ...]
    pools: tuple[PlannedPool, ...]
    workloads: tuple[Workload, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and for comparing two plans. Holds names of secrets, never their values."""
        return asdict(self)


@dataclass(frozen=True)
class _Pool:
    """A pool with its GPU and its node looked up."""

    settings: NodePool
    gpu: Gpu | None
    node: Allocatable | None


def make(stack: Stack, *, name: str, secrets: Iterable[str] = ()) -> Plan:
    """The plan of ``stack``.

    ``name`` is the Pulumi stack's name, ``secrets`` the secret config keys that are set. Raises RefusedError with one
    line per thing that cannot be deployed.
    """
    planner = _Planner(stack, name, frozenset(secrets))
    plan = planner.plan()
    if planner.refusals:
        raise RefusedError(planner.refusals)
    return plan


class _Planner:
    def __init__(self, stack: Stack, name: str, secrets: frozenset[str]) -> None:
        self.stack = stack
        self.name = name
        self.secrets = secrets
        self.refusals: list[Refusal] = []
        self.models = dict(catalogue.models())

    def refuse(self, path: str, given: object, allowed: str, why: str) -> None:
        self.refusals.append(Refusal(f"stack.{path}", quoted(given), allowed, why))

    def plan(self) -> Plan:
        self._add_models()
        pools = self._pools()
        self._unique("serving", [workload.name for workload in self.stack.serving])
        services = [workload.service_name or workload.name for workload in self.stack.serving]
        self._unique("serving", services, "serviceName")
        workloads = [
            planned
            for index, workload in enumerate(self.stack.serving)
            if (planned := self._workload(f"serving[{index}]", workload, pools)) is not None
        ]
        return Plan(
            stack=self.name,
            environment=self.stack.environment,
            context=self.stack.cluster.context,
            namespace=self.stack.namespace.name,
            create_namespace=self.stack.namespace.create,
            pull_secrets=self.stack.images.pull_secrets,
            pools=tuple(self._pool_fit(index, pool, workloads) for index, pool in enumerate(pools.values())),
            workloads=tuple(workloads),
        )

    def _unique(self, path: str, names: list[str], key: str = "name") -> None:
        for index, name in enumerate(names):
            if name in names[:index]:
                self.refuse(f"{path}[{index}].{key}", name, "a name used once", f"{path}[{names.index(name)}] has it.")

    def _add_models(self) -> None:
        self._unique("models", [model.id for model in self.stack.models], "id")
        for index, model in enumerate(self.stack.models):
            if model.id in catalogue.models():
                self.refuse(f"models[{index}].id", model.id, "a model of your own", "The catalogue has this model.")
            self.models.setdefault(model.id, _custom(model))

    def _pools(self) -> dict[str, _Pool]:
        self._unique("nodePools", [pool.name for pool in self.stack.node_pools])
        pools: dict[str, _Pool] = {}
        for index, pool in enumerate(self.stack.node_pools):
            path = f"nodePools[{index}]"
            gpu = catalogue.find_gpu(pool.gpu) if pool.gpu else None
            if pool.gpu and gpu is None:
                known = ", ".join(catalogue.gpus())
                self.refuse(f"{path}.gpu", pool.gpu, known, "The catalogue has no other GPU.")
            pools.setdefault(pool.name, _Pool(pool, gpu, self._node(path, pool, gpu)))
        return pools

    def _node(self, path: str, pool: NodePool, gpu: Gpu | None) -> Allocatable | None:
        if pool.instance_type is None:
            if pool.allocatable and pool.gpu and pool.allocatable.gpus == 0:
                self.refuse(f"{path}.allocatable.gpus", 0, "1 or more", f"Nodes of a {pool.gpu} pool offer GPUs.")
            return pool.allocatable
        if pool.allocatable:
            self.refuse(f"{path}.allocatable", "a value", "absent", "instanceType says what a node offers.")
        instance = catalogue.instance_types().get(pool.instance_type)
        if instance is None:
            self.refuse(f"{path}.instanceType", pool.instance_type, "an EC2 GPU instance type", "Not in the catalogue.")
            return None
        if gpu is None or instance.gpu != gpu.name:
            self.refuse(
                f"{path}.instanceType",
                pool.instance_type,
                ", ".join(row.name for row in catalogue.instance_types().values() if gpu and row.gpu == gpu.name)
                or "a pool with a GPU",
                f"{pool.instance_type} has {instance.gpu} GPUs, the pool says {pool.gpu or 'none'}.",
            )
        if instance.gpu_count == 0:
            self.refuse(
                f"{path}.instanceType", pool.instance_type, "a type with whole GPUs", "It reports no nvidia.com/gpu."
            )
        return Allocatable.model_validate(
            {
                "cpu": f"{instance.allocatable_cpu_m}m",
                "memory": f"{instance.allocatable_memory_mib}Mi",
                "gpus": instance.gpu_count,
            }
        )

    def _workload(self, path: str, workload: TeiWorkload, pools: dict[str, _Pool]) -> Workload | None:
        model = self.models.get(workload.model)
        if model is None:
            self.refuse(
                f"{path}.model",
                workload.model,
                "a model of the catalogue (infra/core/catalogue/models.yaml) or of stack.models",
                "Size, kind and limits of the model have to be known.",
            )
        pool = pools.get(workload.pool)
        if pool is None:
            self.refuse(f"{path}.pool", workload.pool, ", ".join(pools), "No nodePools entry has this name.")
        if model is None or pool is None or (pool.settings.gpu and pool.gpu is None):
            return None
        secret_name = f"{workload.name}-keys"
        engine, refusals = tei.describe(
            tei.Request(f"stack.{path}", workload, model, pool.gpu, pool.node, self.secrets, secret_name)
        )
        self.refusals.extend(refusals)
        reasons = list(engine.reasons)
        self._rollout(path, workload)
        self._node_fit(path, workload, engine, pool)
        labels = self._labels(path, workload)
        keys = tuple(variable.secret.key for variable in engine.env if variable.secret)
        budgets = _budgets(engine, workload, pool.settings, reasons)
        return Workload(
            name=workload.name,
            topology=workload.topology,
            pool=workload.pool,
            gpu=pool.gpu.name if pool.gpu else None,
            engine=engine,
            model=PlannedModel(
                id=model.id,
                kind=model.kind.value,
                dimension=model.dimension,
                max_tokens=model.max_tokens,
                revision=workload.revision or model.revision or "main",
            ),
            image=_image(engine, self.stack.images),
            stand_in=self.stack.images.stand_in_registry is not None,
            replicas=workload.replicas,
            max_surge=workload.rollout.max_surge,
            max_unavailable=workload.rollout.max_unavailable,
            service=workload.service_name or workload.name,
            labels=labels,
            pod_labels=dict(workload.pod_labels),
            selector={key: labels[key] for key in ("app.kubernetes.io/name", "app.kubernetes.io/instance")},
            node_selector=_node_selector(pool, reasons),
            tolerations=tuple(_tolerations(pool)),
            secret=PlannedSecret(secret_name, keys) if keys else None,
            budgets=budgets,
            reasons=tuple(reasons),
        )

    def _rollout(self, path: str, workload: TeiWorkload) -> None:
        if workload.rollout.max_surge == 0 and workload.rollout.max_unavailable == 0:
            self.refuse(
                f"{path}.rollout.maxUnavailable",
                0,
                "1 or more, or maxSurge: 1",
                "With both at 0 no pod can be replaced.",
            )

    def _labels(self, path: str, workload: TeiWorkload) -> dict[str, str]:
        own = {
            "app.kubernetes.io/name": "text-embeddings-inference",
            "app.kubernetes.io/instance": workload.name,
            "app.kubernetes.io/part-of": "embedding-serving",
            "app.kubernetes.io/managed-by": "pulumi",
        }
        for key, labels in (("labels", workload.labels), ("podLabels", workload.pod_labels)):
            for label in set(labels) & set(own):
                self.refuse(
                    f"{path}.{key}.{label}", labels[label], "other labels", "Services and budgets select by it."
                )
        return {**workload.labels, **own}

    def _node_fit(self, path: str, workload: TeiWorkload, engine: EngineSpec, pool: _Pool) -> None:
        node = pool.node
        if node is None:
            return
        wanted = engine.resources
        fits = (
            ("cpu", wanted.cpu_millicores, quantities.millicores(node.cpu), "m"),
            ("memory", wanted.memory_mib, quantities.mebibytes(node.memory), "Mi"),
        )
        for resource, needs, offers, unit in fits:
            if needs > offers:
                key = f"{path}.resources.{resource}"
                self.refuse(
                    key,
                    f"{needs}{unit}",
                    f"{offers}{unit} at most",
                    f"A node of pool {workload.pool} offers no more, so the pod would stay Pending.",
                )

    def _pool_fit(self, index: int, pool: _Pool, workloads: list[Workload]) -> PlannedPool:
        here = [workload for workload in workloads if workload.pool == pool.settings.name]
        wanted = sum(workload.replicas * workload.engine.resources.gpus for workload in here)
        nodes, node = pool.settings.nodes, pool.node
        if nodes and node:
            surge = sum(workload.max_surge * workload.engine.resources.gpus for workload in here)
            if pool.gpu and wanted > nodes * node.gpus:
                self.refuse(
                    f"nodePools[{index}].nodes",
                    nodes,
                    f"{math.ceil(wanted / max(1, node.gpus))} or more",
                    f"The workloads ask for {wanted} GPUs, {nodes} nodes offer {nodes * node.gpus}.",
                )
            elif pool.gpu and surge and wanted + surge > nodes * node.gpus:
                self.refuse(
                    f"nodePools[{index}].nodes",
                    nodes,
                    f"{math.ceil((wanted + surge) / max(1, node.gpus))} or more, or maxSurge: 0",
                    f"A rollout with maxSurge asks for {surge} GPUs beside the {wanted} in use, and {nodes} nodes offer "
                    f"{nodes * node.gpus}: the new pod would stay Pending and the old one would be kept.",
                )
            for resource, total, offers in (
                (
                    "cpu",
                    sum(w.replicas * w.engine.resources.cpu_millicores for w in here),
                    quantities.millicores(node.cpu),
                ),
                (
                    "memory",
                    sum(w.replicas * w.engine.resources.memory_mib for w in here),
                    quantities.mebibytes(node.memory),
                ),
            ):
                if total > nodes * offers:
                    self.refuse(
                        f"nodePools[{index}].nodes",
                        nodes,
                        f"{math.ceil(total / offers)} or more",
                        f"The workloads ask for more {resource} ({total}) than {nodes} nodes offer ({nodes * offers}).",
                    )
        return PlannedPool(
            name=pool.settings.name,
            gpu=pool.gpu.name if pool.gpu else None,
            nodes=nodes,
            gpus_per_node=node.gpus if node else None,
            gpus_wanted=wanted,
        )


def _custom(model: CustomModel) -> Model:
    return Model(
        source="stack file",
        id=model.id,
        kind=model.kind,
        architecture=model.architecture,
        parameters_m=model.parameters_m,
        # Without the size of its vocabulary all parameters count, which overstates time and never understates it.
        compute_parameters_m=model.parameters_m,
        layers=model.layers,
        hidden=model.hidden,
        max_tokens=model.max_tokens,
        dimension=model.dimension,
        pooling=model.pooling,
        gated=model.gated,
    )


def _image(engine: EngineSpec, images: Images) -> str:
    registry = images.stand_in_registry or images.mirrors.get(engine.registry, engine.registry)
    digest = f"@{engine.digest}" if engine.digest else ""
    return f"{registry.rstrip('/')}/{engine.repository}:{engine.tag}{digest}"


def _budgets(engine: EngineSpec, workload: TeiWorkload, pool: NodePool, reasons: list[Reason]) -> Budgets:
    pull = _IMAGE_PULL_SECONDS if pool.image_pull_seconds is None else pool.image_pull_seconds
    grace = _PROPAGATION_SECONDS + engine.longest_request_seconds
    # Without a spare GPU the old pod has to end before the new one starts, so its drain counts as well.
    step = pull + engine.startup_seconds + grace + _SLACK_SECONDS
    at_once = max(1, workload.rollout.max_surge + workload.rollout.max_unavailable)
    steps = max(1, math.ceil(workload.replicas / at_once))
    reasons += [
        Reason("drain", f"{grace} s", f"{_PROPAGATION_SECONDS} s for endpoints, then the longest request"),
        Reason(
            "progressDeadline", f"{step} s", f"pull {pull} s, startup, drain of the old pod, {_SLACK_SECONDS} s slack"
        ),
        Reason("rollout", f"{step * steps} s", f"{steps} steps of {at_once} pods; Pulumi waits that long"),
    ]
    return Budgets(
        image_pull=pull,
        startup=engine.startup_seconds,
        pre_stop=_PROPAGATION_SECONDS,
        longest_request=engine.longest_request_seconds,
        termination_grace=grace,
        progress_deadline=step,
        rollout=step * steps,
    )


def _node_selector(pool: _Pool, reasons: list[Reason]) -> dict[str, str]:
    if pool.settings.node_selector or pool.gpu is None:
        return dict(pool.settings.node_selector)
    reasons.append(
        Reason(
            "nodeSelector",
            f"{GPU_PRODUCT_LABEL}={pool.gpu.product_label}",
            "the label that GPU feature discovery writes; a pod on another GPU would not start",
        )
    )
    return {GPU_PRODUCT_LABEL: pool.gpu.product_label}


def _tolerations(pool: _Pool) -> Iterable[Toleration]:
    if pool.gpu:
        yield Toleration(GPU_RESOURCE, "Exists", "NoSchedule")
    for taint in pool.settings.taints:
        if pool.gpu and (taint.key, taint.effect) == (GPU_RESOURCE, "NoSchedule"):
            continue
        operator = "Exists" if taint.value is None else "Equal"
        yield Toleration(taint.key, operator, taint.effect, taint.value)
