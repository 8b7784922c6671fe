"""The real Pulumi CLI with the language host of this checkout, on five small programs."""

import os
import platform
import re
import signal
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from local.pulumi_host import PASSPHRASE
from tests.pulumi_host.cli import Gate, Pulumi, wait_for_exit

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc: Linux only"),
]

Start = Callable[[str], Pulumi]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_outputs_survive_a_second_up_and_an_edit_shows_in_the_preview(pulumi: Start) -> None:
    stack = pulumi("outputs")
    first = stack.up()
    assert stack.outputs() == {"replicas": 2, "stack": "test", "text": "first"}
    assert "warning" not in first.output
    stack("up", "--yes", "--skip-preview", "--expect-no-changes")

    edit(stack.project / "__main__.py", '"first"', '"second"')
    preview = stack.attempt("preview", "--diff", "--expect-no-changes")
    assert '~ text: "first" => "second"' in preview.output
    assert preview.code != 0
    assert stack.outputs()["text"] == "first", "a preview changes nothing"
    stack.up()
    assert stack.outputs()["text"] == "second"

    stack("destroy", "--yes", "--skip-preview")
    assert stack.outputs() == {}
    assert stack("stack", "export").stdout.count('"urn"') == 0
    assert stack.processes() == {}


def test_about_names_the_host_the_interpreter_and_the_packages_of_the_program(pulumi: Start) -> None:
    about = pulumi("outputs")("about").output
    assert re.search(rf"language +python +{re.escape(metadata.version('pulumi'))}", about)
    assert f"version='{platform.python_version()}'" in about
    assert re.search(r"embedding-serving +\d", about)


SECRET = "a-key-that-nobody-may-see"


def test_a_secret_is_in_no_file_and_no_output_in_plain_text(pulumi: Start) -> None:
    stack = pulumi("configured")
    stack.set("engine.model", "all-MiniLM-L6-v2")
    stack.set("engine.limits.batch", "32")
    stack("config", "set", "--secret", "key", SECRET)
    stack_file = (stack.project / "Pulumi.test.yaml").read_text()
    assert "secure: v1:" in stack_file
    assert "encryptionsalt: v1:" in stack_file

    shown = [
        stack("preview", "--diff").output,
        stack("up", "--yes", "--diff", "--debug", "--logtostderr", "--verbose", "9").output,
        stack("stack", "output").output,
        stack("stack", "export").output,
        stack("config").output,
    ]
    assert stack.outputs() == {"batch": 32, "key": "[secret]"}
    assert stack.outputs("--show-secrets")["key"] == SECRET, "the program and the provider got the real value"
    kept = {**stack.files(), stack.project / "Pulumi.test.yaml": stack_file}
    assert len(kept) > 2
    assert "langhost[python].Run" in shown[1], "the detailed log is part of what is searched"
    assert [text for text in shown if SECRET in text] == []
    assert [path for path, text in kept.items() if SECRET in text or PASSPHRASE in text] == []
    assert (stack.project / "Pulumi.test.yaml").read_text() == stack_file, "git status stays clean: no new salt"


def test_an_exception_is_shown_once_with_the_line_that_raised_it(pulumi: Start) -> None:
    stack = pulumi("failing")
    stack("config", "set", "fail", "exception")
    for operation in (("preview",), ("up", "--yes", "--skip-preview")):
        failed = stack.attempt(*operation)
        assert failed.code != 0
        assert failed.output.count("ValueError: no pool fits the model") == 1
        assert failed.output.count("Traceback (most recent call last)") == 1
        assert failed.output.count('raise ValueError("no pool fits the model")') == 1
        assert stack.locks() == []
        assert stack.processes() == {}

    stack("config", "rm", "fail")
    stack.up()


@pytest.mark.parametrize(
    ("fail", "errors"),
    [
        ("shown", ["error: workloads.search.model: unknown model"]),
        (
            "run error",
            [
                "error: workloads.search.model: unknown model",
                "error: an unhandled error occurred: the program exited with code 1",
            ],
        ),
        ("exit", ["error: an unhandled error occurred: the program exited with code 3"]),
    ],
)
def test_a_users_mistake_shows_no_traceback(pulumi: Start, fail: str, errors: list[str]) -> None:
    stack = pulumi("failing")
    stack("config", "set", "fail", fail)
    failed = stack.attempt("up", "--yes", "--skip-preview")
    assert failed.code != 0
    diagnostics = failed.output.partition("Diagnostics:")[2]
    assert [line.strip() for line in diagnostics.splitlines() if "error:" in line] == errors
    assert "Traceback" not in failed.output
    assert stack.locks() == []


