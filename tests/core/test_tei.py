"""What TEI gets for a workload: image, environment, limits, probes, memory. Cases are those of docs: failure modes."""

import math
import re
from typing import Any

import pytest

from infra.core import catalogue
from infra.core.capacity import memory
from infra.core.catalogue import Gpu
from infra.core.engines.tei import estimates, images
from infra.core.engines.tei.estimates import Machine
from infra.core.errors import RefusedError
from tests import stacks
from tests.core.plans import env, made, refused, refused_at, stack, workload

pytestmark = pytest.mark.core

#: GPU -> tag of TEI 1.9.3, by supported_models.md and matrix.json of TEI; None: no image.
_TAGS: dict[str, str | None] = {
    "V100": None,
    "T4": "turing-1.9.3",
    "T4g": None,  # the turing image is built for amd64, g5g hosts are arm64
    "A100": "1.9.3",
    "A100-80GB": "1.9.3",
    "A10G": "86-1.9.3",
    "L4": "89-1.9.3",
    "L40S": "89-1.9.3",
    "H100": "hopper-1.9.3",
    "H200": "hopper-1.9.3",
    "B200": "100-1.9.3",
    "B300": None,  # compute capability 10.3
    "RTX-PRO-4500": "120-1.9.3",
    "RTX-PRO-6000": "120-1.9.3",
}


def test_every_gpu_of_the_catalogue_is_in_the_table_of_tags() -> None:
    assert set(_TAGS) == set(catalogue.gpus())


@pytest.mark.parametrize("version", images.VERSIONS)
@pytest.mark.parametrize(("gpu", "tag"), _TAGS.items())
def test_case_01_a_gpu_gets_the_image_built_for_it_or_a_refusal_with_its_name(
    gpu: str, tag: str | None, version: str
) -> None:
    given = stack(gpu, model="BAAI/bge-small-en-v1.5", version=version)
    if tag is None:
        line = refused_at(given, "serving[0].pool")
        assert f"{gpu} has compute capability {catalogue.gpus()[gpu].compute_capability}" in line
        offered = line.split("a pool with ")[1].split(" on amd64")[0].split(", ")
        assert offered == [name for name, known in _TAGS.items() if known], "only what has an image is offered"
    else:
        [planned] = made(given).workloads
        assert planned.image == f"ghcr.io/huggingface/text-embeddings-inference:{tag.replace('1.9.3', version)}"
        prefix = planned.engine.tag.removesuffix(version)
        assert images.runs(prefix, catalogue.gpus()[gpu]), "the image of the table starts on the GPU of the table"


@pytest.mark.parametrize("version", ["latest", "1.9", "1.8.3", "1.9.0", "1.9.1", "2.0.0", "89-1.9.3"])
def test_a_release_that_was_not_checked_is_refused(version: str) -> None:
    assert "1.9.2, 1.9.3" in refused_at(stack(version=version), "serving[0].version")


@pytest.mark.parametrize(("arch", "tag"), [("amd64", "cpu-1.9.3"), ("arm64", "cpu-arm64-1.9.3")])
def test_cpu_nodes_get_the_image_of_their_architecture_and_pods_stay_on_it(arch: str, tag: str) -> None:
    planned = workload(None, pool={"arch": arch})
    assert planned.engine.tag == tag
    assert planned.node_selector == {"kubernetes.io/arch": arch}
    assert planned.engine.resources.gpus == 0


def test_gpus_on_arm64_hosts_are_refused() -> None:
    assert "arm64" in refused_at(stack("L4", pool={"arch": "arm64"}), "serving[0].pool")


#: (run-time, compile-time) capability pairs in which TEI starts: backends/candle/src/compute_cap.rs.
_COMPATIBLE = {
    *((75, 75), (89, 89), (90, 90), (100, 100), (120, 120), (121, 120), (121, 121)),
    *((runtime, 80) for runtime in range(80, 90)),
    *((runtime, 86) for runtime in range(86, 90)),
}
_COMPILED = {75: "turing-", 80: "", 86: "86-", 89: "89-", 90: "hopper-", 100: "100-", 120: "120-", 121: "121-"}


@pytest.mark.parametrize("runtime", [70, 72, *range(75, 91), 100, 103, 120, 121])
@pytest.mark.parametrize("compiled", _COMPILED)
def test_case_01_an_image_runs_where_tei_finds_the_capabilities_compatible(runtime: int, compiled: int) -> None:
    gpu = catalogue.gpus()["L4"].model_copy(update={"compute_capability": f"{runtime // 10}.{runtime % 10}"})
    assert images.runs(_COMPILED[compiled], gpu) == ((runtime, compiled) in _COMPATIBLE)


