"""NVIDIA NIM for text embedding and reranking: image, environment, probes, budgets and limits of one workload.

Facts are from NVIDIA's pages and public files (versions.py and the data files beside it, a source per row); no image
was started for this blueprint.
"""

import math
from dataclasses import dataclass

from infra.core import catalogue, quantities
from infra.core.capacity import memory
from infra.core.catalogue import Model
from infra.core.credentials import HUB_TOKEN, NGC_KEY
from infra.core.engines.nim import variables, versions
from infra.core.engines.nim.versions import Generation, Nim, Role, Version
from infra.core.engines.request import Description, Request
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
)
from infra.core.errors import Refusal, nearest_first, quoted
from infra.core.settings import NimWorkload

#: Words of `input_type`; the same as suffixes of the model name.
INPUT_TYPES = ("query", "passage")
#: What clients may send in one request. Embedding: more was broken in 1.10.0 (its release notes); reranking: what 2.4
#: takes (reranking/2.4, use-the-api).
_CLIENT_BATCH = {Role.EMBEDDING: 1024, Role.RERANKING: 512}
#: Defaults of 2.x; 1.x says neither, and is planned with the same.
_QUEUE = 1024
_REQUEST_SECONDS = 120
#: Embedding NIMs of 2.x are told so; of others no page names a limit.
_PAYLOAD = 16 * 2**20
_PERIOD_SECONDS = 10
#: Bytes per second from NGC or the hub (100 Mbit/s, a slow office line).
_DOWNLOAD_RATE = 12.5e6
#: Public files give 8 to 32 GiB; this is the program, the weights on their way to the GPU come on top.
_PROGRAM_MIB = 8192
_DEFAULT_CORES = 4
_TMP_MIB = 1024
_LOGS_MIB = 256
#: Triton engines and compiled kernels beside the weights.
_RUNTIME_MIB = 4096
_PERFORMANCE = {"latency": "0", "throughput": "1"}
_GENERIC = "NVIDIA lists no profile for a {gpu}: NIM takes a generic one, which is slower"


def describe(request: Request[NimWorkload]) -> Description:
    """What NIM decides for one workload, with every reason to refuse it."""
    refusals: list[Refusal] = []
    release = _release(request, refusals)
    if release is None:
        return Description(None, 0, 0, None, None, (), tuple(refusals))
    return _Planner(request, release, refusals).describe()


@dataclass(frozen=True)
class _Release:
    """An image that was chosen."""

    nim: Nim
    tag: str
    version: Version
    generation: Generation


def _refusal(request: Request[NimWorkload], key: str, given: object, allowed: str, why: str) -> Refusal:
    return Refusal(f"{request.path}.{key}", quoted(given), allowed, why)


def _nim(request: Request[NimWorkload], refusals: list[Refusal]) -> Nim | None:
    model = request.workload.model
    nim = versions.nims().get(model)
    if nim is None:
        why = "The blueprint serves text-embedding and reranking NIMs; NIMs for LLMs are out of scope."
        if model in catalogue.models():
            why = "NVIDIA ships no NIM of it that the blueprint knows; engine: tei serves it from the hub."
        refusals.append(_refusal(request, "model", model, nearest_first(model, versions.nims()), why))
    return nim


def _release(request: Request[NimWorkload], refusals: list[Refusal]) -> _Release | None:
    nim = _nim(request, refusals)
    if nim is None:
        return None
    tag, gpu = request.workload.version, request.gpu
    if tag is None:
        fitting = [known for known in nim.tags() if gpu is None or versions.runs_on(nim, _numbers(known), gpu)]
        tag = (fitting or nim.tags())[-1]
    version = versions.parse(tag)
    if version is None or tag not in nim.tags():
        refusals.append(_refusal(request, "version", tag, ", ".join(nim.tags()), _why_no_tag(nim, tag, version)))
        return None
    generation = versions.generation(version[0])
    if generation is None:
        raise LookupError(f"generations.yaml has no row for {tag}")
    return _Release(nim, tag, version, generation)


