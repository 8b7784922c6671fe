"""Starts: arguments and environment, what is printed, exit codes, and when the port is bound (recording startup/)."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from local.engines.tei.arguments import FLAGS, Kind
from tests.local_engines.engine import HOST, Engine, free_port
from tests.local_engines.recordings import START_CASES_LEFT_OUT, load

pytestmark = pytest.mark.local

CASES: list[dict[str, Any]] = [
    case for case in load("start-cases.json")["cases"] if case["label"] not in START_CASES_LEFT_OUT
]
LOGS: dict[str, list[str]] = load("logs.json")
#: Own line of the stand-in, before all others.
STAND_IN_LINE = "stand_in"


def _normalized(line: str, port: int) -> str:
    line = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "<ts>", line)
    line = re.sub(r"thread '(\S+)' \(\d+\)", r"thread '\1' (<id>)", line)
    line = re.sub(r"[\d.]+(ms|µs|s)(?=\")", "<time>", line)
    return line.replace(str(port), "<port>")


def _in_order(recorded: list[str], found: list[str]) -> None:
    """All recorded lines, in their order; the recorder left some lines of a start out."""
    rest = iter(found)
    for line in recorded:
        assert any(line == other for other in rest), f"{line!r} is not (or not here) in {found}"


def _isolated() -> list[str]:
    """A prefix that runs a command in an empty network namespace, so that binding 0.0.0.0 reaches nobody."""
    command = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no right to make a network namespace here")
    return command


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["label"])
def test_a_start_is_answered_as_recorded(case: dict[str, Any], small_models: Path) -> None:
    port = free_port()
    arguments = [argument.replace("<port>", str(port)) for argument in case["arguments"]]
    environment = {name: value.replace("<port>", str(port)) for name, value in case["environment"].items()}
    own_network = case["label"] == "hostname-env-pod-name"
    prefix = _isolated() if own_network else []
    if own_network:
        arguments[arguments.index("--port") + 1] = str(port)
    taken = socket.socket()
    if case["label"] == "port-in-use":
        taken.bind((HOST, port))
        taken.listen()
    with (
        taken,
        Engine(arguments, small_models, environment=environment, port=port, hostname=None, prefix=prefix) as engine,
    ):
        if case["ready"]:
            engine.wait_until_ready()
            if "info" in case:
                info = engine.get("/info").json()
                assert info.pop("stand_in").startswith("This is a stand-in")
                assert info == case["info"] | {"tokenization_workers": info["tokenization_workers"]}
            assert engine.stop() == case["exit_code"] == 0
        else:
            assert engine.exit_code() == case["exit_code"]
        found = [_normalized(line, port) for line in engine.log]
    _in_order([_normalized(line, port) for line in case["log"]], found)
    if case["exit_code"] == 2:
        assert [line for line in found if line.strip()] == case["log"]


def test_the_port_is_bound_only_when_ready(models: Path) -> None:
    with Engine(["--model-id", "all-minilm-l6-v2"], models) as engine:
        engine.wait_for_line("Warming up model")
        warming_up = [line for line in engine.lines if "Starting HTTP server" in line]
        refused = not warming_up
        try:
            socket.create_connection((HOST, engine.port)).close()
            refused = False
        except ConnectionRefusedError:
            pass
        # Unless the warm-up ended between the two looks, the port has to be closed.
        assert refused or any("Starting HTTP server" in line for line in engine.lines)
        engine.wait_for_line("Starting HTTP server")
        assert engine.get("/health").status == 200


def _with_own_workers(line: str) -> str:
    """The default of tokenization workers is one less than the cores; the recording machine had two cores."""
    return line.replace("Starting 1 tok", f"Starting {min(max((os.cpu_count() or 1) - 1, 1), 64)} tok")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("startup/log-text.txt", ["--model-id", "all-minilm-l6-v2"]),
        ("startup/log-reranker.txt", ["--model-id", "tiny-reranker"]),
        ("startup/log-classifier-with-pooling.txt", ["--model-id", "tiny-classifier", "--pooling", "cls"]),
        ("auth/log.txt", ["--model-id", "all-minilm-l6-v2", "--api-key", "secret"]),
    ],
)
def test_log_lines_are_the_recorded_ones(name: str, arguments: list[str], small_models: Path) -> None:
    with Engine([*arguments, "--dtype", "float32"], small_models) as engine:
        engine.wait_until_ready()
        if "all-minilm-l6-v2" in arguments:
            headers = {"Authorization": "Bearer secret", "Content-Type": "application/json"}
            for path, field in (("/embed", "inputs"), ("/v1/embeddings", "input")):
                body = json.dumps({field: "a"}).encode()
                assert engine.request("POST", path, headers=headers, body=body).status == 200
        assert engine.stop() == 0
        found = [_normalized(line, engine.port) for line in engine.log]
    assert STAND_IN_LINE in found[0]
    recorded = [_with_own_workers(line) for line in LOGS[name]]
    # The own line comes first; from then on line by line, as far as the recording goes.
    assert found[1 : len(recorded) + 1] == recorded


def test_json_log_lines_are_the_recorded_ones(small_models: Path) -> None:
    arguments = ["--model-id", "all-minilm-l6-v2", "--dtype", "float32", "--json-output"]
    with Engine(arguments, small_models) as engine:
        engine.wait_until_ready()
        engine.embed("a")
        engine.embed(["a"] * 33)
        engine.post("/v1/embeddings", {"input": "a", "model": "other"})
        assert engine.stop() == 0
        found = [json.loads(_normalized(line, engine.port)) for line in engine.lines]
    assert found.pop(0)["target"] == STAND_IN_LINE
    recorded = [json.loads(_with_own_workers(line)) for line in LOGS["startup/log-json.txt"]]
    assert found == recorded


def test_text_log_lines_are_coloured(small_models: Path) -> None:
    with Engine(["--model-id", "tiny-reranker"], small_models) as engine:
        engine.wait_until_ready()
        assert all("\x1b[" in line for line in engine.lines)


def test_failed_inference_is_logged_as_recorded(models: Path) -> None:
    with Engine(["--model-id", "embed-small-vocab", "--dtype", "float32"], models) as engine:
        engine.wait_until_ready()
        assert engine.embed("deep learning transformers").status == 424
        assert engine.post("/v1/embeddings", {"input": "deep learning transformers"}).status == 424
        assert engine.stop() == 0
        found = [_normalized(line, engine.port) for line in engine.log]
    errors = [line for line in LOGS["inference-failure/log.txt"] if "ERROR" in line]
    assert [line for line in found if "ERROR" in line] == errors
    assert found[-1] == LOGS["inference-failure/log.txt"][-1]


def test_flags_variables_and_defaults_are_the_recorded_ones() -> None:
    recorded = load("flags.json")["flags"]
    known = {flag.long: flag for flag in FLAGS}
    # Hidden in the help, found by recording startup/start-cases.json (hf-api-token-only).
    assert set(known) - {entry["flag"] for entry in recorded} == {"--hf-api-token"}
    for entry in recorded:
        if entry["flag"] in {"--help", "--version"}:
            continue
        flag = known[entry["flag"]]
        assert flag.variable == entry["env"]
        if flag.kind is Kind.SWITCH:
            assert entry["value"] is None
        else:
            assert flag.shown == f"{entry['flag']} {entry['value']}"
            assert flag.default == entry.get("default")
            assert ", ".join(flag.choices) == entry.get("possible", "")


def test_the_version_is_the_recorded_one(models: Path) -> None:
    with Engine(["--version"], models, hostname=None) as engine:
        assert engine.exit_code() == 0
        assert engine.log == ["text-embeddings-router 1.9.3"]


def test_the_api_key_is_printed_unless_the_log_level_hides_the_line(small_models: Path) -> None:
    """The router prints API_KEY in its first line; the blueprint's LOG_LEVEL hides it and keeps the device line."""
    environment = {"API_KEY": "a-secret-of-this-test", "MODEL_ID": "all-minilm-l6-v2"}
    shown: dict[str, list[str]] = {}
    for level in ("info", "info,text_embeddings_router=warn,text_embeddings_router::http=info"):
        with Engine([], small_models, environment=environment | {"LOG_LEVEL": level}) as engine:
            engine.wait_until_ready()
            assert engine.stop() == 0
            shown[level] = engine.log
    everything, quiet = shown.values()
    assert any('api_key: Some("a-secret-of-this-test")' in line for line in everything)
    assert not any("a-secret-of-this-test" in line for line in quiet)
    for kept in ("Starting Bert model on Cpu", "Ready", "stand-in"):
        assert any(kept in line for line in quiet), kept


