"""Runs under a program's interpreter and prints what is installed there, as one JSON object. Standard library only."""

import json
import platform
import re
import sys
from importlib import metadata
from typing import Any


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def plugin(distribution: metadata.Distribution) -> dict[str, Any] | None:
    """The `pulumi-plugin.json` that a provider SDK carries in its package: keys resource, name, version, server."""
    package = canonical(distribution.name).replace("-", "_")
    if not package.startswith("pulumi_"):
        return None
    try:
        text = distribution.locate_file(f"{package}/pulumi-plugin.json").read_text()
    except OSError:
        return None
    found: dict[str, Any] = json.loads(text)
    return found


distributions = list(metadata.distributions())
required = {
    canonical(match.group())
    for distribution in distributions
    for requirement in distribution.requires or []
    if "extra ==" not in requirement and (match := re.match(r"[\w.-]+", requirement))
}
packages = [
    {
        "name": distribution.name,
        "version": distribution.version,
        "direct": canonical(distribution.name) not in required,
        "plugin": plugin(distribution),
    }
    for distribution in distributions
]
json.dump({"executable": sys.executable, "version": platform.python_version(), "packages": packages}, sys.stdout)
