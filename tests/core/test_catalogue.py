"""The catalogue against itself and against figures published elsewhere."""

import pytest
from pydantic import ValidationError

from infra.core import catalogue
from infra.core.catalogue import Gpu, ModelKind
from infra.core.engines.tei import images

pytestmark = pytest.mark.core


def test_gpus_stand_in_order_of_compute_capability() -> None:
    capabilities = [gpu.capability for gpu in catalogue.gpus().values()]
    assert capabilities == sorted(capabilities)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("l4", "L4"),
        ("A10", "A10G"),
        ("a10g", "A10G"),
        ("a100", "A100"),
        ("A100-80GB", "A100-80GB"),
        ("a100 80gb", "A100-80GB"),
        ("H100-80GB", "H100"),
        ("rtx pro 6000", "RTX-PRO-6000"),
        ("RTX-PRO-4500", "RTX-PRO-4500"),
        ("rtxpro4500", "RTX-PRO-4500"),
        ("RTX PRO Server 6000", "RTX-PRO-6000"),
        ("h200_141gb", "H200"),
    ],
)
def test_a_gpu_is_found_however_a_user_writes_it(written: str, meant: str) -> None:
    found = catalogue.find_gpu(written)
    assert found is not None
    assert found.name == meant


def test_every_gpu_is_found_by_its_own_name() -> None:
    assert [catalogue.find_gpu(name) for name in catalogue.gpus()] == list(catalogue.gpus().values())


def test_an_unknown_gpu_is_not_guessed() -> None:
    assert catalogue.find_gpu("MI300X") is None
    assert catalogue.find_gpu("A1000") is None


def test_no_name_means_two_gpus() -> None:
    names = [name.upper() for gpu in catalogue.gpus().values() for name in (gpu.name, *gpu.aliases)]
    assert len(names) == len(set(names))


def test_dense_int8_is_about_twice_dense_fp16_so_no_sparse_figure_slipped_in() -> None:
    for gpu in catalogue.gpus().values():
        if gpu.capability > 70:
            assert gpu.int8_tops / gpu.fp16_tflops == pytest.approx(2, rel=0.02), gpu.name


def test_an_a10g_is_slower_than_an_l4() -> None:
    gpus = catalogue.gpus()
    assert gpus["A10G"].fp16_tflops < gpus["L4"].fp16_tflops


def test_every_instance_type_belongs_to_a_family_of_its_gpu() -> None:
    gpus = catalogue.gpus()
    for instance in catalogue.instance_types().values():
        assert instance.name.split(".")[0] in gpus[instance.gpu].families


def test_every_family_has_an_instance_type() -> None:
    families = {name.split(".")[0] for name in catalogue.instance_types()}
    assert families == {family for gpu in catalogue.gpus().values() for family in gpu.families}


def test_gpu_memory_agrees_between_gpus_and_instances_except_for_fractions() -> None:
    for instance in catalogue.instance_types().values():
        whole = catalogue.gpus()[instance.gpu].memory_mib
        if instance.gpu_count:
            assert instance.gpu_memory_mib == whole, instance.name
        else:
            assert instance.gpu_memory_mib <= whole / 2, instance.name


def test_a_bigger_size_does_not_mean_more_gpus() -> None:
    types = catalogue.instance_types()
    assert types["g6.12xlarge"].gpu_count == 4
    assert types["g6.16xlarge"].gpu_count == 1


def test_allocatable_is_less_than_the_machine_has() -> None:
    for instance in catalogue.instance_types().values():
        assert 0 < instance.allocatable_cpu_m < instance.vcpu * 1000, instance.name
        assert 0 < instance.allocatable_memory_mib < instance.memory_mib, instance.name


def test_allocatable_memory_of_g6_xlarge_follows_the_kubelet_formula() -> None:
    """Machine less 7.5 % hypervisor, less 11 MiB per pod + 255 MiB reserve, less 100 MiB eviction threshold."""
    small = catalogue.instance_types()["g6.xlarge"]
    assert small.allocatable_memory_mib == int(small.memory_mib * 0.925 - (11 * small.max_pods + 255) - 100)


def test_prices_of_one_gpu_nodes_are_the_published_ones() -> None:
    types = catalogue.instance_types()
    prices = {name: types[name].price_usd_h for name in ("g4dn.xlarge", "g5.xlarge", "g6.xlarge", "g6e.xlarge")}
    assert prices == {"g4dn.xlarge": 0.526, "g5.xlarge": 1.006, "g6.xlarge": 0.8048, "g6e.xlarge": 1.861}
    assert types["p5e.48xlarge"].price_usd_h is None


