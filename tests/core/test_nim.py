"""The NIM engine: its table of releases, and what it decides or refuses for one workload."""

from dataclasses import replace
from typing import Any

import pytest

from infra.core import catalogue
from infra.core.catalogue import ModelKind
from infra.core.engines.nim import describe, versions
from infra.core.engines.nim.versions import Role
from infra.core.engines.request import Description, Request
from infra.core.engines.spec import Beside, EngineSpec, SecretRef
from infra.core.errors import Refusal
from infra.core.settings import NimWorkload

pytestmark = pytest.mark.core

E5 = "nvidia/nv-embedqa-e5-v5"
LLAMA = "nvidia/llama-3.2-nv-embedqa-1b-v2"
RERANKER = "nvidia/llama-3.2-nv-rerankqa-1b-v2"
NEMOTRON = "nvidia/nemotron-3-embed-1b"
VL_RERANKER = "nvidia/llama-nemotron-rerank-vl-1b-v2"
REQUEST = Request(
    path="stack.serving[0]",
    workload=NimWorkload.model_validate({"name": "nim", "engine": "nim", "model": E5, "pool": "gpu"}),
    models={},
    pinned=True,
    pool_path="stack.nodePools[0]",
    gpu=catalogue.gpus()["L40S"],
    arch="amd64",
    node=None,
    node_kinds=None,
    node_path="stack.nodePools[0].instanceType",
    max_nodes=None,
    image_pull_seconds=600,
    beside=Beside(),
    stand_in=False,
    mirrored=frozenset(),
    pull_secrets=("ngc-registry",),
    secrets=frozenset({"ngcApiKey", "huggingFaceToken"}),
    secret_name="nim-keys",
    secret_refs={},
    namespace="embedding-serving",
    service="nim",
    scrape_seconds=15,
)


def ask(gpu: str | None = "L40S", around: dict[str, Any] | None = None, **changes: Any) -> Description:
    """What NIM says to the workload with ``changes``; ``around`` changes what the plan knows."""
    workload = {"name": "nim", "engine": "nim", "model": E5, "pool": "gpu", **changes}
    known = {"gpu": catalogue.gpus()[gpu] if gpu else None, **(around or {})}
    return describe(replace(REQUEST, workload=NimWorkload.model_validate(workload), **known))


def planned(gpu: str = "L40S", **changes: Any) -> tuple[Description, EngineSpec]:
    """As ask, where nothing may be refused."""
    found = ask(gpu, **changes)
    assert found.refusals == ()
    assert found.spec is not None
    return found, found.spec


def refused(key: str, gpu: str | None = "L40S", around: dict[str, Any] | None = None, **changes: Any) -> Refusal:
    """The only refusal, which has to be at ``key``."""
    [refusal] = ask(gpu, around, **changes).refusals
    assert refusal.path == (key if key.startswith("stack.") else f"stack.serving[0].{key}")
    return refusal


def values(spec: EngineSpec) -> dict[str, str | SecretRef | None]:
    return {variable.name: variable.secret or variable.value for variable in spec.env}


# -- the table


def test_every_nim_is_a_model_of_the_catalogue_with_tags_of_its_own() -> None:
    models = catalogue.models()
    for nim in versions.nims().values():
        assert models[nim.id].kind in {ModelKind.EMBEDDING, ModelKind.RERANKER}
        assert nim.tags()
        for tag in nim.tags():
            version = versions.parse(tag)
            assert version is not None
            assert nim.holds(version), (nim.id, tag)
        assert nim.later is None or nim.later in versions.nims()
    assert set(versions.nims()) == {name for name in models if name.startswith("nvidia/")}


def test_every_tag_that_was_seen_has_a_row_for_its_generation_and_its_gpus() -> None:
    for nim in versions.nims().values():
        for tag in nim.tags():
            version = versions.parse(tag)
            assert version is not None
            assert versions.generation(version[0]) is not None
            assert versions.support(nim, version)


def test_no_release_reads_two_variables_for_one_purpose() -> None:
    releases = [(1, minor, 0) for minor in range(14)] + [(2, minor, 0) for minor in range(5)] + [(1, 3, 1), (2, 2, 2)]
    for release in releases:
        for role in Role:
            purposes = [row.purpose for row in versions.variables() if role in row.roles and row.holds(release)]
            assert len(purposes) == len(set(purposes)), (release, role)


def test_gpus_of_the_table_are_those_of_the_catalogue() -> None:
    for row in versions.gpu_support():
        assert {*row.optimized, *row.dropped} <= set(catalogue.gpus())
        assert set(row.models or ()) <= set(versions.nims())
        assert not set(row.optimized) & set(row.dropped)