def test_mandatory_policies_refuse_at_preview_and_pass_once_fixed(pulumi: Start) -> None:
    stack = pulumi("guarded")
    stack("config", "set", "text", "draft")
    stack("config", "set", "notes", "3")
    refused = stack.attempt("preview", "--policy-pack", "policies")
    assert refused.code != 0
    assert "[mandatory]" in refused.output
    assert "text is 'draft': set a final text" in refused.output, "the policy on a resource"
    assert "3 notes: at most 2 are allowed" in refused.output, "the policy on the stack"
    assert stack.processes() == {}

    stack("config", "set", "text", "final")
    stack("config", "set", "notes", "2")
    stack("up", "--yes", "--policy-pack", "policies")
    assert stack.processes() == {}


@pytest.mark.parametrize("where", ["program", "provider"])
def test_ctrl_c_ends_everything_and_the_next_up_converges(pulumi: Start, tmp_path: Path, where: str) -> None:
    stack = pulumi("waiting")
    gate = Gate(tmp_path / "gate")
    stack("config", "set", "gate", str(tmp_path / "gate"))
    stack("config", "set", "wait", where)
    process = stack.start("up", "--yes", "--skip-preview")
    assert gate.read()
    assert any("pulumi-language-python-exec" in command for command in stack.processes().values())
    process.send_signal(signal.SIGINT)
    interrupted = stack.finish(process)
    assert interrupted.code != 0
    assert "Traceback" not in interrupted.output
    assert "KeyboardInterrupt" not in interrupted.output
    assert stack.processes() == {}
    assert stack.locks() == []

    stack("config", "rm", "wait")
    stack.up()
    assert stack("stack", "export").stdout.count('"type": "note:index:Note"') == 2


def test_no_process_outlives_an_engine_that_was_killed(pulumi: Start, tmp_path: Path) -> None:
    stack = pulumi("waiting")
    gate = Gate(tmp_path / "gate")
    stack("config", "set", "gate", str(tmp_path / "gate"))
    stack("config", "set", "wait", "program")
    process = stack.start("up", "--yes", "--skip-preview")
    assert gate.read()
    others = [os.pidfd_open(pid) for pid in stack.processes().keys() - {process.pid}]
    assert len(others) == 3, "language host, program and provider"
    process.kill()
    for handle in others:
        wait_for_exit(handle)
    stack.finish(process)
    assert gate.read() == b""
    assert stack.processes() == {}

    stack("cancel", "--yes")  # the lock that the killed engine left behind
    stack("config", "rm", "wait")
    stack.up()


def test_all_that_a_program_prints_arrives_and_stacks_run_in_parallel(pulumi: Start) -> None:
    stack = pulumi("chatty")
    stack("stack", "init", "other")
    both = [stack.start("up", "--yes", "--skip-preview", "--stack", name) for name in ("test", "other")]
    for result in [stack.finish(process) for process in both]:
        assert result.code == 0, result.output
        assert [number for number in range(2000) if f"line {number} " not in result.output] == []
        assert "to stderr" in result.output
    assert stack.processes() == {}


def test_the_program_runs_in_the_virtualenv_beside_pulumi_yaml(pulumi: Start) -> None:
    stack = pulumi("chatty")
    settings = stack.project / "Pulumi.yaml"
    edit(settings, "runtime: python\n", "runtime: {name: python, options: {toolchain: pip, virtualenv: environment}}\n")
    missing = stack.attempt("preview")
    assert missing.code != 0
    lines = [line for line in missing.output.splitlines() if "runtime.options.virtualenv" in line]
    assert len(lines) == 1, missing.output
    assert f"python3 -m venv {stack.project}/environment" in lines[0]
    assert "Traceback" not in missing.output

    (stack.project / "environment").symlink_to(sys.prefix)
    assert f"virtualenv {stack.project}/environment" in stack("preview").output
