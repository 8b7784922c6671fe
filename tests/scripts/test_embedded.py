"""What surrounds the embedded cluster: its environment, and what a person is told at the end of `make up`."""

import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.core import plan, settings
from local import cluster, toolchain
from local.cluster import Options
from local.report import PlainReporter
from local.toolchain import CLIENT, Found
from scripts import command, embedded, up
from scripts.command import CommandError
from tests import stacks
from tests.scripts.conftest import API_KEY, planned
from tests.scripts.fake_cluster import scaled, workload

pytestmark = pytest.mark.core


def _found(folder: Path) -> dict[str, Found]:
    return {name: Found(name, folder / name, "ours") for name in CLIENT}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setattr(embedded, "state_dir", lambda: folder)
    monkeypatch.setattr(toolchain, "find", lambda _names: _found(tmp_path / "one"))
    return folder


def test_the_environment_leads_to_the_programs_and_to_the_cluster(state: Path) -> None:
    environment = embedded.environment()
    assert environment["PATH"].split(os.pathsep)[0] == str(state / "bin")
    assert environment["KUBECONFIG"] == str(embedded.access().kubeconfig)
    assert str(state) in environment["PULUMI_BACKEND_URL"]
    assert {link.name for link in (state / "bin").iterdir()} == set(CLIENT)