@pytest.mark.parametrize(
    ("key", "headers"),
    [(entry["API_KEY"], list(entry["results"])) for entry in load("behaviour.json")["auth/odd-keys.json"]],
)
def test_an_odd_api_key_is_never_met(key: str, headers: list[str], small_models: Path) -> None:
    with Engine(["--model-id", "all-minilm-l6-v2"], small_models, environment={"API_KEY": key}) as engine:
        engine.wait_until_ready()
        for header in headers:
            sent = {} if header == "None" else {"Authorization": header.strip("'")}
            if "\\n" in header:
                continue  # no client can send it
            assert engine.request("GET", "/info", headers=sent).status == 401


def test_sigterm_ends_a_process_that_is_not_ready(models: Path) -> None:
    with Engine(["--model-id", "embed-slow"], models) as engine:
        engine.wait_for_line("Starting Bert model on Cpu")
        engine.signal(signal.SIGTERM)
        assert engine.exit_code() == -signal.SIGTERM
        assert not any("Ready" in line for line in engine.lines)


def test_as_pid_1_sigterm_is_ignored_before_ready(models: Path) -> None:
    command = ["unshare", "--pid", "--fork", "--kill-child"]
    if os.geteuid() != 0:
        command[1:1] = ["--user", "--map-root-user"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no right to make a process namespace here")
    with Engine(["--model-id", "embed-slow"], models, prefix=command) as engine:
        engine.wait_for_line("Starting Bert model on Cpu")
        outer = engine.process.pid
        inner = int(Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0])
        os.kill(inner, signal.SIGTERM)
        engine.wait_until_ready()
        assert engine.get("/health").status == 200
        os.kill(inner, signal.SIGTERM)
        assert engine.exit_code() == 0