@pytest.mark.parametrize(
    ("prefix", "gpu", "starts"),
    [
        ("", "A10G", True),
        ("", "L4", True),
        ("", "T4", False),
        ("", "H100", False),
        ("89-", "A10G", False),
        ("86-", "L40S", True),
        ("cuda-", "T4", True),
        ("cuda-", "H100", True),
        ("cuda-", "V100", False),
        ("cpu-", "L4", False),
        ("latest-", "L4", False),
        ("", None, False),
        ("cpu-", None, True),
    ],
)
def test_case_01_known_pairs_of_image_and_gpu(prefix: str, gpu: str | None, starts: bool) -> None:
    assert images.runs(prefix, catalogue.gpus()[gpu] if gpu else None) is starts


def test_case_02_metrics_are_on_the_http_port_and_port_9000_is_not_opened() -> None:
    engine = workload().engine
    assert [(metrics.port, metrics.path) for metrics in engine.metrics] == [("http", "/metrics")]
    assert [(port.name, port.number) for port in engine.ports] == [("http", 8080)]
    assert "HTTP port only" in refused_at(stack(env={"PROMETHEUS_PORT": "9000"}), "serving[0].env.PROMETHEUS_PORT")


def test_case_08_a_reranker_takes_as_many_texts_as_top_k_says() -> None:
    planned = workload(model="BAAI/bge-reranker-large", topK=100)
    assert planned.engine.limits.max_client_batch_size == 100
    assert env(planned)["MAX_CLIENT_BATCH_SIZE"] == "100"


def test_case_08_a_smaller_client_batch_than_top_k_is_refused() -> None:
    given = stack(model="BAAI/bge-reranker-large", topK=100, maxClientBatchSize=32)
    assert "100 (topK) or more" in refused_at(given, "serving[0].maxClientBatchSize")


def test_top_k_of_an_embedding_model_is_refused() -> None:
    refused_at(stack(topK=10), "serving[0].topK")


def test_case_09_the_payload_limit_grows_with_the_client_batch() -> None:
    limits = workload(model="BAAI/bge-m3", maxClientBatchSize=256).engine.limits
    assert limits.payload_bytes >= 256 * 8192 * 4


def test_case_09_a_payload_limit_below_the_client_batch_is_refused() -> None:
    assert "413" in refused_at(stack(payloadLimit=10_000), "serving[0].payloadLimit")


def test_case_11_driver_capabilities_without_utility_are_refused() -> None:
    name = "NVIDIA_DRIVER_CAPABILITIES"
    refused_at(stack(env={name: "compute"}), f"serving[0].env.{name}")
    for value in ("compute,utility", "all"):
        assert refused(stack(env={name: value})) == []
    refused_at(stack(env={"PATH": "/bin"}), "serving[0].env.PATH")


@pytest.mark.parametrize("gpu", ["T4", None])
def test_case_14_mistral_is_refused_without_flash_attention_2(gpu: str | None) -> None:
    line = refused_at_first(stack(gpu, model="intfloat/e5-mistral-7b-instruct"), "serving[0].pool")
    assert "flash attention 2" in line
    assert "A10G" in line, "says which GPUs can"


def test_case_14_mistral_is_refused_in_float32_and_with_flash_attention_switched_off() -> None:
    model = "intfloat/e5-mistral-7b-instruct"
    assert "float16" in refused_at(stack("A100", model=model, dtype="float32"), "serving[0].dtype")
    off = stack("A100", model=model, env={"USE_FLASH_ATTENTION": "False"})
    refused_at(off, "serving[0].env.USE_FLASH_ATTENTION")
    assert refused(stack("A100", model=model)) == []


def refused_at_first(given: dict[str, Any], path: str) -> str:
    """The first line at ``path``: a big model on a small GPU is refused for more than one reason."""
    return next(line for line in refused(given) if line.startswith(f"stack.{path}: "))


