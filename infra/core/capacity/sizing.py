"""From a need to sizes, or to what would have to change. Every number of the answer stands in ``arithmetic``."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from infra.core import catalogue
from infra.core.capacity import memory, nodes, physics
from infra.core.capacity.memory import Memory
from infra.core.capacity.need import HOURS_PER_MONTH, Need, rounded
from infra.core.capacity.nodes import Fleet, Node, Pod
from infra.core.capacity.physics import Precision, Rates
from infra.core.capacity.scaling import Scaling, derive
from infra.core.catalogue import Gpu, Model
from infra.core.errors import Refusal, counted

#: Texts of the 95th percentile in one batch, unless latency or memory want fewer. 32 x 512 tokens = 16384.
BATCH_TEXTS = 32
#: Short texts that may fill a batch in place of long ones; more gain nothing and take places of the queue.
_MOST_TEXTS = 4096
#: Steps that a text may see before its answer at the planned load: the running one, one step of queue, its own.
STEPS = 3
#: From a Pending pod to a loaded model where no node is there yet: published EKS runs took 425-439 s
#: (resume-site-4js.pages.dev/experiments/autoscaling, 2026-05-07).
READY_SECONDS = 440
#: What a whole number of replicas may lie above itself by the noise of floating point.
ROUNDING = 1e-9
#: Changes that one answer may name; each stage asks for one at most.
_CHANGES = 12


@dataclass(frozen=True)
class Request:
    """A need, and whatever is already settled about where it runs. None: the planner chooses."""

    need: Need
    model: Model
    gpu: Gpu
    precision: Precision = "float16"
    #: Replicas that a user insists on.
    replicas: int | None = None
    #: Token budget of a batch that a user insists on.
    max_batch_tokens: int | None = None
    #: Kinds of node to choose from; default: all priced EC2 types with this GPU.
    node_kinds: tuple[Node, ...] | None = None
    #: Most nodes that the pool can have.
    max_nodes: int | None = None
    #: What a pod requests beside its GPU.
    pod: Pod | None = None
    #: Replicas that share one GPU by time slicing; each is planned with its part of memory and time.
    gpu_shares: int = 1
    #: Seconds from a Pending pod to a loaded model: node, image pull, weights, warm-up.
    ready_seconds: int = READY_SECONDS
    #: Whether the engine serves a model on a GPU: no other GPU is proposed.
    serves: Callable[[Model, Gpu], bool] = lambda _model, _gpu: True
    #: How a refusal names the need, e.g. ``stack.serving[0].need``; its neighbours (replicas, ...) lie beside it.
    path: str = "need"

    @property
    def kinds(self) -> tuple[Node, ...]:
        """Kinds of node that replicas may run on."""
        return nodes.nodes_of(self.gpu.name) if self.node_kinds is None else self.node_kinds

    @property
    def pod_request(self) -> Pod:
        """What a pod requests, given or estimated."""
        return self.pod or nodes.pod_of(self.model)


@dataclass(frozen=True)
class Change:
    """One change that a refusal proposes: ``key`` of the stack file, relative to the workload, and its new value."""

    key: str
    value: Any

    def apply(self, request: Request) -> Request:
        """``request`` with the change made."""
        fields: dict[str, Any] = {}
        match self.key:
            case "need.tokens.p95":
                tokens = {"p50": min(request.need.tokens.p50, self.value), "p95": self.value}
                fields["need"] = _with(request.need, tokens=tokens)
            case "need.latencyMs":
                fields["need"] = _with(request.need, latencyMs=self.value)
            case "gpu":
                fields |= {"gpu": catalogue.gpus()[self.value], "node_kinds": None}
            case "instanceType":
                fields["node_kinds"] = tuple(
                    kind for kind in nodes.nodes_of(request.gpu.name) if kind.name == self.value
                )
            case _:
                fields[_FIELDS[self.key]] = self.value
        return replace(request, **fields)


#: Keys whose value goes into a request as it is.
_FIELDS = {
    "gpuShares": "gpu_shares",
    "maxBatchTokens": "max_batch_tokens",
    "replicas": "replicas",
    "nodes": "max_nodes",
}


@dataclass(frozen=True)
class Latency:
    """Milliseconds. ``floor``: one text of p95 length alone at the best published efficiency. ``step``: a full batch.

    ``planned``: what 95 % of the texts stay under while the queue is no longer than the threshold.
    """

    floor: float
    step: float
    planned: float


@dataclass(frozen=True)
class Cost:
    """USD. Spot is None where no Spot price of the node is known; all None where the node has no price."""

    on_demand_month: float | None
    spot_month: float | None
    on_demand_per_million: float | None
    spot_per_million: float | None


@dataclass(frozen=True)
class Sizing:
    """The answer: sizes that meet the need, and how each was computed."""

    request: Request
    #: Texts per second that the replicas together have to do, and what one does in planned batches.
    load: float
    per_replica: float
    #: One GPU in full batches of texts of the 95th percentile: the range that the numbers come from.
    rates: Rates
    replicas: int
    #: Share of the replicas' throughput that the load takes.
    utilisation: float
    max_batch_tokens: int
    max_batch_requests: int
    max_concurrent_requests: int
    memory: Memory
    latency: Latency
    scaling: Scaling
    fleet: Fleet
    cost: Cost
    arithmetic: tuple[str, ...]


@dataclass(frozen=True)
class Unmet:
    """The need cannot be met as asked. ``changes`` run parallel to ``refusals``; made together they give a plan.

    A refusal without a way out has the change None and is the last one.
    """

    refusals: tuple[Refusal, ...]
    changes: tuple[Change | None, ...]
    #: The request with all changes made, and its sizing; None when one refusal has no way out.
    remedy: Sizing | None
    arithmetic: tuple[str, ...]


@dataclass(frozen=True)
class _Batch:
    """A batch of the planned size. ``texts`` is how many of p95 length it holds."""

    texts: int
    tokens: int
    seconds: float


_Finding = tuple[Refusal, Change | None]


def size(request: Request) -> Sizing | Unmet:
    """Sizes for ``request``, or every reason why there are none, each with a change that removes it."""
    asked = request
    findings: list[_Finding] = []
    for _ in range(_CHANGES):
        finding = next((found for stage in _STAGES if (found := stage(request)) is not None), None)
        if finding is None:
            sizing = _sizing(request)
            return sizing if not findings else _unmet(asked, findings, sizing)
        findings.append(finding)
        if finding[1] is None:
            return _unmet(asked, findings, None)
        request = finding[1].apply(request)
    raise AssertionError(f"no plan after {_CHANGES} changes: {[str(refusal) for refusal, _ in findings]}")


def smallest_budget(model: Model, p95: int) -> int:
    """TEI cuts texts to the token budget, or does not start, when the model takes longer texts than the budget."""
    return max(p95, model.max_tokens)


def _batch(request: Request) -> _Batch:
    """The batch of a request whose memory and latency were found to allow one."""
    batch = _possible_batch(request)
    if batch is None:
        raise AssertionError(f"no batch although no stage refused one: {request}")
    return batch


def _possible_batch(request: Request) -> _Batch | None:
    """The largest batch, up to 32 texts of p95 length, that memory and latency allow; None when there is none."""
    p95, least = request.need.tokens.p95, smallest_budget(request.model, request.need.tokens.p95)
    fits = memory.largest_batch(request.model, request.gpu, request.precision, request.gpu_shares)
    ceiling = min(fits, request.max_batch_tokens or max(BATCH_TEXTS * p95, least))
    if ceiling < least:
        return None
    per_text = _seconds_per_text(request)
    for texts in range(min(BATCH_TEXTS, ceiling // p95), 0, -1):
        seconds = _step(request, texts, per_text)
        if request.need.latency_ms is None or STEPS * seconds * 1000 <= request.need.latency_ms:
            return _Batch(texts, request.max_batch_tokens or max(texts * p95, least), seconds)
    return None


def _step(request: Request, texts: int, per_text: float) -> float:
    """Seconds of one step with ``texts`` texts; others on the same GPU take their turns in between."""
    return request.gpu_shares * (physics.launch_seconds(request.model) + texts * per_text)


def _seconds_per_text(request: Request) -> float:
    """Seconds that a text adds to a step: one of p95 length, or the mean text where a long tail makes that slower."""
    model, gpu, tokens = request.model, request.gpu, request.need.tokens
    at_p95 = physics.seconds_per_text(model, gpu, tokens.p95, request.precision)
    at_mean = physics.mean_seconds_per_text(model, gpu, tokens, request.precision)
    return max(at_p95, at_mean)


def _per_replica(request: Request, batch: _Batch) -> float:
    """Texts per second: a batch of as many texts of the distribution as it holds of p95 length."""
    work = physics.mean_seconds_per_text(request.model, request.gpu, request.need.tokens, request.precision)
    return batch.texts / (request.gpu_shares * (physics.launch_seconds(request.model) + batch.texts * work))


def _replicas(request: Request, batch: _Batch) -> int:
    exact = request.need.load / (_per_replica(request, batch) * request.need.usable)
    return max(1, math.ceil(exact - ROUNDING))


# Stages: each looks at what the ones before it have settled, and proposes one change at most.


def _lengths(request: Request) -> _Finding | None:
    tokens, limit = request.need.tokens, request.model.max_tokens
    if tokens.p95 <= limit:
        return None
    change = Change("need.tokens.p95", limit)
    return _refusal(
        request,
        change,
        tokens.p95,
        f"{limit} or less (split the texts), or a model that takes {tokens.p95} tokens",
        f"{request.model.id} takes {limit} tokens; more than 5 % of the texts would be cut.",
    ), change


def _weights(request: Request) -> _Finding | None:
    model, shares = request.model, request.gpu_shares
    least = smallest_budget(model, request.need.tokens.p95)
    if memory.needed(model, request.gpu, least, request.precision, shares).fits:
        return None
    needed = memory.needed(model, request.gpu, least, request.precision, shares)
    why = (
        f"{model.id} needs {needed.total} MiB to warm up with the {least} tokens that a text may have "
        f"(weights {needed.weights}, activations {needed.activations}, workspace {needed.workspace})"
    )
    fitting = [
        count
        for count in range(shares - 1, 0, -1)
        if memory.needed(model, request.gpu, least, request.precision, count).fits
    ]
    if fitting:
        change = Change("gpuShares", fitting[0])
        why += f"; a 1/{shares} part of {request.gpu.name} offers {needed.usable} MiB."
        return _refusal(request, change, shares, f"{fitting[0]} or less", why), change
    why += f"; {request.gpu.name} offers {needed.usable} MiB."
    others = [
        gpu
        for gpu in catalogue.gpus().values()
        if nodes.nodes_of(gpu.name)
        and request.serves(model, gpu)
        and memory.needed(model, gpu, least, request.precision, shares).fits
    ]
    if not others:
        served = [gpu for gpu in catalogue.gpus().values() if request.serves(model, gpu)]
        largest = max(served or catalogue.gpus().values(), key=lambda gpu: gpu.memory_mib)
        allowed = f"a smaller model: the largest GPU, {largest.name}, has {largest.memory_mib} MiB"
        return Refusal(_beside(request, "gpu"), request.gpu.name, allowed, why), None
    others.sort(key=nodes.gpu_hour)
    change = Change("gpu", others[0].name)
    return _refusal(request, change, request.gpu.name, ", ".join(gpu.name for gpu in others), why), change


def _budget(request: Request) -> _Finding | None:
    given = request.max_batch_tokens
    if given is None:
        return None
    fits = memory.largest_batch(request.model, request.gpu, request.precision, request.gpu_shares)
    least = smallest_budget(request.model, request.need.tokens.p95)
    if given > fits:
        change = Change("maxBatchTokens", fits)
        wants = memory.needed(request.model, request.gpu, given, request.precision, request.gpu_shares)
        return _refusal(
            request,
            change,
            given,
            f"{fits} or less",
            f"TEI warms up with a full batch: {wants.total} MiB (weights {wants.weights}, activations "
            f"{wants.activations}, workspace {wants.workspace}) of {wants.usable} MiB.",
        ), change
    if given < least:
        change = Change("maxBatchTokens", least)
        return _refusal(
            request,
            change,
            given,
            f"{least} or more",
            f"{request.model.id} takes texts of {request.model.max_tokens} tokens; TEI cuts them to a smaller budget, "
            "or does not start.",
        ), change
    return None


def _latency(request: Request) -> _Finding | None:
    wanted = request.need.latency_ms
    if wanted is None or _possible_batch(request) is not None:
        return None
    alone = _step(request, 1, _seconds_per_text(request)) * 1000
    change = Change("need.latencyMs", math.ceil(STEPS * alone))
    p95 = request.need.tokens.p95
    return _refusal(
        request,
        change,
        f"{wanted:g}",
        f"{change.value} or more, shorter texts, or a faster GPU",
        f"One text of {p95} tokens alone takes {rounded(alone)} ms on {request.gpu.name} "
        f"({rounded(_floor(request))} ms at the best published efficiency), and {STEPS} steps are planned: running, "
        "queue, own.",
    ), change


def _count(request: Request) -> _Finding | None:
    batch = _batch(request)
    needed = _replicas(request, batch)
    if request.replicas is None or request.replicas >= needed:
        return None
    change = Change("replicas", needed)
    each, load = _per_replica(request, batch), request.need.load
    work = sum(
        share * request.model.flops_per_document(round(tokens))
        for share, tokens in request.need.tokens.sample(request.model.max_tokens)
    )
    ratio = load * work / physics.peak(request.gpu, request.precision) / max(1, request.replicas) * request.gpu_shares
    return _refusal(
        request,
        change,
        request.replicas,
        f"{needed} or more",
        f"{request.replicas} x {rounded(each)} documents/s x {request.need.usable:.0%} = "
        f"{rounded(request.replicas * each * request.need.usable)}, wanted {rounded(load)}"
        + (f", which is {rounded(ratio)} times the peak of the hardware." if ratio > 1 else "."),
    ), change


def _node(request: Request) -> _Finding | None:
    pod, shares = request.pod_request, request.gpu_shares
    if any(kind.holds(pod, shares) for kind in request.kinds):
        return None
    given = ", ".join(kind.name for kind in request.kinds) or "no node type with a price"
    why = f"A pod asks for 1 GPU, {pod.cpu_m}m CPU and {pod.memory_mib}Mi; no such node holds one."
    change = None
    own = nodes.cheapest(nodes.nodes_of(request.gpu.name), 1, pod, shares)
    if own:
        change = Change("instanceType", own.node.name)
        allowed = ", ".join(kind.name for kind in nodes.nodes_of(request.gpu.name) if kind.holds(pod, shares))
    else:
        least = smallest_budget(request.model, request.need.tokens.p95)
        others = [
            gpu
            for gpu in sorted(catalogue.gpus().values(), key=nodes.gpu_hour)
            if nodes.cheapest(nodes.nodes_of(gpu.name), 1, pod, shares)
            and request.serves(request.model, gpu)
            and memory.needed(request.model, gpu, least, request.precision, shares).fits
        ]
        if not others:
            return Refusal(_beside(request, "resources"), given, "smaller requests", why), None
        change = Change("gpu", others[0].name)
        allowed = ", ".join(gpu.name for gpu in others)
    return _refusal(request, change, given, allowed, why), change


def _pool(request: Request) -> _Finding | None:
    if request.max_nodes is None:
        return None
    batch = _batch(request)
    replicas = request.replicas or _replicas(request, batch)
    fewest = min(
        math.ceil(replicas / held)
        for kind in request.kinds
        if (held := kind.holds(request.pod_request, request.gpu_shares))
    )
    if fewest <= request.max_nodes:
        return None
    change = Change("nodes", fewest)
    return _refusal(
        request,
        change,
        request.max_nodes,
        f"{fewest} or more",
        f"{counted(request.max_nodes, 'node')} cannot hold {counted(replicas, 'replica')}.",
    ), change


_STAGES: tuple[Callable[[Request], _Finding | None], ...] = (
    _lengths,
    _weights,
    _budget,
    _latency,
    _count,
    _node,
    _pool,
)


def _sizing(request: Request) -> Sizing:
    batch = _batch(request)
    need = request.need
    each = _per_replica(request, batch)
    replicas = request.replicas or _replicas(request, batch)
    kinds = request.kinds
    if request.max_nodes is not None:
        kinds = tuple(
            kind
            for kind in kinds
            if (held := kind.holds(request.pod_request, request.gpu_shares))
            and math.ceil(replicas / held) <= request.max_nodes
        )
    fleet = nodes.cheapest(kinds, replicas, request.pod_request, request.gpu_shares)
    if fleet is None:
        raise AssertionError(f"no node although no stage refused one: {request}")
    # A budget above the planned batch is there for the longest texts; the number of texts bounds the step then. So it
    # does under an objective: more texts than were timed, each below p95, can take longer than the step.
    texts = batch.texts
    if need.latency_ms is None and batch.tokens == batch.texts * need.tokens.p95:
        texts = min(batch.tokens // min(need.tokens.p50, request.model.max_tokens), _MOST_TEXTS)
    scaling = derive(
        each=each, step=batch.seconds, texts=texts, latency_ms=need.latency_ms, ready_seconds=request.ready_seconds
    )
    latency = Latency(
        _floor(request), batch.seconds * 1000, (2 * batch.seconds + scaling.queue_threshold / each) * 1000
    )
    sizing = Sizing(
        request=request,
        load=need.load,
        per_replica=each,
        rates=physics.rates(request.model, request.gpu, need.tokens.p95, request.precision),
        replicas=replicas,
        utilisation=need.load / (replicas * each),
        max_batch_tokens=batch.tokens,
        max_batch_requests=texts,
        max_concurrent_requests=scaling.max_concurrent_requests,
        memory=memory.needed(request.model, request.gpu, batch.tokens, request.precision, request.gpu_shares),
        latency=latency,
        scaling=scaling,
        fleet=fleet,
        cost=Cost(
            fleet.on_demand,
            fleet.spot,
            nodes.per_million(fleet.on_demand, need.load),
            nodes.per_million(fleet.spot, need.load),
        ),
        arithmetic=(),
    )
    return replace(sizing, arithmetic=(*_physics_lines(request), *_size_lines(sizing, batch)))


def _unmet(asked: Request, findings: list[_Finding], remedy: Sizing | None) -> Unmet:
    lines = [*_physics_lines(asked), *(f"refused: {refusal}" for refusal, _ in findings)]
    if remedy:
        lines.append("with these changes:")
        lines += [line for line in remedy.arithmetic if line not in lines]
    return Unmet(
        tuple(refusal for refusal, _ in findings), tuple(change for _, change in findings), remedy, tuple(lines)
    )


def _floor(request: Request) -> float:
    """Milliseconds of one p95 text alone, at the best published efficiency and without launches: nobody is faster."""
    work = request.model.flops_per_document(request.need.tokens.p95)
    return work / (physics.peak(request.gpu, request.precision) * physics.BEST) * 1000


def _physics_lines(request: Request) -> tuple[str, ...]:
    need, model, gpu = request.need, request.model, request.gpu
    tokens = min(need.tokens.p95, model.max_tokens)
    work = model.flops_per_document(tokens)
    rate = physics.rates(model, gpu, tokens, request.precision)
    peak = physics.peak(gpu, request.precision) / 1e12
    square = 2 if model.causal else 4
    load = f"load: {rounded(need.load)} documents/s"
    if need.documents_per_month is not None:
        month = rounded(need.documents_per_month)
        load = f"load: {month} documents a month / {HOURS_PER_MONTH} h = {rounded(need.load)} documents/s"
    return (
        load,
        f"lengths: p50 {need.tokens.p50}, p95 {need.tokens.p95}, longest {need.tokens.longest}; "
        f"mean {rounded(need.tokens.mean(model.max_tokens))} tokens, texts below the median counted as the median",
        f"work: 2 x {model.compute_parameters_m:g}M x {tokens} + {square} x {model.layers} x {model.hidden} x "
        f"{tokens}^2 = {rounded(work / 1e9)} GFLOP per text of {tokens} tokens",
        f"speed: {gpu.name} {peak:g} TFLOP/s {request.precision} / {rounded(work / 1e9)} GFLOP x "
        f"{physics.typical_efficiency(tokens):.0%} typical, {physics.BEST:.0%} best published, 100 % = "
        f"{rounded(rate.typical)}, {rounded(rate.best)}, {rounded(rate.wall)} documents/s",
    )


def _size_lines(sizing: Sizing, batch: _Batch) -> list[str]:
    request, scaling, latency, used = sizing.request, sizing.scaling, sizing.latency, sizing.memory
    need, model, gpu, shares = request.need, request.model, request.gpu, request.gpu_shares
    p95, each = need.tokens.p95, rounded(sizing.per_replica)
    why = f"{batch.texts} x {p95} (p95)"
    if batch.tokens != batch.texts * p95:
        why = "as given" if request.max_batch_tokens else f"the longest text {model.id} takes"
        why += f"; texts of p95 length in a step: {batch.texts}"
    largest = memory.largest_batch(model, gpu, request.precision, shares)
    needed = need.load / (sizing.per_replica * need.usable)
    shared = f"; {shares} replicas share a GPU, each has 1/{shares} of its time and memory" if shares > 1 else ""
    lines = [
        f"batch: {batch.tokens} tokens = {why}; a step takes {rounded(latency.step)} ms "
        f"({model.layers} layers x {physics.LAUNCH_SECONDS_PER_LAYER * 1e6:g} us of launches, then the work){shared}",
        f"memory: weights {used.weights} + activations {used.activations} + workspace {used.workspace} = {used.total} "
        f"of {used.usable} MiB; the largest budget that fits is {largest} tokens",
        f"latency: floor {rounded(latency.floor)} ms; planned 2 x {rounded(latency.step)} ms (running, own) + "
        f"{scaling.queue_threshold} queued / {each} per s = {rounded(latency.planned)} ms"
        + (f", wanted {need.latency_ms:g} ms" if need.latency_ms else ", no objective given"),
        f"replicas: {rounded(need.load)} / ({each} x {need.usable:.0%}) = {rounded(needed)}; "
        f"planned {sizing.replicas}, {sizing.utilisation:.0%} busy",
        f"queue: another replica from {scaling.queue_threshold} queued texts per replica ({scaling.why}); texts "
        f"per batch up to {sizing.max_batch_requests}; {sizing.max_concurrent_requests} places for 2 batches and twice "
        "the threshold",
        f"waiting: double at most every {scaling.scale_up_period_seconds} s "
        f"(a replica is ready after {request.ready_seconds} s); give back after "
        f"{scaling.scale_down_stabilisation_seconds} s",
    ]
    tokens = sizing.per_replica * need.tokens.mean(model.max_tokens)
    if tokens > physics.HTTP_TOKENS_PER_SECOND:
        lines.append(
            f"caution: {each} documents/s are {rounded(tokens)} tokens/s from one server; the highest published over "
            f"HTTP is {physics.HTTP_TOKENS_PER_SECOND:,}: measure tokenizer and network before relying on it"
        )
    return [*lines, *_cost_lines(sizing)]


def _cost_lines(sizing: Sizing) -> list[str]:
    fleet, cost = sizing.fleet, sizing.cost
    node, idle = fleet.node, fleet.nodes * fleet.node.gpus - math.ceil(sizing.replicas / sizing.request.gpu_shares)
    lines = [
        f"nodes: {fleet.nodes} x {node.name}, replicas per node {fleet.per_node}"
        + (f", {counted(idle, 'GPU')} idle" if idle else "")
    ]
    for name, price, month, million, dated in (
        ("on demand", node.price, cost.on_demand_month, cost.on_demand_per_million, "price list of 2026-07-20"),
        ("spot", node.spot, cost.spot_month, cost.spot_per_million, "highest seen, undated snapshot"),
    ):
        if month is None:
            lines.append(f"{name}: no price of {node.name} is known")
        else:
            lines.append(
                f"{name}: {fleet.nodes} x {price} USD/h x {HOURS_PER_MONTH} h = {month:,.0f} USD a month, "
                f"{million:,.2f} USD per million documents (us-east-1, {dated})"
            )
    return lines


def _refusal(request: Request, change: Change, given: object, allowed: str, why: str) -> Refusal:
    return Refusal(_beside(request, change.key), str(given), allowed, why)


def _beside(request: Request, key: str) -> str:
    """Path of ``key`` where the need lies at ``request.path``."""
    if key.startswith("need."):
        return request.path + key.removeprefix("need")
    parent = request.path.rpartition(".")[0]
    return f"{parent}.{key}" if parent else key


def _with(need: Need, **values: object) -> Need:
    return Need.model_validate({**need.model_dump(by_alias=True, exclude_none=True), **values})
