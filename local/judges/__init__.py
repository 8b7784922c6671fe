"""Outside judges of the rendered manifests: tools that know Kubernetes and nothing of this blueprint.

A judge that is right is a reason to change an object. One that is not is suppressed in suppressions.yaml, for one check
and one family of objects, with the reason; docs/judges.md shows the list.
"""

from collections.abc import Callable
from pathlib import Path

from local.judges import checkov, kube_score
from local.judges.complaints import Complaint, Remark, complaints_of
from local.report import Reporter

#: Name -> what makes the judge ready and gives its verdict on a folder.
JUDGES: dict[str, Callable[[Path, Reporter], list[Remark]]] = {"checkov": checkov.judge, "kube-score": kube_score.judge}


def complaints(folder: Path, reporter: Reporter) -> list[Complaint]:
    """What all judges say of the manifests in ``folder``. Installs or builds them first.

    Raises ToolchainError when one cannot be had or gives no verdict.
    """
    return [
        complaint for judge, ask in JUDGES.items() for complaint in complaints_of(judge, folder, ask(folder, reporter))
    ]
