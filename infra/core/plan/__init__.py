"""Settings and catalogue in, values out. Every choice and every refusal happens here; components only write it down."""

import math
from collections.abc import Iterable

from infra.core import catalogue
from infra.core.capacity import Sizing
from infra.core.catalogue import Model, ModelKind
from infra.core.engines import ENGINES, tei
from infra.core.engines.request import Description, KnownModel, Request
from infra.core.engines.spec import EngineSpec, Reason
from infra.core.errors import Refusal, RefusedError, counted, nearest_first, quoted
from infra.core.plan import addons, apps
from infra.core.plan.pools import Pool, PoolPlanner
from infra.core.plan.secrets import SecretPlanner
from infra.core.plan.values import (
    GPU_PRODUCT_LABEL,
    GPU_RESOURCE,
    SERVICE_PORT,
    Budgets,
    Capacity,
    ExternalSecret,
    Plan,
    PlannedAddon,
    PlannedApp,
    PlannedClient,
    PlannedClientSettings,
    PlannedMonitoring,
    PlannedPool,
    PlannedScaling,
    PlannedSecret,
    Toleration,
    Workload,
)
from infra.core.settings import AnyWorkload, CustomModel, Images, Stack

__all__ = [
    "GPU_PRODUCT_LABEL",
    "GPU_RESOURCE",
    "SERVICE_PORT",
    "Budgets",
    "Capacity",
    "ExternalSecret",
    "Plan",
    "PlannedAddon",
    "PlannedApp",
    "PlannedClient",
    "PlannedClientSettings",
    "PlannedMonitoring",
    "PlannedPool",
    "PlannedScaling",
    "PlannedSecret",
    "Toleration",
    "Workload",
    "make",
]

