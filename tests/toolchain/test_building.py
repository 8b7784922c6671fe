"""Programs from Go modules: keys, locks, interruptions and what a person reads when it fails."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from local.report import Reporter
from local.toolchain import ToolchainError, ensure, golang
from local.toolchain.cache import Entry, content_key
from local.toolchain.golang import GoProgram
from tests.toolchain.conftest import need_go, write_script

pytestmark = pytest.mark.local

_BUILD_TINY = """
import sys
from pathlib import Path
from local.report import PlainReporter
from local.toolchain.golang import GoProgram
GoProgram("tiny", Path(sys.argv[1]), ".").build(PlainReporter())
"""


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "main.go"])
def test_a_changed_source_file_makes_another_key(tiny: GoProgram, name: str) -> None:
    before = tiny.entry()
    with (tiny.folder / name).open("a") as file:
        file.write("// changed\n")
    assert tiny.entry() != before


def test_flags_and_go_version_are_part_of_the_key_and_generated_files_are_not(
    tiny: GoProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tiny.entry()
    (tiny.folder / "generated").mkdir()
    (tiny.folder / "generated" / "x.json").write_text("{}")
    assert tiny.entry() == before
    assert GoProgram("tiny", tiny.folder, ".", ldflags="-X main.version=2").entry() != before
    monkeypatch.setattr(golang, "go_version", lambda: "go9.9.9")
    assert tiny.entry() != before


def test_a_key_tells_where_one_part_ends() -> None:
    assert content_key(["ab", "c"]) != content_key(["a", "bc"])


def test_an_entry_that_goes_while_old_ones_are_removed_does_no_harm(cache: Path, reporter: Reporter) -> None:
    built = cache / "built"
    built.mkdir(parents=True)
    (built / "thing-old").mkdir()
    os.utime(built / "thing-old", (0, 0))
    # Listed, and not there when it is looked at.
    (built / "thing-gone").symlink_to(cache / "nowhere")
    path = Entry("thing", "new").obtain(reporter, lambda _work, _out: None, keep=1)
    assert path.is_dir()
    assert not (built / "thing-old").exists()


def test_a_built_program_runs_and_the_checkout_stays_as_it_was(tiny: GoProgram, reporter: Reporter) -> None:
    need_go()
    before = {p: p.read_bytes() for p in tiny.folder.iterdir()}

    def write_into_copy(source: Path, env: dict[str, str], log: Path) -> None:
        (source / "extra.go").write_text("package main\n")

    program = GoProgram("tiny", tiny.folder, ".", prepare=write_into_copy)
    program.build(reporter)
    assert subprocess.run([program.path()], capture_output=True, check=True).stdout == b"tiny\n"
    assert {p: p.read_bytes() for p in tiny.folder.iterdir()} == before


def test_two_builds_at_once_compile_once_and_the_second_says_what_it_waits_for(
    tiny: GoProgram, cache: Path, bin_folder: Path, tmp_path: Path
) -> None:
    go = need_go()
    builds, gate = tmp_path / "builds", tmp_path / "gate"
    os.mkfifo(gate)
    write_script(bin_folder / "go", f'[ "$1" != build ] || {{ echo x >>{builds}; read line <{gate}; }}\nexec {go} "$@"')
    first = _start(tiny)
    _wait_for(builds, first)
    second = _start(tiny)
    assert second.stderr is not None
    assert f"waiting for process {first.pid} of" in second.stderr.readline()
    gate.write_text("go on\n")
    for process in (first, second):
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert builds.read_text() == "x\n"
    assert tiny.path().exists()


def test_a_killed_build_leaves_no_entry_and_the_next_one_succeeds(
    tiny: GoProgram, cache: Path, bin_folder: Path, tmp_path: Path, reporter: Reporter
) -> None:
    go = need_go()
    started, gate = tmp_path / "started", tmp_path / "gate"
    os.mkfifo(gate)
    half = 'while [ "$1" != -o ]; do shift; done; echo half >"$2"'
    write_script(
        bin_folder / "go",
        f'[ "$1" = build ] || exec {go} "$@"\n{half}\necho x >{started}\nread line <{gate}',
    )
    process = _start(tiny)
    _wait_for(started, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not tiny.entry().complete
    (left_behind,) = (cache / "tmp").iterdir()
    assert (left_behind / "out" / "tiny").read_text() == "half\n"

    (bin_folder / "go").unlink()
    tiny.build(reporter)
    assert subprocess.run([tiny.path()], capture_output=True, check=True).stdout == b"tiny\n"
    assert not list((cache / "tmp").iterdir())


def test_a_failing_build_shows_the_compilers_line_and_the_log(tiny: GoProgram, reporter: Reporter) -> None:
    need_go()
    (tiny.folder / "main.go").write_text("package main\n\nfunc main() { missing() }\n")
    with pytest.raises(ToolchainError) as caught:
        tiny.build(reporter)
    log = tiny.entry().log
    assert str(log) in str(caught.value)
    assert "building tiny failed" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert any("main.go:3:15: undefined: missing" in line for line in caught.value.tail)
    assert "undefined: missing" in log.read_text()
    assert not tiny.entry().complete


def test_a_silent_module_proxy_is_told_apart_from_a_broken_build(
    tiny: GoProgram, bin_folder: Path, reporter: Reporter
) -> None:
    error = "go: example.test/x: dial tcp: lookup proxy.test: no such host"
    write_script(bin_folder / "go", f'[ "$1" = list ] && exit 0\necho "{error}" >&2; exit 1')
    with pytest.raises(
        ToolchainError, match=r"the Go module proxy did not answer; check the network.* Log: /"
    ) as caught:
        tiny.build(reporter)
    assert error in caught.value.tail


def test_a_go_that_is_too_old_is_one_line(tiny: GoProgram, reporter: Reporter, monkeypatch: pytest.MonkeyPatch) -> None:
    need_go()
    monkeypatch.setenv("GOTOOLCHAIN", "local")
    (tiny.folder / "go.mod").write_text("module example.test/tiny\n\ngo 1.999\n")
    with pytest.raises(ToolchainError, match=r"^Go 1\.999 or newer is needed; .*running go 1\.\d+.*$"):
        tiny.build(reporter)


def test_without_go_one_line_says_so_and_what_was_built_earlier_is_still_used(
    tiny: GoProgram, cache: Path, tmp_path: Path, reporter: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = Entry("tiny", tiny.entry().key.replace(golang.go_version() or "go", "go1.2.3"))
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(ToolchainError, match=r"^Go 1\.21 or newer is needed and `go` is not on PATH; install it"):
        tiny.build(reporter)
    built.path.mkdir(parents=True)
    assert tiny.entry() == built


def test_a_cache_that_cannot_be_written_is_one_line(tiny: GoProgram, cache: Path, reporter: Reporter) -> None:
    cache.write_text("a file, not a folder")
    with pytest.raises(
        ToolchainError, match=r"^cannot write to the cache \(.*/cache.*: Not a directory\); choose another"
    ):
        tiny.build(reporter)


def test_too_little_disk_is_said_before_anything_is_built(
    cache: Path, reporter: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_go()
    usage = shutil.disk_usage("/")._replace(free=7 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(
        ToolchainError, match=r"^building etcd takes up to \d+ MiB below /.*, 7 MiB are free; make room"
    ):
        ensure(["etcd"], reporter)
    assert not (cache / "logs").exists()


def _start(program: GoProgram) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _BUILD_TINY, os.fspath(program.folder)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
