"""Operators: programs, images, vendored objects and the catalogue name the same releases."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from infra.core import catalogue
from local import images
from local.images import names
from local.report import PlainReporter, Reporter
from local.toolchain import ALL, EMBEDDED
from local.toolchain.errors import ToolchainError
from local.toolchain.golang import MODULES, GoProgram, required_version
from local.toolchain.programs import GO_PROGRAMS
from local.toolchain.resolve import JUDGES
from scripts.addons import __main__ as addons
from tests.toolchain.conftest import need_go

pytestmark = pytest.mark.local

_PROGRAMS = {program.name: program for program in GO_PROGRAMS}


def _objects(name: str) -> list[dict[str, Any]]:
    return catalogue.addon_objects(name)[1]


def _containers(name: str) -> list[dict[str, Any]]:
    deployments = [one for one in _objects(name) if one["kind"] == "Deployment"]
    return [container for one in deployments for container in one["spec"]["template"]["spec"]["containers"]]


def test_make_up_does_not_wait_for_programs_that_only_tests_run() -> None:
    assert set(ALL) - set(EMBEDDED) == set(JUDGES)


def test_every_image_of_an_operator_has_the_release_of_the_program_in_it() -> None:
    for image in names.OPERATORS:
        assert image.upstream.rpartition(":")[2].removeprefix("v") == _PROGRAMS[image.program].pinned


def test_the_catalogue_lists_the_images_that_are_built() -> None:
    listed = [image for row in catalogue.addons().values() for image in row.images]
    assert sorted(listed) == sorted(image.upstream for image in names.OPERATORS)


def test_prometheus_calls_its_release_as_the_module_calls_itself() -> None:
    prometheus = _PROGRAMS["prometheus"]
    module = required_version(MODULES / "prometheus", "github.com/prometheus/prometheus")
    major, minor, patch = prometheus.pinned.split(".")
    assert module == f"v0.{major}{int(minor):02}.{patch}"


@pytest.mark.parametrize("name", addons.ADDONS)
def test_objects_name_the_images_and_the_version_of_the_catalogue(name: str) -> None:
    row = catalogue.addons()[name]
    assert addons.images(_objects(name)) == set(row.images)
    assert any(image.rpartition(":")[2].removeprefix("v") == row.version for image in row.images)
    assert f"@v{row.version}" in row.source


@pytest.mark.parametrize("name", addons.ADDONS)
def test_containers_of_operators_are_limited_and_restricted(name: str) -> None:
    assert _containers(name)
    for container in _containers(name):
        assert container["resources"].keys() == {"requests", "limits"}
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        # A registry that is away must not stop a restart, and the embedded cluster has none.
        assert container.get("imagePullPolicy", "IfNotPresent") == "IfNotPresent"


@pytest.mark.parametrize("name", addons.ADDONS)
def test_objects_lie_in_the_namespace_of_the_catalogue_and_own_namespaces_refuse_pods_that_are_not_restricted(
    name: str,
) -> None:
    namespace = catalogue.addons()[name].namespace
    for one in _objects(name):
        # Reading the configuration of authentication is granted in kube-system, for every aggregated API.
        assert one["metadata"].get("namespace", namespace) in (namespace, "kube-system")
        if one["kind"] == "Namespace":
            assert one["metadata"]["name"] == namespace
            assert one["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_a_schema_loses_descriptions_and_keeps_a_field_of_that_name() -> None:
    schema = {
        "description": "gone",
        "properties": {"description": {"type": "string", "description": "gone"}, "free": {"type": "object"}},
        "items": {"anyOf": [{"description": "gone", "type": "integer"}]},
        "additionalProperties": True,
    }
    crd = {"spec": {"versions": [{"schema": {"openAPIV3Schema": schema}}]}, "status": {}}
    assert addons.small(crd) == {
        "spec": {
            "versions": [
                {
                    "schema": {
                        "openAPIV3Schema": {
                            "properties": {"description": {"type": "string"}, "free": {"type": "object"}},
                            "items": {"anyOf": [{"type": "integer"}]},
                            "additionalProperties": True,
                        }
                    }
                }
            ]
        }
    }


def test_a_plain_equals_sign_is_read_as_text() -> None:
    assert addons.documents("enum: ['!=', =]\n---\n") == [{"enum": ["!=", "="]}]


def test_vendored_objects_are_those_of_the_go_modules(capsys: pytest.CaptureFixture[str]) -> None:
    need_go()
    assert addons.main(["--check"]) == 0, capsys.readouterr().err


def test_the_image_of_an_operator_starts_its_program_as_upstream_does(
    cache: Path, reporter: Reporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "prometheus"
    program.write_text("program")
    monkeypatch.setattr(images, "ensure_programs", lambda _names, _reporter: {"prometheus": program})
    (image,) = (image for image in names.OPERATORS if image.program == "prometheus")
    made = images.ensure(reporter, [image.name])
    assert list(made) == [image.name] == ["built.local/quay.io/prometheus/prometheus:v3.16.0"]
    with tarfile.open(made[image.name]) as archive:
        index = json.loads(_blob(archive, "index.json"))
        manifest = json.loads(_blob(archive, _path(index["manifests"][0])))
        config = json.loads(_blob(archive, _path(manifest["config"])))["config"]
        (layer,) = manifest["layers"]
        (tmp_path / "layer.tar").write_bytes(_blob(archive, _path(layer)))
    assert config["Entrypoint"] == ["/bin/prometheus"]
    assert config["User"] == "65534"
    assert config["WorkingDir"] == "/prometheus"
    with tarfile.open(tmp_path / "layer.tar") as layer_tar:
        assert layer_tar.getmember("bin/prometheus").mode == 0o755
        assert layer_tar.getmember("prometheus").mode == 0o777


def test_an_image_that_is_not_built_here_is_one_line_that_lists_the_others(cache: Path) -> None:
    name = "built.local/quay.io/prometheus/prometheus:v2.0.0"
    with pytest.raises(ToolchainError, match=rf"^image {name} is not built here; built are .*prometheus:v3"):
        images.ensure(PlainReporter(), [name])


def test_build_tags_are_part_of_the_key(tiny: GoProgram) -> None:
    assert GoProgram("tiny", tiny.folder, ".", tags="a b").entry() != tiny.entry()


def _path(descriptor: dict[str, Any]) -> str:
    return "blobs/" + str(descriptor["digest"]).replace(":", "/")


def _blob(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()
