"""Text Embeddings Inference: image, environment, probes, budgets and limits of one workload.

Facts are from TEI 1.9.3's source and from recordings of a real 1.9.3 server (tests/data/tei-1.9.3). Everything is
configured by environment variables: every flag has one, and `--auto-truncate` parses differently from release to release.
"""

import math
from dataclasses import dataclass

from infra.core import quantities
from infra.core.catalogue import Gpu, Model, ModelKind
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
)
from infra.core.engines.tei import images
from infra.core.errors import Refusal, quoted
from infra.core.settings import Allocatable, TeiWorkload

HTTP_PORT = 8080
CACHE_PATH = "/data"
#: Hides the line in which TEI prints its API key, keeps those that show the device and Ready (tried on 1.9.3).
LOG_LEVEL = "info,text_embeddings_router=warn,text_embeddings_router::http=info"

#: Defaults of the engine (docs/source/en/cli_arguments.md); on CPU a batch holds 4 inputs at most, whatever is asked.
_BATCH_TOKENS = 16384
_CONCURRENT_REQUESTS = 512
_CLIENT_BATCH = 32
_PAYLOAD = 2_000_000
_CPU_BATCH_INPUTS = 4
#: English text runs at about 4 bytes a token; JSON escapes and other scripts can double it.
_BYTES_PER_TOKEN = 4
#: FLOP/s that one CPU core gives to a forward pass: 4 x 512 tokens of BERT-base took 5-9 s on 2 cores in the recordings.
_CPU_FLOPS_PER_CORE = 20e9
#: Share of a GPU's dense peak that short texts over HTTP reach (15 %: tokenizer and HTTP bound). Budgets want the slow end.
_SLOW_GPU_SHARE = 0.15
#: Bytes per second of a slow download from the hub, and of reading weights into memory.
_DOWNLOAD_RATE = 50e6
_LOAD_RATE = 500e6
_FLOAT32_BYTES = 4
#: Variables that the plan sets, or that break TEI: a stack file may not set them.
_HUB_TOKEN_CONFLICT = "HF_API_TOKEN"

API_KEY_SECRET = "apiKey"  # noqa: S105 - name of a config key
HUB_TOKEN_SECRET = "huggingFaceToken"  # noqa: S105 - name of a config key


@dataclass(frozen=True)
class Request:
    """What the plan knows when it asks the engine."""

    path: str
    workload: TeiWorkload
    model: Model
    gpu: Gpu | None
    #: What one node offers, where it is known.
    node: Allocatable | None
    #: Secret config keys that are set (names only).
    secrets: frozenset[str]
    #: Name of the Kubernetes Secret that will hold this workload's keys.
    secret_name: str