def _numbers(tag: str) -> Version:
    version = versions.parse(tag)
    if version is None:
        raise ValueError(f"{tag} is no release")
    return version


def _why_no_tag(nim: Nim, tag: str, version: Version | None) -> str:
    if version is None:
        return "A tag that moves brings another program, and maybe other vectors, unseen."
    if version < _numbers(nim.first):
        return f"Under this name the model exists from {nim.first} on."
    renamed = f"From {nim.before} on this model is called {nim.later}."
    if nim.later and tag in versions.nims()[nim.later].tags():
        return renamed
    others = sorted(other.id for other in versions.nims().values() if tag in other.tags())
    if others:
        return f"That tag is one of {', '.join(others)}: every NIM has tags of its own."
    if nim.before and version >= _numbers(nim.before):
        return renamed
    return "These are the tags of this image that were seen; names of variables and GPUs differ between releases."


class _Planner:
    """Collects values, reasons and refusals of one workload with a known image."""

    def __init__(self, request: Request[NimWorkload], release: _Release, refusals: list[Refusal]) -> None:
        self.request = request
        self.workload = request.workload
        self.release = release
        self.role = release.nim.role
        self.model: Model = catalogue.models()[release.nim.id]
        self.reasons: list[Reason] = []
        self.refusals = refusals
        self.planned: dict[str, str | None] = {}

    def because(self, field: str, value: object, why: str) -> None:
        self.reasons.append(Reason(field, str(value), why))

    def refuse(self, key: str, given: object, allowed: str, why: str) -> None:
        self.refusals.append(_refusal(self.request, key, given, allowed, why))

    def set(self, purpose: str, value: str) -> bool:
        """Whether this release has a variable for ``purpose``, which then gets ``value``."""
        name = versions.name_of(purpose, self.release.version, self.role)
        if name is not None:
            self.planned[name] = value
        return name is not None

    # -- where it runs

    def place(self) -> None:
        gpu, pool, tag = self.request.gpu, self.request.pool_path, self.release.tag
        if gpu is None:
            self.refuse("pool", self.workload.pool, "a pool with a GPU", f"{pool} has none, and NIM does not start.")
            return
        if self.request.arch != "amd64":
            self.refuse("pool", self.workload.pool, "a pool of amd64 nodes", f"{pool}: NIM wants x86 hosts.")
        nim, version = self.release.nim, self.release.version
        profile = versions.runs_on(nim, version, gpu)
        if profile is None:
            fitting = [known for known in nim.tags() if versions.runs_on(nim, _numbers(known), gpu)]
            row = versions.support(nim, version)
            says = "drops it" if gpu.name in row.dropped else "does not list it"
            allowed = [f"a pool with {', '.join(row.optimized)}"]
            if fitting:
                allowed.insert(0, f"version {' or '.join(fitting)}")
            key, given = ("version", tag) if fitting else ("pool", self.workload.pool)
            self.refuse(key, given, ", or ".join(allowed), f"{pool}.gpu: NIM {tag} does not run on {gpu.name}: {says}.")
        elif profile == "generic":
            self.because("gpu", gpu.name, _GENERIC.format(gpu=gpu.name))
        self.because("image", f"{nim.repository}:{tag}", "this model's own tag; NIMs of other models have others")
        if self.workload.digest and self.request.stand_in:
            self.refuse("digest", self.workload.digest, "absent", "images.standInRegistry holds images of its own.")

    def unsupported(self) -> None:
        """Keys of other engines that mean nothing to a NIM."""
        workload, most = self.workload, _CLIENT_BATCH[self.role]
        if workload.need:
            why = "Nobody publishes rates of NIMs that a need could be turned into replicas with."
            self.refuse("need", workload.need.model_dump(exclude_none=True), "absent, with replicas in its place", why)
        if workload.require_api_key:
            why = "A NIM asks its clients for no key; name those that may reach it in clients."
            self.refuse("requireApiKey", True, "absent", why)
        if workload.top_k and workload.top_k > most:
            self.refuse("topK", workload.top_k, f"{most} or less", "A NIM takes no more texts in one request.")
        if workload.scaling:
            self.refuse("scaling", "a section", "absent, with replicas in its place", "A NIM is not scaled yet.")

    # -- keys

    def keys(self) -> tuple[EnvVar, ...]:
        if not (self.request.pull_secrets or versions.REGISTRY in self.request.mirrored or self.request.stand_in):
            self.refusals.append(
                Refusal(
                    "stack.images.pullSecrets",
                    "no Secret",
                    "a Secret of type kubernetes.io/dockerconfigjson",
                    f"{versions.REGISTRY} hands out no NIM without one: server {versions.REGISTRY}, user "
                    f"{versions.REGISTRY_USER} to the letter, password an NGC key. The key that the pod itself needs "
                    "(ngcApiKey) is another Secret in another form.",
                )
            )
        provider = self.workload.weights
        if provider not in self.release.generation.providers:
            self.refuse("weights", provider, "ngc", f"NIM {self.release.tag} downloads from NGC only.")
        if provider == "huggingFace":
            name, key = "HF_TOKEN", HUB_TOKEN
        else:
            name, key = "NGC_API_KEY", NGC_KEY
            if self.set("provider", "ngc"):
                self.because("weights", "ngc", "2.x asks Hugging Face unless told otherwise, and ignores NGC_API_KEY")
        if key in self.request.secret_refs:
            return (EnvVar(name, secret=self.request.secret_refs[key]),)
        if key not in self.request.secrets:
            self.refuse(
                "weights",
                provider,
                f"secret config embedding-serving:{key}, or stack.secrets.{key}",
                f"Weights are downloaded at start. It is not set: pulumi config set --secret embedding-serving:{key}",
            )
        return (EnvVar(name, secret=SecretRef(self.request.secret_name, key, made=True)),)

    # -- what the process is told

    def settings(self) -> None:
        """Fills ``planned`` with what follows from the workload's own keys."""
        address = f"0.0.0.0:{versions.HTTP_PORT}"
        if not self.set("http-port", str(versions.HTTP_PORT)):
            self.set("http-address", address)
        self.set("weights-path", self.release.generation.weights_path)
        self.set("json-log", "1" if self.release.version[0] == 1 else "json")
        self.set("queue", str(self.queue()))
        self.set("request-timeout", str(self.longest_request()))
        self.set("body", str(_PAYLOAD))
        tag = self.release.tag
        batch, performance = self.workload.max_batch_size, self.workload.performance
        if batch is not None and not self.set("batch", str(batch)):
            self.refuse("maxBatchSize", batch, "absent", f"NIM {tag} has no variable for it.")
        if performance is not None:
            value = performance if self.release.version[0] == 1 else _PERFORMANCE[performance]
            if not self.set("performance", value):
                self.refuse("performance", performance, "absent", f"The {self.role} NIM {tag} has no variable for it.")

    def client_model(self) -> str:
        name = self.workload.served_model_name
        if name is None or name == self.model.id:
            return self.model.id
        if not self.set("served-name", name):
            self.refuse(
                "servedModelName",
                name,
                f"absent, or {self.model.id}",
                f"The {self.role} NIM {self.release.tag} has no documented variable for it.",
            )
        elif name.endswith(tuple(f"-{word}" for word in INPUT_TYPES)):
            self.refuse(
                "servedModelName", name, "another ending", "NIM takes -query and -passage off and reads input_type."
            )
        return name

    def queue(self) -> int:
        given = self.workload.max_queue_size
        if versions.name_of("queue", self.release.version, self.role) is None:
            if given is not None:
                self.refuse("maxQueueSize", given, "absent", f"NIM {self.release.tag} has no variable for it.")
            return _QUEUE
        if given is None:
            self.because("maxQueueSize", _QUEUE, "NIM's default; requests above it get 503, not TEI's 429")
        return given or _QUEUE

    def longest_request(self) -> int:
        return self.workload.longest_request_seconds or _REQUEST_SECONDS

    def startup(self) -> int:
        least = versions.LEAST_STARTUP_SECONDS
        estimate = max(least, math.ceil(2 * memory.weights_mib(self.model) * memory.MIB / _DOWNLOAD_RATE))
        given = self.workload.startup_seconds
        if given is None:
            self.because("startup", f"{estimate} s", f"download, engine build and load; {least} s at least")
            return estimate
        if given < least:
            self.refuse(
                "startupSeconds",
                given,
                f"{least} or more",
                "The first start downloads weights and may build engines; a shorter probe restarts it in the middle.",
            )
        return given

    # -- resources

    def cpu_millicores(self) -> int:
        if self.workload.resources.cpu:
            return quantities.millicores(self.workload.resources.cpu)
        wanted = 1000 * versions.LEAST_CORES
        if self.request.node is None:
            self.because("resources.cpu", f"{_DEFAULT_CORES}", "nothing is known of the node")
            return 1000 * _DEFAULT_CORES
        # Half a core of each node is left to its DaemonSets.
        beside = self.request.beside.resources
        share = (quantities.millicores(self.request.node.cpu) - 500) // max(1, self.request.node.gpus)
        cpu = min(wanted, max(500, share * (1 + beside.gpus) - beside.cpu_millicores))
        why = "the node's cores less half a core, per GPU"
        if cpu < wanted:
            why += f"; NVIDIA asks for {versions.LEAST_CORES} cores"
        self.because("resources.cpu", f"{cpu}m", why)
        return cpu

    def memory_mib(self) -> int:
        weights = memory.weights_mib(self.model)
        given = self.workload.resources.memory
        if given is None:
            total = math.ceil((_PROGRAM_MIB + 2 * weights) / 256) * 256
            self.because("resources.memory", f"{total}Mi", f"twice the weights ({weights} MiB), 8 GiB of program")
            return total
        if quantities.mebibytes(given) < weights:
            self.refuse("resources.memory", given, f"{weights}Mi or more", "Its weights pass through host memory.")
        return quantities.mebibytes(given)

    def mounts(self, memory_mib: int) -> tuple[Mount, ...]:
        cache, weights = self.workload.cache, memory.weights_mib(self.model)
        generation = self.release.generation
        size: int | None = None
        if cache.existing_claim:
            if cache.size:
                self.refuse("cache.size", cache.size, "absent", "cache.existingClaim has a size of its own.")
            self.because("cache", cache.existing_claim, f"a claim; group {versions.FS_GROUP} has to be able to write")
        elif cache.size:
            size = quantities.mebibytes(cache.size)
            if size < weights:
                self.refuse("cache.size", cache.size, f"{weights}Mi or more", "The weights do not fit.")
        else:
            size = math.ceil(1.2 * weights) + (0 if generation.runtime_path else _RUNTIME_MIB)
            self.because("cache.size", f"{size}Mi", "weights, and engines that are built; lost with the pod")
        shm = min(versions.SHARED_MEMORY_MIB, memory_mib // 2)
        self.because("sharedMemory", f"{shm}Mi", "NVIDIA's 16 GiB, half of the pod's memory at most: it counts as such")
        runtime = [Mount("runtime", generation.runtime_path, size_mib=_RUNTIME_MIB)] if generation.runtime_path else []
        return (
            Mount("cache", generation.weights_path, size_mib=size, claim=cache.existing_claim),
            *runtime,
            Mount("tmp", "/tmp", size_mib=_TMP_MIB),  # noqa: S108 - inside the pod
            Mount("shm", "/dev/shm", size_mib=shm, in_memory=True),  # noqa: S108 - inside the pod
        )

    def ephemeral_mib(self, mounts: tuple[Mount, ...]) -> int:
        needed = _LOGS_MIB + sum(mount.size_mib or 0 for mount in mounts if not mount.in_memory)
        given = self.workload.resources.ephemeral_storage
        if given is None:
            return needed
        if quantities.mebibytes(given) < needed:
            self.refuse(
                "resources.ephemeralStorage",
                given,
                f"{needed}Mi or more",
                "Weights and engines lie in directories of the pod, and the kubelet evicts pods above.",
            )
        return quantities.mebibytes(given)

    def ports(self) -> tuple[Port, ...]:
        further = [endpoint.port for endpoint in self.release.generation.metrics if endpoint.port != versions.HTTP_PORT]
        return (Port("http", versions.HTTP_PORT), *(Port("triton-metrics", port) for port in further))

    def environment(self, keys: tuple[EnvVar, ...]) -> tuple[EnvVar, ...]:
        """What the plan sets, then the keys, then what the stack file adds."""
        faulty = set()
        taken = {*self.planned, *(variable.name for variable in keys)}
        for name, allowed, why in variables.faults(
            self.workload.env, taken, self.release.tag, self.release.version, self.role
        ):
            faulty.add(name)
            self.refusals.append(Refusal(f"{self.request.path}.env.{name}", "a value", allowed, why))
        return (
            *(EnvVar(name, value) for name, value in self.planned.items()),
            *keys,
            *(EnvVar(name, value) for name, value in self.workload.env.items() if name not in faulty),
        )

    def describe(self) -> Description:
        generation, nim = self.release.generation, self.release.nim
        self.place()
        self.unsupported()
        keys = self.keys()
        self.settings()
        client_model = self.client_model()
        startup = self.startup()
        memory_mib = self.memory_mib()
        mounts = self.mounts(memory_mib)
        embedding = self.role is Role.EMBEDDING
        if embedding:
            words = " or ".join(INPUT_TYPES)
            self.because("input_type", words, f"clients send one, or end the model name with it: {client_model}-query")
        spec = EngineSpec(
            engine="nim",
            product="nim",
            version=self.release.tag,
            registry=versions.REGISTRY,
            repository=nim.repository,
            tag=self.release.tag,
            digest=self.workload.digest,
            env=self.environment(keys),
            protocol="http",
            ports=self.ports(),
            probes=_probes(startup),
            mounts=mounts,
            resources=Resources(
                cpu_millicores=self.cpu_millicores(),
                memory_mib=memory_mib,
                ephemeral_storage_mib=self.ephemeral_mib(mounts),
                gpus=1 if self.request.gpu else 0,
            ),
            limits=Limits(
                max_input_tokens=self.model.max_tokens,
                max_client_batch_size=_CLIENT_BATCH[self.role],
                # NIM counts texts; where nobody says how many, one is what is known.
                max_batch_tokens=self.model.max_tokens * (self.workload.max_batch_size or 1),
                max_concurrent_requests=self.workload.max_queue_size or _QUEUE,
                payload_bytes=_PAYLOAD,
                auto_truncate=False,
            ),
            metrics=tuple(
                Metrics("http" if endpoint.port == versions.HTTP_PORT else "triton-metrics", endpoint.path)
                for endpoint in generation.metrics
            ),
            models=(
                ServedModel(
                    id=self.model.id,
                    client_name=client_model,
                    kind=self.model.kind.value,
                    dimension=self.model.dimension,
                    max_tokens=self.model.max_tokens,
                    revision=None,
                ),
            ),
            api=Api(
                openai=embedding,
                api_key=False,
                overload_status=generation.overload_status,
                input_types=INPUT_TYPES if embedding else (),
            ),
            user=versions.USER,
            group=versions.FS_GROUP,
            startup_seconds=startup,
            longest_request_seconds=self.longest_request(),
            downloads_from=versions.DOWNLOAD_HOSTS[self.workload.weights],
            reasons=tuple(self.reasons),
        )
        replicas = 1 if self.workload.replicas is None else self.workload.replicas
        return Description(spec, replicas, replicas, None, None, (), tuple(self.refusals))


def _probes(startup: int) -> Probes:
    # The first check comes with the start, the kubelet kills at the last one: (threshold - 1) periods lie between.
    ready = Probe(versions.READY_PATH, "http", _PERIOD_SECONDS, 5, 3)
    return Probes(
        startup=Probe(versions.READY_PATH, "http", _PERIOD_SECONDS, 5, math.ceil(startup / _PERIOD_SECONDS) + 1),
        readiness=ready,
        liveness=Probe(versions.LIVE_PATH, "http", _PERIOD_SECONDS, 5, 6),
    )