def test_gemma_is_served_in_float32_only() -> None:
    model = {
        "id": "google/embeddinggemma-300m",
        "kind": "embedding",
        "architecture": "gemma3_text",
        "parametersM": 308,
        "layers": 24,
        "hidden": 768,
        "maxTokens": 2048,
        "dimension": 768,
        "pooling": "mean",
    }
    changes = {"models": [model]}
    assert env(workload(model=model["id"], changes=changes))["DTYPE"] == "float32"
    refused_at(stack(model=model["id"], changes=changes, dtype="float16"), "serving[0].dtype")


def test_float16_on_cpu_is_refused() -> None:
    assert env(workload(None))["DTYPE"] == "float32"
    refused_at(stack(None, dtype="float16"), "serving[0].dtype")


def test_case_15_a_batch_budget_below_the_models_length_needs_an_explicit_truncation() -> None:
    short: dict[str, Any] = {"model": "BAAI/bge-m3", "maxBatchTokens": 4096}
    for truncate in (None, False):
        line = refused_at(stack(**short, autoTruncate=truncate), "serving[0].maxBatchTokens")
        assert "8192 or more, or autoTruncate: true" in line
    planned = workload(**short, autoTruncate=True)
    assert planned.engine.limits.max_input_tokens == 4096


def test_case_15_the_default_budget_holds_the_longest_text_of_every_model() -> None:
    for model in catalogue.models().values():
        for gpu in ("L4", "H100", None):
            given = stack(gpu, model=model.id)
            if not refused(given):
                [planned] = made(given).workloads
                assert planned.engine.limits.max_batch_tokens >= model.max_tokens, (model.id, gpu)


@pytest.mark.parametrize(("truncate", "text"), [(True, "true"), (False, "false"), (None, "true")])
def test_case_16_truncation_is_always_said_and_as_a_word(truncate: bool | None, text: str) -> None:
    assert env(workload(autoTruncate=truncate))["AUTO_TRUNCATE"] == text


def test_case_17_a_model_that_leaves_no_room_for_a_batch_is_refused() -> None:
    model = {
        "id": "acme/big",
        "kind": "embedding",
        "architecture": "qwen3",
        "parametersM": 14_000,
        "layers": 40,
        "hidden": 5120,
        "maxTokens": 512,
        "pooling": "last-token",
    }
    line = refused_at(stack("L4", model="acme/big", changes={"models": [model]}), "serving[0].pool")
    assert "more GPU memory" in line
    assert refused(stack("H100", model="acme/big", changes={"models": [model]})) == []


def test_case_18_a_batch_budget_above_the_gpus_memory_is_refused_with_the_largest_that_fits() -> None:
    line = refused_at(stack("L4", maxBatchTokens=1_000_000), "serving[0].maxBatchTokens")
    largest = memory.largest_batch(catalogue.models()["BAAI/bge-large-en-v1.5"], catalogue.gpus()["L4"], "float16")
    assert f"{largest} tokens" in line
    assert not [line for line in refused(stack("L4", maxBatchTokens=largest)) if "GPU memory" in line]


@pytest.mark.parametrize(("cpu", "workers"), [("500m", "1"), ("2", "2"), ("3500m", "3"), ("16", "16")])
def test_case_19_tokenizers_follow_the_cpu_limit_and_not_the_node(cpu: str, workers: str) -> None:
    assert env(workload(resources={"cpu": cpu}))["TOKENIZATION_WORKERS"] == workers


def test_case_19_memory_holds_one_tokenizer_per_worker() -> None:
    few, many = (workload(tokenizationWorkers=n).engine.resources.memory_mib for n in (1, 16))
    assert many - few >= 15 * 100 - 256


def test_case_20_thread_pools_of_cpu_pods_follow_the_cpu_limit() -> None:
    planned = workload(None, resources={"cpu": "6"}, tokenizationWorkers=1)
    assert env(planned)["RAYON_NUM_THREADS"] == env(planned)["OMP_NUM_THREADS"] == "6"


def test_case_24_slow_starts_have_a_startup_probe_that_covers_them() -> None:
    planned = workload(None, model="BAAI/bge-m3")
    startup = planned.engine.probes.startup
    assert startup.period_seconds * (startup.failure_threshold - 1) >= planned.engine.startup_seconds
    assert startup.period_seconds == startup.timeout_seconds == 5, "before Ready nothing queues"
    assert planned.engine.probes.readiness.timeout_seconds > 60, "once it serves, /health waits behind a batch"
    warm_up = estimates.batch_seconds(catalogue.models()["BAAI/bge-m3"], Machine(None, 2), 8192, 1)
    assert planned.engine.startup_seconds > warm_up


