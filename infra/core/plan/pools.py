"""Node pools of a stack: what their nodes are, which pods they take, and whether everything fits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from infra.core import catalogue, quantities
from infra.core.capacity import Node, Room, node_of, nodes
from infra.core.catalogue import Gpu
from infra.core.engines.spec import EngineSpec, Reason, Resources
from infra.core.errors import Refusal, counted, nearest_first, quoted
from infra.core.plan.values import GPU_PRODUCT_LABEL, GPU_RESOURCE, PlannedPool, Toleration, Workload
from infra.core.settings import Allocatable, NodePool
from infra.core.settings import Workload as GivenWorkload

_INSTANCE_LABEL = "node.kubernetes.io/instance-type"
_ARCH_LABEL = "kubernetes.io/arch"
#: TEI's image is 1-3 GB compressed; published pulls of images of 8-15 GB take 2-6 minutes (aws-facts, cold starts).
_IMAGE_PULL_SECONDS = 600
#: Root volume of EKS managed node groups, where nobody sets diskSize.
_EKS_ROOT_MIB = 20 * 1024
#: Pods per node by the kubelet's default.
_KUBELET_PODS = 110


@dataclass(frozen=True)
class Pool:
    """A pool with its GPU and its node looked up."""

    settings: NodePool
    #: Place in the stack file, for messages about what a workload asks of it.
    path: str
    gpu: Gpu | None
    #: CPU architecture of the nodes.
    arch: str
    node: Allocatable | None

    @property
    def image_pull_seconds(self) -> int:
        """Budget to pull an engine image."""
        given = self.settings.image_pull_seconds
        return _IMAGE_PULL_SECONDS if given is None else given

    def offer(self, resource: str = "") -> str:
        """Where the stack file says, or could say, what a node offers."""
        if self.settings.instance_type or not self.settings.allocatable:
            return f"{self.path}.instanceType"
        return f"{self.path}.allocatable" + (f".{resource}" if resource else "")

    def one_node(self) -> Node | None:
        """One node of the pool; None: what it offers is not said, or was refused."""
        instance = catalogue.instance_types().get(self.settings.instance_type or "")
        if instance:
            return node_of(instance)
        if self.node is None:
            return None
        return Node(
            name=f"node of pool {self.settings.name}",
            gpus=self.node.gpus,
            cpu_m=quantities.millicores(self.node.cpu),
            memory_mib=quantities.mebibytes(self.node.memory),
            max_pods=_KUBELET_PODS,
            price=None,
            spot=None,
        )

    def kinds(self) -> tuple[Node, ...] | None:
        """The kind of node that a need may be met with; None: it is not said, or what is said was refused."""
        instance = catalogue.instance_types().get(self.settings.instance_type or "")
        if self.gpu is None or (instance and instance.gpu != self.gpu.name):
            return None
        node = self.one_node()
        return (node,) if node and node.gpus else None

    def node_selector(self, reasons: list[Reason]) -> dict[str, str]:
        """Labels that pods of this pool select, with the reason where the plan chose them."""
        if self.settings.node_selector:
            return dict(self.settings.node_selector)
        if self.gpu is None:
            reasons.append(
                Reason("nodeSelector", f"{_ARCH_LABEL}={self.arch}", "CPU images are built for one architecture")
            )
            return {_ARCH_LABEL: self.arch}
        if self.settings.instance_type:
            reasons.append(
                Reason(
                    "nodeSelector",
                    f"{_INSTANCE_LABEL}={self.settings.instance_type}",
                    "the label that every cloud sets; a pod on another GPU would not start",
                )
            )
            return {_INSTANCE_LABEL: self.settings.instance_type}
        reasons.append(
            Reason(
                "nodeSelector",
                f"{GPU_PRODUCT_LABEL}={self.gpu.product_label}",
                "the label that GPU feature discovery writes; a pod on another GPU would not start",
            )
        )
        return {GPU_PRODUCT_LABEL: self.gpu.product_label}

    def tolerations(self) -> Iterable[Toleration]:
        """Taints of the pool that its pods accept."""
        if self.gpu:
            yield Toleration(GPU_RESOURCE, "Exists", "NoSchedule")
        for taint in self.settings.taints:
            if self.gpu and (taint.key, taint.effect) == (GPU_RESOURCE, "NoSchedule"):
                continue
            operator = "Exists" if taint.value is None else "Equal"
            yield Toleration(taint.key, operator, taint.effect, taint.value)


class PoolPlanner:
    """Looks pools up and refuses what cannot be."""

    def __init__(self, pools: tuple[NodePool, ...], refusals: list[Refusal]) -> None:
        self._pools = pools
        self._refusals = refusals

    def refuse(self, path: str, given: object, allowed: str, why: str) -> None:
        self._refusals.append(Refusal(f"stack.{path}", quoted(given), allowed, why))

    def pools(self) -> dict[str, Pool]:
        """Pools by name; of two with one name the first."""
        pools: dict[str, Pool] = {}
        for index, pool in enumerate(self._pools):
            path = f"nodePools[{index}]"
            gpu = catalogue.find_gpu(pool.gpu) if pool.gpu else None
            if pool.gpu and gpu is None:
                known = nearest_first(pool.gpu, catalogue.gpus())
                self.refuse(f"{path}.gpu", pool.gpu, known, "The catalogue has no other GPU.")
            self._selector(path, pool, gpu)
            found = Pool(pool, f"stack.{path}", gpu, self._arch(path, pool, gpu), self._node(path, pool, gpu))
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

    def node_fit(self, path: str, workload: GivenWorkload, engine: EngineSpec, beside: Resources, pool: Pool) -> None:
        """Whether one pod fits a node; ``beside`` is what shares it with the engine."""
        node = pool.one_node()
        if node is None:
            return
        wanted, room = engine.resources, node.room
        for resource, needs, app, offers, free, unit in (
            ("cpu", wanted.cpu_millicores, beside.cpu_millicores, node.cpu_m, room.cpu_m, "m"),
            ("memory", wanted.memory_mib, beside.memory_mib, node.memory_mib, room.memory_mib, "Mi"),
        ):
            left = free - app
            if needs > left:
                written = getattr(workload.resources, resource)
                smaller = "" if written else "a smaller model, "
                if app:
                    smaller += f"less for app.resources.{resource}, "
                takes = f"take {offers - free}{unit} (assumed)"
                if app:
                    takes += f" and the app {app}{unit} (app.resources.{resource})"
                most = f"{left}{unit} at most, {smaller}or a pool with bigger nodes"
                self._refusals.append(
                    Refusal(
                        f"stack.{path}.resources.{resource}",
                        quoted(written) if written else f"nothing, planned {needs}{unit} for model {_models(workload)}",
                        most
                        if left > 0
                        else f"{smaller}a pool with bigger nodes"
                        if app
                        else "a pool with bigger nodes",
                        f"{pool.offer(resource)}: a node of pool {workload.pool} offers {offers}{unit}, of which its "
                        f"DaemonSets {takes}, so the pod would stay Pending.",
                    )
                )

    def disk_fit(
        self,
        path: str,
        workload: GivenWorkload,
        engine: EngineSpec,
        beside: Resources,
        pool: Pool,
        *,
        reasons: list[Reason],
    ) -> None:
        """Disks are known only where somebody says how big they are; those of instance types are what one attaches."""
        app = beside.ephemeral_storage_mib
        needs = engine.resources.ephemeral_storage_mib + app
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
                written or f"nothing, planned {needs - app}Mi for model {_models(workload)}",
                f"{max(0, offers - app)}Mi at most, cache.existingClaim, or a pool with bigger disks",
                f"{pool.path}.allocatable.ephemeralStorage is what a node of pool {workload.pool} offers, so the pod "
                + (f"with {app}Mi for its app (app.resources.ephemeralStorage) " if app else "")
                + "would stay Pending.",
            )

    def pool_fit(self, pool: Pool, workloads: list[Workload], places: Mapping[str, str]) -> PlannedPool:
        here = [workload for workload in workloads if workload.pool == pool.settings.name]
        count, node, kind = pool.settings.nodes, pool.node, pool.one_node()
        if count and node and kind and all(_fits(kind, workload) for workload in here):
            steady, rolling = _nodes_for(kind, here, surge=False), _nodes_for(kind, here, surge=True)
            pods = sum(workload.max_replicas for workload in here)
            names = ", ".join(f"{places[w.name]}.{_replicas_key(w)}: {w.max_replicas}" for w in here)
            sizes = ", ".join(f"{places[w.name]}.resources" for w in here)
            surges = ", ".join(f"{places[w.name]}.rollout.maxSurge: {w.max_surge}" for w in here if w.max_surge)
            offer = (
                f"{counted(count, 'node')} with {node.cpu} CPU, {node.memory} and {counted(node.gpus, 'GPU')} "
                f"({pool.offer()}), {nodes.DAEMONS_CPU_M}m and {nodes.DAEMONS_MEMORY_MIB}Mi of each for DaemonSets,"
            )
            those = f"{counted(pods, 'pod')} ({names})"
            path = f"{pool.path.removeprefix('stack.')}.nodes"
            if steady > count:
                self.refuse(
                    path,
                    count,
                    f"{steady} or more, fewer replicas, or smaller resources ({sizes})",
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
            gpus_wanted=sum(workload.max_replicas * workload.pod_resources.gpus for workload in here),
        )


def _models(workload: GivenWorkload) -> str:
    return ", ".join(workload.model_ids)


def _replicas_key(workload: Workload) -> str:
    return "scaling.max" if workload.scaling else "replicas"


def _room_of(workload: Workload) -> Room:
    wanted = workload.pod_resources
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
            for _ in range(workload.max_replicas + (workload.max_surge if surge and workload.max_replicas else 0))
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
