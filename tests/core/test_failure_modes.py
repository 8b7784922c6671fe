"""docs/failure-modes.md: every row names the tests that hold it; and rows that no other test is named after."""

import ast
import re
from pathlib import Path

import pytest

from infra.core import rules
from tests.core.kubernetes import tei
from tests.core.plans import refused_at, stack, workload

pytestmark = pytest.mark.core

CHECKOUT = Path(__file__).resolve().parents[2]
#: Of the list that the project started from: TEI, NIM, Pulumi, and what was seen while trying.
TEI = (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 23, 24, 25, 26, 27, 28)
NIM = (48, 49, 50, 51, 52, 53, 55, 56, 57, 58)
PULUMI = (88, 90, 92, 93, 94, 95, 97)
TRIED = (98, 99)


def rows() -> dict[str, list[str]]:
    """Id of a row -> its cells."""
    text = (CHECKOUT / "docs/failure-modes.md").read_text(encoding="utf-8")
    lines = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| case-")]
    return {cells[0].strip(): cells for cells in lines}


def names_in(file: str) -> set[str]:
    tree = ast.parse((CHECKOUT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_row_is_there_once_with_all_its_cells() -> None:
    assert list(rows()) == [f"case-{number:02}" for number in (*TEI, *NIM, *PULUMI, *TRIED)]
    assert {len(cells) for cells in rows().values()} == {5}


@pytest.mark.parametrize("row", [f"case-{number:02}" for number in (*TEI, *NIM, *PULUMI, *TRIED)])
def test_a_row_names_tests_that_exist_and_one_after_itself_or_says_why_not(row: str) -> None:
    held = rows()[row][-1]
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", held)
    assert [f"{file}::{name}" for file, name in named if name not in names_in(file)] == []
    number = row.removeprefix("case-")
    after_itself = [name for _, name in named if re.search(rf"case_{number}(?!\d)", name)]
    assert after_itself or re.search(r"no test: \w+ .{20,}", held), (
        "name a test after the row, or say why there is none"
    )


def test_no_test_is_named_after_a_row_that_the_document_does_not_have() -> None:
    # Triton, KEDA and nodes.
    elsewhere = set(range(29, 88)) - set(NIM)
    found = {
        int(number)
        for file in (CHECKOUT / "tests").rglob("test_*.py")
        for name in names_in(str(file.relative_to(CHECKOUT)))
        for number in re.findall(r"case_(\d+)", name)
    }
    assert found - elsewhere <= {int(row.removeprefix("case-")) for row in rows()}


def test_case_06_a_list_that_never_gets_its_places_is_refused() -> None:
    line = refused_at(stack(maxConcurrentRequests=64, maxClientBatchSize=65), "serving[0].maxConcurrentRequests")
    assert "65" in line
    found = rules.judge([tei(MAX_CONCURRENT_REQUESTS="64", MAX_CLIENT_BATCH_SIZE="65")])
    [said] = [str(one) for one in found if one.rule == "batch-and-concurrency"]
    assert "65 is more than MAX_CONCURRENT_REQUESTS (64)" in said
    # Up to 1.8 a list waited for its places.
    refused_at(stack(version="1.8.3"), "serving[0].version")


@pytest.mark.parametrize("gpu", ["T4", "L4", "A10G", "A100", "H100"])
def test_case_17_a_shared_gpu_is_not_what_pods_select(gpu: str) -> None:
    selected = workload(gpu).node_selector["nvidia.com/gpu.product"]
    assert not selected.endswith("-SHARED")


def test_case_90_and_case_97_the_provider_is_of_version_4() -> None:
    lock = (CHECKOUT / "requirements.lock").read_text(encoding="utf-8")
    assert re.findall(r"^pulumi-kubernetes==(\d+)\.", lock, re.MULTILINE) == ["4"]
