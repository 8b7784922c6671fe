"""Why pods are not ready, as `make up` says it."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.access import Access
from scripts.pods import trouble, troubles

pytestmark = pytest.mark.core


def _pod(name: str = "embed-1", ready: str = "False", **status: Any) -> dict[str, Any]:
    message = {"message": "containers with unready status: [engine]"} if ready == "False" else {}
    conditions = [{"type": "Ready", "status": ready, **message}, *status.pop("conditions", [])]
    return {
        "metadata": {"name": name, "namespace": "serving"},
        "status": {"phase": "Running", "conditions": conditions, **status},
    }


def _container(**states: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "engine", **states}]}


def _unscheduled(message: str) -> dict[str, Any]:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]}


@pytest.mark.parametrize(
    ("status", "reason", "next_step"),
    [
        (
            _unscheduled("0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes can help."),
            "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
            "no node has room for it: ask for less in the stack file",
        ),
        (
            _container(state={"waiting": {"reason": "ErrImagePull", "message": "no such\n image"}}),
            "ErrImagePull no such image",
            "kubectl -n serving describe pod embed-1",
        ),
        (
            _container(
                state={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
                lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}},
            ),
            "CrashLoopBackOff back-off 10s, it ended last with OOMKilled, exit code 137",
            "kubectl -n serving logs embed-1 -c engine --previous",
        ),
        (
            _container(state={"terminated": {"reason": "Error", "exitCode": 1}}),
            "it ended last with Error, exit code 1",
            "kubectl -n serving logs embed-1 -c engine",
        ),
        (
            _container(state={"running": {}}),
            "containers with unready status: [engine]",
            "kubectl -n serving logs embed-1",
        ),
        ({"conditions": [], "phase": "Pending"}, "containers with unready status", "kubectl -n serving logs embed-1"),
    ],
)
def test_a_pod_says_why_it_is_not_ready_and_what_to_do(status: dict[str, Any], reason: str, next_step: str) -> None:
    found = trouble(_pod(**status))
    assert found is not None
    assert found[0].startswith(reason)
    assert "preemption" not in found[0]
    assert found[1].startswith(next_step)


def test_an_init_container_that_did_its_work_is_not_the_reason() -> None:
    done = {"name": "init", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}}
    waiting = _container(state={"waiting": {"reason": "ContainerCreating"}})
    found = trouble(_pod(initContainerStatuses=[done], **waiting))
    assert found is not None
    assert found[0] == "ContainerCreating"


def test_pods_that_are_ready_or_have_done_their_work_are_no_trouble() -> None:
    assert trouble(_pod(ready="True")) is None
    assert trouble(_pod(phase="Succeeded")) is None


def test_a_pod_of_which_nothing_is_known_yet_is_a_line_too() -> None:
    assert trouble({"metadata": {"name": "new"}, "status": {"phase": "Pending"}}) is not None


def _access(folder: Path, answer: str) -> Access:
    (folder / "config").touch()
    kubectl = folder / "kubectl"
    kubectl.write_text(f"#!/bin/sh\n{answer}\n")
    kubectl.chmod(0o755)
    return Access(kubeconfig=folder / "config", kubectl=kubectl)


def test_each_pod_that_is_not_ready_is_one_line_and_pods_on_their_way_out_are_none(tmp_path: Path) -> None:
    leaving = _pod("old")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    pods = [_pod("well", ready="True"), _pod("new", **_unscheduled("Insufficient nvidia.com/gpu")), leaving]
    (tmp_path / "pods.json").write_text(json.dumps({"items": pods}))
    (line,) = troubles(_access(tmp_path, f"cat {tmp_path}/pods.json"), "serving")
    assert line.startswith("pod new is not ready: Insufficient nvidia.com/gpu; ")


def test_a_cluster_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    (line,) = troubles(_access(tmp_path, "echo 'Unable to connect to the server: EOF' >&2; exit 1"), "serving")
    assert "Unable to connect" in line
