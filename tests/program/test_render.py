"""manifests/: what each stack puts into the cluster, and that no secret gets there."""

from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml

from infra.core import plan, settings
from infra.core.plan import Plan
from infra.core.rules import UNKNOWN_VALUES, Finding, Level, Violation
from infra.program.recording import Recorder, record
from scripts import check, render, stackfile
from scripts import plan as plans
from scripts.command import CommandError
from tests import stacks

pytestmark = pytest.mark.program


def planned(**changes: Any) -> Plan:
    return plan.make(settings.load(stacks.local(**changes)), name="local", secrets={"apiKey"})


@pytest.mark.parametrize("name", stackfile.names())
def test_committed_manifests_are_what_the_program_registers(name: str) -> None:
    lines = render.differences(plans.of(name), render.FOLDER / name)
    assert lines == [], f"run make render STACK={name}"


def test_there_are_no_manifests_of_a_stack_that_is_gone() -> None:
    assert {path.name for path in render.FOLDER.iterdir()} <= set(stackfile.names())


@pytest.mark.parametrize("name", stackfile.names())
def test_what_the_program_registers_passes_every_rule(name: str) -> None:
    assert check.violations(plans.of(name)) == []


def test_a_workload_with_an_api_key_passes_every_rule_too() -> None:
    assert check.violations(planned(requireApiKey=True)) == []


def test_rendering_twice_gives_the_same_files() -> None:
    first, second = render.files(planned(requireApiKey=True)), render.files(planned(requireApiKey=True))
    assert list(first.items()) == list(second.items())


def test_a_secret_value_is_replaced_by_a_marker_and_its_key_stays() -> None:
    recorder, _ = record(planned(requireApiKey=True), {"apiKey": "made-up-key"})
    shown = recorder.objects(secret="covered")
    assert "made-up-key" in repr(recorder.objects())
    assert "made-up-key" not in repr(shown)
    [secret] = [found for found in shown if found["kind"] == "Secret"]
    assert secret["stringData"] == {"apiKey": "covered"}


def test_a_secret_that_pulumi_was_not_told_of_is_covered_too() -> None:
    recorder = Recorder()
    properties = {"kind": "Secret", "metadata": {"name": "keys"}, "data": {"a": "bWFkZS11cA=="}}
    recorder.resources.append(_resource("kubernetes:core/v1:Secret", properties))
    assert recorder.objects(secret="covered")[0]["data"] == {"a": "covered"}


def test_rendered_files_say_that_a_value_was_redacted_and_that_a_name_is_not_final() -> None:
    text = render.files(planned(requireApiKey=True))["secret-embed-keys.yaml"]
    assert yaml.safe_load(text)["stringData"] == {"apiKey": render.REDACTED}
    assert "-0123abcd stands for the random suffix" in text
    assert "changes here are overwritten" in text


def test_numbers_are_whole_as_in_kubernetes() -> None:
    deployment = yaml.safe_load(render.files(planned())["deployment-embed.yaml"])
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert repr(container["ports"][0]["containerPort"]) == "8080"


def test_a_folder_that_differs_is_shown_and_put_right(tmp_path: Path) -> None:
    render.write(planned(), tmp_path)
    assert render.differences(planned(), tmp_path) == []
    (tmp_path / "service-old.yaml").write_text("kind: Service\n")
    (tmp_path / "service-embed.yaml").unlink()
    shown = "".join(render.differences(planned(), tmp_path))
    assert "-kind: Service\n" in shown
    assert "+  name: embed\n" in shown
    render.write(planned(), tmp_path)
    assert render.differences(planned(), tmp_path) == []
    assert not (tmp_path / "service-old.yaml").exists()


def test_a_resource_that_is_no_single_object_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    recorder.resources.append(_resource("kubernetes:helm.sh/v3:Release", {"chart": "keda"}))
    monkeypatch.setattr(render, "record", lambda *_: (recorder, {}))
    with pytest.raises(CommandError, match="Release one is no single Kubernetes object"):
        render.objects(planned())


def test_two_objects_of_one_name_are_told_apart_by_their_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    def service(namespace: str) -> dict[str, Any]:
        return {"kind": "Service", "metadata": {"name": "a", "namespace": namespace}}

    monkeypatch.setattr(render, "objects", lambda _: [service("x"), service("y")])
    assert list(render.files(planned())) == ["service-x-a.yaml", "service-y-a.yaml"]
    monkeypatch.setattr(render, "objects", lambda _: [service("x"), service("x")])
    with pytest.raises(CommandError, match=r"two objects would be manifests/local/service-x-a\.yaml"):
        render.files(planned())


def test_what_cannot_be_judged_fails_the_check() -> None:
    violation = Violation(UNKNOWN_VALUES, {}, Finding("a", "b", "c"))
    assert check._level(violation, "local") is Level.MANDATORY


def _resource(token: str, properties: dict[str, Any]) -> pulumi.runtime.MockResourceArgs:
    return pulumi.runtime.MockResourceArgs(
        typ=token, name="one", inputs=properties, provider="", resource_id="", custom=True
    )