def test_every_row_says_where_it_was_read() -> None:
    rows = [*versions.variables(), *versions.nims().values(), *versions.gpu_support()]
    assert all(len(row.source) >= 10 for row in rows)


@pytest.mark.parametrize(
    ("tag", "numbers"), [("1.10.1", (1, 10, 1)), ("2.3", (2, 3, 0)), ("latest", None), ("1", None), ("1.3.1-rtx", None)]
)
def test_release_tags_are_numbers_and_nothing_else(tag: str, numbers: tuple[int, int, int] | None) -> None:
    assert versions.parse(tag) == numbers


# -- images


def test_the_newest_tag_that_runs_on_the_gpu_is_taken() -> None:
    assert planned("H100", model=LLAMA)[1].tag == "1.11.0"
    assert planned("L4", model=LLAMA)[1].tag == "1.10.1"


def test_case_49_each_nim_has_a_pull_secret_and_a_key_of_another_form() -> None:
    without = refused("stack.images.pullSecrets", around={"pull_secrets": ()})
    assert "$oauthtoken" in without.why
    assert "nvcr.io" in without.why
    assert ask(around={"pull_secrets": (), "mirrored": frozenset({versions.REGISTRY})}).refusals == ()
    _, spec = planned()
    assert values(spec)["NGC_API_KEY"] == SecretRef("nim-keys", "ngcApiKey", made=True)
    assert "ngcApiKey" in refused("weights", around={"secrets": frozenset()}).allowed
    elsewhere = SecretRef("from-vault", "key")
    found = ask(around={"secrets": frozenset(), "secret_refs": {"ngcApiKey": elsewhere}})
    assert found.spec is not None
    assert values(found.spec)["NGC_API_KEY"] == elsewhere


def test_a_key_in_env_is_refused_and_not_repeated() -> None:
    assert "nvapi" not in str(refused("env.NGC_API_KEY", env={"NGC_API_KEY": "nvapi-0123456789abcdef"}))


def test_a_tag_of_another_nim_is_refused_with_those_of_this_one() -> None:
    line = refused("version", model=RERANKER, version="1.10.1")
    assert LLAMA in line.why
    assert line.allowed == "1.3.1, 1.5.0, 1.7.0, 1.8.0, 1.9.0"


def test_a_renamed_model_is_refused_with_its_new_name_and_the_new_name_in_old_releases() -> None:
    assert "nvidia/llama-nemotron-embed-1b-v2" in refused("version", model=LLAMA, version="1.13.0").why
    assert "from 1.13.0 on" in refused("version", model="nvidia/llama-nemotron-embed-1b-v2", version="1.10.1").why


def test_a_tag_that_moves_is_refused() -> None:
    assert "moves" in refused("version", version="latest").why


def test_nims_for_llms_are_refused_once_in_words() -> None:
    line = refused("model", model="meta/llama-3.1-8b-instruct", version="latest", env={"NIM_SERVER_PORT": "1"})
    assert "LLM" in line.why
    assert "out of scope" in line.why
    assert E5 in line.allowed


def test_a_model_of_the_hub_is_sent_to_tei() -> None:
    assert "engine: tei" in refused("model", model="BAAI/bge-small-en-v1.5").why


def test_a_digest_of_the_real_image_is_refused_for_a_stand_in() -> None:
    refused("digest", around={"stand_in": True}, digest="sha256:" + "0" * 64)


# -- GPUs


@pytest.mark.parametrize("gpu", ["A10G", "L4", "A100"])
def test_case_53_release_1_11_is_refused_on_gpus_that_it_dropped(gpu: str) -> None:
    line = refused("version", gpu, model=LLAMA, version="1.11.0")
    assert "drops it" in line.why
    assert "1.10.1" in line.allowed
    assert planned(gpu, model=LLAMA, version="1.10.1")[1].tag == "1.10.1"


def test_case_53_release_1_11_runs_on_a100_with_80_gb() -> None:
    assert planned("A100-80GB", model=LLAMA, version="1.11.0")[1].tag == "1.11.0"


def test_a_gpu_that_nobody_lists_for_2_x_is_refused() -> None:
    line = refused("pool", "T4", model=NEMOTRON)
    assert "does not list it" in line.why
    assert "L4" in line.allowed


def test_a_gpu_without_a_profile_of_its_own_gets_the_generic_one_with_a_word() -> None:
    _, spec = planned("T4")
    [reason] = [reason for reason in spec.reasons if reason.field == "gpu"]
    assert "generic" in reason.why


