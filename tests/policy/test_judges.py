"""Outside judges of manifests/, and the list of what they say that is not followed."""

from pathlib import Path

import pytest

from local.judges import checkov, suppressions
from local.judges.checkov import Complaint
from local.judges.suppressions import Suppression
from local.paths import CHECKOUT
from local.report import PlainReporter

MANIFESTS = CHECKOUT / "manifests"
DOCUMENT = CHECKOUT / "docs/judges.md"


@pytest.fixture(scope="module")
def complaints() -> list[Complaint]:
    packages = checkov.install(PlainReporter())
    return [found for folder in sorted(MANIFESTS.iterdir()) for found in checkov.judge(folder, packages)]


@pytest.mark.local
def test_checkov_has_no_complaint_that_is_not_suppressed(complaints: list[Complaint]) -> None:
    assert [str(found) for found in checkov.not_suppressed(complaints, suppressions.read("checkov"))] == []


@pytest.mark.local
def test_every_suppression_still_covers_a_complaint(complaints: list[Complaint]) -> None:
    unused = [
        known.check
        for known in suppressions.read("checkov")
        if not any(known.covers(found.check, found.file) for found in complaints)
    ]
    assert unused == [], "remove them from local/judges/suppressions.yaml and from docs/judges.md"


@pytest.mark.local
def test_checkov_complains_about_a_pod_that_is_root_on_its_node(tmp_path: Path) -> None:
    # Without this a judge that looks at nothing would pass the tests above.
    (tmp_path / "pod-bad.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\n"
        "spec: {containers: [{name: a, image: 'a:1', securityContext: {privileged: true}}]}\n"
    )
    found = {(one.check, one.file) for one in checkov.judge(tmp_path, checkov.install(PlainReporter()))}
    assert ("CKV_K8S_16", "pod-bad.yaml") in found


@pytest.mark.policy
def test_a_suppression_is_for_one_check_and_some_files() -> None:
    known = Suppression(
        judge="checkov", check="A_1", title="t", family="tei", files=("deployment-*.yaml",), reason="r" * 40
    )
    found = [
        Complaint(check, "title", file, "object")
        for check in ("A_1", "A_2")
        for file in ("deployment-a.yaml", "job-a.yaml")
    ]
    assert [(one.check, one.file) for one in checkov.not_suppressed(found, (known,))] == [
        ("A_1", "job-a.yaml"),
        ("A_2", "deployment-a.yaml"),
        ("A_2", "job-a.yaml"),
    ]


@pytest.mark.policy
@pytest.mark.parametrize("known", suppressions.read("checkov"), ids=lambda known: known.check)
def test_the_document_shows_every_suppression_with_its_reason(known: Suppression) -> None:
    row = f"| {known.check} | {known.title} | {known.family} | {known.reason} |"
    assert row in DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.policy
def test_the_document_shows_no_suppression_that_is_gone() -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| CKV")]
    assert len(rows) == len(suppressions.read("checkov"))
