"""checkov over rendered manifests; installed from a hashed lock into the cache, apart from the project's packages."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local.judges.suppressions import Suppression
from local.report import Reporter
from local.toolchain.cache import Entry, content_key
from local.toolchain.errors import ToolchainError
from local.toolchain.process import run_logged

LOCK = Path(__file__).with_name("checkov.lock")


@dataclass(frozen=True)
class Complaint:
    """A check that failed. ``file`` is relative to the folder that was judged."""

    check: str
    title: str
    file: str
    object: str

    def __str__(self) -> str:
        return f"{self.file}: {self.check}: {self.title}"


def install(reporter: Reporter) -> Path:
    """The directory with checkov and its packages, made on first use. Raises ToolchainError."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    entry = Entry("checkov", content_key([LOCK.read_bytes(), python]))
    return entry.obtain(reporter, lambda _, out: _install(out, entry.log), "installing checkov", keep=1)


def _install(target: Path, log: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    run_logged(
        [
            *(uv, "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--link-mode", "copy"),
            *("--python", sys.executable, "--target", target, "-r", LOCK),
        ],
        what="installing checkov",
        log=log,
        server="the Python package index",
    )


def judge(folder: Path, packages: Path) -> list[Complaint]:
    """What checkov says of the manifests in ``folder``. Raises ToolchainError when it gives no verdict."""
    result = subprocess.run(
        [
            *(sys.executable, "-m", "checkov.main", "--directory", folder, "--framework", "kubernetes"),
            *("--output", "json", "--quiet", "--compact", "--skip-download"),
        ],
        # Nothing of the project's environment, and no telemetry or guideline look-ups.
        env={**_without_settings(os.environ), "PYTHONPATH": str(packages), "CHECKOV_RUN_SCA_PACKAGE_SCAN_V2": "false"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        report = json.loads(result.stdout)
    except json.JSONDecodeError:
        raise ToolchainError(
            f"checkov gave no verdict on {folder} (exit code {result.returncode})",
            tuple(result.stderr.strip().splitlines()[-8:]),
        ) from None
    return _complaints(report, folder)


def _without_settings(variables: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in variables.items() if not key.startswith(("CHECKOV_", "CKV_", "BC_", "PYTHON"))}


def _complaints(report: Any, folder: Path) -> list[Complaint]:
    # One framework gives an object, several a list.
    runs = report if isinstance(report, list) else [report]
    failed = [check for run in runs for check in run.get("results", {}).get("failed_checks", [])]
    found = [
        Complaint(
            check["check_id"],
            check["check_name"],
            Path(check["file_abs_path"]).relative_to(folder.resolve()).as_posix(),
            check["resource"],
        )
        for check in failed
    ]
    return sorted(found, key=lambda complaint: (complaint.file, complaint.check))


def not_suppressed(complaints: list[Complaint], known: tuple[Suppression, ...]) -> list[Complaint]:
    """The complaints that no suppression covers."""
    return [one for one in complaints if not any(known_one.covers(one.check, one.file) for known_one in known)]
