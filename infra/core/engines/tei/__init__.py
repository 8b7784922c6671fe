"""Text Embeddings Inference: image, environment, probes, budgets and limits of one workload.

Facts are from TEI 1.9.3's source and from recordings of a real 1.9.3 server (tests/data/tei-1.9.3). Everything is
configured by environment variables: every flag has one, and `--auto-truncate` parses differently from release to
release.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from infra.core import capacity, catalogue, quantities
from infra.core.capacity import Pod, Sizing, memory, physics
from infra.core.capacity.need import rounded
from infra.core.capacity.physics import Dtype
from infra.core.capacity.scaling import PATIENCE_SECONDS
from infra.core.catalogue import Gpu, Model, ModelKind
from infra.core.credentials import API_KEY, HUB_TOKEN
from infra.core.engines import needs
from infra.core.engines.request import RUN_AS, Description, Request
from infra.core.engines.spec import (
    Api,
    EngineSpec,
    EnvVar,
    Limits,
    Metrics,
    Mount,
    Port,
    Probe,
    Probes,
    Reason,
    Resources,
    SecretRef,
    ServedModel,
    Trigger,
)
from infra.core.engines.tei import estimates, images, scaling, variables
from infra.core.engines.tei.estimates import Machine
from infra.core.engines.tei.scaling import Pace, Thresholds
from infra.core.errors import Refusal, quoted
from infra.core.settings import TeiWorkload

PORT = 8080
#: Beside an app that has that port: the containers of a pod share ports.
OTHER_PORT = 8081
#: Of images that speak gRPC: they serve /metrics over HTTP on a port of its own.
PROMETHEUS_PORT = 9000
CACHE_PATH = "/data"
#: Hides the line in which TEI prints its API key, keeps those that show the device and Ready (tried on 1.9.3).
LOG_LEVELS = {
    "http": "info,text_embeddings_router=warn,text_embeddings_router::http=info",
    "grpc": "info,text_embeddings_router=warn,text_embeddings_router::grpc=info",
}
#: Health of grpc.health.v1 is kept per service; under the empty name it is always SERVING (router/src/grpc/server.rs).
_GRPC_SERVICES = {
    ModelKind.EMBEDDING: "tei.v1.Embed",
    ModelKind.SPARSE: "tei.v1.Embed",
    ModelKind.RERANKER: "tei.v1.Rerank",
    ModelKind.CLASSIFIER: "tei.v1.Predict",
}

#: Defaults of the engine (docs/source/en/cli_arguments.md).
_BATCH_TOKENS = 16384
_CONCURRENT_REQUESTS = 512
_CLIENT_BATCH = 32
_PAYLOAD = 2_000_000
#: A smaller budget than this leaves a GPU idle between batches of short texts.
_LEAST_BATCH_TOKENS = 2048
#: English text runs at about 4 bytes a token; JSON escapes and other scripts can double it.
_BYTES_PER_TOKEN = 4
_LEAST_STARTUP_SECONDS = 120
#: /health took up to 11.3 s where a batch is estimated at 9.7 s (recordings, health), and 15 s never failed.
_PROBE_MARGIN = 1.5
_LEAST_PROBE_SECONDS = 5
_STARTUP_PERIOD_SECONDS = 5
#: A pod that needs longer for one batch is of no use, and its probes would find a hang after an hour.
_LONGEST_BATCH_SECONDS = 300
_LONGEST_REQUEST_SECONDS = 3600
#: Disk beside the weights: /tmp and logs.
_TMP_MIB = 256
_LOGS_MIB = 256


@dataclass(frozen=True)
class _Client:
    """What clients may send: texts per request, texts at a time, bytes per request."""

    batch: int
    concurrent: int
    payload: int


def on_the_hub(model: Model) -> bool:
    """Whether TEI can load a model of the catalogue; those of nvidia/ are shipped inside NIM."""
    return not model.id.startswith("nvidia/")


class _Planner:
    """Collects values, reasons and refusals of one workload."""

    def __init__(self, request: Request[TeiWorkload]) -> None:
        self.request = request
        self.workload = request.workload
        known = request.models[self.workload.model]
        self.model = known.model
        self.called = known.called
        self.revision = self.workload.revision or known.revision
        self.gpu = request.gpu
        self.reasons: list[Reason] = []
        self.refusals: list[Refusal] = []
        need = self.workload.need
        #: Lengths of the texts, and the key that gives them.
        self.tokens = need.tokens if need else self.workload.tokens
        self.tokens_key = "need.tokens" if need else "tokens"
        self.sizing: Sizing | None = None
        self.thresholds: Thresholds | None = None
        self.protocol = self.workload.protocol
        self.port = OTHER_PORT if request.beside.port == PORT else PORT
        tokens = self.tokens
        #: Longest and usual length of the texts that arrive, in tokens.
        self.longest = (
            min(self.model.max_tokens, tokens.max or self.model.max_tokens) if tokens else (self.model.max_tokens)
        )
        self.usual = min(self.longest, tokens.p95 if tokens else estimates.USUAL_TOKENS)

    def because(self, field: str, value: object, why: str) -> None:
        self.reasons.append(Reason(field, str(value), why))

    def refuse(self, key: str, given: object, allowed: str, why: str) -> None:
        self.refusals.append(Refusal(f"{self.request.path}.{key}", quoted(given), allowed, why))

    def tag(self) -> str:
        version = self.workload.version
        if version not in images.VERSIONS:
            self.refuse(
                "version",
                version,
                ", ".join(images.VERSIONS),
                "Flags, defaults and overload answers differ between TEI releases; these are the ones checked.",
            )
        gpu, pool = self.gpu, self.request.pool_path
        prefix = images.prefix_for(gpu, self.request.arch)
        if gpu is None:
            where = f"CPU nodes, {self.request.arch}"
        else:
            where = f"{gpu.name} has compute capability {gpu.compute_capability}"
            if prefix is None:
                self.refuse(
                    "pool",
                    self.workload.pool,
                    f"a pool with {images.supported_gpus()} on amd64, or CPU nodes",
                    f"{pool}.gpu: {where} on {self.request.arch} hosts, for which TEI has no image.",
                )
                prefix = ""
            elif images.experimental(gpu):
                where += "; upstream calls this image experimental"
        tag = f"{prefix}{version}{images.GRPC_SUFFIX if self.protocol == 'grpc' else ''}"
        self.because("image", tag, where)
        if self.workload.digest and self.request.stand_in:
            self.refuse("digest", self.workload.digest, "absent", "images.standInRegistry holds images of its own.")
        return tag

    def served(self) -> None:
        """Whether TEI can serve this model at all."""
        if self.model.id in catalogue.models() and not on_the_hub(self.model):
            self.refuse("model", self.model.id, "a model with weights on the hub", "NVIDIA ships it inside NIM.")

    def dtype(self) -> Dtype:
        gpu, architecture = self.gpu, self.model.architecture
        default: Dtype = "float32" if gpu is None or architecture.startswith("gemma3") else "float16"
        dtype: Dtype = self.workload.dtype or default
        if gpu is None and dtype == "float16":
            self.refuse(
                "dtype",
                dtype,
                "float32",
                f"Its pool ({self.request.pool_path}.gpu) has no GPU: CPU images compute in float32.",
            )
        if architecture in images.FLASH_ATTENTION_ONLY:
            if gpu is None or gpu.capability < memory.FLASH_ATTENTION_CAPABILITY:
                on = "CPU nodes" if gpu is None else f"{gpu.name} ({gpu.compute_capability})"
                self.refuse(
                    "pool",
                    self.workload.pool,
                    "a pool with compute capability 8.0 or higher (A100, A10G, L4, L40S, H100)",
                    f"TEI serves the {self.called} ({architecture}) with flash attention 2 only, which {on} of its "
                    f"pool ({self.request.pool_path}.gpu) cannot run.",
                )
            elif dtype == "float32":
                self.refuse(
                    "dtype",
                    dtype,
                    "float16",
                    f"TEI serves the {self.called} ({architecture}) in float16 only.",
                )
        if architecture.startswith("gemma3") and dtype != "float32":
            self.refuse("dtype", dtype, "float32", f"TEI serves the {self.called} (Gemma 3) in float32 only.")
        if not self.workload.dtype:
            self.because(
                "dtype", dtype, "half the memory and twice the speed" if dtype == "float16" else "TEI needs it"
            )
        return dtype

    def pooling(self) -> str | None:
        given, kind = self.workload.pooling, self.model.kind
        if kind in {ModelKind.RERANKER, ModelKind.CLASSIFIER}:
            if given:
                self.refuse("pooling", given, "absent", f"The {self.called} is a {kind}: TEI ignores pooling there.")
            return None
        if kind is ModelKind.SPARSE:
            if given not in {None, "splade"}:
                self.refuse("pooling", given, "splade", f"The {self.called} gives sparse vectors.")
            return "splade"
        if given == "splade":
            self.refuse("pooling", given, "cls, mean, last-token", f"The {self.called} gives dense vectors.")
        elif given and self.model.pooling and given != self.model.pooling:
            self.refuse(
                "pooling",
                given,
                self.model.pooling,
                f"The {self.called} was trained with {self.model.pooling} pooling; another gives vectors of no use.",
            )
        pooling = given or self.model.pooling
        if pooling is None:
            self.refuse(
                "pooling",
                None,
                "cls, mean, last-token",
                f"Nobody says how the {self.called} pools; name it.",
            )
        elif not given:
            self.because("pooling", pooling, f"how the {self.called} was trained")
        return pooling

    def lengths(self) -> None:
        """Whether the texts' lengths agree with each other and with the model."""
        tokens, need = self.tokens, self.workload.need
        if tokens is None:
            return
        if need and self.workload.tokens:
            given = self.workload.tokens.model_dump(exclude_none=True)
            self.refuse("tokens", given, "absent", f"{self.request.path}.need.tokens says how long the texts are.")
        for key, value in (("p95", tokens.p95), ("max", tokens.max or 0)):
            # A need whose p95 is too long is refused with its sizes.
            if need and key == "p95":
                continue
            if value > self.model.max_tokens and self.workload.auto_truncate is not True:
                self.refuse(
                    f"{self.tokens_key}.{key}",
                    value,
                    f"{self.model.max_tokens} or less, or autoTruncate: true",
                    f"The {self.called} takes {self.model.max_tokens} tokens; longer texts are cut or refused.",
                )

    def batch_tokens(self, dtype: Dtype) -> tuple[int, bool]:
        """Token budget of a batch, and whether longer texts are cut."""
        given, longest = self.workload.max_batch_tokens, self.model.max_tokens
        truncate = self.workload.auto_truncate
        if given is None:
            budget, why = self._default_budget(dtype)
            self.because("maxBatchTokens", budget, why)
        else:
            budget = given
            # With a need its sizes say what the budget has to hold.
            if given < longest and truncate is not True and not self.workload.need:
                self.refuse(
                    "maxBatchTokens",
                    given,
                    f"{longest} or more, or autoTruncate: true",
                    f"The {self.called} takes {longest} tokens; with a smaller budget TEI cuts every text to {given} "
                    "tokens, or does not start.",
                )
        if truncate is None:
            truncate = True
            self.because("autoTruncate", "true", f"texts over {longest} tokens are cut; false answers 422 instead")
        if not self.workload.need:
            self._gpu_memory(budget, dtype)
        return budget, truncate

    def _default_budget(self, dtype: Dtype) -> tuple[int, str]:
        if self.sizing:
            return self.sizing.max_batch_tokens, self._worked("batch")
        longest = self.model.max_tokens
        if self.gpu is None:
            inputs = estimates.STAND_IN_BATCH_INPUTS if self.request.stand_in else estimates.CPU_BATCH_INPUTS
            return max(
                longest, inputs * self.usual
            ), f"{inputs} texts of {self.usual} tokens: a CPU batch holds no more"
        budget = max(_LEAST_BATCH_TOKENS, min(_BATCH_TOKENS, _CLIENT_BATCH * self.usual))
        why = f"{_CLIENT_BATCH} texts of {self.usual} tokens, TEI's default of {_BATCH_TOKENS} at most"
        fits = memory.largest_batch(self.model, self.gpu, dtype)
        if longest <= fits < budget:
            budget, why = fits, f"what the memory of a {self.gpu.name} holds beside the weights"
        return max(budget, longest), why

    def _gpu_memory(self, budget: int, dtype: Dtype) -> None:
        if self.gpu is None:
            return
        fits = memory.largest_batch(self.model, self.gpu, dtype)
        if budget <= fits:
            return
        given = self.workload.max_batch_tokens
        allowed = [f"{fits} tokens per batch or fewer (maxBatchTokens)"] if fits >= self.model.max_tokens else []
        self.refuse(
            "maxBatchTokens" if given else "pool",
            given or self.workload.pool,
            ", or ".join([*allowed, "a pool with more GPU memory"]),
            f"TEI warms up with a full batch of {budget} tokens; beside the {self.called} in {dtype} the "
            f"{self.gpu.memory_mib} MiB of a {self.gpu.name} (pool, {self.request.pool_path}.gpu) hold {max(0, fits)}.",
        )

    def client_limits(self, machine: Machine) -> _Client:
        workload = self.workload
        if workload.top_k and self.model.kind is not ModelKind.RERANKER:
            self.refuse("topK", workload.top_k, "absent", f"The {self.called} is no reranker.")
        batch = workload.max_client_batch_size
        if batch is None:
            batch = max(_CLIENT_BATCH, workload.top_k or 0)
            if workload.max_concurrent_requests and not workload.top_k:
                batch = min(batch, workload.max_concurrent_requests)
            self.because(
                "maxClientBatchSize", batch, "topK texts in one request" if workload.top_k else "TEI's default"
            )
        elif workload.top_k and workload.top_k > batch:
            self.refuse(
                "maxClientBatchSize", batch, f"{workload.top_k} (topK) or more", "topK texts come in one request."
            )
        return _Client(batch, self._concurrent(batch, machine), self._payload(batch))

    def _concurrent(self, batch: int, machine: Machine) -> int:
        given = self.workload.max_concurrent_requests
        sizing = self.sizing
        if given is None and sizing:
            concurrent = max(2 * batch, sizing.max_concurrent_requests)
            why = (
                f"2 batches of {sizing.max_batch_requests} texts and twice the {sizing.scaling.queue_threshold} queued "
                f"texts that ask for another replica, two lists of {batch} at least; more get 429"
            )
            if self.thresholds and concurrent < (least := self.thresholds.least_concurrent):
                concurrent, why = least, "two batches and the queue that asks for another replica; more get 429"
            self.because("maxConcurrentRequests", concurrent, why)
            return concurrent
        if given is None:
            # Two lists of the largest size at least: one alone would lock every other client out.
            patience = int(PATIENCE_SECONDS / estimates.batch_seconds(self.model, machine, self.usual, 1))
            concurrent = max(2 * batch, min(_CONCURRENT_REQUESTS, patience))
            why = f"texts of {self.usual} tokens that wait, if possible {PATIENCE_SECONDS} s at most; more get 429"
            if self.thresholds and concurrent < (least := self.thresholds.least_concurrent):
                concurrent, why = least, "two batches and the queue that asks for another replica; more get 429"
            self.because("maxConcurrentRequests", concurrent, why)
            return concurrent
        if batch > given:
            self.refuse(
                "maxConcurrentRequests",
                given,
                f"{batch} (maxClientBatchSize or topK) or more",
                f"A list of n texts takes n places at once, so that a list of {batch} is always answered with 429.",
            )
        elif (
            sizing
            and not self.thresholds
            and given <= (least := 2 * sizing.max_batch_requests + sizing.scaling.queue_threshold)
        ):
            self.refuse(
                "maxConcurrentRequests",
                given,
                f"{least + 1} or more",
                f"need asks for another replica from {sizing.scaling.queue_threshold} queued texts on, and 2 batches "
                f"of {sizing.max_batch_requests} texts wait outside that queue: TEI would answer 429 before.",
            )
        elif self.thresholds and given < (least := self.thresholds.least_concurrent):
            texts = self.thresholds.batch_texts
            allowed = f"{least} or more"
            if given > 2 * texts + 1:
                allowed += f", or scaling.queueThreshold: {given - 2 * texts - 1} or less"
            self.refuse(
                "maxConcurrentRequests",
                given,
                allowed,
                f"Another replica is asked for from {self.thresholds.scaling.queue_threshold} queued texts on, and 2 "
                f"batches of {texts} texts wait outside that queue: TEI would answer 429 before.",
            )
        return given

    def _payload(self, batch: int) -> int:
        given = self.workload.payload_limit
        needed = batch * self.longest * _BYTES_PER_TOKEN
        if given is None:
            payload = max(_PAYLOAD, 2 * needed)
            if payload > _PAYLOAD:
                self.because("payloadLimit", payload, f"{batch} texts of {self.longest} tokens, 8 bytes each")
            return payload
        if given < needed:
            self.refuse(
                "payloadLimit",
                given,
                f"{needed} or more",
                f"{batch} texts (maxClientBatchSize, topK) of {self.longest} tokens are about {needed} bytes; TEI "
                "answers 413 above the limit.",
            )
        return given

    def cpu_millicores(self) -> int:
        if self.workload.resources.cpu:
            return quantities.millicores(self.workload.resources.cpu)
        if self.request.node:
            # Half a core of each node is left to its DaemonSets; TEI's tokenizer threads gain nothing above 8.
            beside = self.request.beside.resources
            share = (quantities.millicores(self.request.node.cpu) - 500) // max(1, self.request.node.gpus)
            cores = min(8000, max(500, share * (1 + beside.gpus) - beside.cpu_millicores))
            why = "the node's cores less half a core, per GPU, 8 at most"
            if beside.cpu_millicores:
                why += f", less the app's {beside.cpu_millicores}m"
            self.because("resources.cpu", f"{cores}m", why)
            return cores
        self.because("resources.cpu", "2000m", "nothing is known of the node")
        return 2000

    def size(self, dtype: Dtype, cpu: int, workers: int) -> None:
        """Asks the capacity planner for what the need takes."""
        need, request = self.workload.need, self.request
        if need is None:
            return
        given = self._written_need()
        if self.gpu is None:
            self.refuse(
                "need",
                given,
                "absent, with replicas and tokens in its place, or a pool with a GPU",
                f"Its pool ({request.pool_path}.gpu) has no GPU, and sizes rest on published rates of GPUs.",
            )
        elif dtype == "float32":
            self.refuse(
                "need",
                given,
                "absent" + (", or dtype: float16" if self.workload.dtype else ""),
                f"In float32, as the {self.called} would run here (dtype), no rates of GPUs are published.",
            )
        else:
            resources = self.workload.resources
            host = quantities.mebibytes(resources.memory) if resources.memory else self._host_mib(workers, 1)
            question = capacity.Request(
                need,
                self.model,
                self.gpu,
                replicas=self.workload.replicas,
                max_batch_tokens=self.workload.max_batch_tokens,
                node_kinds=request.node_kinds,
                max_nodes=request.max_nodes,
                pod=Pod(cpu + request.beside.resources.cpu_millicores, host + request.beside.resources.memory_mib),
                serves=images.serves,
            )
            place = needs.Place(request.path, request.pool_path, request.node_path, self.called)
            answer = needs.meet(question, place)
            if isinstance(answer, Sizing):
                self.sizing = answer
            else:
                self.refusals.extend(answer)

    def _written_need(self) -> dict[str, Any]:
        return self.workload.need.model_dump(by_alias=True, exclude_none=True) if self.workload.need else {}

    def _worked(self, key: str) -> str:
        """How the capacity planner came to a value."""
        lines = dict(line.split(": ", 1) for line in self.sizing.arithmetic) if self.sizing else {}
        return lines[key]

    def _host_mib(self, workers: int, budget: int) -> int:
        """Host memory of the process; on a GPU whatever the budget is."""
        tokens = min(self.model.max_tokens, budget)
        inputs = self.inputs(self.gpu, tokens, budget)
        return estimates.host_memory_mib(self.model, self.gpu, workers, tokens, inputs)

    def replicas(self) -> int:
        if self.workload.scaling:
            return self.workload.scaling.min
        if self.workload.replicas is not None:
            return self.workload.replicas
        if self.sizing is None:
            return 1
        self.because("replicas", self.sizing.replicas, self._worked("replicas"))
        return self.sizing.replicas

    def expect(self, dtype: Dtype, machine: Machine, replicas: int) -> None:
        """What the deployment can be expected to serve."""
        tokens = min(self.model.max_tokens, self.tokens.p95 if self.tokens else self.model.max_tokens)
        which = f"{self.tokens_key}.p95" if self.tokens else "the model's longest"
        texts = f"of {replicas} {'replica' if replicas == 1 else 'replicas'} with texts of {tokens} tokens ({which})"
        if self.gpu is None:
            least = replicas / estimates.batch_seconds(self.model, machine, tokens, 1)
            self.because("expected", f"{rounded(least)} documents/s", f"a lower estimate {texts}: 20 GFLOP/s per core")
            return
        if dtype == "float32":
            self.because("expected", "not known", "no rates of GPUs in float32 are published")
            return
        rate = physics.rates(self.model, self.gpu, tokens)
        why = f"typical · best published on {self.gpu.name} {texts} in full batches"
        if rate.typical * tokens > physics.HTTP_TOKENS_PER_SECOND:
            why += f"; over HTTP nobody published more than {physics.HTTP_TOKENS_PER_SECOND:,} tokens/s: measure first"
        if self.request.stand_in:
            why += "; the stand-in computes on the CPU and serves less"
        self.because(
            "expected", f"{rounded(replicas * rate.typical)} · {rounded(replicas * rate.best)} documents/s", why
        )

    def memory_mib(self, workers: int, budget: int) -> int:
        tokens = min(self.model.max_tokens, budget)
        inputs = self.inputs(self.gpu, tokens, budget)
        given = self.workload.resources.memory
        if given:
            least = estimates.least_host_memory_mib(self.model, self.gpu, tokens, inputs)
            if quantities.mebibytes(given) < least:
                self.refuse(
                    "resources.memory",
                    given,
                    f"{least}Mi or more",
                    f"The {self.called} and its warm-up batch of {budget} tokens do not fit, so that the kernel kills "
                    "the process at start.",
                )
            return quantities.mebibytes(given)
        total = self._host_mib(workers, budget)
        batch = f", a batch of {inputs} x {tokens} tokens" if self.gpu is None else ""
        self.because("resources.memory", f"{total}Mi", f"weights, {workers} tokenizers{batch}, 1 GiB of program")
        return total

    def disk_mib(self) -> tuple[int | None, int]:
        """Limit of the cache directory (None: a claim), and the pod's ephemeral storage."""
        cache, weights = self.workload.cache, memory.weights_mib(self.model)
        size: int | None = None
        if cache.existing_claim:
            self.because("cache", cache.existing_claim, "a claim; pods on several nodes need it to be ReadWriteMany")
            if cache.size:
                self.refuse("cache.size", cache.size, "absent", "cache.existingClaim has a size of its own.")
        elif cache.size:
            size = quantities.mebibytes(cache.size)
            if size < weights:
                self.refuse(
                    "cache.size",
                    cache.size,
                    f"{weights}Mi or more",
                    f"Its weights ({self.called}) do not fit.",
                )
        else:
            # TEI fetches one format of the weights, the tokenizer and a few small files.
            size = math.ceil(1.2 * weights) + 1024
            self.because("cache.size", f"{size}Mi", f"1.2 times the weights ({weights} MiB) and 1 GiB")
        ephemeral = self.workload.resources.ephemeral_storage
        if not ephemeral:
            return size, _TMP_MIB + _LOGS_MIB + (size or 0)
        least = _TMP_MIB + (weights if size is not None else 0)
        if quantities.mebibytes(ephemeral) < least:
            self.refuse(
                "resources.ephemeralStorage",
                ephemeral,
                f"{least}Mi or more",
                f"The weights of the {self.called} lie in the cache directory, and the kubelet evicts pods above.",
            )
        return size, quantities.mebibytes(ephemeral)

    def environment(self, plain: dict[str, str | None], cpu: int) -> tuple[EnvVar, ...]:
        workload = self.workload
        if self.gpu is None:
            # Thread pools are sized from the node's cores otherwise, and throttled by the limit.
            plain["RAYON_NUM_THREADS"] = plain["OMP_NUM_THREADS"] = str(max(1, cpu // 1000))
        env = [EnvVar(name, value) for name, value in plain.items() if value is not None]
        for name, key, wanted, path, given in (
            ("API_KEY", API_KEY, workload.require_api_key, "requireApiKey", True),
            ("HF_TOKEN", HUB_TOKEN, self.model.gated, "model", workload.model),
        ):
            if not wanted:
                continue
            if key in self.request.secret_refs:
                env.append(EnvVar(name, secret=self.request.secret_refs[key]))
                continue
            if key not in self.request.secrets:
                self.refuse(
                    path,
                    given,
                    f"secret config embedding-serving:{key}, or stack.secrets.{key}",
                    f"It is not set: pulumi config set --secret embedding-serving:{key}",
                )
            env.append(EnvVar(name, secret=SecretRef(self.request.secret_name, key, made=True)))
        faulty = set()
        for name, value, allowed, why in variables.faults(
            workload.env,
            plain,
            flash_attention_only=self.model.architecture in images.FLASH_ATTENTION_ONLY,
            weights_at_hand=workload.cache.existing_claim is not None,
        ):
            faulty.add(name)
            self.refusals.append(Refusal(f"{self.request.path}.env.{name}", value, allowed, why))
        return (*env, *(EnvVar(name, value) for name, value in workload.env.items() if name not in faulty))

    def explain_revision(self) -> None:
        revision = self.revision
        if revision is None and self.request.pinned:
            self.refuse(
                "revision",
                None,
                "a commit of the weights",
                f"The {self.called} has none of its own, and another commit may bring other vectors unseen.",
            )
        elif revision is None:
            self.because("revision", "main", "not pinned: the catalogue has no commit for this model; name one")
        elif not self.workload.revision:
            self.because("revision", revision, "the one that the catalogue or stack.models names")

    def probes(self, batch_seconds: float, startup: int) -> Probes:
        # /health waits behind the running batch (recordings: up to 11 s), and more than 8 checks waiting can abort the
        # server: the timeout lies above the longest batch, the period is no shorter. /metrics never waits.
        # Until Ready the port is closed and nothing waits, so the startup probe asks often. The first check comes with
        # the start, the kubelet kills at the last one: (threshold - 1) periods lie between.
        timeout = max(_LEAST_PROBE_SECONDS, math.ceil(_PROBE_MARGIN * batch_seconds))
        self.because("probes.timeout", f"{timeout} s", f"/health waits behind a batch of up to {batch_seconds:.1f} s")
        path, service = ("/health", None) if self.protocol == "http" else (None, _GRPC_SERVICES[self.model.kind])
        health = Probe(path, self.protocol, timeout, timeout, 3, service)
        if self.protocol == "http":
            liveness = Probe("/metrics", "http", 10, 5, 6)
        else:
            # Over gRPC health is that of the last batch: a pod whose last one failed is sent no other, and would stay
            # unready for ever.
            liveness = replace(health, failure_threshold=12)
        return Probes(
            startup=replace(
                health,
                period_seconds=_STARTUP_PERIOD_SECONDS,
                timeout_seconds=_STARTUP_PERIOD_SECONDS,
                failure_threshold=math.ceil(startup / _STARTUP_PERIOD_SECONDS) + 1,
            ),
            readiness=health,
            liveness=liveness,
        )

    def scale(self, machine: Machine, budget: int, ready_seconds: int) -> None:
        """Thresholds of scaling, from what a replica does with texts of usual length."""
        given = self.workload.scaling
        usual = min(self.longest, self.tokens.p50 if self.tokens else self.usual)
        texts = self.inputs(machine.gpu, usual, budget)
        step = estimates.batch_seconds(self.model, machine, usual, texts)
        pace = Pace(texts, step, ready_seconds)
        self.thresholds = scaling.thresholds(
            self.workload,
            self.sizing,
            pace,
            stand_in=self.request.stand_in,
            refuse=self.refuse,
            because=self.because,
        )
        if given and self.workload.replicas is not None:
            why = f"scaling.min and scaling.max of {self.request.path} say how many pods there are."
            self.refuse("replicas", self.workload.replicas, "absent, or no scaling", why)
        if given and given.min == 0:
            self.refuse(
                "scaling.min",
                0,
                "1 or more",
                "The queue that asks for a replica is counted by the replicas themselves: without one nobody asks.",
            )

    def most_replicas(self, replicas: int) -> int:
        """Pods at most."""
        given = self.workload.scaling
        if given is None:
            return replicas
        if given.max is None and self.sizing is None:
            why = "Without a need nobody says how many are too many."
            self.refuse("scaling.max", None, "a number of replicas, or a need", why)
            return replicas
        most = given.max or (self.sizing.replicas if self.sizing else replicas)
        if most < given.min:
            limit = "scaling.max" if given.max else "need"
            allowed = f"{most} or less" + ("" if given.max else f", or scaling.max: {given.min}")
            self.refuse("scaling.min", given.min, allowed, f"{limit} gives {most} replicas at most.")
        elif given.max is None and self.sizing:
            self.because("scaling.max", most, self._worked("replicas"))
        elif self.sizing and most < self.sizing.replicas:
            self.refuse(
                "scaling.max",
                most,
                f"{self.sizing.replicas} or more",
                f"need takes {self.sizing.replicas} replicas: {self._worked('replicas')}.",
            )
        return most

    def longest_request(self, machine: Machine, concurrent: int, batch_seconds: float, budget: int) -> int:
        given = self.workload.longest_request_seconds
        # A full queue of usual texts, with one batch of the longest before it.
        each = estimates.batch_seconds(self.model, machine, self.usual, 1)
        queue = concurrent * each
        if given is not None:
            # A batch that takes longer is refused as such.
            if given < queue + batch_seconds and batch_seconds <= _LONGEST_BATCH_SECONDS:
                needed = math.ceil(queue + batch_seconds)
                fits = int((given - batch_seconds) / each)
                allowed = f"{needed} or more" if needed <= _LONGEST_REQUEST_SECONDS else "fewer waiting texts"
                # A list takes its places at once, and a need says how many there are.
                least = self.workload.max_client_batch_size or self.workload.top_k or 1
                if self.thresholds:
                    least = max(least, self.thresholds.least_concurrent)
                if fits >= least and not self.sizing:
                    allowed += f", or maxConcurrentRequests: {fits}"
                self.refuse(
                    "longestRequestSeconds",
                    given,
                    allowed,
                    f"Before the last of {concurrent} waiting texts of {self.usual} tokens is answered, a batch of "
                    f"{budget} tokens ({batch_seconds:.1f} s) and the queue ({queue:.1f} s) may pass; a pod that ends "
                    "before cuts it off.",
                )
            return given
        longest = max(30, math.ceil(queue + batch_seconds))
        self.because("longestRequest", f"{longest} s", f"{concurrent} texts of {self.usual} tokens wait, 30 s at least")
        if longest > _LONGEST_REQUEST_SECONDS:
            key: str = "pool"
            value: object = self.workload.pool
            if self.workload.max_concurrent_requests:
                key, value = "maxConcurrentRequests", self.workload.max_concurrent_requests
            elif self.workload.need:
                key, value = "need", self._written_need()
            self.refuse(
                key,
                value,
                "fewer waiting texts, or a longestRequestSeconds of your own",
                f"The last of {concurrent} waiting texts would be answered after {longest} s, and no pod could end "
                "before.",
            )
        return min(longest, _LONGEST_REQUEST_SECONDS)

    def inputs(self, gpu: Gpu | None, tokens: int, budget: int) -> int:
        return estimates.inputs_per_batch(gpu, tokens, budget, stand_in=self.request.stand_in)

    def batch_time(self, machine: Machine, longest: int, budget: int) -> float:
        tokens = min(longest, budget)
        inputs = self.inputs(machine.gpu, tokens, budget)
        return estimates.batch_seconds(self.model, machine, tokens, inputs)

    def check_warm_up(self, seconds: float, budget: int) -> None:
        if seconds > _LONGEST_BATCH_SECONDS:
            key, given = next(
                (
                    (key, value)
                    for key, value in (
                        ("maxBatchTokens", self.workload.max_batch_tokens),
                        ("resources.cpu", self.workload.resources.cpu),
                    )
                    if value is not None
                ),
                ("model", self.workload.model) if self.request.stand_in else ("pool", self.workload.pool),
            )
            why = f"In its pool ({self.request.pool_path}) a batch of {budget} tokens of the {self.called} takes "
            if self.request.stand_in:
                why = f"The stand-in (images.standInRegistry) computes on the CPU, whatever GPU a node counts. {why}"
            self.refuse(
                key,
                given,
                "fewer tokens per batch (maxBatchTokens), more resources.cpu, or "
                + ("a smaller model" if self.request.stand_in else "a pool with a GPU"),
                f"{why}{seconds:.0f} s.",
            )

    def describe(self) -> Description:
        workload, model = self.workload, self.model
        self.served()
        self.explain_revision()
        tag, dtype, pooling = self.tag(), self.dtype(), self.pooling()
        self.lengths()
        cpu = self.cpu_millicores()
        workers = workload.tokenization_workers or max(1, cpu // 1000)
        self.size(dtype, cpu, workers)
        budget, truncate = self.batch_tokens(dtype)
        machine = Machine(None if self.request.stand_in else self.gpu, cpu / 1000, dtype)
        # TEI warms up with texts as long as the model takes, whatever arrives later.
        warm_up = self.batch_time(machine, model.max_tokens, budget)
        self.check_warm_up(warm_up, budget)
        startup = max(_LEAST_STARTUP_SECONDS, math.ceil(estimates.startup_seconds(model, warm_up)))
        ready = self.request.image_pull_seconds + startup + self.request.beside.ready_seconds
        self.wait_until_ready(ready)
        self.scale(machine, budget, ready)
        client = self.client_limits(machine)
        if not workload.tokenization_workers:
            self.because("tokenizationWorkers", workers, "the CPU limit; TEI would start one per core of the node")
        memory_mib = self.memory_mib(workers, budget)
        cache_mib, ephemeral_mib = self.disk_mib()
        batch_seconds = min(warm_up, self.batch_time(machine, self.longest, budget))
        self.because(
            "startup",
            f"{startup} s",
            f"{memory.weights_mib(model)} MiB at 100 Mbit/s, load, warm-up; {_LEAST_STARTUP_SECONDS} s at least",
        )
        longest = self.longest_request(machine, client.concurrent, batch_seconds, budget)
        replicas = self.replicas()
        most = self.most_replicas(replicas)
        self.expect(dtype, machine, most)
        env = self.environment(
            {
                "MODEL_ID": workload.model,
                "REVISION": self.revision,
                "SERVED_MODEL_NAME": workload.served_model_name or workload.model,
                "DTYPE": dtype,
                "POOLING": pooling,
                "MAX_BATCH_TOKENS": str(budget),
                **({"MAX_BATCH_REQUESTS": texts} if (texts := self.batch_requests()) else {}),
                "MAX_CONCURRENT_REQUESTS": str(client.concurrent),
                "MAX_CLIENT_BATCH_SIZE": str(client.batch),
                "PAYLOAD_LIMIT": str(client.payload),
                "AUTO_TRUNCATE": "true" if truncate else "false",
                "TOKENIZATION_WORKERS": str(workers),
                # TEI reads HOSTNAME, which Kubernetes sets to the pod's name, as the address to bind.
                "HOSTNAME": "0.0.0.0",  # noqa: S104 - inside the pod
                "PORT": str(self.port),
                **({"PROMETHEUS_PORT": str(PROMETHEUS_PORT)} if self.protocol == "grpc" else {}),
                "HUGGINGFACE_HUB_CACHE": CACHE_PATH,
                # Upstream's images start with --json-output; said here as well for images that do not.
                "JSON_OUTPUT": "true",
                "LOG_LEVEL": LOG_LEVELS[self.protocol],
            },
            cpu,
        )
        spec = EngineSpec(
            engine="tei",
            product="text-embeddings-inference",
            version=workload.version,
            registry=images.REGISTRY,
            repository=images.REPOSITORY,
            tag=tag,
            digest=workload.digest,
            env=env,
            protocol=self.protocol,
            ports=(
                (Port("http", self.port),)
                if self.protocol == "http"
                else (Port("grpc", self.port), Port("metrics", PROMETHEUS_PORT))
            ),
            probes=self.probes(batch_seconds, startup),
            mounts=(
                Mount("cache", CACHE_PATH, size_mib=cache_mib, claim=workload.cache.existing_claim),
                Mount("tmp", "/tmp", size_mib=_TMP_MIB),  # noqa: S108 - inside the pod
            ),
            resources=Resources(
                cpu_millicores=cpu,
                memory_mib=memory_mib,
                ephemeral_storage_mib=ephemeral_mib,
                gpus=1 if self.gpu else 0,
            ),
            limits=Limits(
                max_input_tokens=min(model.max_tokens, budget),
                max_client_batch_size=client.batch,
                max_batch_tokens=budget,
                max_concurrent_requests=client.concurrent,
                payload_bytes=client.payload,
                auto_truncate=truncate,
            ),
            metrics=(Metrics("http" if self.protocol == "http" else "metrics", "/metrics"),),
            models=(
                ServedModel(
                    id=model.id,
                    client_name=workload.served_model_name or workload.model,
                    kind=model.kind.value,
                    dimension=model.dimension,
                    max_tokens=model.max_tokens,
                    revision=self.revision or "main",
                ),
            ),
            api=Api(
                openai=model.kind is ModelKind.EMBEDDING and self.protocol == "http",
                api_key=workload.require_api_key,
                overload_status=429 if self.protocol == "http" else None,
            ),
            user=RUN_AS,
            group=RUN_AS,
            startup_seconds=startup,
            longest_request_seconds=longest,
            downloads_from=() if workload.cache.existing_claim else ("huggingface.co",),
            reasons=tuple(self.reasons),
        )
        thresholds = self.thresholds.scaling if self.thresholds else None
        return Description(spec, replicas, most, self.sizing, thresholds, self.triggers(), tuple(self.refusals))

    def triggers(self) -> tuple[Trigger, ...]:
        if self.thresholds is None:
            return ()
        request = self.request
        return scaling.triggers(self.thresholds.scaling, request.namespace, request.service, request.scrape_seconds)

    def batch_requests(self) -> str | None:
        """Texts that a batch may hold, where somebody says so, or sizes or thresholds rest on it."""
        given = self.workload.max_batch_requests
        if self.sizing:
            if given is not None:
                why = f"need decides it: {self.sizing.max_batch_requests}."
                self.refuse("maxBatchRequests", given, "absent", why)
            self.because("maxBatchRequests", self.sizing.max_batch_requests, "planned for the need")
            return str(self.sizing.max_batch_requests)
        if given is None and self.thresholds:
            usual = "tokens.p50" if self.tokens else "tokens are not said"
            why = f"a full batch of usual texts ({usual}); shorter ones gain from more"
            self.because("maxBatchRequests", self.thresholds.batch_texts, why)
            return str(self.thresholds.batch_texts)
        return None if given is None else str(given)

    def wait_until_ready(self, ready: int) -> None:
        """The waits of scaling follow from how long a replica takes to be ready."""
        if self.sizing is None:
            return
        answer = capacity.size(replace(self.sizing.request, ready_seconds=ready))
        if not isinstance(answer, Sizing):
            raise AssertionError(f"the time to be ready decides no size: {answer.refusals}")
        self.sizing = answer


def describe(request: Request[TeiWorkload]) -> Description:
    """What TEI decides for one workload, with every reason to refuse it."""
    return _Planner(request).describe()