def test_cpu_nodes_and_arm_hosts_are_refused() -> None:
    refused("pool", None)
    refused("pool", around={"arch": "arm64"})


# -- what the process is told


def test_case_55_names_of_variables_follow_the_release() -> None:
    old, new = values(planned()[1]), values(planned(model=NEMOTRON)[1])
    assert old["NIM_HTTP_API_PORT"] == "8000"
    assert old["NIM_CACHE_PATH"] == "/opt/nim/.cache"
    assert new["NIM_SERVER_BIND_ADDR"] == "0.0.0.0:8000"
    assert new["NIM_ENGINE_MODEL_PATH"] == "/model"
    assert not set(old) & set(new) - {"NGC_API_KEY"}
    line = refused("env.NIM_HTTP_API_PORT", model=NEMOTRON, env={"NIM_HTTP_API_PORT": "9000"})
    assert "does not read it" in line.why
    assert versions.name_of("http-address", (2, 0, 0), Role.RERANKING) == "NIM_BIND_ADDR"
    assert (
        "NIM_PIPELINE_MAX_BATCH_SIZE"
        in refused("env.NIM_TRITON_MAX_BATCH_SIZE", model=NEMOTRON, env={"NIM_TRITON_MAX_BATCH_SIZE": "8"}).allowed
    )


def test_case_55_the_ngc_key_goes_with_the_ngc_provider_and_the_hub_token_without() -> None:
    _, spec = planned(model=NEMOTRON)
    assert values(spec)["NIM_ENGINE_MODEL_DOWNLOAD_PROVIDER"] == "ngc"
    assert versions.name_of("provider", (2, 0, 0), Role.EMBEDDING) == "NIM_MODEL_DOWNLOAD_PROVIDER"
    _, spec = planned(model=NEMOTRON, weights="huggingFace")
    assert values(spec)["HF_TOKEN"] == SecretRef("nim-keys", "huggingFaceToken", made=True)
    assert not {"NGC_API_KEY", "NIM_ENGINE_MODEL_DOWNLOAD_PROVIDER"} & set(values(spec))
    assert spec.downloads_from == ("huggingface.co",)
    assert refused("weights", weights="huggingFace").allowed == "ngc"


def test_a_port_of_llm_nims_in_env_is_refused() -> None:
    assert "LLM" in refused("env.NIM_SERVER_PORT", env={"NIM_SERVER_PORT": "8001"}).why


def test_what_the_plan_sets_is_not_set_twice() -> None:
    assert "own key" in refused("env.NIM_CACHE_PATH", env={"NIM_CACHE_PATH": "/data"}).why


@pytest.mark.parametrize(("model", "name"), [(LLAMA, "NIM_SERVED_MODEL_NAME"), (NEMOTRON, "NIM_ENGINE_MODEL_NAME")])
def test_a_name_for_clients_is_not_changed_behind_the_contract(model: str, name: str) -> None:
    assert "servedModelName" in refused(f"env.{name}", model=model, env={name: "house-model"}).allowed


def test_other_variables_pass() -> None:
    _, spec = planned(env={"NIM_MODEL_PROFILE": "0" * 64, "https_proxy".upper(): "http://proxy:3128"})
    assert values(spec)["NIM_MODEL_PROFILE"] == "0" * 64


@pytest.mark.parametrize(
    ("model", "batch", "performance"),
    [
        (LLAMA, ("NIM_TRITON_MAX_BATCH_SIZE", "16"), ("NIM_TRITON_PERFORMANCE_MODE", "throughput")),
        (NEMOTRON, ("NIM_PIPELINE_MAX_BATCH_SIZE", "16"), ("NIM_PERFORMANCE_MODE", "1")),
    ],
)
def test_batch_size_and_performance_are_said_in_the_words_of_the_release(
    model: str, batch: tuple[str, str], performance: tuple[str, str]
) -> None:
    _, spec = planned(model=model, maxBatchSize=16, performance="throughput")
    assert {batch, performance} <= set(values(spec).items())


def test_keys_without_a_variable_in_this_release_are_refused() -> None:
    refused("maxBatchSize", version="1.1.0", maxBatchSize=16)
    refused("maxQueueSize", maxQueueSize=16)
    refused("performance", model=RERANKER, performance="latency")


def test_the_served_name_is_set_where_a_variable_is_documented() -> None:
    _, spec = planned(model=LLAMA, servedModelName="house-model")
    assert values(spec)["NIM_SERVED_MODEL_NAME"] == spec.models[0].client_name == "house-model"
    refused("servedModelName", version="1.1.0", servedModelName="house-model")
    refused("servedModelName", model=NEMOTRON, servedModelName="house-model")
    refused("servedModelName", model=LLAMA, servedModelName="house-query")


