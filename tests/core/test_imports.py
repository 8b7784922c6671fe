"""The core is pure Python: plans are made without Pulumi, its engine and its providers."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.core

_PROGRAM = """
import importlib, pkgutil, sys
import infra.core
# Code for Triton's own Python is data here: it imports what only that has.
skipped = "infra.core.engines.triton.python_models."
names = [found.name for found in pkgutil.walk_packages(infra.core.__path__, "infra.core.")]
names = [name for name in names if not name.startswith(skipped)]
for name in names:
    importlib.import_module(name)
print(len(names))
print(sorted(name for name in sys.modules if name.split(".")[0].startswith("pulumi")))
print(sorted(name for name in sys.modules if name.split(".")[0] in {"local", "scripts", "policies", "kubernetes"}))
"""


def test_no_module_of_the_core_imports_pulumi_or_another_part_of_the_project() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    count, pulumi, parts = done.stdout.splitlines()
    assert int(count) >= 8
    assert (pulumi, parts) == ("[]", "[]")
