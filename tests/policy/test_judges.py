"""Outside judges of manifests/, and the list of what they say that is not followed."""

from pathlib import Path

import pytest

from local import judges
from local.judges import suppressions
from local.judges.complaints import Complaint, Remark, complaints_of
from local.judges.suppressions import Suppression
from local.paths import CHECKOUT
from local.report import PlainReporter

MANIFESTS = CHECKOUT / "manifests"
DOCUMENT = CHECKOUT / "docs/judges.md"
KNOWN = suppressions.read()


@pytest.fixture(scope="module")
def complaints() -> list[Complaint]:
    folders = [path for path in sorted(MANIFESTS.iterdir()) if path.is_dir()]
    return [found for folder in folders for found in judges.complaints(folder, PlainReporter())]


@pytest.mark.local
def test_no_judge_has_a_complaint_that_is_not_suppressed(complaints: list[Complaint]) -> None:
    open_ones = [str(found) for found in suppressions.not_suppressed(complaints, KNOWN)]
    assert open_ones == [], "change the objects, or suppress with a reason (docs/judges.md says how)"


@pytest.mark.local
def test_every_suppression_still_covers_a_complaint(complaints: list[Complaint]) -> None:
    assert suppressions.unused(complaints, KNOWN) == [], "remove them from suppressions.yaml and docs/judges.md"


@pytest.mark.local
@pytest.mark.parametrize(
    ("judge", "check"), [("checkov", "CKV_K8S_16"), ("kube-score", "container-security-context-privileged")]
)
def test_a_judge_complains_about_a_pod_that_is_root_on_its_node(tmp_path: Path, judge: str, check: str) -> None:
    # Without this a judge that looks at nothing would pass the tests above.
    (tmp_path / "addons").mkdir()
    (tmp_path / "addons/bad.yaml").write_text(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: good}\n---\n"
        "apiVersion: v1\nkind: Pod\nmetadata: {name: bad.one, namespace: a}\n"
        "spec: {containers: [{name: a, image: 'a:1', securityContext: {privileged: true}}]}\n"
    )
    remarks = judges.JUDGES[judge](tmp_path, PlainReporter())
    found = {(one.check, one.file, one.kind, one.name) for one in remarks}
    assert (check, "addons/bad.yaml", "Pod", "bad.one") in found


MANIFEST = """
kind: {kind}
metadata: {{name: {name}, labels: {{app.kubernetes.io/name: text-embeddings-inference}}}}
"""


def _said(check: str, file: str, name: str, kind: str = "Deployment") -> Remark:
    return Remark(check, "title", file, kind, name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "addons").mkdir()
    for file, kind, name in (("d.yaml", "Deployment", "embed"), ("addons/keda.yaml", "Deployment", "keda")):
        (tmp_path / file).write_text(MANIFEST.format(kind=kind, name=name))
    (tmp_path / "namespace.yaml").write_text("kind: Namespace\nmetadata: {name: rag}\n")
    return tmp_path


@pytest.mark.policy
def test_an_object_belongs_to_its_engine_to_the_operators_or_to_the_stack(folder: Path) -> None:
    said = [
        _said("A", "d.yaml", "embed"),
        _said("A", "d.yaml", "embed.its-labels", "Pod"),
        _said("A", "addons/keda.yaml", "keda"),
        _said("A", "namespace.yaml", "rag", "Namespace"),
    ]
    found = {(one.remark.kind, one.remark.name): one.family for one in complaints_of("checkov", folder, said)}
    assert found == {
        ("Deployment", "embed"): "tei",
        ("Pod", "embed.its-labels"): "tei",
        ("Deployment", "keda"): "operators",
        ("Namespace", "rag"): "stack",
    }


@pytest.mark.policy
def test_a_suppression_is_for_one_check_of_one_judge_and_one_family(folder: Path) -> None:
    known = Suppression(
        judge="checkov", check="A_1", title="t", family="tei", objects=("Deployment *", "Job *"), reason="r" * 40
    )
    said = [_said(check, file, name) for check in ("A_1", "A_2") for file, name in (("d.yaml", "embed"),)]
    said.append(_said("A_1", "addons/keda.yaml", "keda"))
    found = [one for judge in ("checkov", "kube-score") for one in complaints_of(judge, folder, said)]
    left = {(one.judge, one.family, one.remark.check) for one in suppressions.not_suppressed(found, [known])}
    assert left == {
        ("checkov", "tei", "A_2"),
        ("checkov", "operators", "A_1"),
        ("kube-score", "tei", "A_1"),
        ("kube-score", "tei", "A_2"),
        ("kube-score", "operators", "A_1"),
    }
    assert suppressions.unused(found, [known]) == ["checkov A_1, family tei: Job *"]


@pytest.mark.policy
def test_the_document_shows_every_suppression_with_its_reason_and_no_other() -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    shown = [row for row in rows if row.split(" | ")[0].removeprefix("| ") in judges.JUDGES and row.count(" | ") == 5]
    assert shown == [row_of(known) for known in KNOWN]


def row_of(known: Suppression) -> str:
    objects = ", ".join(f"`{pattern}`" for pattern in known.objects)
    return f"| {known.judge} | {known.check} | {known.title} | {known.family} | {objects} | {known.reason} |"
