"""Where the contract comes from: a stack output or a file."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from infra.core import contract
from infra.core.contract import Contract
from local import toolchain
from local.paths import CHECKOUT
from scripts import stackfile
from scripts.command import CommandError


def from_stack(stack: str, environment: Mapping[str, str] | None = None) -> Contract:
    """The output ``contract`` of a stack. ``environment`` None: the caller's own Pulumi login.

    Raises CommandError when there is no Pulumi, no such stack or no output, or when another version wrote it.
    """
    environment = os.environ if environment is None else environment
    pulumi = shutil.which("pulumi", path=environment.get("PATH")) or toolchain.find(["pulumi"])["pulumi"].path
    if pulumi is None:
        raise CommandError(
            "pulumi is not on PATH: install it, or make toolchain builds pulumi and kubectl, without root"
        )
    done = subprocess.run(
        [pulumi, "stack", "output", "contract", "--json", "--stack", stack, "--non-interactive"],
        cwd=CHECKOUT,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CommandError(_why(stack, done.stderr))
    return _parse(done.stdout, f"the output of stack {stack}")


def from_file(path: Path) -> Contract:
    """A contract that was saved with ``pulumi stack output contract --json``."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no text"
        raise CommandError(
            f"{path}: {reason}; save one with pulumi stack output contract --json --stack NAME > {path}"
        ) from None
    return _parse(text, str(path))


def _parse(text: str, what: str) -> Contract:
    try:
        output: object = json.loads(text)
    except json.JSONDecodeError:
        raise CommandError(f"{what} is no JSON: run pulumi up from this checkout first") from None
    try:
        return contract.read(output)
    except ValueError as error:
        raise CommandError(f"{what}: {error}") from None


def _why(stack: str, stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    last = next((line for line in lines if line.startswith("error:")), lines[-1] if lines else "no message")
    last = last.removeprefix("error:").strip()
    if "no stack named" in last:
        with_file = ", ".join(stackfile.names()) or "none"
        return (
            f"Pulumi knows no stack {stack} here (stack files: {with_file}): deploy it with pulumi up --stack {stack}, "
            "or with make up for the embedded cluster; check the login with pulumi whoami -v"
        )
    if "does not have output property" in last:
        return f"stack {stack} has no output contract: it was not deployed, or not to its end; run pulumi up"
    if "PULUMI_ACCESS_TOKEN" in stderr or "logged in" in stderr or "pulumi login" in stderr:
        return f"Pulumi is not logged in to where stack {stack} is kept: pulumi login, or make shell for the local one"
    return f"pulumi stack output of {stack}: {last}"
