"""The language host alone, spoken to as the engine does; no Pulumi CLI."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto import language_pb2, language_pb2_grpc

from local.paths import CHECKOUT
from local.pulumi_host import PASSPHRASE, environment
from tests.pulumi_host.cli import PATIENCE_SECONDS, Gate

pytestmark = pytest.mark.local

HOST = CHECKOUT / "local/bin/pulumi-language-python"
# Stands in for the SDK's executor: it prints what it was given and then does what the program name says.
EXECUTOR = """
import json, os, sys, threading
if sys.argv[-1].startswith("gate:"):
    pipe = open(sys.argv[-1].removeprefix("gate:"), "w")
    print(os.getpid(), file=pipe, flush=True)
    threading.Event().wait()
print(json.dumps({"argv": sys.argv[1:], "config": os.environ["PULUMI_CONFIG"], "prefix": sys.prefix,
                  "secret_keys": os.environ["PULUMI_CONFIG_SECRET_KEYS"], "path": os.environ["PATH"]}))
sys.exit(int(sys.argv[-1]))
"""


class Host:
    def __init__(self, directory: Path) -> None:
        (directory / "pulumi-language-python-exec").write_text(EXECUTOR)
        self.process = subprocess.Popen(
            [HOST, "127.0.0.1:1"],
            # A module there named like one of the standard library must not be imported by the host.
            cwd=directory,
            env=os.environ | {"PATH": f"{directory}{os.pathsep}{os.environ['PATH']}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(directory / "stderr").open("w"),
            text=True,
        )
        assert self.process.stdout is not None
        port = int(self.process.stdout.readline())
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.stub: Any = language_pb2_grpc.LanguageRuntimeStub(self.channel)

    def close(self) -> None:
        self.channel.close()
        with self.process:
            self.process.kill()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    (tmp_path / "queue.py").write_text("raise SystemExit('imported from the program directory')")
    host = Host(tmp_path)
    yield host
    host.close()


def info(directory: Path, **options: str) -> language_pb2.ProgramInfo:
    values = Struct()
    values.update(options)
    return language_pb2.ProgramInfo(
        root_directory=str(directory), program_directory=str(directory), entry_point=".", options=values
    )


def run_request(directory: Path, argument: str, **options: str) -> language_pb2.RunRequest:
    return language_pb2.RunRequest(
        project="project",
        stack="stack",
        organization="organization",
        pwd=str(directory),
        monitor_address="127.0.0.1:2",
        dryRun=True,
        parallel=4,
        config={"project:key": "hidden"},
        configSecretKeys=["project:key"],
        args=[argument],
        info=info(directory, **options),
    )


def test_the_host_answers_handshake_and_version_like_the_installed_sdk(host: Host) -> None:
    host.stub.Handshake(language_pb2.LanguageHandshakeRequest(engine_address="127.0.0.1:1"))
    assert host.stub.GetPluginInfo(Empty()).version == metadata.version("pulumi")


def test_about_and_dependencies_describe_the_interpreter_of_the_program(host: Host, tmp_path: Path) -> None:
    about = host.stub.About(language_pb2.AboutRequest(info=info(tmp_path)))
    assert about.version == sys.version.split()[0]
    request = language_pb2.GetProgramDependenciesRequest(info=info(tmp_path), transitiveDependencies=True)
    everything = {found.name: found.version for found in host.stub.GetProgramDependencies(request).dependencies}
    assert everything["pulumi"] == metadata.version("pulumi")
    request.transitiveDependencies = False
    direct = {found.name for found in host.stub.GetProgramDependencies(request).dependencies}
    assert "embedding-serving" in direct
    assert "grpcio" not in direct, "grpcio is there because pulumi needs it"


def test_required_packages_are_the_providers_whose_sdk_is_installed(host: Host, tmp_path: Path) -> None:
    request = language_pb2.GetRequiredPackagesRequest(info=info(tmp_path))
    found = [
        (package.kind, package.name, package.version) for package in host.stub.GetRequiredPackages(request).packages
    ]
    assert found == [("resource", "kubernetes", metadata.version("pulumi-kubernetes"))]


def test_a_program_gets_its_settings_and_no_configuration_in_the_arguments(host: Host, tmp_path: Path) -> None:
    answer = host.stub.Run(run_request(tmp_path, "0"))
    assert (answer.error, answer.bail) == ("", False)
    assert host.process.stdout is not None
    seen = json.loads(host.process.stdout.readline())
    arguments = dict(zip(seen["argv"][:-2:2], seen["argv"][1:-2:2], strict=True))
    assert arguments == {
        "--monitor": "127.0.0.1:2",
        "--engine": "127.0.0.1:1",
        "--project": "project",
        "--stack": "stack",
        "--organization": "organization",
        "--root_directory": str(tmp_path),
        "--pwd": str(tmp_path),
        "--dry_run": "true",
        "--parallel": "4",
    }
    assert seen["argv"][-2:] == [".", "0"]
    assert json.loads(seen["config"]) == {"project:key": "hidden"}
    assert json.loads(seen["secret_keys"]) == ["project:key"]


def test_a_program_runs_in_the_virtualenv_of_its_project(host: Host, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "environment"], check=True)
    host.stub.Run(run_request(tmp_path, "0", virtualenv="environment"))
    assert host.process.stdout is not None
    seen = json.loads(host.process.stdout.readline())
    assert seen["prefix"] == str(tmp_path / "environment")
    assert seen["path"].split(os.pathsep)[0] == str(tmp_path / "environment" / "bin")


@pytest.mark.parametrize(("code", "error", "bail"), [("32", "", True), ("1", "the program exited with code 1", False)])
def test_an_exception_that_was_shown_is_not_reported_again(
    host: Host, tmp_path: Path, code: str, error: str, bail: bool
) -> None:
    answer = host.stub.Run(run_request(tmp_path, code))
    assert (answer.error, answer.bail) == (error, bail)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"virtualenv": "nowhere"}, ["runtime.options.virtualenv", "'nowhere'", "python3 -m venv"]),
        ({"toolchain": "uv"}, ["runtime.options.toolchain", "'uv'", "'pip'"]),
        ({"typechecker": "mypy"}, ["runtime.options.typechecker", "toolchain and virtualenv"]),
    ],
)
def test_an_option_that_cannot_be_honoured_is_one_line_with_the_next_step(
    host: Host, tmp_path: Path, options: dict[str, str], words: list[str]
) -> None:
    error = host.stub.Run(run_request(tmp_path, "0", **options)).error
    assert [word for word in words if word not in error] == []
    assert "\n" not in error
    with pytest.raises(grpc.RpcError) as refused:
        host.stub.GetRequiredPackages(language_pb2.GetRequiredPackagesRequest(info=info(tmp_path, **options)))
    assert refused.value.details() == error


def test_pulumi_install_is_told_that_nothing_is_installed(host: Host, tmp_path: Path) -> None:
    lines = list(host.stub.InstallDependencies(language_pb2.InstallDependenciesRequest(info=info(tmp_path))))
    assert [line.stdout for line in lines] == [
        f"Nothing installed: the local language host uses {CHECKOUT}/.venv/bin/python as it is\n".encode()
    ]


def test_a_plugin_streams_both_outputs_and_its_exit_code(host: Host, tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text(
        "import os, sys\nprint(sys.argv[1:], os.environ['GIVEN'])\nprint('x' * 300_000)\nsys.exit('at the end')\n"
    )
    request = language_pb2.RunPluginRequest(
        pwd=str(tmp_path), kind="resource", args=["127.0.0.1:1"], env=["GIVEN=a=b"], info=info(tmp_path)
    )
    answers = list(host.stub.RunPlugin(request))
    assert b"".join(answer.stdout for answer in answers) == b"['127.0.0.1:1'] a=b\n" + b"x" * 300_000 + b"\n"
    assert b"".join(answer.stderr for answer in answers) == b"at the end\n"
    assert [answer.exitcode for answer in answers if answer.WhichOneof("output") == "exitcode"] == [1]


def test_a_kind_of_plugin_that_the_host_cannot_run_is_refused_by_name(host: Host, tmp_path: Path) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        list(host.stub.RunPlugin(language_pb2.RunPluginRequest(kind="converter", info=info(tmp_path))))
    assert "analyzer, resource, not 'converter'" in refused.value.details()


@pytest.mark.parametrize("reason", ["the engine dies", "SIGINT", "Cancel", "the call is cancelled"])
def test_a_running_program_ends_with_what_asked_for_it(host: Host, tmp_path: Path, reason: str) -> None:
    gate = Gate(tmp_path / "gate")
    call = host.stub.Run.future(run_request(tmp_path, f"gate:{tmp_path / 'gate'}"))
    program = int(gate.read())
    assert os.getpgid(program) == host.process.pid, "a program outside the host's group survives the engine"
    match reason:
        case "the engine dies":
            assert host.process.stdin is not None
            host.process.stdin.close()
        case "SIGINT":
            os.killpg(host.process.pid, signal.SIGINT)
        case "Cancel":
            host.stub.Cancel(Empty())
            assert call.result().bail, "the engine itself reports that the update was cancelled"
        case "the call is cancelled":
            call.cancel()
    assert gate.read() == b""
    if reason in ("the engine dies", "SIGINT"):
        assert host.process.wait(PATIENCE_SECONDS) == 0
    assert (tmp_path / "stderr").read_text() == "", "the user asked for the end and needs no KeyboardInterrupt"


def test_a_program_that_ignores_sigterm_does_not_outlive_the_engine(host: Host, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    (tmp_path / "pulumi-language-python-exec").write_text(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + EXECUTOR
    )
    call = host.stub.Run.future(run_request(tmp_path, f"gate:{tmp_path / 'gate'}"))
    gate.read()
    assert host.process.stdin is not None
    host.process.stdin.close()
    assert host.process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    assert gate.read() == b""
    call.cancel()


def test_the_environment_holds_no_setting_of_the_users_own_pulumi_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_ACCESS_TOKEN", "the user's")
    monkeypatch.setenv("HOME", str(tmp_path))
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "pulumi-resource-kubernetes").touch()
    variables = environment(programs, tmp_path / "my state")
    assert "PULUMI_ACCESS_TOKEN" not in variables
    assert variables["HOME"] == str(tmp_path)
    assert variables["PATH"].split(os.pathsep)[0] == str(programs)
    assert variables["PULUMI_CONFIG_PASSPHRASE"] == PASSPHRASE
    assert variables["PULUMI_BACKEND_URL"] == f"file://{tmp_path}/my%20state/pulumi"
    plugins = Path(variables["PULUMI_HOME"]) / "plugins"
    version = metadata.version("pulumi-kubernetes")
    provider = plugins / f"resource-kubernetes-v{version}" / "pulumi-resource-kubernetes"
    assert provider.readlink() == programs / "pulumi-resource-kubernetes"
    host = plugins / f"language-python-v{metadata.version('pulumi')}" / "pulumi-language-python"
    assert host.resolve() == HOST
    assert environment(programs, tmp_path / "my state") == variables


def test_a_checkout_without_its_virtualenv_says_what_to_run(tmp_path: Path) -> None:
    (tmp_path / "local/bin").mkdir(parents=True)
    script = tmp_path / "local/bin" / HOST.name
    script.write_bytes(HOST.read_bytes())
    script.chmod(0o755)
    answer = subprocess.run([script, "127.0.0.1:1"], capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert "run 'make up'" in answer.stderr
