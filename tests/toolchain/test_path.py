"""Programs that the user already has."""

import subprocess
from pathlib import Path

import pytest

from local.report import Reporter
from local.toolchain import ALL, CLIENT, ToolchainError, debian, ensure, find
from local.toolchain.programs import DEBIAN_FILES, GO_PROGRAMS, SYSTEM_PROGRAMS
from tests.toolchain.conftest import write_script

pytestmark = pytest.mark.local


def _kubectl(folder: Path, version: str) -> None:
    write_script(folder / "kubectl", f'echo "Client Version: v{version}"; echo "Kustomize Version: v5.7.1"')


def _pulumi(folder: Path, version: str, *beside: str) -> None:
    write_script(folder / "pulumi", f'echo "v{version}"')
    for name in beside:
        write_script(folder / name, "exit 0")


@pytest.mark.parametrize("version", ["1.34.0", "1.35.9", "1.36.2"])
def test_kubectl_within_one_minor_is_used_and_named(
    cache: Path, bin_folder: Path, reporter: Reporter, capsys: pytest.CaptureFixture[str], version: str
) -> None:
    _kubectl(bin_folder, version)
    assert ensure(["kubectl"], reporter) == {"kubectl": bin_folder / "kubectl"}
    assert f"kubectl: {bin_folder / 'kubectl'} (yours, {version})" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["1.33.9", "1.37.0", "2.0.0"])
def test_kubectl_further_away_is_not_used_and_the_reason_is_told(cache: Path, bin_folder: Path, version: str) -> None:
    _kubectl(bin_folder, version)
    found = find(["kubectl"])["kubectl"]
    assert found.path is None
    assert f"{bin_folder / 'kubectl'} {version} is not in the range 1.34 <= version < 1.37" in found.origin


def test_a_sufficient_pulumi_brings_its_own_language_host(cache: Path, bin_folder: Path, reporter: Reporter) -> None:
    host = ("pulumi-language-python", "pulumi-language-python-exec")
    _pulumi(bin_folder, "3.300.0", *host)
    names = ["pulumi", "pulumi-language-python-exec"]
    assert ensure(names, reporter) == {name: bin_folder / name for name in ("pulumi", *host)}


def test_a_pulumi_without_its_language_host_is_not_used(cache: Path, bin_folder: Path) -> None:
    _pulumi(bin_folder, "3.300.0", "pulumi-language-python-exec")
    found = find(["pulumi"])
    assert set(found) == {"pulumi"}
    assert found["pulumi"].path is None
    assert "has no pulumi-language-python beside it" in found["pulumi"].origin


@pytest.mark.parametrize("version", ["3.200.1", "4.0.0"])
def test_an_older_or_next_major_pulumi_is_not_used(cache: Path, bin_folder: Path, version: str) -> None:
    _pulumi(bin_folder, version, "pulumi-language-python", "pulumi-language-python-exec")
    assert find(["pulumi"])["pulumi"].path is None


def test_a_program_that_prints_no_version_is_not_used(cache: Path, bin_folder: Path) -> None:
    write_script(bin_folder / "kubectl", "exit 1")
    assert "of unknown version" in find(["kubectl"])["kubectl"].origin


def test_an_upgraded_program_is_asked_again(cache: Path, bin_folder: Path) -> None:
    _kubectl(bin_folder, "1.29.0")
    assert find(["kubectl"])["kubectl"].path is None
    _kubectl(bin_folder, "1.35.10")
    assert find(["kubectl"])["kubectl"].path == bin_folder / "kubectl"


def test_what_make_shell_puts_on_path_is_not_taken_for_the_users(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = cache / "built" / "kubectl-1"
    ours.mkdir(parents=True)
    _kubectl(ours, "1.35.0")
    monkeypatch.setenv("PATH", f"{ours}:/usr/bin:/bin")
    assert find(["kubectl"])["kubectl"].path != ours / "kubectl"


def test_the_kubernetes_servers_are_never_taken_from_path(cache: Path, bin_folder: Path) -> None:
    for name in ("etcd", "kube-apiserver", "kubelet"):
        write_script(bin_folder / name, 'echo "Kubernetes v1.35.4"')
    assert all(found.path is None for found in find(["etcd", "kube-apiserver", "kubelet"]).values())


def test_an_unknown_program_is_one_line_that_lists_the_known_ones(cache: Path, reporter: Reporter) -> None:
    with pytest.raises(ToolchainError, match=r"^program 'helm' is not known; known are etcd, .*debootstrap"):
        ensure(["helm"], reporter)


def test_a_warm_check_of_everything_starts_no_process(
    cache: Path, bin_folder: Path, reporter: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    _kubectl(bin_folder, "1.35.4")
    for name in SYSTEM_PROGRAMS:
        write_script(bin_folder / name, "exit 0")
    for program in GO_PROGRAMS:
        program.entry().path.mkdir(parents=True)
    for package in DEBIAN_FILES:
        package.entry().path.mkdir(parents=True)
    first = ensure(ALL, reporter)  # asks kubectl for its version

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"a process was started: {args}")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert ensure(ALL, reporter) == first
    assert set(first) >= set(ALL)


def test_missing_system_programs_are_named_to_a_user_who_cannot_install_them(
    cache: Path, tmp_path: Path, reporter: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("local.toolchain.resolve.shutil.which", lambda *_, **__: None)
    monkeypatch.setattr("local.toolchain.resolve.os.geteuid", lambda: 1000)
    monkeypatch.setattr(debian, "available", lambda: True)
    with pytest.raises(ToolchainError, match=r"^install socat, util-linux as root, then run again$"):
        ensure(["socat", "nsenter", "unshare"], reporter)


def test_client_programs_are_a_part_of_all() -> None:
    assert set(CLIENT) < set(ALL)