# -- pods


@pytest.mark.parametrize("model", [E5, NEMOTRON, RERANKER, VL_RERANKER])
def test_case_50_a_start_may_take_20_minutes(model: str) -> None:
    _, spec = planned(model=model)
    startup = spec.probes.startup
    assert startup.path == "/v1/health/ready"
    assert startup.period_seconds * (startup.failure_threshold - 1) >= spec.startup_seconds >= 1200
    assert spec.probes.readiness.path == "/v1/health/ready"
    assert spec.probes.liveness.path == "/v1/health/live"


def test_case_50_a_shorter_start_is_refused_and_a_longer_one_taken() -> None:
    assert "restarts it" in refused("startupSeconds", startupSeconds=300).why
    assert planned(startupSeconds=3600)[1].startup_seconds == 3600


def test_case_51_what_has_to_be_reached_at_start_is_said() -> None:
    assert planned()[1].downloads_from == ("api.ngc.nvidia.com",)


@pytest.mark.parametrize("model", [E5, NEMOTRON, RERANKER, VL_RERANKER])
def test_case_52_weights_are_kept_where_the_volume_is(model: str) -> None:
    for cache in ({}, {"existingClaim": "weights"}):
        _, spec = planned(model=model, cache=cache)
        version = versions.parse(spec.tag)
        assert version is not None
        variable = versions.name_of("weights-path", version, Role.EMBEDDING)
        [mount] = [mount for mount in spec.mounts if mount.name == "cache"]
        assert variable is not None
        assert values(spec)[variable] == mount.path
        assert mount.claim == cache.get("existingClaim")
        assert (mount.size_mib is None) == bool(cache)


def test_2_x_has_a_second_directory_for_what_it_compiles() -> None:
    assert [mount.path for mount in planned(model=NEMOTRON)[1].mounts] == ["/model", "/opt/cache", "/tmp", "/dev/shm"]


def test_shared_memory_is_in_memory_and_no_more_than_half_of_the_pods() -> None:
    for size, expected in ((None, None), ("64Gi", 16384), ("8Gi", 4096)):
        _, spec = planned(resources={"memory": size} if size else {})
        [shm] = [mount for mount in spec.mounts if mount.path == "/dev/shm"]
        assert shm.in_memory
        assert shm.size_mib == (expected or spec.resources.memory_mib // 2)


def test_sizes_that_do_not_hold_the_weights_are_refused() -> None:
    refused("resources.memory", resources={"memory": "512Mi"})
    refused("cache.size", cache={"size": "512Mi"})
    refused("cache.size", cache={"size": "50Gi", "existingClaim": "weights"})
    refused("resources.ephemeralStorage", resources={"ephemeralStorage": "1Gi"})


def test_the_user_and_group_of_the_image_own_the_files() -> None:
    _, spec = planned()
    assert (spec.user, spec.group) == (1000, 2000)


def test_case_56_metrics_are_on_v1_metrics_and_tritons_on_a_port_of_their_own_in_1_x() -> None:
    _, spec = planned()
    assert [(endpoint.port, endpoint.path) for endpoint in spec.metrics] == [
        ("http", "/v1/metrics"),
        ("triton-metrics", "/metrics"),
    ]
    assert {port.number for port in spec.ports} == {8000, 8002}
    _, spec = planned(model=NEMOTRON)
    assert [(endpoint.port, endpoint.path) for endpoint in spec.metrics] == [("http", "/v1/metrics")]
    assert {port.number for port in spec.ports} == {8000}


def test_case_57_a_full_queue_is_answered_with_503_from_2_x_on() -> None:
    _, spec = planned(model=NEMOTRON, maxQueueSize=64)
    assert spec.api.overload_status == 503
    assert values(spec)["NIM_SERVER_MAX_QUEUE_SIZE"] == "64"
    assert spec.limits.max_concurrent_requests == 64
    assert planned()[1].api.overload_status is None


def test_case_48_clients_of_embedding_nims_are_told_to_send_an_input_type() -> None:
    _, spec = planned()
    assert spec.api.input_types == ("query", "passage")
    assert spec.api.openai
    assert any(reason.field == "input_type" and f"{E5}-query" in reason.why for reason in spec.reasons)
    _, spec = planned(model=RERANKER)
    assert spec.api.input_types == ()
    assert not spec.api.openai


def test_case_58_a_nim_has_no_second_owner_of_its_replicas() -> None:
    assert "not scaled" in refused("scaling", scaling={"max": 3}).why
    assert ask(replicas=2).replicas == 2