def longest_batch_seconds(model: Model, gpu: Gpu | None, batch_tokens: int, cpu_cores: float) -> float:
    """Upper estimate, in seconds, of one batch of the longest inputs; probes and warm-up wait behind it."""
    tokens = min(model.max_tokens, batch_tokens)
    inputs = max(1, batch_tokens // tokens)
    if gpu is None:
        inputs = min(inputs, _CPU_BATCH_INPUTS)
        rate = _CPU_FLOPS_PER_CORE * cpu_cores
    else:
        rate = gpu.fp16_tflops * 1e12 * _SLOW_GPU_SHARE
    return model.flops_per_document(tokens) * inputs / rate


class _Planner:
    """Collects values, reasons and refusals of one workload."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.workload = request.workload
        self.model = request.model
        self.gpu = request.gpu
        self.reasons: list[Reason] = []
        self.refusals: list[Refusal] = []

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
        prefix = images.prefix_for(self.gpu)
        if prefix is None:
            assert self.gpu is not None
            self.refuse(
                "pool",
                self.workload.pool,
                f"a pool whose GPU has compute capability {images.supported_gpus()}",
                f"{self.gpu.name} has compute capability {self.gpu.compute_capability}, for which TEI has no image.",
            )
            return version
        where = (
            "CPU nodes" if self.gpu is None else f"{self.gpu.name} has compute capability {self.gpu.compute_capability}"
        )
        note = "; upstream calls this image experimental" if images.experimental(self.gpu) else ""
        self.because("image", f"{prefix}{version}", f"{where}{note}")
        return f"{prefix}{version}"

    def dtype(self) -> str:
        default = "float32" if self.gpu is None or self.model.architecture == "gemma3_text" else "float16"
        dtype = self.workload.dtype or default
        if self.gpu is None and dtype == "float16":
            self.refuse("dtype", dtype, "float32", "The CPU image computes in float32; float16 needs a GPU.")
        if self.model.architecture in {"mistral", "qwen2"}:
            if self.gpu is None or self.gpu.capability < 80:
                on = "CPU nodes" if self.gpu is None else f"{self.gpu.name} ({self.gpu.compute_capability})"
                self.refuse(
                    "pool",
                    self.workload.pool,
                    "a pool with compute capability 8.0 or higher (A100, A10G, L4, L40S, H100)",
                    f"TEI serves {self.model.architecture} models with flash attention 2 only, which {on} lack.",
                )
            elif dtype == "float32":
                self.refuse("dtype", dtype, "float16", f"TEI serves {self.model.architecture} models in float16 only.")
        if self.model.architecture.startswith("gemma3") and dtype != "float32":
            self.refuse("dtype", dtype, "float32", "TEI serves Gemma 3 models in float32 only.")
        if not self.workload.dtype:
            self.because(
                "dtype", dtype, "half the memory and twice the speed on a GPU" if self.gpu else "what CPUs compute"
            )
        return dtype

    def pooling(self) -> str | None:
        given, kind = self.workload.pooling, self.model.kind
        if kind in {ModelKind.RERANKER, ModelKind.CLASSIFIER}:
            if given:
                self.refuse("pooling", given, "no pooling", f"{self.model.id} is a {kind}: TEI ignores pooling there.")
            return None
        if kind is ModelKind.SPARSE:
            if given not in {None, "splade"}:
                self.refuse("pooling", given, "splade", f"{self.model.id} gives sparse vectors.")
            return "splade"
        if given == "splade":
            self.refuse("pooling", given, "cls, mean, last-token", f"{self.model.id} gives dense vectors.")
        if given and self.model.pooling and given != self.model.pooling:
            self.refuse(
                "pooling",
                given,
                self.model.pooling,
                f"{self.model.id} was trained with {self.model.pooling} pooling; another gives vectors of no use.",
            )
        pooling = given or self.model.pooling
        if pooling is None:
            self.refuse("pooling", None, "cls, mean, last-token", f"Nobody says how {self.model.id} pools; name it.")
        elif not given:
            self.because("pooling", pooling, f"how {self.model.id} was trained")
        return pooling

    def batch_tokens(self) -> tuple[int, bool]:
        """Token budget of a batch, and whether longer texts are cut."""
        given, longest = self.workload.max_batch_tokens, self.model.max_tokens
        truncate = self.workload.auto_truncate
        if self.workload.tokens and self.workload.tokens.p50 > self.workload.tokens.p95:
            self.refuse(
                "tokens.p50", self.workload.tokens.p50, f"at most {self.workload.tokens.p95}", "p95 is smaller."
            )
        if given is None:
            budget = max(_BATCH_TOKENS, longest)
            why = f"TEI's default: {budget // longest} texts of {longest} tokens"
            if self.workload.tokens:
                aligned = min(self.workload.tokens.p95, longest) * _CLIENT_BATCH
                budget = max(aligned, longest)
                why = f"{_CLIENT_BATCH} texts of the 95th percentile, {self.workload.tokens.p95} tokens"
            self.because("maxBatchTokens", budget, why)
        else:
            budget = given
            if given < longest and truncate is not True:
                self.refuse(
                    "maxBatchTokens",
                    given,
                    f"{longest} or more, or autoTruncate: true",
                    f"{self.model.id} takes {longest} tokens; with a smaller budget TEI cuts every text to {given} "
                    "tokens, or does not start.",
                )
        if truncate is None:
            truncate = True
            self.because("autoTruncate", "true", f"texts over {longest} tokens are cut; false answers 422 instead")
        return budget, truncate

    def client_limits(self) -> tuple[int, int, int]:
        """Texts per request, requests at a time, bytes per request."""
        workload = self.workload
        if workload.top_k and self.model.kind is not ModelKind.RERANKER:
            self.refuse("topK", workload.top_k, "absent", f"{self.model.id} is no reranker.")
        batch = workload.max_client_batch_size
        if batch is None:
            batch = max(_CLIENT_BATCH, workload.top_k or 0)
            self.because(
                "maxClientBatchSize", batch, "topK texts in one request" if workload.top_k else "TEI's default"
            )
        elif workload.top_k and workload.top_k > batch:
            self.refuse("maxClientBatchSize", batch, f"{workload.top_k} or more", "topK texts come in one request.")
        concurrent = workload.max_concurrent_requests
        if concurrent is None:
            concurrent = max(_CONCURRENT_REQUESTS if self.gpu else _CONCURRENT_REQUESTS // 8, batch)
            self.because("maxConcurrentRequests", concurrent, "texts that may wait; more are answered with 429 at once")
        elif batch > concurrent:
            self.refuse(
                "maxConcurrentRequests",
                concurrent,
                f"{batch} or more",
                f"A list of n texts takes n places at once, so a list of {batch} (maxClientBatchSize) is always "
                "answered with 429.",
            )
        needed = batch * self.model.max_tokens * _BYTES_PER_TOKEN
        payload = workload.payload_limit
        if payload is None:
            payload = max(_PAYLOAD, 2 * needed)
            if payload > _PAYLOAD:
                self.because("payloadLimit", payload, f"{batch} texts of {self.model.max_tokens} tokens, 8 bytes each")
        elif payload < needed:
            self.refuse(
                "payloadLimit",
                payload,
                f"{needed} or more",
                f"{batch} texts of {self.model.max_tokens} tokens are about {needed} bytes; TEI answers 413 above.",
            )
        return batch, concurrent, payload

    def cpu_millicores(self) -> int:
        if self.workload.resources.cpu:
            return quantities.millicores(self.workload.resources.cpu)
        if self.request.node:
            # Half a core of each node is left to its DaemonSets; TEI's tokenizer threads gain nothing above 8.
            share = (quantities.millicores(self.request.node.cpu) - 500) // max(1, self.request.node.gpus)
            cores = min(8000, max(500, share))
            self.because("resources.cpu", f"{cores}m", "the node's cores, less half a core, per GPU")
            return cores
        self.because("resources.cpu", "2000m", "nothing is known of the node")
        return 2000

    def memory_mib(self, workers: int, batch_tokens: int) -> int:
        if self.workload.resources.memory:
            return quantities.mebibytes(self.workload.resources.memory)
        weights = self.weights_mib()
        # Activations live in host memory only on CPU: about 20 tensors of the hidden size, 4 bytes each, per token.
        activations = 0 if self.gpu else math.ceil(batch_tokens * self.model.hidden * 80 / 2**20)
        total = math.ceil((1024 + 1.3 * weights + 100 * workers + activations) / 256) * 256
        self.because(
            "resources.memory", f"{total}Mi", f"{weights} MiB of weights, {workers} tokenizers, 1 GiB of program"
        )
        return total

    def weights_mib(self) -> int:
        return math.ceil(self.model.parameters_m * 1e6 * _FLOAT32_BYTES / 2**20)

    def environment(
        self, dtype: str, pooling: str | None, budget: int, truncate: bool, client: tuple[int, int, int], workers: int
    ) -> tuple[EnvVar, ...]:
        workload = self.workload
        revision = workload.revision or self.model.revision
        if revision is None:
            self.because("revision", "main", "not pinned: the catalogue has no commit for this model; name one")
        elif not workload.revision:
            self.because("revision", revision, "the commit in the catalogue")
        batch, concurrent, payload = client
        plain = {
            "MODEL_ID": workload.model,
            "REVISION": revision,
            "SERVED_MODEL_NAME": workload.served_model_name or workload.model,
            "DTYPE": dtype,
            "POOLING": pooling,
            "MAX_BATCH_TOKENS": str(budget),
            "MAX_CONCURRENT_REQUESTS": str(concurrent),
            "MAX_CLIENT_BATCH_SIZE": str(batch),
            "PAYLOAD_LIMIT": str(payload),
            "AUTO_TRUNCATE": "true" if truncate else "false",
            "TOKENIZATION_WORKERS": str(workers),
            # TEI reads HOSTNAME, which Kubernetes sets to the pod's name, as the address to bind.
            "HOSTNAME": "0.0.0.0",  # noqa: S104 - inside the pod
            "PORT": str(HTTP_PORT),
            "HUGGINGFACE_HUB_CACHE": CACHE_PATH,
            "JSON_OUTPUT": "true" if workload.json_logs else "false",
            "LOG_LEVEL": LOG_LEVEL,
        }
        if self.gpu is None:
            # Thread pools are sized from the node's cores otherwise, and throttled by the limit.
            plain["RAYON_NUM_THREADS"] = plain["OMP_NUM_THREADS"] = str(workers)
        env = [EnvVar(name, value) for name, value in plain.items() if value is not None]
        for name, key, wanted in (
            ("API_KEY", API_KEY_SECRET, workload.require_api_key),
            ("HF_TOKEN", HUB_TOKEN_SECRET, self.model.gated),
        ):
            if not wanted:
                continue
            if key not in self.request.secrets:
                self.refuse(
                    "requireApiKey" if key == API_KEY_SECRET else "model",
                    workload.require_api_key if key == API_KEY_SECRET else workload.model,
                    f"secret config embedding-serving:{key}",
                    f"Set it: pulumi config set --secret embedding-serving:{key}",
                )
            env.append(EnvVar(name, secret=SecretRef(self.request.secret_name, key)))
        taken = {variable.name for variable in env} | {"API_KEY", "HF_TOKEN", _HUB_TOKEN_CONFLICT, "PROMETHEUS_PORT"}
        for name, value in workload.env.items():
            if name in taken:
                why = {
                    _HUB_TOKEN_CONFLICT: "TEI does not start with it beside HF_TOKEN; set the secret huggingFaceToken.",
                    "PROMETHEUS_PORT": "Images that speak HTTP serve metrics on the HTTP port only.",
                }.get(name, "The plan sets it; use the workload's own key.")
                self.refuse(f"env.{name}", "a value", "other names", why)
            elif name == "NVIDIA_DRIVER_CAPABILITIES" and not {"utility", "all"} & set(value.split(",")):
                self.refuse(f"env.{name}", value, "a list with utility", "TEI 1.9's entrypoint runs nvidia-smi.")
            else:
                env.append(EnvVar(name, value))
        return tuple(env)

    def probes(self, batch_seconds: float, startup_seconds: int) -> Probes:
        # /health waits behind the running batch (recordings: up to 11 s), and more than 8 checks waiting can abort the
        # server: the timeout lies above the longest batch, the period is no shorter. /metrics never waits.
        timeout = max(5, math.ceil(2 * batch_seconds))
        self.because("probes.timeout", f"{timeout} s", f"/health waits behind a batch of up to {batch_seconds:.1f} s")
        health = Probe("/health", "http", timeout, timeout, 3)
        return Probes(
            startup=Probe("/health", "http", timeout, timeout, math.ceil(startup_seconds / timeout)),
            readiness=health,
            liveness=Probe("/metrics", "http", 10, 5, 6),
        )

    def spec(self) -> EngineSpec:
        tag, dtype, pooling = self.tag(), self.dtype(), self.pooling()
        budget, truncate = self.batch_tokens()
        client = self.client_limits()
        batch, concurrent, payload = client
        cpu = self.cpu_millicores()
        workers = self.workload.tokenization_workers or max(1, cpu // 1000)
        if not self.workload.tokenization_workers:
            self.because("tokenizationWorkers", workers, "the CPU limit; TEI would start one per core of the node")
        memory = self.memory_mib(workers, budget)
        weights = self.weights_mib()
        cache_mib = 2 * weights + 1024
        if self.workload.cache.size:
            cache_mib = quantities.mebibytes(self.workload.cache.size)
            if cache_mib < weights:
                self.refuse("cache.size", self.workload.cache.size, f"{weights}Mi or more", "The weights do not fit.")
        elif not self.workload.cache.existing_claim:
            self.because("cache.size", f"{cache_mib}Mi", f"twice the weights ({weights} MiB) and 1 GiB")
        batch_seconds = longest_batch_seconds(self.model, self.gpu, budget, cpu / 1000)
        weights_bytes = weights * 2**20
        startup = math.ceil(2 * (weights_bytes / _DOWNLOAD_RATE + weights_bytes / _LOAD_RATE + 2 * batch_seconds))
        startup = max(60, startup)
        self.because("startup", f"{startup} s", f"{weights} MiB at 50 MB/s, load and warm-up, twice; 60 s at least")
        longest = self.workload.longest_request_seconds
        if longest is None:
            inputs = max(1, budget // min(self.model.max_tokens, budget))
            if self.gpu is None:
                inputs = min(inputs, _CPU_BATCH_INPUTS)
            longest = max(30, math.ceil(concurrent / inputs * batch_seconds))
            self.because("longestRequest", f"{longest} s", f"{concurrent} waiting texts, {inputs} per batch")
        elif longest < batch_seconds:
            self.refuse(
                "longestRequestSeconds",
                longest,
                f"{math.ceil(batch_seconds)} or more",
                f"One batch of {budget} tokens may take {batch_seconds:.1f} s.",
            )
        ephemeral = self.workload.resources.ephemeral_storage
        claim = self.workload.cache.existing_claim
        return EngineSpec(
            engine="tei",
            version=self.workload.version,
            registry=images.REGISTRY,
            repository=images.REPOSITORY,
            tag=tag,
            digest=self.workload.digest,
            env=self.environment(dtype, pooling, budget, truncate, client, workers),
            ports=(Port("http", HTTP_PORT),),
            probes=self.probes(batch_seconds, startup),
            mounts=(
                Mount("cache", CACHE_PATH, size_mib=None if claim else cache_mib, claim=claim),
                Mount("tmp", "/tmp", size_mib=256),  # noqa: S108 - inside the pod
            ),
            resources=Resources(
                cpu_millicores=cpu,
                memory_mib=memory,
                ephemeral_storage_mib=quantities.mebibytes(ephemeral)
                if ephemeral
                else 512 + (0 if claim else cache_mib),
                gpus=1 if self.gpu else 0,
            ),
            limits=Limits(
                max_input_tokens=min(self.model.max_tokens, budget),
                max_client_batch_size=batch,
                max_batch_tokens=budget,
                max_concurrent_requests=concurrent,
                payload_bytes=payload,
                auto_truncate=truncate,
            ),
            metrics=Metrics("http", "/metrics"),
            api=Api(
                model_name=self.workload.served_model_name or self.workload.model,
                openai=self.model.kind is ModelKind.EMBEDDING,
                api_key=self.workload.require_api_key,
            ),
            startup_seconds=startup,
            longest_request_seconds=longest,
            reasons=tuple(self.reasons),
        )


def describe(request: Request) -> tuple[EngineSpec, tuple[Refusal, ...]]:
    """What TEI decides for one workload, with every reason to refuse it.

    The description is only of use when there is no refusal.
    """
    planner = _Planner(request)
    spec = planner.spec()
    return spec, tuple(planner.refusals)
