"""Nothing of the recordings is forgotten: what was recorded is replayed, or listed with the reason."""

import ast
import sys
from pathlib import Path

import pytest

from tests.local_engines.engine import CHECKOUT
from tests.local_engines.recordings import LEFT_OUT, NOT_COMPARED, SCENARIOS, START_CASES_LEFT_OUT, load

pytestmark = pytest.mark.local


def test_recorded_is_replayed_plus_listed() -> None:
    replayed = {request["file"] for server in load("requests.json")["servers"] for request in server["requests"]}
    replayed |= set(SCENARIOS) | {"startup/start-cases.json"}
    assert not replayed & set(LEFT_OUT)
    assert replayed | set(LEFT_OUT) == set(load("inventory.json")["files"])


def test_every_scenario_names_a_test_that_exists() -> None:
    found = {
        node.name
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert set(SCENARIOS.values()) <= found


def test_all_200_requests_of_the_index_are_here() -> None:
    requests = [request["file"] for server in load("requests.json")["servers"] for request in server["requests"]]
    assert len(requests) == len(set(requests)) == 200


def test_left_out_start_cases_were_recorded_and_have_a_reason() -> None:
    labels = {case["label"] for case in load("start-cases.json")["cases"]}
    assert set(START_CASES_LEFT_OUT) < labels
    reasons = [*LEFT_OUT.values(), *START_CASES_LEFT_OUT.values()]
    reasons += [reason for group in NOT_COMPARED.values() for reason in group.values()]
    assert all(reasons)


def test_the_stand_ins_import_nothing_that_their_image_does_not_hold() -> None:
    """The image holds the standard library, numpy, tokenizers, aiohttp, grpcio, protobuf and this package."""
    engines = CHECKOUT / "local" / "engines"
    allowed = {*sys.stdlib_module_names, "numpy", "tokenizers", "aiohttp", "grpc", "google"}
    for path in (*engines.glob("tei/*.py"), *engines.glob("nim/*.py"), engines / "tei_protocol.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                own = name.startswith(("local.engines.tei", "local.engines.nim"))
                assert own or name.split(".")[0] in allowed, (path, name)
