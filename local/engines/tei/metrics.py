"""The router's Prometheus text: names, lazy registration, buckets and number format of the recorded /metrics.

Names and buckets: recording metrics/names.json and metrics/01-after-one-embed.txt. TYPE lines, no HELP, no `_total`.
"""

from collections.abc import Iterable
from decimal import Decimal


def _powers_of_two(last: int) -> list[float]:
    buckets = [1.0]
    while buckets[-1] * 2 < last:
        buckets.append(buckets[-1] * 2)
    return [*buckets, float(last)]


def _durations() -> list[float]:
    buckets: list[float] = []
    value = 0.00001
    for _ in range(35):
        value *= 1.5
        buckets.append(value)
    return buckets


def number(value: float) -> str:
    """A number as Rust prints an f64: shortest digits, never an exponent, no ".0"."""
    text = format(Decimal(repr(value)), "f")
    return text.removesuffix(".0")


class _Histogram:
    def __init__(self, buckets: list[float]) -> None:
        self.buckets = buckets
        self.counts = [0] * len(buckets)
        self.total = 0.0
        self.observations = 0

    def record(self, value: float) -> None:
        self.total += value
        self.observations += 1
        for index, bound in enumerate(self.buckets):
            if value <= bound:
                self.counts[index] += 1

    def lines(self, name: str) -> Iterable[str]:
        for bound, count in zip(self.buckets, self.counts, strict=True):
            yield f'{name}_bucket{{le="{number(bound)}"}} {count}'
        yield f'{name}_bucket{{le="+Inf"}} {self.observations}'
        yield f"{name}_sum {number(self.total)}"
        yield f"{name}_count {self.observations}"


class Metrics:
    """Counters, one gauge and histograms; each appears only once it was touched. Not thread-safe."""

    def __init__(self, max_input_length: int) -> None:
        self._counters: dict[str, dict[str, int]] = {}
        self._gauges: dict[str, float] = {}
        self._histograms: dict[str, _Histogram] = {}
        self._durations = _durations()
        self._buckets = {
            "te_request_input_length": _powers_of_two(max_input_length),
            "te_batch_next_size": _powers_of_two(4096),
            "te_batch_next_tokens": _powers_of_two(2**20),
        }

    def count(self, name: str, **labels: str) -> None:
        shown = ",".join(f'{key}="{value}"' for key, value in labels.items())
        series = self._counters.setdefault(name, {})
        key = f"{{{shown}}}" if shown else ""
        series[key] = series.get(key, 0) + 1

    def failure(self, reason: str) -> None:
        self.count("te_request_failure", err=reason)

    def add(self, name: str, change: float) -> None:
        self._gauges[name] = self._gauges.get(name, 0.0) + change

    def set(self, name: str, value: float) -> None:
        self._gauges[name] = value

    def observe(self, name: str, value: float) -> None:
        histogram = self._histograms.get(name)
        if histogram is None:
            histogram = self._histograms[name] = _Histogram(self._buckets.get(name, self._durations))
        histogram.record(value)

    def text(self) -> str:
        blocks: list[str] = []
        for name, series in self._counters.items():
            lines = [f"{name}{labels} {value}" for labels, value in series.items()]
            blocks.append("\n".join([f"# TYPE {name} counter", *lines]))
        for name, value in self._gauges.items():
            blocks.append(f"# TYPE {name} gauge\n{name} {number(value)}")
        for name, histogram in self._histograms.items():
            blocks.append("\n".join([f"# TYPE {name} histogram", *histogram.lines(name)]))
        return "".join(f"{block}\n\n" for block in blocks)
