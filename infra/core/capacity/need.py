"""What a user needs, in place of sizes: load, length of the texts, and how long an answer may take."""

import math
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

HOURS_PER_MONTH = 730
SECONDS_PER_MONTH = HOURS_PER_MONTH * 3600

#: Where the sample of lengths looks into each band between two quantiles: middles of ten equal parts.
_PARTS = 10
#: Without a longest text twice the 95th percentile is assumed.
_MAX_OVER_P95 = 2


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", allow_inf_nan=False, frozen=True, alias_generator=to_camel, validate_by_name=False, strict=True
    )


class TokenLengths(_Section):
    """Lengths of the texts in tokens of the model's tokenizer."""

    p50: int = Field(ge=1, le=1_000_000, description="Half of the texts are no longer")
    p95: int = Field(ge=1, le=1_000_000, description="95 % of the texts are no longer")
    max: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Longest text; default: twice p95 for sizes, the model's limit for time and payload limits",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.p50 > self.p95:
            raise ValueError(f"p50 {self.p50} is above p95 {self.p95}; allowed: p50 <= p95")
        if self.max is not None and self.max < self.p95:
            raise ValueError(f"max {self.max} is below p95 {self.p95}; allowed: max >= p95")
        return self

    @property
    def longest(self) -> int:
        """The longest text, given or assumed."""
        return _MAX_OVER_P95 * self.p95 if self.max is None else self.max

    def sample(self, limit: int) -> tuple[tuple[float, float], ...]:
        """The texts as (share, tokens) pairs; shares add up to 1, texts over ``limit`` tokens count as cut to it.

        Half of them count with p50 tokens, 45 % lie evenly between p50 and p95, 5 % between p95 and the longest. Texts
        below the median count as the median: that is on the safe side, and no text of the sample gets shorter when
        any of the three numbers grows.
        """
        pairs = [(0.5, float(self.p50))]
        for share, low, high in ((0.45, self.p50, self.p95), (0.05, self.p95, self.longest)):
            pairs += [(share / _PARTS, low + (high - low) * (part + 0.5) / _PARTS) for part in range(_PARTS)]
        return tuple((share, min(tokens, float(limit))) for share, tokens in pairs)

    def mean(self, limit: int) -> float:
        """Mean length in tokens of what a model with ``limit`` tokens reads."""
        return sum(share * tokens for share, tokens in self.sample(limit))


class Need(_Section):
    """What a workload has to do: ``need: {...}`` of a stack file, in place of replicas and batch sizes.

    Rerankers: a document is one pair of query and text, its tokens are those of both.
    """

    documents_per_second: float | None = Field(
        default=None, gt=0, le=1e9, description="Texts (rerankers: pairs) per second at the peak"
    )
    documents_per_month: float | None = Field(
        default=None,
        gt=0,
        le=1e15,
        description="Texts per month of 730 h, spread evenly; say documentsPerSecond for peaks",
    )
    tokens: TokenLengths = Field(description="Lengths of the texts in tokens")
    latency_ms: float | None = Field(
        default=None,
        gt=0,
        le=3_600_000,
        description="Milliseconds in the engine that 95 % of the texts may take, queue included",
    )
    headroom: float = Field(
        default=0.3,
        ge=0,
        le=0.9,
        description="Share of each replica's throughput that is kept free for bursts and failures",
    )

    @model_validator(mode="after")
    def _one_load(self) -> Self:
        if (self.documents_per_second is None) == (self.documents_per_month is None):
            given = "Neither is given" if self.documents_per_second is None else "Both are given"
            raise ValueError(f"{given}; allowed: one of documentsPerSecond and documentsPerMonth")
        return self

    @property
    def load(self) -> float:
        """Texts per second."""
        if self.documents_per_second is not None:
            return self.documents_per_second
        return (self.documents_per_month or 0) / SECONDS_PER_MONTH

    @property
    def usable(self) -> float:
        """Share of a replica's throughput that is planned with."""
        return 1 - self.headroom


def rounded(value: float) -> str:
    """A number for people: whole above 100, else three significant digits."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f}"
