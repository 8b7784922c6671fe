"""Synthetic series as Prometheus would have scraped them, and promtool as the judge of what a query makes of them."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

#: Seconds between two scrapes, and so between two values of a series.
SCRAPE = 15
NAMESPACE = "rag"
SERVICE = "embed"


@dataclass(frozen=True)
class Pod:
    """One target of a ServiceMonitor. Values are one per scrape, in promtool's notation.

    ``1x8`` is nine times 1, ``0+15x8`` counts from 0 in eight steps of 15, ``_x8`` is eight scrapes without the series,
    ``stale`` is where Prometheus notes that a series has ended: its scrape failed, or the pod is no target any more.
    """

    name: str
    up: str
    queue: str = ""
    #: Values of te_request_failure by the label err.
    failures: Mapping[str, str] = field(default_factory=dict)
    namespace: str = NAMESPACE
    service: str = SERVICE
    endpoint: str = "http"

    def series(self) -> list[dict[str, str]]:
        named: list[tuple[str, dict[str, str], str]] = [("up", {}, self.up)]
        if self.queue:
            named.append(("te_queue_size", {}, self.queue))
        named += [("te_request_failure", {"err": err}, values) for err, values in self.failures.items()]
        target = {
            "namespace": self.namespace,
            "service": self.service,
            "pod": self.name,
            "job": self.service,
            "endpoint": self.endpoint,
            "instance": f"{self.name}:8080",
        }
        return [{"series": f"{name}{_labels(target | own)}", "values": values} for name, own, values in named]


@dataclass(frozen=True)
class Promtool:
    program: Path
    folder: Path

    def judge(
        self, query: str, pods: Sequence[Pod], at: int, samples: Mapping[str, float]
    ) -> subprocess.CompletedProcess[str]:
        """promtool's verdict on whether ``query`` gives exactly ``samples`` (labels to value) ``at`` seconds."""
        test = {
            "interval": f"{SCRAPE}s",
            "input_series": [one for pod in pods for one in pod.series()],
            "promql_expr_test": [
                {
                    "expr": query,
                    "eval_time": f"{at}s",
                    "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
                }
            ],
        }
        file = self.folder / "test.yaml"
        # Numbers may differ in the last binary digits: rate() multiplies by fractions.
        content = {"rule_files": [], "evaluation_interval": f"{SCRAPE}s", "fuzzy_compare": True, "tests": [test]}
        file.write_text(yaml.safe_dump(content))
        return subprocess.run(
            [self.program, "test", "rules", file], capture_output=True, text=True, check=False, timeout=60
        )

    def number(
        self, groups: Sequence[Mapping[str, Any]], series: Mapping[str, str], query: str, at: int, value: float | None
    ) -> None:
        """By the rules of ``groups`` ``query`` gives one number without labels ``at`` seconds, or nothing (None)."""
        rules, file = self.folder / "rules.yaml", self.folder / "test.yaml"
        rules.write_text(yaml.safe_dump({"groups": [*groups]}))
        samples = [] if value is None else [{"labels": "{}", "value": value}]
        test = {
            "interval": f"{SCRAPE}s",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [{"expr": query, "eval_time": f"{at}s", "exp_samples": samples}],
        }
        content = {
            "rule_files": [str(rules)],
            "evaluation_interval": f"{SCRAPE}s",
            "fuzzy_compare": True,
            "tests": [test],
        }
        file.write_text(yaml.safe_dump(content))
        verdict = subprocess.run(
            [self.program, "test", "rules", file], capture_output=True, text=True, check=False, timeout=60
        )
        assert verdict.returncode == 0, verdict.stdout + verdict.stderr

    def expect(self, query: str, pods: Sequence[Pod], at: int, value: float | None) -> None:
        """``query`` gives one number without labels ``at`` seconds, or nothing (None)."""
        verdict = self.judge(query, pods, at, {} if value is None else {"{}": value})
        assert verdict.returncode == 0, verdict.stdout + verdict.stderr


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