def test_case_25_the_deprecated_token_variable_is_refused() -> None:
    refused_at(stack(env={"HF_API_TOKEN": "x"}), "serving[0].env.HF_API_TOKEN")


def test_case_26_port_and_hostname_are_said_so_that_nothing_else_sets_them() -> None:
    values = env(workload())
    assert values["PORT"] == "8080"
    assert values["HOSTNAME"] == "0.0.0.0"  # noqa: S104 - inside the pod


def test_case_28_the_model_name_of_clients_is_the_served_one() -> None:
    assert env(workload())["SERVED_MODEL_NAME"] == "BAAI/bge-large-en-v1.5"
    planned = workload(servedModelName="embeddings")
    assert env(planned)["SERVED_MODEL_NAME"] == planned.engine.models[0].client_name == "embeddings"


def test_the_log_level_hides_the_line_with_the_api_key_and_cannot_be_changed() -> None:
    assert env(workload())["LOG_LEVEL"].startswith("info,text_embeddings_router=warn")  # type: ignore[union-attr]
    refused_at(stack(env={"LOG_LEVEL": "info"}), "serving[0].env.LOG_LEVEL")


def test_logs_are_json_always_as_the_command_of_upstreams_images_says() -> None:
    assert env(workload())["JSON_OUTPUT"] == "true"
    with pytest.raises(RefusedError, match="jsonLogs: got an unknown key"):
        made(stack(jsonLogs=False))


def test_every_variable_of_the_plan_is_reserved() -> None:
    for gpu in ("L4", None):
        for name in env(workload(gpu)):
            refused_at(stack(gpu, env={name: "1"}), f"serving[0].env.{name}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_BATCH_REQUESTS", "0"),
        ("MAX_BATCH_REQUESTS", "many"),
        ("DISABLE_SPANS", "1"),
        ("HF_HUB_OFFLINE", "1"),
        ("TRANSFORMERS_OFFLINE", "true"),
        ("NVIDIA_VISIBLE_DEVICES", "0"),
        ("CUDA_VISIBLE_DEVICES", "1"),
        ("UDS_PATH", "/tmp/tei"),
    ],
)
def test_a_variable_that_ends_or_blinds_the_engine_is_refused(name: str, value: str) -> None:
    refused_at(stack(env={name: value}), f"serving[0].env.{name}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_BATCH_REQUESTS", "64"),
        ("DISABLE_SPANS", "true"),
        ("HF_HUB_OFFLINE", "0"),
        ("OTLP_ENDPOINT", "http://collector:4317"),
        ("DEFAULT_PROMPT", "query: "),
        ("MKL_ENABLE_INSTRUCTIONS", "AVX2"),
    ],
)
def test_other_variables_reach_the_engine(name: str, value: str) -> None:
    assert env(workload(env={name: value}))[name] == value


def test_offline_is_possible_with_a_claim_that_holds_the_weights() -> None:
    planned = workload(env={"HF_HUB_OFFLINE": "1"}, cache={"existingClaim": "weights"})
    assert planned.engine.mounts[0].claim == "weights"


def test_two_default_prompts_are_refused() -> None:
    given = stack(env={"DEFAULT_PROMPT": "a", "DEFAULT_PROMPT_NAME": "b"})
    refused_at(given, "serving[0].env.DEFAULT_PROMPT_NAME")


@pytest.mark.parametrize(
    ("model", "pooling"),
    [
        ("BAAI/bge-reranker-large", "cls"),
        ("BAAI/bge-large-en-v1.5", "mean"),
        ("BAAI/bge-large-en-v1.5", "splade"),
        ("naver/efficient-splade-VI-BT-large-doc", "cls"),
        ("intfloat/multilingual-e5-large", "cls"),
    ],
)
def test_pooling_that_does_not_belong_to_the_model_is_refused(model: str, pooling: str) -> None:
    refused_at(stack(model=model, pooling=pooling), "serving[0].pooling")


def test_pooling_follows_the_model() -> None:
    assert env(workload(model="naver/efficient-splade-VI-BT-large-doc"))["POOLING"] == "splade"
    assert env(workload(model="intfloat/multilingual-e5-large"))["POOLING"] == "mean"
    assert "POOLING" not in env(workload(model="BAAI/bge-reranker-large"))


def test_a_model_whose_weights_are_inside_nim_is_refused() -> None:
    assert "NIM" in refused_at(stack(model="nvidia/nv-embedqa-e5-v5"), "serving[0].model")


