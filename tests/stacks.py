"""Stack files as tests want them: the committed ones, and small ones made on the spot."""

import copy
from pathlib import Path
from typing import Any

import yaml

STACKS = Path(__file__).resolve().parent.parent / "stacks"


def committed(name: str) -> dict[str, Any]:
    """The structured object of a committed stack file."""
    text = (STACKS / f"Pulumi.{name}.yaml").read_text(encoding="utf-8")
    stack: dict[str, Any] = yaml.safe_load(text)["config"]["embedding-serving:stack"]
    return stack


def local(**changes: Any) -> dict[str, Any]:
    """The first workload of the committed stack ``local`` with changes: one pod, two GPUs, no operators."""
    stack = copy.deepcopy(committed("local"))
    for section in ("addons", "monitoring"):
        del stack[section]
    del stack["serving"][1:]
    del stack["serving"][0]["scaling"]
    stack["nodePools"][0]["allocatable"]["gpus"] = 2
    sizes = {"maxConcurrentRequests": 64, "longestRequestSeconds": 45, "resources": {"cpu": "500m", "memory": "1Gi"}}
    stack["serving"][0].update({"replicas": 1, **sizes, **changes})
    return stack
