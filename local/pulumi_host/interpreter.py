"""Which Python runs a program or a policy pack, and what is installed there."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from google.protobuf.json_format import MessageToDict
from pulumi.runtime.proto import language_pb2

PROBE = Path(__file__).with_name("probe.py")


class UnusableRuntimeError(Exception):
    """The runtime options of a project name no usable interpreter; the message is one line for the user."""


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter; `virtualenv` is None where the project names none and this process's own is used."""

    executable: Path
    virtualenv: Path | None

    @classmethod
    def of(cls, info: language_pb2.ProgramInfo) -> Self:
        """The interpreter that `runtime.options` of Pulumi.yaml or PulumiPolicy.yaml ask for.

        Raises UnusableRuntimeError for an option that this host does not know and for a virtualenv that is not there.
        """
        options: dict[str, Any] = MessageToDict(info.options)
        if (toolchain := options.pop("toolchain", "pip")) != "pip":
            raise UnusableRuntimeError(
                f"runtime.options.toolchain is {toolchain!r} in {info.root_directory}: the local language host knows "
                "only 'pip'; use it with virtualenv, or the official Pulumi CLI"
            )
        name = options.pop("virtualenv", "")
        if options:
            raise UnusableRuntimeError(
                f"runtime.options.{min(options)} is set in {info.root_directory}: the local language host knows only "
                "toolchain and virtualenv; remove it, or use the official Pulumi CLI"
            )
        if not name:
            return cls(Path(sys.executable), None)
        virtualenv = Path(info.root_directory) / name
        executable = virtualenv / "bin" / "python"
        if not executable.exists():
            raise UnusableRuntimeError(
                f"runtime.options.virtualenv is {name!r} in {info.root_directory}, but {executable} does not exist: "
                f"create it with `python3 -m venv {virtualenv}` and install the project's requirements in it"
            )
        return cls(executable, virtualenv)

    def environment(self) -> dict[str, str]:
        """This process's environment with the virtualenv activated, for programs that start programs."""
        variables = dict(os.environ)
        if self.virtualenv:
            variables.pop("PYTHONHOME", None)
            variables["VIRTUAL_ENV"] = str(self.virtualenv)
            variables["PATH"] = os.pathsep.join([str(self.virtualenv / "bin"), variables.get("PATH", os.defpath)])
        return variables

    def probe(self) -> dict[str, Any]:
        """Executable, version and packages as `probe.py` prints them."""
        answer = subprocess.run(
            [self.executable, PROBE], env=self.environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if answer.returncode:
            last = answer.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise UnusableRuntimeError(f"{self.executable} cannot list its packages: {''.join(last)}")
        found: dict[str, Any] = json.loads(answer.stdout)
        return found
