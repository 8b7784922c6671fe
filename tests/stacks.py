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
    """The committed stack ``local`` with changes to its first workload."""
    stack = copy.deepcopy(committed("local"))
    stack["serving"][0].update(changes)
    return stack
