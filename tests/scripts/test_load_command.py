"""``python -m scripts.load``: what it prints, where the load goes, and how it ends."""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from infra.core.contract import Contract
from local import cluster
from local.paths import CHECKOUT
from scripts import embedded
from scripts.access import Access, ForwardError
from scripts.command import CommandError
from scripts.load import __main__ as command
from tests.scripts.conftest import changed, planned
from tests.scripts.http_server import Request, answer, in_turn, never, serving_in_a_thread

pytestmark = pytest.mark.local

KEY = "the-key-in-the-secret"
#: Only ends a test that hangs.
_HANG = 120
GOOD = answer(200, b"[[0.6,0.8]]")


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "scripts.load", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )


def test_it_shows_tables_writes_json_and_ends_with_0_whatever_failed(tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    with serving_in_a_thread(in_turn(answer(503, b"no pod"), GOOD)) as server:
        done = _run("--url", server.url, "--clients", "2", "--seconds", "0.5", "--json", str(file))
        arrived = len(server.requests)
    assert done.returncode == 0, done.stderr
    written = json.loads(file.read_text())
    assert written["total"]["requests"] == written["connections"] == arrived
    assert written["total"]["errors"] == {"unavailable (503)": {"count": 1, "example": "no pod"}}
    assert written["total"]["succeeded"] == arrived - 1 > 0
    assert f"Load on {server.url}:" in done.stdout
    assert "unavailable (503)  1         no pod" in done.stdout
    assert f"{arrived} connections opened for {arrived} requests of 1 text, 128 tokens each." in done.stdout


def test_ctrl_c_shows_what_was_measured_so_far() -> None:
    third = threading.Event()

    async def note(request: Request, writer: asyncio.StreamWriter) -> None:
        third.set()
        await never(request, writer)

    with serving_in_a_thread(in_turn(GOOD, GOOD, note)) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "scripts.load", "--url", server.url, "--clients", "1", "--seconds", "3600"],
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell that runs tests in the background makes its children ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        )
        assert third.wait(_HANG), process.poll()
        os.kill(process.pid, signal.SIGINT)
        said, errors = process.communicate()
    assert process.returncode == 130
    assert "Ended early: interrupted" in said
    assert "3         2          0       0            1" in said
    assert errors.endswith("interrupted\n")
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "http://example.com"], "is not on loopback"),
        (["--url", "http://127.0.0.1:1", "--tokens", "9:3"], "--tokens: got '9:3'; allowed: one length as 128"),
        (["--url", "http://127.0.0.1:1", "--tokens", "many"], "--tokens: got 'many'"),
        (["--url", "http://127.0.0.1:1", "--clients", "0"], "clients: got 0"),
        (["--url", "http://127.0.0.1:1", "--rate", "0"], "rate: got 0"),
        (["--url", "http://127.0.0.1:1", "--workload", "embed"], "--workload and --context belong to --stack"),
        (["--stack", "local", "--kind", "reranker"], "--kind belongs to --url"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["load", *arguments])
    with pytest.raises(CommandError) as refused:
        command.main()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


class _Cluster(Access):
    """A cluster with one Secret, and a port-forward that leads to ``url``."""

    def __init__(self, url: str | None, secret: dict[str, str]) -> None:
        super().__init__()
        object.__setattr__(self, "url", url)
        object.__setattr__(self, "secret", secret)

    def run(self, *arguments: str) -> str:
        assert arguments[:2] == ("get", "secret")
        data = {key: base64.b64encode(value.encode()).decode() for key, value in vars(self)["secret"].items()}
        return json.dumps({"data": data})

    @contextmanager
    def forward(self, namespace: str, target: str, port: int) -> Iterator[str]:
        assert (namespace, target, port) == ("embedding-serving", "service/embed", 80)
        url = vars(self)["url"]
        if url is None:
            raise ForwardError("no pod is running")
        yield url


@pytest.fixture
def contract() -> Contract:
    """Stack ``local`` with a workload that wants a key."""
    workload = changed(planned()[1].workloads[0], api_key_secret="embed-a1b2", api_key_secret_key="apiKey", dimension=2)
    return replace(planned()[1], workloads=(workload,))


def _main(monkeypatch: pytest.MonkeyPatch, contract: Contract, access: Access, *arguments: str) -> int:
    monkeypatch.setattr(command, "of_stack", lambda *_: (contract, access))
    monkeypatch.setattr(sys, "argv", ["load", "--stack", "dev", *arguments])
    return command.main()


def test_a_workload_elsewhere_is_reached_through_a_port_forward_with_its_key(
    contract: Contract, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving_in_a_thread(GOOD) as server:
        access = _Cluster(server.url, {"apiKey": KEY})
        assert _main(monkeypatch, contract, access, "--rate", "20", "--seconds", "0.2", "--tokens", "8:16") == 0
        heads = [request.head for request in server.requests]
    assert len(heads) == 4
    assert all(f"Authorization: Bearer {KEY}\r\n" in head for head in heads)
    said = capsys.readouterr()
    assert "Load on embed (sentence-transformers/all-MiniLM-L6-v2):" in said.out
    assert "port-forward: all requests went to one pod of service/embed" in said.out
    assert "embed is a stand-in" in said.out
    assert "half of 8 tokens, 95 % of up to 16" in said.out
    assert KEY not in said.out + said.err


def test_on_the_embedded_cluster_the_load_goes_through_the_service(
    contract: Contract, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving_in_a_thread(GOOD) as server:
        access = _Cluster(None, {"apiKey": KEY})
        monkeypatch.setattr(embedded, "access", lambda: access)
        monkeypatch.setattr(embedded, "STACK", "dev")
        monkeypatch.setattr(cluster, "publish", lambda *which: server.url if which[0] == "embed" else "")
        assert _main(monkeypatch, contract, access, "--clients", "1", "--seconds", "0.1") == 0
        assert server.requests
    assert "Through Service embed and kube-proxy, which chooses a pod for each connection." in capsys.readouterr().out


def test_what_a_stack_lacks_is_said_in_one_line(contract: Contract, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = contract.workloads[0]
    several = replace(contract, workloads=(workload, replace(workload, name="rerank")))
    triton = replace(contract, workloads=(replace(workload, engine="triton"),))
    key, no_key = _Cluster(None, {"apiKey": KEY}), _Cluster(None, {})
    for given, access, arguments, said in (
        (several, key, (), "--workload: got nothing; allowed: embed, rerank"),
        (several, key, ("--workload", "rerank2"), "got 'rerank2'; allowed: rerank (nearest), embed"),
        (triton, key, (), "runs triton; this checkout can load tei only"),
        (contract, no_key, (), "has no key apiKey"),
        (contract, key, (), "port-forward to service/embed: no pod is running"),
    ):
        with pytest.raises(CommandError) as refused:
            _main(monkeypatch, given, access, *arguments)
        assert said in str(refused.value)


def test_the_ceiling_is_measured_against_a_server_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.load.ceiling", "--seconds", "0.2", "--clients", "2"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    title, columns, *rows = done.stdout.splitlines()
    assert title == "Ceiling of the generator, 2 clients:"
    assert columns.split()[-1] == "failed"
    assert [row.split()[-1] for row in rows] == ["0"] * 4
    assert all(float(row.split()[2]) > 0 for row in rows)
