"""kube-score over rendered manifests; built by the toolchain."""

import json
import subprocess
from pathlib import Path
from typing import Any

from local import toolchain
from local.judges.complaints import Remark
from local.report import Reporter
from local.toolchain.errors import ToolchainError

#: Whose API versions count: the oldest Kubernetes that the blueprint deploys to.
_KUBERNETES = "v1.30"
#: Of a check that was passed (scorecard.GradeAllOK).
_PASSED = 10


def judge(folder: Path, reporter: Reporter) -> list[Remark]:
    """What kube-score says of the manifests in ``folder``, warnings included.

    Raises ToolchainError when it gives no verdict.
    """
    program = toolchain.ensure(["kube-score"], reporter)["kube-score"]
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml"))
    result = subprocess.run(
        [
            *(program, "score", "--output-format", "json", "--kubernetes-version", _KUBERNETES),
            # An annotation would suppress without a reason in suppressions.yaml.
            "--disable-ignore-checks-annotations",
            *files,
        ],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        report = json.loads(result.stdout)
    except json.JSONDecodeError:
        raise ToolchainError(
            f"kube-score gave no verdict on {folder} (exit code {result.returncode})",
            tuple((result.stderr or result.stdout).strip().splitlines()[-8:]),
        ) from None
    return _remarks(report, folder)


def _remarks(report: Any, folder: Path) -> list[Remark]:
    found = []
    for judged in report:
        for check in judged["checks"]:
            if check["skipped"] or check["grade"] >= _PASSED:
                continue
            named = {comment["summary"] for comment in check["comments"] or ()}
            title = f"{check['check']['name']}: {', '.join(sorted(named))}" if named else check["check"]["name"]
            kind, name = judged["type_meta"]["kind"], judged["object_meta"]["name"]
            file = Path(judged["file_name"]).relative_to(folder.resolve()).as_posix()
            found.append(Remark(check["check"]["id"], title, file, kind, name))
    return found
