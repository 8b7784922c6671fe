"""Settings and catalogue in, values out. Every choice and every refusal happens here; components only write it down."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from infra.core import catalogue, quantities
from infra.core.capacity import Cost, Latency, Node, Room, Scaling, Sizing, node_of, nodes
from infra.core.catalogue import Gpu, Model, ModelKind
from infra.core.engines import tei
from infra.core.engines.spec import EngineSpec, Reason
from infra.core.errors import Refusal, RefusedError, counted, nearest_first, quoted
from infra.core.settings import Allocatable, CustomModel, Images, NodePool, Stack, TeiWorkload

#: Taint that GPU nodes carry by convention, with any value; the admission plugin of managed clusters adds the same.
GPU_RESOURCE = "nvidia.com/gpu"
GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"
_INSTANCE_LABEL = "node.kubernetes.io/instance-type"
_ARCH_LABEL = "kubernetes.io/arch"
_TEMPLATE_HASH = "pod-template-hash"
#: Registries that engine images come from.
_MIRRORED = (tei.images.REGISTRY,)
SERVICE_PORT = 80
#: Environments in which a model is served at a named revision only.
_PINNED = {"staging", "prod"}
#: User and group of the engine process: images run as root unless told, Pod Security `restricted` refuses that.
RUN_AS = 10001

#: Until every kube-proxy and client knows that a pod is going away (endpoint propagation), requests still arrive.
_PROPAGATION_SECONDS = 10
#: TEI's image is 1-3 GB compressed; published pulls of images of 8-15 GB take 2-6 minutes (aws-facts, cold starts).
_IMAGE_PULL_SECONDS = 600
#: Root volume of EKS managed node groups, where nobody sets diskSize.
_EKS_ROOT_MIB = 20 * 1024
#: Pods per node by the kubelet's default.
_KUBELET_PODS = 110
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
class Capacity:
    """How a need became sizes, for people and for scaling."""

    #: As the stack file writes it.
    need: dict[str, Any]
    #: Share of the replicas' throughput that the load takes.
    utilisation: float
    latency: Latency
    cost: Cost
    scaling: Scaling
    #: Every number, as ``key: how it was computed``.
    arithmetic: tuple[str, ...]


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
    #: None where the stack file gives sizes in place of a need.
    capacity: Capacity | None
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
    #: Place in the stack file, for messages about what a workload asks of it.
    path: str
    gpu: Gpu | None
    #: CPU architecture of the nodes.
    arch: str
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
        #: Places of the stack file's own models.
        self.places: dict[str, str] = {}
        #: Revisions by model id: commits of the catalogue, and whatever the stack file names for its own models.
        self.revisions = {model.id: model.revision for model in self.models.values()}

    def refuse(self, path: str, given: object, allowed: str, why: str) -> None:
        self.refusals.append(Refusal(f"stack.{path}", quoted(given), allowed, why))

    def plan(self) -> Plan:
        self._cluster()
        self._add_models()
        pools = self._pools()
        self._unique("serving", [workload.name for workload in self.stack.serving])
        self._services()
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
            pools=tuple(self._pool_fit(pool, workloads) for pool in pools.values()),
            workloads=tuple(workloads),
        )

    def _cluster(self) -> None:
        namespace, images = self.stack.namespace, self.stack.images
        if namespace.create and (namespace.name == "default" or namespace.name.startswith("kube-")):
            self.refuse(
                "namespace.name",
                namespace.name,
                "another name, or namespace.create: false",
                "Every cluster has this namespace, and Pulumi does not take over what exists.",
            )
        self._unique("images.pullSecrets", list(images.pull_secrets), None)
        if images.stand_in_registry and self.stack.environment != "local":
            self.refuse(
                "images.standInRegistry",
                images.stand_in_registry,
                "absent, or environment: local",
                f"Stand-ins are no product, and environment is {self.stack.environment}.",
            )
        for host in images.mirrors:
            if host not in _MIRRORED:
                self.refuse(f"images.mirrors.{host}", host, ", ".join(_MIRRORED), "No image comes from another host.")

    def _services(self) -> None:
        """Two workloads of different names may still ask for the same Service."""
        owners: dict[str, int] = {}
        for index, workload in enumerate(self.stack.serving):
            service = workload.service_name or workload.name
            first = self.stack.serving[owners.setdefault(service, index)]
            if first is not workload and (workload.service_name or first.service_name):
                key = "serviceName" if workload.service_name else "name"
                other = "serviceName" if first.service_name else "name"
                where = f"serving[{owners[service]}].{other}"
                self.refuse(f"serving[{index}].{key}", service, "a Service name used once", f"{where} has it.")

    def _unique(self, path: str, names: list[str], key: str | None = "name") -> None:
        for index, name in enumerate(names):
            if name in names[:index]:
                end = f".{key}" if key else ""
                first = f"{path}[{names.index(name)}]{end}"
                self.refuse(f"{path}[{index}]{end}", name, "a name used once", f"{first} has it.")

    def _add_models(self) -> None:
        self._unique("models", [model.id for model in self.stack.models], "id")
        for index, model in enumerate(self.stack.models):
            path = f"models[{index}]"
            if model.id in catalogue.models():
                self.refuse(f"{path}.id", model.id, "a model of your own", "The catalogue has this model.")
            vector = model.kind in {ModelKind.EMBEDDING, ModelKind.SPARSE}
            if model.dimension is not None and not vector:
                self.refuse(f"{path}.dimension", model.dimension, "absent", f"A {model.kind} gives no vector.")
            if model.pooling and (not vector or (model.pooling == "splade") != (model.kind is ModelKind.SPARSE)):
                allowed = {ModelKind.EMBEDDING: "cls, mean, last-token", ModelKind.SPARSE: "splade"}
                self.refuse(
                    f"{path}.pooling",
                    model.pooling,
                    allowed.get(model.kind, "absent"),
                    f"{path}.kind is {model.kind}.",
                )
            self.models.setdefault(model.id, _custom(model))
            self.revisions.setdefault(model.id, model.revision)
            self.places.setdefault(model.id, f"stack.{path}")

    def _pools(self) -> dict[str, _Pool]:
        self._unique("nodePools", [pool.name for pool in self.stack.node_pools])
        pools: dict[str, _Pool] = {}
        for index, pool in enumerate(self.stack.node_pools):
            path = f"nodePools[{index}]"
            gpu = catalogue.find_gpu(pool.gpu) if pool.gpu else None
            if pool.gpu and gpu is None:
                known = nearest_first(pool.gpu, catalogue.gpus())
                self.refuse(f"{path}.gpu", pool.gpu, known, "The catalogue has no other GPU.")
            self._selector(path, pool, gpu)
            found = _Pool(pool, f"stack.{path}", gpu, self._arch(path, pool, gpu), self._node(path, pool, gpu))
            pools.setdefault(pool.name, found)
        return pools

    def _arch(self, path: str, pool: NodePool, gpu: Gpu | None) -> str:
        """Architecture of the nodes: as the instance type, or every instance type with this GPU, has it."""
        types = catalogue.instance_types()
        named = types.get(pool.instance_type or "")
        known = {named.arch} if named else {row.arch for row in types.values() if gpu and row.gpu == gpu.name}
        if pool.arch and named and pool.arch != named.arch:
            self.refuse(f"{path}.arch", pool.arch, f"{named.arch} or absent", f"{path}.instanceType is {named.name}.")
        return pool.arch or (known.pop() if len(known) == 1 else "amd64")

    def _selector(self, path: str, pool: NodePool, gpu: Gpu | None) -> None:
        """A selector that says another GPU than the pool leaves pods Pending, or starts them where they crash."""
        product = pool.node_selector.get(GPU_PRODUCT_LABEL)
        other = next((row for row in catalogue.gpus().values() if row.product_label == product), None)
        if gpu and other and other is not gpu:
            self.refuse(
                f"{path}.nodeSelector.{GPU_PRODUCT_LABEL}",
                product,
                f"{gpu.product_label} or absent",
                f"That is the label of a {other.name}, {path}.gpu is {gpu.name}.",
            )
        instance = catalogue.instance_types().get(pool.node_selector.get(_INSTANCE_LABEL, ""))
        # A GPU that was refused says nothing about what goes with it.
        if instance and not (pool.gpu and gpu is None) and instance.gpu != (gpu.name if gpu else None):
            self.refuse(
                f"{path}.nodeSelector.{_INSTANCE_LABEL}",
                instance.name,
                "an instance type with the GPU of the pool",
                f"{instance.name} has {instance.gpu} GPUs, {path}.gpu is {gpu.name if gpu else 'absent'}.",
            )

    def _node(self, path: str, pool: NodePool, gpu: Gpu | None) -> Allocatable | None:
        if pool.instance_type is None:
            if pool.allocatable and pool.gpu and pool.allocatable.gpus == 0:
                self.refuse(f"{path}.allocatable.gpus", 0, "1 or more", f"{path}.gpu says {pool.gpu}.")
            if pool.allocatable and not pool.gpu and pool.allocatable.gpus:
                self.refuse(
                    f"{path}.allocatable.gpus", pool.allocatable.gpus, f"0, or {path}.gpu", "Which GPU is not said."
                )
            return pool.allocatable
        if pool.allocatable:
            self.refuse(f"{path}.allocatable", "a value", "absent", "instanceType says what a node offers.")
        types = catalogue.instance_types()
        instance = types.get(pool.instance_type)
        fitting = [row.name for row in types.values() if gpu and row.gpu == gpu.name and row.gpu_count]
        if instance is None:
            self.refuse(
                f"{path}.instanceType",
                pool.instance_type,
                nearest_first(pool.instance_type, fitting) or "an EC2 instance type with a GPU, and gpu to match",
                "The catalogue has no EC2 instance type of this name"
                + (f" with {gpu.name} GPUs, which {path}.gpu asks for." if gpu else "."),
            )
            return None
        if (gpu is None or instance.gpu != gpu.name) and not (pool.gpu and gpu is None):
            self.refuse(
                f"{path}.instanceType",
                pool.instance_type,
                ", ".join(fitting) or "a pool with a GPU",
                f"{pool.instance_type} has {instance.gpu} GPUs, {path}.gpu is {pool.gpu or 'absent'}.",
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
                self._known_models(workload.model),
                "Size, kind and limits of a model have to be known.",
            )
        pool = pools.get(workload.pool)
        if pool is None:
            known = ", ".join(f"{found.settings.name} ({found.path}.name)" for found in pools.values())
            self.refuse(f"{path}.pool", workload.pool, known, "No entry of stack.nodePools has this name.")
        if model is None or pool is None or (pool.settings.gpu and pool.gpu is None):
            return None
        secret_name = f"{workload.name}-keys"
        revision = workload.revision or self.revisions[model.id]
        description = tei.describe(
            tei.Request(
                path=f"stack.{path}",
                workload=workload,
                model=model,
                model_name=f"model {model.id} ({place})"
                if (place := self.places.get(model.id))
                else f"model {model.id}",
                revision=revision,
                pinned=self.stack.environment in _PINNED,
                pool_path=pool.path,
                gpu=pool.gpu,
                arch=pool.arch,
                node=pool.node,
                node_kinds=_kinds(pool),
                node_path=_offer(pool),
                max_nodes=pool.settings.nodes,
                image_pull_seconds=_image_pull(pool.settings),
                stand_in=self.stack.images.stand_in_registry is not None,
                secrets=self.secrets,
                secret_name=secret_name,
            )
        )
        self.refusals.extend(description.refusals)
        engine, replicas = description.spec, description.replicas
        reasons = list(engine.reasons)
        self._rollout(path, workload, replicas, reasons)
        # A need that fits no node of the pool is refused there.
        if all(refusal.path != _offer(pool) for refusal in description.refusals):
            self._node_fit(path, workload, engine, pool)
        self._disk_fit(path, workload, engine, pool, reasons)
        labels = self._labels(path, workload)
        if workload.need and description.sizing is None:
            # How many pods there would be is not known, so nothing can be said about the pool.
            return None
        keys = tuple(variable.secret.key for variable in engine.env if variable.secret)
        budgets = _budgets(engine, workload, replicas, pool.settings, reasons)
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
                revision=revision or "main",
            ),
            image=_image(engine, self.stack.images),
            stand_in=self.stack.images.stand_in_registry is not None,
            replicas=replicas,
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
            capacity=_capacity(description.sizing),
            reasons=tuple(reasons),
        )

    def _known_models(self, given: str) -> str:
        own = [f"{model} ({place}.id)" for model, place in self.places.items()]
        served = [model.id for model in catalogue.models().values() if tei.on_the_hub(model)]
        return ", ".join([*own, nearest_first(given, served)]) + ", or one that stack.models describes"

    def _rollout(self, path: str, workload: TeiWorkload, replicas: int, reasons: list[Reason]) -> None:
        rollout = workload.rollout
        if rollout.max_surge == 0 and rollout.max_unavailable == 0:
            self.refuse(
                f"{path}.rollout.maxUnavailable",
                0,
                "1 or more, or rollout.maxSurge: 1",
                "With both at 0 no pod can be replaced.",
            )
        if rollout.max_surge == 0:
            answers = (
                "nothing answers meanwhile"
                if 0 < replicas <= rollout.max_unavailable
                else f"{max(0, replicas - rollout.max_unavailable)} of {replicas} answer meanwhile"
            )
            why = f"no spare GPU needed: old pods end before new ones start, {answers}"
        else:
            why = f"{rollout.max_surge} new pods start before old ones end, and need GPUs of their own"
        reasons.append(Reason("rollout.maxSurge", str(rollout.max_surge), why))

    def _labels(self, path: str, workload: TeiWorkload) -> dict[str, str]:
        own = {
            "app.kubernetes.io/name": "text-embeddings-inference",
            "app.kubernetes.io/instance": workload.name,
            "app.kubernetes.io/part-of": "embedding-serving",
            "app.kubernetes.io/managed-by": "pulumi",
        }
        for key, labels in (("labels", workload.labels), ("podLabels", workload.pod_labels)):
            for label in labels:
                if label in own:
                    why = "Services, budgets and people select by it."
                elif label == _TEMPLATE_HASH:
                    why = "The Deployment writes it."
                else:
                    continue
                self.refuse(f"{path}.{key}.{label}", labels[label], "other labels", why)
        return {**workload.labels, **own}

    def _node_fit(self, path: str, workload: TeiWorkload, engine: EngineSpec, pool: _Pool) -> None:
        node = _node_of(pool)
        if node is None:
            return
        wanted, room = engine.resources, node.room
        for resource, needs, offers, left, unit in (
            ("cpu", wanted.cpu_millicores, node.cpu_m, room.cpu_m, "m"),
            ("memory", wanted.memory_mib, node.memory_mib, room.memory_mib, "Mi"),
        ):
            if needs > left:
                written = getattr(workload.resources, resource)
                smaller = "" if written else "a smaller model, "
                most = f"{left}{unit} at most, {smaller}or a pool with bigger nodes"
                self.refusals.append(
                    Refusal(
                        f"stack.{path}.resources.{resource}",
                        quoted(written) if written else f"nothing, planned {needs}{unit} for model {workload.model}",
                        most if left > 0 else "a pool with bigger nodes",
                        f"{_offer(pool, resource)}: a node of pool {workload.pool} offers {offers}{unit}, of which its "
                        f"DaemonSets take {offers - left}{unit} (assumed), so the pod would stay Pending.",
                    )
                )

    def _disk_fit(
        self, path: str, workload: TeiWorkload, engine: EngineSpec, pool: _Pool, reasons: list[Reason]
    ) -> None:
        """Disks are known only where somebody says how big they are; those of instance types are what one attaches."""
        needs = engine.resources.ephemeral_storage_mib
        allocatable = pool.settings.allocatable
        if pool.settings.instance_type and needs > _EKS_ROOT_MIB:
            instance = catalogue.instance_types().get(pool.settings.instance_type)
            why = f"more than the {_EKS_ROOT_MIB // 1024} GiB that EKS gives a root volume by default: give nodes more"
            if instance and instance.local_nvme_gb:
                why += f", or let the kubelet use their {instance.local_nvme_gb} GB of local NVMe"
            reasons.append(Reason("resources.ephemeralStorage", f"{needs}Mi", why))
        if not allocatable or not allocatable.ephemeral_storage:
            return
        offers = quantities.mebibytes(allocatable.ephemeral_storage)
        if needs > offers:
            written = workload.resources.ephemeral_storage
            self.refuse(
                f"{path}.resources.ephemeralStorage",
                written or f"nothing, planned {needs}Mi for model {workload.model}",
                f"{offers}Mi at most, cache.existingClaim, or a pool with bigger disks",
                f"{pool.path}.allocatable.ephemeralStorage is what a node of pool {workload.pool} offers, so the pod "
                "would stay Pending.",
            )

    def _pool_fit(self, pool: _Pool, workloads: list[Workload]) -> PlannedPool:
        here = [workload for workload in workloads if workload.pool == pool.settings.name]
        count, node, kind = pool.settings.nodes, pool.node, _node_of(pool)
        if count and node and kind and all(_fits(kind, workload) for workload in here):
            steady, rolling = _nodes_for(kind, here, surge=False), _nodes_for(kind, here, surge=True)
            pods = sum(workload.replicas for workload in here)
            places = {planned.name: f"serving[{at}]" for at, planned in enumerate(self.stack.serving)}
            names = ", ".join(f"{places[w.name]}.replicas: {w.replicas}" for w in here)
            surges = ", ".join(f"{places[w.name]}.rollout.maxSurge: {w.max_surge}" for w in here if w.max_surge)
            offer = (
                f"{counted(count, 'node')} with {node.cpu} CPU, {node.memory} and {counted(node.gpus, 'GPU')} "
                f"({_offer(pool)}), {nodes.DAEMONS_CPU_M}m and {nodes.DAEMONS_MEMORY_MIB}Mi of each for DaemonSets,"
            )
            those = f"{counted(pods, 'pod')} ({names})"
            path = f"{pool.path.removeprefix('stack.')}.nodes"
            if steady > count:
                self.refuse(
                    path,
                    count,
                    f"{steady} or more, fewer replicas, or smaller resources",
                    f"No room on {offer} for {those}: the last ones would stay Pending.",
                )
            elif rolling > count:
                self.refuse(
                    path,
                    count,
                    f"{rolling} or more, or rollout.maxSurge: 0",
                    f"No room on {offer} beside {those} for the new ones of a rollout ({surges}): they "
                    "would stay Pending and the old ones would be kept.",
                )
        return PlannedPool(
            name=pool.settings.name,
            gpu=pool.gpu.name if pool.gpu else None,
            nodes=count,
            gpus_per_node=node.gpus if node else None,
            gpus_wanted=sum(workload.replicas * workload.engine.resources.gpus for workload in here),
        )


def _offer(pool: _Pool, resource: str = "") -> str:
    """Where the stack file says, or could say, what a node offers."""
    if pool.settings.instance_type or not pool.settings.allocatable:
        return f"{pool.path}.instanceType"
    return f"{pool.path}.allocatable" + (f".{resource}" if resource else "")


def _node_of(pool: _Pool) -> Node | None:
    """One node of the pool; None: what it offers is not said, or was refused."""
    instance = catalogue.instance_types().get(pool.settings.instance_type or "")
    if instance:
        return node_of(instance)
    if pool.node is None:
        return None
    return Node(
        name=f"node of pool {pool.settings.name}",
        gpus=pool.node.gpus,
        cpu_m=quantities.millicores(pool.node.cpu),
        memory_mib=quantities.mebibytes(pool.node.memory),
        max_pods=_KUBELET_PODS,
        price=None,
        spot=None,
    )


def _kinds(pool: _Pool) -> tuple[Node, ...] | None:
    """The kind of node that a need of the pool may be met with; None: it is not said, or what is said was refused."""
    instance = catalogue.instance_types().get(pool.settings.instance_type or "")
    if pool.gpu is None or (instance and instance.gpu != pool.gpu.name):
        return None
    node = _node_of(pool)
    return (node,) if node and node.gpus else None


def _image_pull(pool: NodePool) -> int:
    return _IMAGE_PULL_SECONDS if pool.image_pull_seconds is None else pool.image_pull_seconds


def _capacity(sizing: Sizing | None) -> Capacity | None:
    if sizing is None:
        return None
    return Capacity(
        need=sizing.request.need.model_dump(by_alias=True, exclude_none=True),
        utilisation=sizing.utilisation,
        latency=sizing.latency,
        cost=sizing.cost,
        scaling=sizing.scaling,
        arithmetic=sizing.arithmetic,
    )


def _room_of(workload: Workload) -> Room:
    wanted = workload.engine.resources
    return Room(wanted.gpus, wanted.cpu_millicores, wanted.memory_mib, 1)


def _fits(node: Node, workload: Workload) -> bool:
    """Whether one pod fits an empty node; where not, the workload's own refusal says so."""
    return all(needs <= left for needs, left in zip(_room_of(workload), node.room, strict=True))