def test_a_client_batch_above_the_concurrent_requests_is_refused() -> None:
    """Recordings, overload: 513 texts at 512 places are answered with 429, always."""
    given = stack(maxClientBatchSize=513, maxConcurrentRequests=512)
    assert "429" in refused_at(given, "serving[0].maxConcurrentRequests")
    assert refused(stack(maxClientBatchSize=512, maxConcurrentRequests=512)) == []


def test_few_places_shrink_the_default_client_batch() -> None:
    limits = workload(maxConcurrentRequests=16).engine.limits
    assert limits.max_client_batch_size == 16


def test_a_queue_that_nobody_waits_for_is_refused() -> None:
    given = stack(None, model="BAAI/bge-m3", maxConcurrentRequests=60_000)
    refused_at(given, "serving[0].maxConcurrentRequests")


def test_a_longest_request_below_one_batch_is_refused() -> None:
    given = stack(None, model="BAAI/bge-m3", longestRequestSeconds=10)
    refused_at(given, "serving[0].longestRequestSeconds")


def test_a_longest_request_below_the_queue_is_refused_with_what_fits() -> None:
    """Drain ends with the longest request: a pod that ends earlier cuts off texts it has accepted."""
    given = stacks.local(maxConcurrentRequests=64, longestRequestSeconds=30)
    line = refused_at(given, "serving[0].longestRequestSeconds")
    seconds, places = re.findall(r"allowed: (\d+) or more, or maxConcurrentRequests: (\d+)\.", line)[0]
    for changes, fits in (
        ({"longestRequestSeconds": int(seconds)}, True),
        ({"longestRequestSeconds": int(seconds) - 1}, False),
        ({"longestRequestSeconds": 30, "maxConcurrentRequests": int(places)}, True),
        ({"longestRequestSeconds": 30, "maxConcurrentRequests": int(places) + 1}, False),
    ):
        assert (refused(stacks.local(**{"maxConcurrentRequests": 64, **changes})) == []) is fits, changes


def test_a_batch_of_minutes_is_refused_where_the_reason_stands() -> None:
    refused_at(
        stack(None, model="BAAI/bge-m3", resources={"cpu": "500m", "memory": "64Gi"}), "serving[0].resources.cpu"
    )


@pytest.mark.parametrize(
    ("tokens", "path"),
    [
        ({"p50": 300, "p95": 200}, "tokens"),
        ({"p50": 100, "p95": 200, "max": 150}, "tokens"),
        ({"p50": 100, "p95": 600}, "tokens.p95"),
        ({"p50": 100, "p95": 200, "max": 600}, "tokens.max"),
    ],
)
def test_lengths_of_texts_that_contradict_each_other_or_the_model_are_refused(
    tokens: dict[str, int], path: str
) -> None:
    refused_at(stack(tokens=tokens), f"serving[0].{path}")


def test_short_texts_make_smaller_batches_and_a_shorter_queue_in_time() -> None:
    short, usual = workload(tokens={"p50": 20, "p95": 64}), workload()
    assert short.engine.limits.max_batch_tokens == 2048
    assert usual.engine.limits.max_batch_tokens == 16384


@pytest.mark.parametrize(("memory", "starts"), [("2Gi", False), ("16Gi", True)])
def test_memory_of_a_cpu_pod_holds_weights_and_the_scores_of_the_warm_up(memory: str, starts: bool) -> None:
    """dep-01: the warm-up of an XLM-R-large model with 8192 tokens ended in an OOM kill."""
    given = stack(None, model="BAAI/bge-m3", resources={"memory": memory, "cpu": "8"})
    if starts:
        assert refused(given) == []
    else:
        refused_at(given, "serving[0].resources.memory")


def test_disk_below_the_weights_is_refused() -> None:
    refused_at(stack(cache={"size": "512Mi"}), "serving[0].cache.size")
    refused_at(stack(resources={"ephemeralStorage": "512Mi"}), "serving[0].resources.ephemeralStorage")
    refused_at(stack(cache={"size": "10Gi", "existingClaim": "weights"}), "serving[0].cache.size")


def test_ephemeral_storage_counts_the_cache_directory() -> None:
    engine = workload().engine
    assert engine.resources.ephemeral_storage_mib > sum(mount.size_mib or 0 for mount in engine.mounts)
    claim = workload(cache={"existingClaim": "weights"}).engine
    assert claim.mounts[0].size_mib is None
    assert claim.resources.ephemeral_storage_mib < 1024