@pytest.mark.parametrize(
    "model",
    [
        "BAAI/bge-small-en-v1.5",
        "BAAI/bge-base-en-v1.5",
        "BAAI/bge-large-en-v1.5",
        "BAAI/bge-reranker-large",
        "intfloat/e5-mistral-7b-instruct",
        "nvidia/nv-embedqa-e5-v5",
        "nvidia/llama-3.2-nv-embedqa-1b-v2",
        "nvidia/llama-3.2-nv-rerankqa-1b-v2",
        "sentence-transformers/all-MiniLM-L6-v2",
    ],
)
def test_models_that_the_product_names_are_known(model: str) -> None:
    assert model in catalogue.models()


def test_bert_large_at_384_tokens_costs_the_published_246_9_gops() -> None:
    """Open Model Zoo, bert-large-uncased-whole-word-masking-squad-fp32-0001: 246.93 GOps."""
    cost = catalogue.models()["BAAI/bge-large-en-v1.5"].flops_per_document(384)
    assert cost / 1e9 == pytest.approx(246.93, rel=0.002)


@pytest.mark.parametrize(
    ("model", "tokens", "gflop"),
    [
        ("BAAI/bge-small-en-v1.5", 512, 26.6),
        ("BAAI/bge-base-en-v1.5", 128, 22.4),
        ("BAAI/bge-m3", 512, 335),
        ("nvidia/llama-3.2-nv-embedqa-1b-v2", 512, 1031),
        ("intfloat/e5-mistral-7b-instruct", 512, 7216),
    ],
)
def test_cost_of_a_document_by_model_and_length(model: str, tokens: int, gflop: float) -> None:
    assert catalogue.models()[model].flops_per_document(tokens) / 1e9 == pytest.approx(gflop, rel=0.005)


def test_layers_and_width_account_for_the_compute_parameters_of_bert_shapes() -> None:
    """12 h² per layer; a slip in any of the three fields breaks it."""
    plain = {"bert", "xlm-roberta"}
    checked = 0
    for model in catalogue.models().values():
        gated_feed_forward = model.id == "jinaai/jina-embeddings-v2-base-en"
        if model.architecture in plain and model.kind is not ModelKind.SPARSE and not gated_feed_forward:
            assert model.compute_parameters_m == pytest.approx(12 * model.layers * model.hidden**2 / 1e6, rel=0.01)
            checked += 1
    assert checked >= 10


def test_models_say_how_they_answer() -> None:
    for model in catalogue.models().values():
        assert model.compute_parameters_m < model.parameters_m
        vector = model.kind in {ModelKind.EMBEDDING, ModelKind.SPARSE}
        assert (model.pooling is not None) == vector
        assert (model.dimension is not None) == vector


def test_every_row_says_where_it_was_read() -> None:
    rows = [*catalogue.gpus().values(), *catalogue.instance_types().values(), *catalogue.models().values()]
    assert all(len(row.source) >= 10 for row in rows)


def test_a_slip_in_a_row_is_refused() -> None:
    row = catalogue.gpus()["L4"].model_dump() | {"memory_gib": 24}
    with pytest.raises(ValidationError, match="memory_gib"):
        Gpu.model_validate(row)


def test_images_of_tei_are_those_that_the_plan_chooses() -> None:
    rows = [row for row in catalogue.images() if row.engine == "tei"]
    assert {row.image for row in rows} == {f"{images.REGISTRY}/{images.REPOSITORY}"}
    gpus = [row for row in rows if row.capability]
    for row in gpus:
        gpu = catalogue.gpus()["L4"].model_copy(
            update={"compute_capability": f"{(row.capability or 0) // 10}.{(row.capability or 0) % 10}"}
        )
        arch = "arm64" if "arm64" in row.note else "amd64"
        assert row.tag == f"{images.prefix_for(gpu, arch)}{images.VERSIONS[-1]}"
        assert images.experimental(gpu) == ("experimental" in row.note)
    assert {gpu.capability for gpu in catalogue.gpus().values() if images.prefix_for(gpu)} <= {
        row.capability for row in gpus
    }
    assert {row.note: row.tag for row in rows if not row.capability} == {
        arch: f"{images.prefix_for(None, arch)}{images.VERSIONS[-1]}" for arch in ("amd64", "arm64")
    }


def test_images_of_the_seed_are_known_each_once_with_what_is_wrong_with_them() -> None:
    rows = {(row.image, row.tag): row for row in catalogue.images()}
    assert len(rows) == len(catalogue.images())
    assert "25.07" in rows["nvcr.io/nvidia/tritonserver", "24.08-py3"].note
    assert "moving tag" in rows["nvcr.io/nim/nvidia/llama-3.2-nv-embedqa-1b-v2", "latest"].note
    nims = {row.image.rpartition("/")[2] for row in rows.values() if row.engine == "nim"}
    assert nims == {model.rpartition("/")[2] for model in catalogue.models() if model.startswith("nvidia/")}
