"""A kubectl that answers what a test tells it to, and the contract's workload with changes."""

import json
from pathlib import Path
from typing import Any

from infra.core.contract import WorkloadContract
from scripts.access import Access
from tests.scripts.conftest import changed, planned

#: kubectl [--context X] --request-timeout=N (get KIND [NAME] | VERB) ...: answers from KIND-NAME.json, KIND.json or
#: VERB.json, with --previous from previous.json, else from err.
_KUBECTL = """#!/bin/sh
here=$(dirname "$0")
echo "$KUBECONFIG|$@" >> "$here/calls"
[ "$1" = --context ] && shift 2
shift
[ "$1" = get ] && shift
case "$*" in *" --previous"*) set -- previous ;; esac
[ -f "$here/$1-$2.json" ] && exec cat "$here/$1-$2.json"
[ -f "$here/$1.json" ] && exec cat "$here/$1.json"
cat "$here/err" >&2
exit 1
"""


class Cluster:
    """What is in the cluster, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubectl = folder / "kubectl"
        self.kubectl.write_text(_KUBECTL)
        self.kubectl.chmod(0o755)
        (folder / "config").write_text("")
        self.says("Error from server (NotFound): nothing is here")
        self.access = Access(kubeconfig=folder / "config", kubectl=self.kubectl)

    def says(self, error: str) -> None:
        (self.folder / "err").write_text(error)

    def has(self, kind: str, content: object) -> None:
        (self.folder / f"{kind}.json").write_text(content if isinstance(content, str) else json.dumps(content))

    def calls(self) -> str:
        return (self.folder / "calls").read_text()


def pod(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"phase": "Running", **status}}


def ready_pod(name: str, restarts: int = 0, *, ready: bool = True) -> dict[str, Any]:
    return pod(
        name,
        conditions=[{"type": "Ready", "status": "True" if ready else "False"}],
        containerStatuses=[{"name": "tei", "restartCount": restarts}],
    )


def workload(**changes: Any) -> WorkloadContract:
    """The workload of the stack ``local`` as its contract has it; its model takes changes of its own fields."""
    return changed(planned()[1].workloads[0], **changes)


#: Of a workload that KEDA scales.
SCALING: dict[str, Any] = {
    "name": "embed",
    "min": 1,
    "max": 3,
    "server_address": "http://prometheus-operated.monitoring.svc.cluster.local:9090",
    "triggers": [
        {"name": "queue", "query": "the queue", "threshold": "8"},
        {"name": "overload", "query": "the refused", "threshold": "0.1"},
    ],
}


def scaled(**changes: Any) -> WorkloadContract:
    return workload(scaling=SCALING, replicas=1, max_replicas=3, **changes)
