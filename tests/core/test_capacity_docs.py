"""docs/capacity.md and its pictures against the planner."""

import re

import pytest

from infra.core import catalogue
from infra.core.capacity import physics
from infra.core.catalogue import Model
from local.paths import CHECKOUT

pytestmark = pytest.mark.core

TEXT = (CHECKOUT / "docs" / "capacity.md").read_text(encoding="utf-8")
COLUMNS = (
    "BAAI/bge-small-en-v1.5",
    "BAAI/bge-base-en-v1.5",
    "BAAI/bge-large-en-v1.5",
    "nvidia/llama-3.2-nv-embedqa-1b-v2",
    "intfloat/e5-mistral-7b-instruct",
)


def test_the_documented_rates_are_those_of_the_planner() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d+ · .*) \|$", TEXT, flags=re.MULTILINE)
    assert [gpu for gpu, _ in rows] == ["T4", "A10G", "L4", "A100", "L40S", "H100"]
    for gpu, cells in rows:
        for model, cell in zip(COLUMNS, cells.split(" | "), strict=True):
            rates = physics.rates(catalogue.models()[model], catalogue.gpus()[gpu], 512)
            assert cell == f"{rates.typical:.0f} · {rates.best:.0f} · {rates.wall:.0f}", (gpu, model)


def test_every_shape_of_model_has_a_picture_that_is_shown() -> None:
    plots = pytest.importorskip("scripts.capacity_plots", reason="matplotlib is a development dependency")
    pictures = {path.stem for path in (CHECKOUT / "docs" / "capacity").glob("*.png")}
    assert pictures == set(plots.MODELS) == set(re.findall(r"\(capacity/([\w.-]+)\.png\)", TEXT))

    def shape(model: Model) -> tuple[object, ...]:
        return model.layers, model.hidden, model.compute_parameters_m, model.causal, model.max_tokens

    models = catalogue.models()
    assert {shape(model) for model in models.values()} == {shape(models[name]) for name in plots.MODELS.values()}


def test_lines_of_a_picture_are_the_typical_rates_and_points_are_published_rows() -> None:
    plots = pytest.importorskip("scripts.capacity_plots", reason="matplotlib is a development dependency")
    model = catalogue.models()["BAAI/bge-large-en-v1.5"]
    (axes,) = plots.draw(model).axes
    lines = {line.get_label(): line for line in axes.lines}
    assert set(lines) == set(plots.GPUS)
    tokens, rate = (values[-1] for values in lines["L4"].get_data())
    assert tokens == 512
    assert rate == physics.rates(model, catalogue.gpus()["L4"], 512).typical
    points = {tuple(point) for collection in axes.collections for point in collection.get_offsets()}
    assert {(449, 138), (128, 2480), (177, 631.5)} <= points


def test_gpus_that_do_not_hold_a_model_are_not_drawn() -> None:
    plots = pytest.importorskip("scripts.capacity_plots", reason="matplotlib is a development dependency")
    (axes,) = plots.draw(catalogue.models()["intfloat/e5-mistral-7b-instruct"]).axes
    assert "T4" not in {line.get_label() for line in axes.lines}
