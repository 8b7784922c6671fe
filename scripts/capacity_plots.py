"""Draws docs/capacity/*.png: texts per second by length of the text, per GPU, with what others measured.

One picture per shape of model. Needs matplotlib, a development dependency.
"""

import argparse
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from infra.core import catalogue
from infra.core.capacity import data, memory, physics
from infra.core.catalogue import Model
from local.paths import CHECKOUT
from scripts.command import run

FOLDER = CHECKOUT / "docs" / "capacity"
#: One model of each shape; others of the shape cost the same per token and share its picture.
MODELS = {
    "all-MiniLM-L6-v2": "sentence-transformers/all-MiniLM-L6-v2",
    "bge-small": "BAAI/bge-small-en-v1.5",
    "bge-base": "BAAI/bge-base-en-v1.5",
    "bge-large": "BAAI/bge-large-en-v1.5",
    "ms-marco-MiniLM-L-6-v2": "cross-encoder/ms-marco-MiniLM-L-6-v2",
    "bge-m3": "BAAI/bge-m3",
    "bge-reranker-large": "BAAI/bge-reranker-large",
    "nomic-embed-text": "nomic-ai/nomic-embed-text-v1.5",
    "splade-doc": "naver/efficient-splade-VI-BT-large-doc",
    "splade-query": "naver/efficient-splade-VI-BT-large-query",
    "nv-embedqa-e5-v5": "nvidia/nv-embedqa-e5-v5",
    "llama-3.2-nv-embedqa-1b-v2": "nvidia/llama-3.2-nv-embedqa-1b-v2",
    "nemotron-3-embed-1b": "nvidia/nemotron-3-embed-1b",
    "e5-mistral-7b": "intfloat/e5-mistral-7b-instruct",
}
GPUS = ("T4", "A10G", "L4", "A100", "L40S", "H100")
_SHORTEST = 16
_MARKERS = {("float16", "http"): "o", ("float16", "engine"): "^", ("int8", "engine"): "D"}


def draw(model: Model) -> Figure:
    """Typical rates as lines, the span up to the best published efficiency as a band, published rates as points."""
    figure = Figure(figsize=(9, 5.5), dpi=110, layout="constrained")
    axes = figure.subplots()
    longest = min(model.max_tokens, 8192)
    lengths = [round(_SHORTEST * (longest / _SHORTEST) ** (step / 60)) for step in range(61)]
    for index, name in enumerate(GPUS):
        gpu = catalogue.gpus()[name]
        if not memory.needed(model, gpu, model.max_tokens, "float16").fits:
            continue
        rates = [physics.rates(model, gpu, tokens) for tokens in lengths]
        colour = f"C{index}"
        axes.plot(lengths, [rate.typical for rate in rates], color=colour, label=name)
        axes.fill_between(
            lengths, [rate.typical for rate in rates], [rate.best for rate in rates], color=colour, alpha=0.12
        )
    _points(axes, model)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = [2**power for power in range(4, 14) if 2**power <= longest]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel("tokens per text")
    axes.set_ylabel("texts per second of one GPU")
    axes.set_title(
        f"{model.id}, float16: typical over HTTP (line) to best published efficiency (band)\n"
        "lines and bands are computed, points were measured by others",
        fontsize=10,
    )
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(loc="upper right", fontsize=8)
    return figure


def _points(axes: Axes, model: Model) -> None:
    labelled = set()
    for row in data.published().values():
        # Rows of context were measured in another way than a server would be planned.
        if not (row.model and row.gpu in GPUS and row.tokens and row.per_second) or row.role == "context":
            continue
        shape = catalogue.models()[row.model]
        # Nomic's gated layers cost more than those of BERT-base, at the same depth and width.
        if (shape.layers, shape.hidden, shape.compute_parameters_m) != (
            model.layers,
            model.hidden,
            model.compute_parameters_m,
        ):
            continue
        kind = f"measured, {row.precision}, {row.path}"
        axes.scatter(
            row.tokens,
            row.per_second,
            color=f"C{GPUS.index(row.gpu)}",
            edgecolor="black",
            marker=_MARKERS[row.precision, row.path],
            zorder=3,
            label=None if kind in labelled else kind,
        )
        labelled.add(kind)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.capacity_plots", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the pictures go (default: docs/capacity)")
    folder: Path = parser.parse_args().folder
    mpl.use("agg")
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in MODELS.items():
        path = folder / f"{name}.png"
        # Without the writer's version the same numbers give the same file.
        draw(catalogue.models()[model]).savefig(path, metadata={"Software": None})
        print(path.relative_to(CHECKOUT) if path.is_relative_to(CHECKOUT) else path)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
