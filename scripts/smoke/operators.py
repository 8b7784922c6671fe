"""Operators that the stack installed: their Deployments, the APIs that they serve, and the Prometheus among them."""

import json
from collections.abc import Mapping
from typing import Any

from infra.core import catalogue
from infra.core.contract import Contract
from infra.core.errors import counted
from scripts.access import Access, NotFoundError
from scripts.smoke.results import Check, PendingError, UnmetError, patient

#: A restarted operator is back within seconds.
_WAIT_SECONDS = 60
#: Kind -> condition that says that it works.
_CONDITIONS = {"Deployment": "Available", "APIService": "Available", "Prometheus": "Available"}


class Operator:
    """One entry of the contract's ``addons``."""

    def __init__(self, addon: Mapping[str, Any], access: Access, wait_seconds: float = _WAIT_SECONDS) -> None:
        self._name: str = addon["name"]
        self._version: str = addon["version"]
        self._access = access
        self._wait = wait_seconds

    def check(self) -> Check:
        return Check(f"operator {self._name}", patient(self.available, self._wait))

    def available(self) -> str:
        """All of them say Available."""
        row = catalogue.addons().get(self._name)
        if row is None or row.version != self._version:
            known = f"version {row.version}" if row else "none"
            raise UnmetError(
                f"the stack has {self._name} {self._version}, this checkout knows {known}",
                "test with the checkout that deployed it, or run pulumi up from this one",
            )
        _, objects = catalogue.addon_objects(self._name)
        names: dict[str, list[str]] = {kind: [] for kind in _CONDITIONS}
        for one in objects:
            if one["kind"] in _CONDITIONS:
                self._require(one)
                names[one["kind"]].append(one["metadata"]["name"])
        deployments = counted(len(names.pop("Deployment")), "Deployment")
        others = "".join(f", {kind} {', '.join(found)}" for kind, found in names.items() if found)
        return f"{self._version}: {deployments}{others}: available"

    def _require(self, planned: Mapping[str, Any]) -> None:
        kind, metadata = planned["kind"], planned["metadata"]
        namespace = ["-n", metadata["namespace"]] if "namespace" in metadata else []
        try:
            found = json.loads(self._access.run("get", kind.lower(), metadata["name"], *namespace, "-o", "json"))
        except NotFoundError as error:
            raise UnmetError(str(error), "was it deleted by hand? pulumi up --refresh makes it again") from None
        conditions = (found.get("status") or {}).get("conditions") or []
        condition: Mapping[str, Any] = next((one for one in conditions if one["type"] == _CONDITIONS[kind]), {})
        if condition.get("status") != "True":
            said = condition.get("message") or "it says nothing"
            where = " ".join(["kubectl", *namespace, "describe", kind.lower(), metadata["name"]])
            raise PendingError(UnmetError(f"{kind} {metadata['name']} is not available: {said}", where))


def checks(contract: Contract, access: Access) -> list[Check]:
    """One for each operator that the stack installed."""
    return [Operator(addon, access).check() for addon in contract.addons]
