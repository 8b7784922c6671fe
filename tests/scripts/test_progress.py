"""Pulumi's lines as a person sees them."""

import pytest

from scripts.progress import Progress

pytestmark = pytest.mark.core

_POD = "warning: [Pod rag/embed-1]: containers with unready status: [tei]"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (" +  kubernetes:apps/v1:Deployment embed creating (0s) ", None),
        (f" +  kubernetes:apps/v1:Deployment embed creating (14s) {_POD}",
         "  ... waiting for Deployment embed (14 s): [Pod rag/embed-1]: containers with unready status: [tei]"),
        (" +  kubernetes:apps/v1:Deployment embed created (14s) ", "  ok  Deployment embed created (14 s)"),
        (" ~  kubernetes:apps/v1:Deployment embed updated (3s) [diff: ~spec]", "  ok  Deployment embed updated (3 s)"),
        (" ~  kubernetes:apps/v1:Deployment embed updating (0s) [diff: ~spec]", None),
        (f" ~  kubernetes:apps/v1:Deployment embed updating (2s) [diff: ~spec]; {_POD}",
         "  ... waiting for Deployment embed (2 s): [Pod rag/embed-1]: containers with unready status: [tei]"),
        (" -  kubernetes:core/v1:Service embed deleted (0s) ", "  ok  Service embed deleted (0 s)"),
        (" +  kubernetes:rbac.authorization.k8s.io/v1:ClusterRole keda created ", None),
        (" +  embedding-serving:addons:Addon addon-keda creating (0s) ", None),
        (" +  kubernetes:core/v1:Service embed creating (1s) [1/3] Finding Pods to direct traffic to", None),
        ("    + 102 created", "    + 102 created"),
        ("  kubernetes:apps/v1:Deployment (embed):", "  kubernetes:apps/v1:Deployment (embed):"),
        ("    error: no room", "    error: no room"),
    ],
)  # fmt: skip
def test_a_line_is_shown_when_it_says_something(line: str, shown: str | None) -> None:
    assert Progress().line(line) == shown


def test_what_is_waited_for_is_said_once() -> None:
    progress = Progress()
    lines = [f" +  kubernetes:apps/v1:Deployment embed creating ({seconds}s) {_POD}" for seconds in (1, 2)]
    assert [progress.line(line) is None for line in lines] == [False, True]


@pytest.mark.parametrize("state", ["**creating failed**", "creating failed"])
def test_a_failure_is_never_left_out(state: str) -> None:
    line = f" +  kubernetes:rbac.authorization.k8s.io/v1:ClusterRole keda {state} 1 error"
    assert Progress().line(line) is not None
