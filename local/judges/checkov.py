"""checkov over rendered manifests; installed from a hashed lock into the cache, apart from the project's packages."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from local.judges.complaints import Remark
from local.report import Reporter
from local.toolchain.cache import Entry, content_key
from local.toolchain.errors import ToolchainError
from local.toolchain.process import run_logged

LOCK = Path(__file__).with_name("checkov.lock")


def _install(reporter: Reporter) -> Path:
    """The directory with checkov and its packages, made on first use. Raises ToolchainError."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    entry = Entry("checkov", content_key([LOCK.read_bytes(), python]))
    return entry.obtain(reporter, lambda _, out: _fetch(out, entry.log), "installing checkov", keep=1)


def _fetch(target: Path, log: Path) -> None:
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


def judge(folder: Path, reporter: Reporter) -> list[Remark]:
    """What checkov says of the manifests in ``folder``. Raises ToolchainError when it gives no verdict."""
    packages = _install(reporter)
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
    return _remarks(report, folder)


def _without_settings(variables: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in variables.items() if not key.startswith(("CHECKOV_", "CKV_", "BC_", "PYTHON"))}


def _remarks(report: Any, folder: Path) -> list[Remark]:
    # One framework gives an object, several a list.
    runs = report if isinstance(report, list) else [report]
    failed = [check for run in runs for check in run.get("results", {}).get("failed_checks", [])]
    found = []
    for check in failed:
        # Kind.namespace.name; names may have dots.
        kind, _, name = check["resource"].split(".", maxsplit=2)
        file = Path(check["file_abs_path"]).relative_to(folder.resolve()).as_posix()
        found.append(Remark(check["check_id"], check["check_name"], file, kind, name))
    return found
