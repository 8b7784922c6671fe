"""Files out of Debian packages, with an apt-get that serves packages of the test's own."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from local.report import Reporter
from local.toolchain import ToolchainError, ensure
from local.toolchain.debian import DebianFiles
from tests.toolchain.conftest import write_script

pytestmark = pytest.mark.local


@pytest.fixture
def packages(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PATH with nothing but dpkg-deb, what it needs, and whatever apt-get the test writes; a folder of packages."""
    if not shutil.which("dpkg-deb"):
        pytest.skip("needs dpkg-deb")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("dpkg-deb", "tar", "cp", "touch", "sh"):
        (tools / tool).symlink_to(shutil.which(tool) or "/nowhere")
    folder = tmp_path / "packages"
    for name, file in (("containerd", "usr/bin/ctr"), ("runc", "usr/sbin/runc")):
        tree = tmp_path / f"tree-{name}"
        (tree / "DEBIAN").mkdir(parents=True)
        control = (
            f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: test <t@example.test>\nDescription: test\n"
        )
        (tree / "DEBIAN" / "control").write_text(control)
        for path in {file, "usr/bin/containerd", "usr/bin/containerd-shim-runc-v2"} if name == "containerd" else {file}:
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(path)
        folder.mkdir(exist_ok=True)
        subprocess.run(["dpkg-deb", "-b", tree, folder / f"{name}_1_all.deb"], check=True, capture_output=True)
    monkeypatch.setenv("PATH", os.fspath(tools))
    return folder


def _apt_get(packages: Path, body: str) -> None:
    write_script(packages.parent / "tools" / "apt-get", body)


def test_missing_packages_are_unpacked_into_the_cache_and_counted(
    packages: Path, cache: Path, reporter: Reporter, capsys: pytest.CaptureFixture[str]
) -> None:
    _apt_get(packages, f"while [ $# -gt 1 ]; do shift; done; cp {packages}/$1_*.deb .")
    found = ensure(["ctr", "runc"], reporter)
    assert {name: path.read_text() for name, path in found.items()} == {"ctr": "usr/bin/ctr", "runc": "usr/sbin/runc"}
    assert all(path.is_relative_to(cache / "built") for path in found.values())
    lines = capsys.readouterr().err
    assert "[1/2] unpacking containerd" in lines
    assert "[2/2] unpacking runc" in lines


def test_missing_package_lists_are_fetched_into_the_cache_and_not_into_the_system(
    packages: Path, cache: Path, reporter: Reporter
) -> None:
    """apt-get of a fresh container: it knows no package until it is given lists of its own and updates them."""
    _apt_get(
        packages,
        f"""
case "$*" in
  *"Dir::State::lists={cache}/apt/lists update") touch {cache}/apt/lists/fresh ;;
  *"Dir::State::lists={cache}/apt/lists download runc") [ -e {cache}/apt/lists/fresh ] && cp {packages}/runc_*.deb . ;;
  "-q download runc") echo "E: Unable to locate package runc" >&2; exit 100 ;;
  *) echo "unexpected: $*" >&2; exit 1 ;;
esac""",
    )
    assert ensure(["runc"], reporter)["runc"].read_text() == "usr/sbin/runc"


def test_a_mirror_that_does_not_answer_is_told_in_one_line(packages: Path, cache: Path, reporter: Reporter) -> None:
    _apt_get(packages, "echo \"E: Failed to fetch: Temporary failure resolving 'mirror.test'\" >&2; exit 100")
    with pytest.raises(ToolchainError, match=r"^fetching the package runc: the package mirror .* did not answer;"):
        ensure(["runc"], reporter)


def test_a_package_without_the_expected_file_leaves_no_entry(packages: Path, cache: Path, reporter: Reporter) -> None:
    _apt_get(packages, f"cp {packages}/runc_*.deb .")
    other = DebianFiles("runc", {"runc": "usr/bin/elsewhere"})
    with pytest.raises(ToolchainError, match=r"^runc_1_all.deb holds no usr/bin/elsewhere"):
        other.build(reporter)
    assert not other.entry().complete