def test_the_pulumi_account_of_the_caller_is_left_alone(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULUMI_ACCESS_TOKEN", "of-the-caller")
    assert "PULUMI_ACCESS_TOKEN" not in embedded.environment()


def test_links_follow_programs_that_were_built_again(state: Path, tmp_path: Path) -> None:
    embedded.environment()
    embedded.environment({"pulumi": tmp_path / "two" / "pulumi"})
    assert (state / "bin" / "pulumi").readlink() == tmp_path / "two" / "pulumi"
    assert (state / "bin" / "kubectl").readlink() == tmp_path / "one" / "kubectl"


def test_a_language_host_that_came_with_another_pulumi_goes_with_it(state: Path, tmp_path: Path) -> None:
    embedded.environment({"pulumi-language-python": tmp_path / "theirs"})
    assert (state / "bin" / "pulumi-language-python").is_symlink()
    embedded.environment()
    assert not (state / "bin" / "pulumi-language-python").is_symlink()


def test_programs_that_are_not_built_are_named_with_the_next_step(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _found(tmp_path) | {"pulumi": Found("pulumi", None, "missing")}
    monkeypatch.setattr(toolchain, "find", lambda _names: found)
    with pytest.raises(CommandError, match="pulumi: not built yet; run make toolchain"):
        embedded.environment()


def test_temporary_files_of_pulumi_are_nobody_elses_and_go_with_the_state(state: Path) -> None:
    temporary = Path(embedded.environment()["TMPDIR"])
    assert temporary.stat().st_mode & 0o777 == 0o700
    (temporary / "kubeconfig1").write_text("client-key-data: x")
    embedded.remove()
    assert not state.exists()


def test_removal_leaves_what_others_put_into_the_state_directory(state: Path) -> None:
    embedded.environment()
    (state / "of-a-test").mkdir()
    embedded.remove()
    assert [path.name for path in state.iterdir()] == ["of-a-test"]
    (state / "of-a-test").rmdir()
    embedded.remove()
    assert not state.exists()


def _node(*pools: dict[str, Any], **workload: Any) -> Options:
    """The node for the stack ``local`` with these pools."""
    stack = stacks.local(**workload)
    stack["nodePools"] = [stack["nodePools"][0] | pool for pool in pools]
    return embedded.options(plan.make(settings.load(stack), name="local"))


_OFFER = {"cpu": "8", "memory": "32Gi"}


def test_the_node_has_the_gpus_that_the_pools_say() -> None:
    assert _node({}) == Options(gpus=2, gpu_product="NVIDIA-L4")
    assert _node({"gpu": "A10G", "nodes": 2, "allocatable": _OFFER | {"gpus": 4}}) == Options(8, "NVIDIA-A10G")
    assert _node({}, {"name": "more"}) == Options(gpus=4)


def test_where_a_pool_does_not_say_how_many_gpus_it_has_those_of_the_workloads_count() -> None:
    assert _node({"nodes": None}, replicas=3) == Options(gpus=3)


def test_pools_of_different_gpus_are_one_line_because_there_is_one_node() -> None:
    with pytest.raises(CommandError, match=r"node pools are l4 \(L4\), big \(A100\)") as caught:
        _node({}, {"name": "big", "gpu": "A100"})
    assert "\n" not in str(caught.value)


def test_a_stack_without_gpus_gets_a_node_without_gpus() -> None:
    cpu = {"gpu": None, "allocatable": _OFFER}
    assert _node(cpu).gpus == 0
    assert _node({}, cpu | {"name": "cpu"}) == Options(gpus=2), "a CPU pool beside it changes nothing"


@pytest.mark.parametrize(
    ("kind", "path"),
    [("embedding", "/v1/embeddings"), ("sparse", "/embed_sparse"), ("reranker", "/rerank"), ("classifier", "/predict")],
)
def test_the_curl_line_is_a_command_that_asks_what_the_model_answers(kind: str, path: str) -> None:
    line = up.curl(workload(kind=kind), "http://127.0.0.1:1")
    assert f" http://127.0.0.1:1{path} " in line
    assert subprocess.run(["sh", "-n", "-c", line], check=False).returncode == 0


def test_the_curl_line_of_a_protected_workload_reads_the_key_and_does_not_hold_it() -> None:
    line = up.curl(workload(api_key_secret="embed-keys", api_key_secret_key="apiKey"), "http://127.0.0.1:1")
    assert "get secret embed-keys" in line
    assert API_KEY not in line
    assert subprocess.run(["sh", "-n", "-c", line], check=False).returncode == 0


def test_the_table_of_what_runs_says_that_engine_and_gpu_are_not_real() -> None:
    agreed = planned()[1]
    table = up.workloads_table(agreed, {"embed": "http://127.0.0.1:1"})
    (row,) = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert row["stand-in"] is True
    assert row["GPU"] == "L4 (simulated)"


def test_the_table_of_what_runs_shows_how_many_pods_a_scaled_workload_may_have() -> None:
    agreed = replace(planned()[1], workloads=(scaled(),))
    table = up.workloads_table(agreed, {})
    (row,) = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert row["pods"] == "1 to 3"


def test_prometheus_is_published_under_its_own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def publish(*place: object) -> str:
        asked.append(place)
        return "http://127.0.0.1:1"

    monkeypatch.setattr(cluster, "publish", publish)
    contract = replace(planned()[1], monitoring={"address": "http://prometheus.monitoring.svc:9090/p"})
    assert up.publish_prometheus(contract, PlainReporter()) == "http://127.0.0.1:1/p"
    assert asked == [("prometheus", "monitoring", "prometheus", 9090)]


def test_a_stack_without_prometheus_publishes_none() -> None:
    assert up.publish_prometheus(planned()[1], PlainReporter()) is None


def test_each_line_to_paste_stands_alone_and_the_model_behind_a_stand_in_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    protected = workload(api_key_secret="embed-keys", api_key_secret_key="apiKey")
    url = "http://127.0.0.1:1"
    up.tell(replace(planned()[1], workloads=(protected,)), {"embed": url}, None, 61)
    said = capsys.readouterr().out
    assert "  embed, inside make shell:\n" in said
    assert f"  {up.curl(protected, url)}\n" in said
    assert "A stand-in computes with all-MiniLM-L6-v2 on the CPU, whatever model it is named after.\n" in said
    assert said.endswith("Up after 1 min 1 s.\n")
    up.tell(replace(planned()[1], workloads=(workload(stand_in=False),)), {"embed": url}, "http://127.0.0.1:2", 0)
    said = capsys.readouterr().out
    assert "stand-in computes" not in said
    assert "Prometheus: http://127.0.0.1:2\n" in said


def test_a_workload_that_speaks_grpc_gets_a_target_and_no_curl_line(capsys: pytest.CaptureFixture[str]) -> None:
    spoken = workload(protocol="grpc", api_key_secret="embed-keys", api_key_secret_key="apiKey")
    up.tell(replace(planned()[1], workloads=(spoken,)), {"embed": "http://127.0.0.1:1"}, None, 0)
    said = capsys.readouterr().out
    assert "  embed: gRPC, services of tei.v1, metadata authorization: Bearer KEY (Secret embed-keys)\n" in said
    assert " 127.0.0.1:1\n" in said
    assert "curl" not in said


def test_a_second_up_is_refused_before_it_looks_at_anything(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(toolchain, "ensure", pytest.fail)
    monkeypatch.setattr(sys, "argv", ["up"])
    with embedded.going_up():
        assert command.run(up.main) == 1
    said = capsys.readouterr().err
    assert said == f"error: another command is changing this cluster (pid {os.getpid()}); try again when it has ended\n"


def test_up_without_root_says_so_before_it_builds_anything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(toolchain, "ensure", pytest.fail)
    monkeypatch.setattr(sys, "argv", ["up"])
    assert command.run(up.main) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "cluster: {provider: existing, context: NAME}" in said