def test_float32_on_a_gpu_is_much_slower_than_float16() -> None:
    gpu = catalogue.gpus()["A100"]
    assert Machine(gpu, 8, "float32").flops == pytest.approx(Machine(gpu, 8).flops / 16)


def test_the_cpu_rate_is_that_of_the_recordings() -> None:
    """embed-slow: 5-9 s for 4 x 512 tokens of BERT-base on 2 cores; an upper estimate lies just above."""
    model = catalogue.models()["BAAI/bge-base-en-v1.5"]
    assert 9 <= estimates.batch_seconds(model, Machine(None, 2, "float32"), 512, 4) <= 11


def test_a_cpu_batch_holds_eight_texts_and_that_of_a_stand_in_four_whatever_the_budget() -> None:
    """8: OrtBackend::max_batch_size of upstream. 4: Candle, which the recordings are of."""
    assert estimates.inputs_per_batch(None, 128, 16384) == 8
    assert estimates.inputs_per_batch(None, 128, 16384, stand_in=True) == 4
    assert estimates.inputs_per_batch(catalogue.gpus()["L4"], 128, 16384) == 128


def test_probes_of_a_cpu_pod_wait_for_eight_texts_and_those_of_a_stand_in_for_four() -> None:
    keys: dict[str, Any] = {"maxBatchTokens": 4096, "maxConcurrentRequests": 8, "resources": {"cpu": "1"}}
    local = {"environment": "local", "images": {"standInRegistry": "stand-in.local"}}
    real, stand_in = workload(None, **keys), workload(None, changes=local, **keys)
    timeouts = [planned.engine.probes.readiness.timeout_seconds for planned in (real, stand_in)]
    assert timeouts[0] == pytest.approx(2 * timeouts[1], abs=1)


def test_bert_large_at_384_tokens_is_the_published_246_9_gops() -> None:
    """Open Model Zoo, bert-large-uncased-whole-word-masking-squad-fp32-0001."""
    cost = catalogue.models()["BAAI/bge-large-en-v1.5"].flops_per_document(384)
    assert math.isclose(cost / 1e9, 246.9, rel_tol=0.002)


def test_a_stand_in_is_timed_as_the_cpu_that_it_computes_on() -> None:
    stand_in: dict[str, Any] = {"environment": "local", "images": {"standInRegistry": "stand-in.local"}}
    slow = workload(changes=stand_in, resources={"cpu": "500m"}, maxConcurrentRequests=8)
    fast = workload(resources={"cpu": "500m"})
    assert slow.engine.probes.readiness.timeout_seconds > fast.engine.probes.readiness.timeout_seconds


def test_a_gpu_for_which_upstream_experiments_says_so() -> None:
    reasons = {reason.field: reason.why for reason in workload("H100").reasons}
    assert "experimental" in reasons["image"]


def test_an_unknown_gpu_is_refused_with_the_known_ones() -> None:
    line = refused_at(stack("RTX 4090"), "nodePools[0].gpu")
    assert all(name in line for name in catalogue.gpus())


def _names() -> list[Gpu]:
    return [gpu for gpu in catalogue.gpus().values() if _TAGS[gpu.name]]


@pytest.mark.parametrize("gpu", _names(), ids=lambda gpu: str(gpu.name))
def test_the_largest_batch_of_every_gpu_grows_with_its_memory(gpu: Gpu) -> None:
    model = catalogue.models()["BAAI/bge-large-en-v1.5"]
    bigger = gpu.model_copy(update={"memory_mib": 2 * gpu.memory_mib})
    assert 0 < memory.largest_batch(model, gpu, "float32") < memory.largest_batch(model, gpu, "float16")
    assert memory.largest_batch(model, bigger, "float16") > memory.largest_batch(model, gpu, "float16")


def test_a_model_too_slow_for_a_stand_in_is_not_answered_with_the_gpu_that_the_pool_has() -> None:
    given = stacks.local(model="BAAI/bge-m3")
    del given["serving"][0]["maxBatchTokens"], given["serving"][0]["resources"]
    [line] = refused(given)
    assert line.startswith("stack.serving[0].model: got 'BAAI/bge-m3'; ")
    assert "a pool with a GPU" not in line
    assert "The stand-in (images.standInRegistry) computes on the CPU, whatever GPU a node counts." in line
