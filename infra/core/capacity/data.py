"""Measurements that others published, the seed's indicative numbers, and Spot prices: data files with sources."""

from functools import cache
from typing import Literal

from infra.core import catalogue
from infra.core.capacity import physics
from infra.core.capacity.physics import Precision
from infra.core.catalogue import Row, rows


class Published(Row):
    """One measurement. Either a rate or a latency; ``model`` is a catalogue model of the same shape."""

    id: str
    system: str
    #: http: texts over HTTP to a server. engine: the forward pass alone. None of the two for rows of context.
    path: Literal["http", "engine"]
    #: calibrates: sets a constant of physics.py and tests nothing. predicts: is compared with the formula.
    #: context: lacks something that the formula wants (the reason is in ``note``).
    role: Literal["calibrates", "predicts", "context"]
    model: str | None
    gpu: str | None
    tokens: int | None
    batch: int | None = None
    precision: Precision
    per_second: float | None = None
    latency_ms: float | None = None
    note: str = ""


class HeldLengths(Row):
    """Longest texts in tokens at which a claimed rate is possible, by efficiency."""

    source: str = "computed from the claim; a test recomputes it"
    typical: int
    best: int
    wall: int


class Indicative(Row):
    """A number of the seed. It names no text length, and holds for short texts only: ``holds`` says how short."""

    stack: str
    model: str
    gpu: str
    precision: Precision
    per_second: float
    p95_ms: float
    max_batch_tokens: int | None = None
    indicative: Literal[True]
    holds: HeldLengths


class SpotPrice(Row):
    """Range of Spot prices in USD per hour, us-east-1."""

    instance: str
    usd_h_low: float
    usd_h_high: float


@cache
def published() -> dict[str, Published]:
    """Measurements by id."""
    return {row["id"]: Published.model_validate(row) for row in rows("published", __package__)}


@cache
def indicative() -> tuple[Indicative, ...]:
    """The seed's rows, in its order."""
    return tuple(Indicative.model_validate(row) for row in rows("indicative", __package__))


@cache
def spot_prices() -> dict[str, SpotPrice]:
    """Spot prices by instance type."""
    return {row["instance"]: SpotPrice.model_validate(row) for row in rows("prices", __package__)}


def predict(row: Published) -> float | None:
    """What the formula says of a row, in the row's unit; None where the row lacks a model, a GPU or a length.

    Over HTTP the typical efficiency counts, for the engine alone the best published one.
    """
    if row.model is None or row.gpu is None or row.tokens is None:
        return None
    model, gpu = catalogue.models()[row.model], catalogue.gpus()[row.gpu]
    if row.latency_ms is not None:
        work = (row.batch or 1) * model.flops_per_document(row.tokens)
        return 1000 * (physics.launch_seconds(model) + work / (physics.peak(gpu, row.precision) * physics.BEST))
    rates = physics.rates(model, gpu, row.tokens, row.precision)
    return rates.typical if row.path == "http" else rates.best