def _nodes_for(node: Node, workloads: list[Workload], *, surge: bool) -> int:
    """Nodes that hold all pods when the biggest are placed first, each on the first node with room."""
    pods = sorted(
        (
            _room_of(workload)
            for workload in workloads
            for _ in range(workload.replicas + (workload.max_surge if surge and workload.replicas else 0))
        ),
        reverse=True,
    )
    free: list[Room] = []
    full = 0
    last: Room | None = None
    for pod in pods:
        # Nodes without room for the last pod have none for the same pod again.
        start = full if pod == last else 0
        place = next(
            (at for at in range(start, len(free)) if all(n <= f for n, f in zip(pod, free[at], strict=True))), None
        )
        if place is None:
            free.append(node.room)
            place = len(free) - 1
        free[place] = Room(*(left - taken for left, taken in zip(free[place], pod, strict=True)))
        full, last = place, pod
    return len(free)


def _custom(model: CustomModel) -> Model:
    return Model(
        source="stack file",
        id=model.id,
        kind=model.kind,
        architecture=model.architecture,
        parameters_m=model.parameters_m,
        bytes_per_parameter=model.bytes_per_parameter,
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
    return f"{registry}/{engine.repository}:{engine.tag}{digest}"


def _budgets(
    engine: EngineSpec, workload: TeiWorkload, replicas: int, pool: NodePool, reasons: list[Reason]
) -> Budgets:
    pull = _image_pull(pool)
    grace = _PROPAGATION_SECONDS + engine.longest_request_seconds
    # Without a spare GPU the old pod has to end before the new one starts, so its drain counts as well.
    probe = engine.probes.startup
    # Nodes are there on an existing cluster; time to provision one is not part of a step.
    step = pull + probe.period_seconds * probe.failure_threshold + grace + _SLACK_SECONDS
    at_once = max(1, workload.rollout.max_surge + workload.rollout.max_unavailable)
    steps = max(1, math.ceil(replicas / at_once))
    reasons += [
        Reason("drain", f"{grace} s", f"{_PROPAGATION_SECONDS} s for endpoints, then the longest request"),
        Reason(
            "progressDeadline", f"{step} s", f"pull {pull} s, startup, drain of the old pod, {_SLACK_SECONDS} s slack"
        ),
        Reason(
            "rollout",
            f"{step * steps} s",
            f"{counted(steps, 'step')} of {counted(at_once, 'pod')}; Pulumi waits that long",
        ),
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
    if pool.settings.node_selector:
        return dict(pool.settings.node_selector)
    if pool.gpu is None:
        reasons.append(
            Reason("nodeSelector", f"{_ARCH_LABEL}={pool.arch}", "CPU images are built for one architecture")
        )
        return {_ARCH_LABEL: pool.arch}
    if pool.settings.instance_type:
        reasons.append(
            Reason(
                "nodeSelector",
                f"{_INSTANCE_LABEL}={pool.settings.instance_type}",
                "the label that every cloud sets; a pod on another GPU would not start",
            )
        )
        return {_INSTANCE_LABEL: pool.settings.instance_type}
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
