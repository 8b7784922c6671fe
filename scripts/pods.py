"""Why pods are not ready, from what the API server says of them."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from scripts.access import Access
from scripts.command import CommandError

#: Longest message of a container or of the scheduler that is repeated.
_LONGEST = 200


def troubles(access: Access, namespace: str) -> list[str]:
    """One line for each pod of ``namespace`` that is not ready; one line as well when the cluster cannot be asked."""
    try:
        pods = json.loads(access.run("get", "pods", "--namespace", namespace, "--output", "json"))["items"]
    except CommandError as error:
        return [f"why pods are not ready is not known: {error}"]
    return list(_lines(pods))


def _lines(pods: Iterable[dict[str, Any]]) -> Iterator[str]:
    for pod in pods:
        if "deletionTimestamp" in pod["metadata"]:
            continue
        if (found := trouble(pod)) is not None:
            reason, next_step = found
            yield f"pod {pod['metadata']['name']} is not ready: {reason}; {next_step}"


def trouble(pod: dict[str, Any]) -> tuple[str, str] | None:
    """Why a pod is not ready, in the words of the cluster, and what to do; None for one that is ready or has ended."""
    name, namespace, status = pod["metadata"]["name"], pod["metadata"].get("namespace", "default"), pod["status"]
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    if status.get("phase") == "Succeeded" or conditions.get("Ready", {}).get("status") == "True":
        return None
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        # What follows is about evicting others, which is tried for pods of a higher priority only.
        message = (scheduled.get("message") or scheduled.get("reason") or "").partition(" preemption:")[0]
        return _line(message), (
            "no node has room for it: ask for less in the stack file, or give its pool bigger or more nodes"
        )
    logs = f"kubectl -n {namespace} logs {name}"
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = container.get("state", {}).get("waiting")
        ended = container.get("lastState", {}).get("terminated") or container.get("state", {}).get("terminated")
        if ended and ended.get("exitCode") == 0 and not waiting:
            continue
        reasons = [_said(waiting)] if waiting else []
        if ended:
            reasons.append(f"it ended last with {_said(ended)}, exit code {ended.get('exitCode')}")
        if reasons:
            previous = " --previous" if ended and container.get("lastState", {}).get("terminated") else ""
            step = (
                f"{logs} -c {container['name']}{previous}" if ended else f"kubectl -n {namespace} describe pod {name}"
            )
            return ", ".join(reasons), step
    unready = conditions.get("Ready", {})
    return _line(unready.get("message") or unready.get("reason") or f"phase {status.get('phase')}"), logs


def _said(state: dict[str, Any]) -> str:
    return _line(f"{state.get('reason') or ''} {state.get('message') or ''}")


def _line(text: str | None) -> str:
    line = " ".join((text or "no reason given").split()) or "no reason given"
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."
