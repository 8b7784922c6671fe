"""`pulumi up` around what people do to it: Ctrl-C, a kill, a second one at the same time."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from local.paths import CHECKOUT
from scripts import deploy
from scripts.command import CommandError

pytestmark = pytest.mark.core

PULUMI = """#!/bin/sh
echo "$@" >> {folder}/calls
case "$1" in up) {up} ;; esac
"""

UP = """
import sys
from pathlib import Path
from scripts import command, deploy
deploy.state_dir = lambda: Path(sys.argv[1])
def main():
    deploy.up("local", {"PATH": "/usr/bin:/bin"})
    return 0
sys.exit(command.run(main))
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(deploy, "state_dir", lambda: tmp_path)
    (tmp_path / "bin").mkdir()
    _pulumi(tmp_path, "exit 0")
    return tmp_path


def _pulumi(state: Path, up: str) -> None:
    program = state / "bin" / "pulumi"
    program.write_text(PULUMI.format(folder=state, up=up))
    program.chmod(0o755)


def _lock(state: Path, content: str) -> Path:
    lock = state / "pulumi/.pulumi/locks/organization/embedding-serving/local/1.json"
    lock.parent.mkdir(parents=True)
    lock.write_text(content)
    lock.with_name("1.json.attrs").write_text("{}")
    return lock


def _sleeping_as(name: str) -> subprocess.Popen[bytes]:
    """A process whose argument list begins with ``name``."""
    process = subprocess.Popen([name, "60"], executable="/bin/sleep")
    # The list appears a moment after Popen has returned.
    while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
        assert process.poll() is None
    return process


def _calls(state: Path) -> list[str]:
    return [line.split()[0] for line in (state / "calls").read_text().splitlines()]


def test_the_stack_is_made_and_deployed(state: Path) -> None:
    deploy.up("local", os.environ)
    assert _calls(state) == ["stack", "up"]


def test_a_failure_is_one_line_after_what_pulumi_said(state: Path) -> None:
    _pulumi(state, "exit 255")
    with pytest.raises(CommandError, match="the reasons are above") as caught:
        deploy.up("local", os.environ)
    assert "\n" not in str(caught.value)


def test_the_lock_of_a_killed_pulumi_is_released_and_its_pending_creations_are_forgotten(state: Path) -> None:
    with subprocess.Popen(["true"]) as dead:
        pass
    lock = _lock(state, json.dumps({"pid": dead.pid}))
    deploy.up("local", os.environ)
    assert list(lock.parent.iterdir()) == []
    assert _calls(state) == ["stack", "refresh", "up"]


@pytest.mark.parametrize("content", ["", "{}", "[]", json.dumps({"pid": os.getpid()})])
def test_a_lock_that_belongs_to_no_pulumi_is_released(state: Path, content: str) -> None:
    lock = _lock(state, content)
    deploy.up("local", os.environ)
    assert not lock.exists()


def test_a_pulumi_at_work_is_left_alone(state: Path) -> None:
    with _sleeping_as("pulumi") as working:
        try:
            lock = _lock(state, json.dumps({"pid": working.pid}))
            with pytest.raises(CommandError, match=f"another pulumi .pid {working.pid}. is changing stack local"):
                deploy.up("local", os.environ)
            assert lock.exists()
        finally:
            working.kill()


def test_plugins_that_a_killed_pulumi_left_are_ended_and_nobody_elses(state: Path) -> None:
    own = str(state / "pulumi-home/plugins/resource-kubernetes/pulumi-resource-kubernetes")
    with _sleeping_as(own) as left, _sleeping_as("/elsewhere/pulumi-resource-kubernetes") as other:
        try:
            deploy.end_plugins()
            assert left.wait() == -signal.SIGTERM
            assert other.poll() is None
        finally:
            other.kill()


def _interrupted(state: Path, up: str, sent: signal.Signals) -> int:
    """Exit code of a command that gets ``sent`` while Pulumi runs, which gets it too as from a terminal."""
    _pulumi(state, up)
    command = [sys.executable, "-c", UP, str(state)]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        if sent is signal.SIGINT:
            os.killpg(process.pid, sent)
        else:
            process.send_signal(sent)
        return process.wait()


#: Ends its work when it is interrupted, which takes longer than subprocess.run would wait before it kills. Where nobody
#: interrupts it, it ends after a minute.
ENDS_IN_PEACE = (
    "trap 'sleep 0.6; echo saved > {folder}/saved; exit 1' INT; echo working; for i in $(seq 1200); do sleep 0.05; done"
)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_pulumi_gets_the_time_to_write_its_state(state: Path, sent: signal.Signals, code: int) -> None:
    assert _interrupted(state, ENDS_IN_PEACE.format(folder=state), sent) == code
    assert (state / "saved").exists()
