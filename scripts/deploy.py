"""`pulumi up` of the stack `local`, also after an earlier one that was interrupted or killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from local.paths import CHECKOUT, state_dir
from scripts.command import CommandError
from scripts.progress import Progress


def up(stack: str, environment: Mapping[str, str]) -> None:
    """Deploys, Pulumi's output as it comes; makes the stack if there is none.

    Raises CommandError when it fails, KeyboardInterrupt after Ctrl-C.
    """
    pulumi = str(state_dir() / "bin" / "pulumi")
    was_killed = _release_locks_of_the_dead(stack)
    selected = subprocess.run(
        [pulumi, "stack", "select", "--create", stack, "--non-interactive"],
        cwd=CHECKOUT,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if selected.returncode:
        raise CommandError(f"pulumi stack select --create {stack}: {' '.join(selected.stderr.split())}")
    sys.stdout.flush()
    if was_killed:
        # What it was creating is adopted below (server-side apply); the note of it would be shown at every `up`.
        refresh = [pulumi, "refresh", "--yes", "--skip-preview", "--clear-pending-creates", "--suppress-outputs"]
        subprocess.run(
            [*refresh, "--non-interactive", "--stack", stack],
            cwd=CHECKOUT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=False,
        )
    # The output is the contract, which `make up` shows in words.
    quiet = ["--suppress-outputs", "--suppress-progress"]
    code, interrupted = _run([pulumi, "up", "--yes", "--skip-preview", *quiet, "--stack", stack], environment)
    if code and interrupted:
        raise KeyboardInterrupt
    if code:
        raise CommandError(
            "pulumi up failed, the reasons are above; put them right and run make up again (make status shows the "
            "cluster, make shell has kubectl and pulumi)"
        )


def _run(command: list[str], environment: Mapping[str, str]) -> tuple[int, bool]:
    """Exit code, and whether Ctrl-C was pressed. After SIGTERM it ends this process, once Pulumi has ended.

    Pulumi ends its operations and writes its state when it is interrupted, for which subprocess.run gives no time.
    """
    came: set[int] = set()
    running: list[subprocess.Popen[str]] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.add(number)
        # Ctrl-C reaches Pulumi by itself, SIGTERM comes to this process alone.
        for process in running if number == signal.SIGTERM else ():
            process.send_signal(signal.SIGINT)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:
            running.append(process)
            if signal.SIGTERM in came:
                process.send_signal(signal.SIGINT)
            progress = Progress()
            for line in process.stdout or ():
                if (shown := progress.line(line.rstrip("\n"))) is not None:
                    print(shown, flush=True)
            code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signal.SIGTERM in came:
        sys.exit(143)
    return code, signal.SIGINT in came


def end_plugins() -> None:
    """Ends the providers and language hosts of a Pulumi of this checkout that was killed: they do not notice it."""
    home = str(state_dir() / "pulumi-home") + "/"
    for process in Path("/proc").glob("[0-9]*"):
        if _program(process).startswith(home):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGTERM)


def _release_locks_of_the_dead(stack: str) -> bool:
    """Whether there was one. `pulumi cancel` would take the lock of a living Pulumi as well.

    Raises CommandError when a Pulumi is at work.
    """
    folder = state_dir() / "pulumi" / ".pulumi" / "locks" / "organization" / "embedding-serving" / stack
    locks = sorted(folder.glob("*.json"))
    for lock in locks:
        try:
            pid = json.loads(lock.read_text(encoding="utf-8"))["pid"]
        except (OSError, ValueError, KeyError, TypeError):
            pid = None
        if pid is not None and Path(_program(Path(f"/proc/{pid}"))).name == "pulumi":
            raise CommandError(f"another pulumi (pid {pid}) is changing stack {stack}: wait until it has ended")
        print(f"  ... an earlier pulumi was killed (pid {pid}): its lock is released", file=sys.stderr)
        for path in folder.glob(f"{lock.name}*"):
            path.unlink(missing_ok=True)
    if locks:
        end_plugins()
    return bool(locks)


def _program(process: Path) -> str:
    """What a process was started as; empty when there is no such process."""
    try:
        return (process / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""