_TEMPLATE_HASH = "pod-template-hash"
#: Failed questions in a row, at the HPA's 15 s, before KEDA falls back: one restart of Prometheus passes.
_FALLBACK_FAILURES = 3
#: Environments in which a model is served at a named revision only.
_PINNED = {"staging", "prod"}
#: Until every kube-proxy and client knows that a pod is going away (endpoint propagation), requests still arrive.
_PROPAGATION_SECONDS = 10
#: What kubelet and scheduler add to each step of a rollout.
_SLACK_SECONDS = 30


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
        self.configured = secrets
        self.refusals: list[Refusal] = []
        self.monitoring = addons.monitoring(stack, self.refusals)
        self.secrets = SecretPlanner(stack, secrets, self.refusals)
        self.pools = PoolPlanner(stack.node_pools, self.refusals)
        self.models = {
            model.id: KnownModel(model, f"model {model.id}", model.revision) for model in catalogue.models().values()
        }
        #: Places of the stack file's own models.
        self.places: dict[str, str] = {}

    def refuse(self, path: str, given: object, allowed: str, why: str) -> None:
        self.refusals.append(Refusal(f"stack.{path}", quoted(given), allowed, why))

    def plan(self) -> Plan:
        self._cluster()
        self._add_models()
        self._unique("nodePools", [pool.name for pool in self.stack.node_pools])
        pools = self.pools.pools()
        self._unique("serving", [workload.name for workload in self.stack.serving])
        self._services()
        self.secrets.check_use()
        workloads = [
            planned
            for index, workload in enumerate(self.stack.serving)
            if (planned := self._workload(f"serving[{index}]", workload, pools)) is not None
        ]
        places = {workload.name: f"serving[{at}]" for at, workload in enumerate(self.stack.serving)}
        return Plan(
            stack=self.name,
            environment=self.stack.environment,
            context=self.stack.cluster.context,
            namespace=self.stack.namespace.name,
            create_namespace=self.stack.namespace.create,
            pull_secrets=self.stack.images.pull_secrets,
            addons=addons.planned(self.stack),
            monitoring=self.monitoring,
            pools=tuple(self.pools.pool_fit(pool, workloads, places) for pool in pools.values()),
            workloads=tuple(workloads),
        )

    def _cluster(self) -> None:
        namespace, images = self.stack.namespace, self.stack.images
        if namespace.create and (namespace.name == "default" or namespace.name.startswith("kube-")):
            self.refuse(
                "namespace.name",
                namespace.name,
                "another name, or namespace.create: false",
                "Every cluster has this namespace; Pulumi would take it over, and destroy would remove it.",
            )
        for row in addons.planned(self.stack):
            if namespace.name == row.namespace:
                why = f"{row.name} is installed there, and its namespace goes when it does."
                self.refuse("namespace.name", namespace.name, "another name", why)
        self._unique("images.pullSecrets", list(images.pull_secrets), None)
        if images.stand_in_registry and self.stack.environment != "local":
            self.refuse(
                "images.standInRegistry",
                images.stand_in_registry,
                "absent, or environment: local",
                f"Stand-ins are no product, and environment is {self.stack.environment}.",
            )
        its_apps = [app for workload in self.stack.serving if (app := apps.app_of(workload))]
        engines = {ENGINES[workload.engine].registry for workload in self.stack.serving}
        hosts = {*engines, *addons.registries(), *(app.image.partition("/")[0] for app in its_apps)}
        for host in images.mirrors:
            if host not in hosts:
                why = "No image comes from another host."
                self.refuse(f"images.mirrors.{host}", host, ", ".join(sorted(hosts)), why)

    def _services(self) -> None:
        """Two workloads of different names may still ask for the same Service."""
        owners: dict[str, int] = {}
        for index, workload in enumerate(self.stack.serving):
            service = workload.service
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
            place = f"stack.{path}"
            self.models.setdefault(model.id, KnownModel(_custom(model), f"model {model.id} ({place})", model.revision))
            self.places.setdefault(model.id, place)

    def _workload(self, path: str, workload: AnyWorkload, pools: dict[str, Pool]) -> Workload | None:
        engine_ = ENGINES[workload.engine]
        unknown = [model for model in workload.model_ids if engine_.hub and model not in self.models]
        for model in unknown:
            self.refuse(
                f"{path}.model", model, self._known_models(model), "Size, kind and limits of a model have to be known."
            )
        pool = pools.get(workload.pool)
        if pool is None:
            known = ", ".join(f"{found.settings.name} ({found.path}.name)" for found in pools.values())
            self.refuse(f"{path}.pool", workload.pool, known, "No entry of stack.nodePools has this name.")
        if unknown or pool is None or (pool.settings.gpu and pool.gpu is None):
            return None

        def refuse(key: str, given: object, allowed: str, why: str) -> None:
            self.refuse(f"{path}.{key}", given, allowed, why)

        apps.check(workload, pool, refuse)
        beside = apps.beside(workload, pool)
        secret_name = f"{workload.name}-keys"
        secrets = self.secrets.of(workload.name)
        description = engine_.describe(
            Request(
                path=f"stack.{path}",
                workload=workload,
                models=self.models,
                pinned=self.stack.environment in _PINNED,
                pool_path=pool.path,
                gpu=pool.gpu,
                arch=pool.arch,
                node=pool.node,
                node_kinds=pool.kinds(),
                node_path=pool.offer(),
                max_nodes=pool.settings.nodes,
                image_pull_seconds=pool.image_pull_seconds,
                beside=beside,
                stand_in=self.stack.images.stand_in_registry is not None,
                mirrored=frozenset(self.stack.images.mirrors),
                pull_secrets=self.stack.images.pull_secrets,
                secrets=self.configured,
                secret_name=secret_name,
                secret_refs=secrets.refs,
                namespace=self.stack.namespace.name,
                service=workload.service,
                scrape_seconds=self.stack.monitoring.scrape_seconds,
            )
        )
        self.refusals.extend(description.refusals)
        engine, replicas, most = description.spec, description.replicas, description.max_replicas
        if engine is None:
            return None
        reasons = list(engine.reasons)
        self._rollout(path, workload, replicas, reasons)
        # A need that fits no node of the pool is refused there.
        if all(refusal.path != pool.offer() for refusal in description.refusals):
            self.pools.node_fit(path, workload, engine, beside.resources, pool)
        self.pools.disk_fit(path, workload, engine, beside.resources, pool, reasons=reasons)
        labels = self._labels(path, workload, engine)
        client = apps.client_settings(workload, engine, self.stack)
        app = apps.planned(workload, engine, client, self.stack.images, reasons=reasons, refuse=refuse)
        if workload.need and description.sizing is None:
            # How many pods there would be is not known, so nothing can be said about the pool.
            return None
        refs = tuple(variable.secret for variable in engine.env if variable.secret)
        keys = tuple(ref.key for ref in refs if ref.made)
        reasons += [
            Reason(
                "secret",
                f"{ref.secret}, key {ref.key}",
                "made from secret configuration" if ref.made else "has to be there, or External Secrets makes it",
            )
            for ref in refs
        ]
        if pool.settings.image_pull_seconds is None:
            why = "assumed; a replica counts as ready after it, nodePools[].imagePullSeconds says another"
            reasons.append(Reason("imagePull", f"{pool.image_pull_seconds} s", why))
        budgets = _budgets(engine, app, workload, most, pool.image_pull_seconds, reasons=reasons)
        reasons.append(Reason("client", f"{client.url_variable}={client.url}", _why_client(workload, app)))
        return Workload(
            name=workload.name,
            topology=workload.topology,
            pool=workload.pool,
            gpu=pool.gpu.name if pool.gpu else None,
            engine=engine,
            app=app,
            client=client,
            image=_image(engine, self.stack.images),
            stand_in=self.stack.images.stand_in_registry is not None,
            replicas=replicas,
            max_replicas=most,
            top_k=workload.top_k,
            max_surge=workload.rollout.max_surge,
            max_unavailable=workload.rollout.max_unavailable,
            service=workload.service,
            labels=labels,
            pod_labels=dict(workload.pod_labels),
            selector={key: labels[key] for key in ("app.kubernetes.io/name", "app.kubernetes.io/instance")},
            node_selector=pool.node_selector(reasons),
            tolerations=tuple(pool.tolerations()),
            secret=PlannedSecret(secret_name, keys) if keys else None,
            external_secrets=secrets.fetched(refs),
            secret_versions=secrets.versions_of(refs),
            scaling=self._scaling(path, workload, description, reasons),
            clients=self._clients(workload, reasons),
            budgets=budgets,
            capacity=_capacity(description.sizing),
            reasons=tuple(reasons),
        )

    def _scaling(
        self, path: str, workload: AnyWorkload, description: Description, reasons: list[Reason]
    ) -> PlannedScaling | None:
        thresholds = description.scaling
        if thresholds is None:
            return None
        chosen, monitoring = self.stack.addons, self.monitoring
        if chosen.keda is None:
            self.refuse("addons.keda", None, "install, or existing", f"stack.{path}.scaling is done by KEDA.")
        if chosen.prometheus is None:
            why = f"KEDA asks Prometheus how many texts wait (stack.{path}.scaling)."
            self.refuse("addons.prometheus", None, "install, or existing", why)
        if monitoring is None:
            return None
        reasons.append(
            Reason(
                "scaling.fallback",
                f"{description.replicas} or as many as there are",
                f"after {_FALLBACK_FAILURES} questions that Prometheus did not answer, or could not",
            )
        )
        return PlannedScaling(
            name=workload.name,
            min=description.replicas,
            max=description.max_replicas,
            server_address=monitoring.address,
            triggers=description.triggers,
            fallback_failures=_FALLBACK_FAILURES,
            fallback_replicas=description.replicas,
            scale_up_period=thresholds.scale_up_period_seconds,
            scale_down_stabilization=thresholds.scale_down_stabilisation_seconds,
        )

    def _clients(self, workload: AnyWorkload, reasons: list[Reason]) -> tuple[PlannedClient, ...] | None:
        if workload.clients is None:
            reasons.append(Reason("clients", "whoever reaches the pods", "name them, and nobody else gets through"))
            return None
        here = self.stack.namespace.name
        named = ", ".join(
            f"{client.namespace or here}: "
            + (", ".join(f"{k}={v}" for k, v in client.pod_labels.items()) or "every pod")
            for client in workload.clients
        )
        reasons.append(Reason("clients", named or "none", "NetworkPolicy; Prometheus gets through as well"))
        return tuple(PlannedClient(client.namespace or here, dict(client.pod_labels)) for client in workload.clients)

    def _known_models(self, given: str) -> str:
        own = [f"{model} ({place}.id)" for model, place in self.places.items()]
        served = [model.id for model in catalogue.models().values() if tei.on_the_hub(model)]
        return ", ".join([*own, nearest_first(given, served)]) + ", or one that stack.models describes"

    def _rollout(self, path: str, workload: AnyWorkload, replicas: int, reasons: list[Reason]) -> None:
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

    def _labels(self, path: str, workload: AnyWorkload, engine: EngineSpec) -> dict[str, str]:
        own = {
            "app.kubernetes.io/name": engine.product,
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
    digest = f"@{engine.digest}" if engine.digest else ""
    name = f"{engine.repository}:{engine.tag}{digest}"
    if images.stand_in_registry:
        return f"{images.stand_in_registry}/{name}"
    return addons.mirrored(f"{engine.registry}/{name}", images)


def _why_client(workload: AnyWorkload, app: PlannedApp | None) -> str:
    if app is None:
        return "give it to the apps under this name: it is the same with topology: sidecar"
    return f"the app has it under this name; the same with topology: centralized of workload {workload.name}"


def _budgets(
    engine: EngineSpec,
    app: PlannedApp | None,
    workload: AnyWorkload,
    replicas: int,
    pull: int,
    *,
    reasons: list[Reason],
) -> Budgets:
    # The engine is told to end when the app has, so one drain follows the other.
    grace = _PROPAGATION_SECONDS + (app.longest_request_seconds if app else 0) + engine.longest_request_seconds
    starts = [engine.probes.startup, *([app.startup] if app else [])]
    # Without a spare GPU the old pod has to end before the new one starts, so its drain counts as well.
    # Nodes are there on an existing cluster; time to provision one is not part of a step.
    startup = sum(probe.period_seconds * probe.failure_threshold for probe in starts)
    step = pull * len(starts) + startup + grace + _SLACK_SECONDS
    at_once = max(1, workload.rollout.max_surge + workload.rollout.max_unavailable)
    steps = max(1, math.ceil(replicas / at_once))
    reasons += [
        Reason(
            "drain",
            f"{grace} s",
            f"{_PROPAGATION_SECONDS} s for endpoints, then the longest request"
            + (" of the app, then that of the engine, which ends after it" if app else ""),
        ),
        Reason(
            "progressDeadline",
            f"{step} s",
            f"pull {pull} s, startup, {'both again for the app, ' if app else ''}drain of the old pod, "
            f"{_SLACK_SECONDS} s slack",
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
