"""Image files: the OCI layout, and what is in the engine image."""

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from infra.core import catalogue
from infra.core.engines.nim import versions as nim
from infra.core.engines.tei.images import VERSIONS, prefix_for
from local import images
from local.images import engine, names, tritonserver
from local.images.oci import ImageConfig, write_image, write_layer
from local.report import PlainReporter, Reporter
from local.toolchain import ToolchainError, debian

pytestmark = pytest.mark.local

_UNCHECKED_HASH = 1  # PEP 552, second word of a .pyc file


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def _blob(archive: tarfile.TarFile, descriptor: dict[str, Any]) -> bytes:
    content = _read(archive, "blobs/" + descriptor["digest"].replace(":", "/"))
    assert f"sha256:{hashlib.sha256(content).hexdigest()}" == descriptor["digest"]
    assert len(content) == descriptor["size"]
    return content


def _open_image(path: Path, named: Collection[str] | None = None) -> tuple[list[str], dict[str, Any], list[bytes]]:
    """Names, configuration and layers of an image, with every digest and size checked.

    ``named`` chooses between the images of a file.
    """
    with tarfile.open(path) as archive:
        assert json.loads(_read(archive, "oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        index = json.loads(_read(archive, "index.json"))
        manifests = [m for m in index["manifests"] if named is None or _name(m) in named]
        assert len({m["digest"] for m in manifests}) == 1
        manifest = json.loads(_blob(archive, manifests[0]))
        config = json.loads(_blob(archive, manifest["config"]))
        layers = [_blob(archive, layer) for layer in manifest["layers"]]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    return [_name(m) for m in manifests], config, layers


def _name(manifest: dict[str, Any]) -> str:
    return str(manifest["annotations"]["io.containerd.image.name"])


def _tree(folder: Path) -> None:
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "data").write_text("data")
    (folder / "a").write_text("program")
    (folder / "a").chmod(0o755)
    (folder / "link").symlink_to("a")


def test_an_image_has_matching_digests_and_all_its_names(tmp_path: Path) -> None:
    _tree(tmp_path / "tree")
    write_layer(tmp_path / "tree", tmp_path / "layer.tar", owner=0)
    config = ImageConfig(
        ["/a"], "amd64", cmd=["--x"], env={"PORT": "80"}, labels={"stand-in": "true"}, ports=["80/tcp"]
    )
    write_image([tmp_path / "layer.tar"] * 2, config, ["x.test/a:1", "x.test/a:2"], tmp_path / "image.tar")
    found, document, layers = _open_image(tmp_path / "image.tar")
    assert found == ["x.test/a:1", "x.test/a:2"]
    assert (document["os"], document["architecture"]) == ("linux", "amd64")
    assert document["config"]["Entrypoint"] == ["/a"]
    assert document["config"]["Env"] == ["PORT=80"]
    assert "User" not in document["config"]
    assert len(layers) == 2


def test_the_same_folder_gives_the_same_layer_whenever_it_was_written(tmp_path: Path) -> None:
    for number in (1, 2):
        _tree(tmp_path / f"tree{number}")
        os.utime(tmp_path / f"tree{number}" / "a", (number, number))
        write_layer(tmp_path / f"tree{number}", tmp_path / f"layer{number}.tar", owner=0)
    assert (tmp_path / "layer1.tar").read_bytes() == (tmp_path / "layer2.tar").read_bytes()


def test_a_layer_keeps_modes_and_links_and_sets_owners(tmp_path: Path) -> None:
    _tree(tmp_path / "tree")
    write_layer(tmp_path / "tree", tmp_path / "layer.tar", owner=7)
    with tarfile.open(tmp_path / "layer.tar") as layer:
        assert layer.getnames() == ["a", "b", "b/data", "link"]
        assert layer.getmember("a").mode == 0o755
        assert layer.getmember("link").linkname == "a"
        assert {(m.uid, m.gid, m.uname, m.mtime) for m in layer} == {(7, 7, "", 0)}


def test_images_need_root_and_say_so_in_one_line(
    cache: Path, reporter: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("local.images.base.os.geteuid", lambda: 1000)
    with pytest.raises(ToolchainError, match=r"^images are built with debootstrap and chroot, which need root; run as"):
        images.stand_ins(reporter)


def test_every_locked_package_has_a_hash_and_no_index_address() -> None:
    triton = (tritonserver.SERVER_LOCK, tritonserver.PACKAGES_LOCK, tritonserver.TOKENIZER_LOCK)
    for lock in (engine.ENGINE_LOCK, engine.MODEL_LOCK, *triton):
        text = lock.read_text()
        requirements = [line for line in text.splitlines() if "==" in line]
        assert requirements
        assert all(line.endswith("\\") for line in requirements)
        assert "://" not in text


def test_the_stand_in_has_a_name_for_every_image_that_a_plan_chooses() -> None:
    chosen = {prefix_for(gpu, arch) for gpu in (None, *catalogue.gpus().values()) for arch in ("amd64", "arm64")}
    assert chosen - {None} <= set(names.TEI_PREFIXES)
    assert VERSIONS[-1] == names.TEI_VERSION


def test_every_tag_of_every_nim_that_a_plan_chooses_has_a_stand_in() -> None:
    chosen = {f"stand-in.local/{row.repository}:{tag}" for row in nim.nims().values() for tag in row.tags()}
    assert chosen == {image.name for image in names.NIM_IMAGES}


@pytest.fixture(scope="module")
def stand_in() -> Path:
    """The engine image out of the user's cache, built if it is not there."""
    if os.geteuid() != 0 or not debian.available():
        pytest.skip("the engine image is built as root on Debian")
    return images.stand_ins(PlainReporter())


@pytest.fixture(scope="module")
def unpacked(stand_in: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Root file system and configuration of the engine image."""
    root = tmp_path_factory.mktemp("root")
    root.chmod(0o755)
    for parent in list(root.parents)[:2]:
        parent.chmod(0o755)  # pytest's folders are 0700, and the container's user has to pass through them
    _, config, layers = _open_image(stand_in, names.TEI_NAMES)
    for number, layer in enumerate(layers):
        path = root.parent / f"layer{number}.tar"
        path.write_bytes(layer)
        with tarfile.open(path) as archive:
            archive.extractall(root, filter="fully_trusted")  # noqa: S202 (our own image, with its real modes)
        path.unlink()
    return root, config["config"]


def test_the_stand_in_takes_every_name_of_the_official_image_and_says_what_it_is(stand_in: Path) -> None:
    found, config, layers = _open_image(stand_in, names.TEI_NAMES)
    assert tuple(found) == names.TEI_NAMES
    assert f"{names.TEI_REPOSITORY}:89-1.9.3" in found
    assert config["config"]["Labels"]["stand-in"] == "true"
    assert {"PORT=80", "HUGGINGFACE_HUB_CACHE=/data"} <= set(config["config"]["Env"])
    assert "User" not in config["config"]
    assert len(layers) == 4


def test_the_grpc_builds_have_another_entry_point_on_the_same_layers(stand_in: Path) -> None:
    _, http, layers = _open_image(stand_in, names.TEI_NAMES)
    found, grpc, grpc_layers = _open_image(stand_in, names.TEI_GRPC_NAMES)
    assert f"{names.TEI_REPOSITORY}:89-1.9.3-grpc" in found
    assert not any("cuda-" in name for name in found)
    assert http["config"]["Entrypoint"] == ["/usr/bin/python3", "-m", "local.engines.tei"]
    assert grpc["config"]["Entrypoint"] == ["/usr/bin/python3", "-m", "local.engines.tei.grpc"]
    assert grpc["config"]["Env"] == http["config"]["Env"]
    assert grpc["config"]["Labels"]["stand-in"] == "true"
    assert grpc_layers == layers


def test_an_image_of_a_nim_knows_its_model_and_release_and_has_no_layer_of_its_own(stand_in: Path) -> None:
    _, _, layers = _open_image(stand_in, names.TEI_NAMES)
    name = "stand-in.local/nim/nvidia/llama-3.2-nv-embedqa-1b-v2:1.10.1"
    _, document, nim_layers = _open_image(stand_in, [name])
    config = document["config"]
    assert config["Entrypoint"] == ["/usr/bin/python3", "-m", "local.engines.nim"]
    assert config["User"] == "1000"
    assert "STAND_IN_NIM_MODEL=nvidia/llama-3.2-nv-embedqa-1b-v2" in config["Env"]
    assert "STAND_IN_NIM_VERSION=1.10.1" in config["Env"]
    assert not any(line.startswith("PORT=") for line in config["Env"])
    assert config["Labels"]["stand-in"] == "true"
    assert nim_layers == layers


def test_the_triton_image_starts_as_nvidia_s_and_says_what_it_lacks(stand_in: Path) -> None:
    found, config, layers = _open_image(images.triton(PlainReporter()))
    assert found == [names.TRITON]
    assert config["config"]["Entrypoint"] == [tritonserver.ENTRYPOINT]
    assert config["config"]["Cmd"] == []
    assert "no GPU, Python backend only" in config["config"]["Labels"]["org.opencontainers.image.description"]
    # It is the real program: nothing calls it a stand-in.
    assert "stand-in" not in config["config"]["Labels"]
    _, _, stand_in_layers = _open_image(stand_in, names.TEI_NAMES)
    # One base for both, so a node keeps it once.
    assert layers[0] == stand_in_layers[0]
    with tarfile.open(fileobj=io.BytesIO(layers[1])) as server:
        backends = {name.split("/")[3] for name in server.getnames() if name.startswith("opt/tritonserver/backends/")}
        assert backends == {"python"}
        assert server.getmember("opt/tritonserver/bin/tritonserver").mode == 0o755


def test_images_that_no_stack_can_name_are_made_on_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [((names.PAUSE,), lambda: Path("pause.tar")), ((names.TRITON,), lambda: Path("triton.tar"))]
    monkeypatch.setattr("local.images._makers", lambda _: rows)
    assert images.ensure(PlainReporter()) == {names.PAUSE: Path("pause.tar")}
    assert images.ensure(PlainReporter(), [names.TRITON]) == {names.TRITON: Path("triton.tar")}


def test_python_and_the_packages_run_in_the_image_as_an_ordinary_user(unpacked: tuple[Path, dict[str, Any]]) -> None:
    root, config = unpacked
    code = (
        "import numpy, tokenizers, aiohttp, ssl, os\n"
        "import local.engines.tei.server, local.engines.tei.grpc_server\n"
        f"t = tokenizers.Tokenizer.from_file('{engine.MODELS}/{engine.MODEL_NAME}/tokenizer.json')\n"
        "print(os.getuid(), t.encode('hello world').ids[:4], numpy.ones(3) @ numpy.ones(3))"
    )
    result = subprocess.run(
        ["chroot", "--userspec=10001:10001", root, "/usr/bin/env", "-i", *config["Env"], "python3", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr == ""
    # [CLS] hello world [SEP] of BERT's vocabulary.
    assert result.stdout == "10001 [101, 7592, 2088, 102] 3.0\n"


def test_byte_code_in_the_image_is_there_and_needs_no_matching_times(unpacked: tuple[Path, dict[str, Any]]) -> None:
    root, _ = unpacked
    compiled = list(root.glob("**/__pycache__/*.pyc"))
    assert any("numpy" in p.parts for p in compiled)
    assert any(p.is_relative_to(root / engine.CODE.lstrip("/")) for p in compiled)
    assert any("asyncio" in p.parts for p in compiled)
    assert {int.from_bytes(p.read_bytes()[4:8], "little") for p in compiled} == {_UNCHECKED_HASH}


def test_the_image_knows_nothing_of_the_machine_that_built_it(unpacked: tuple[Path, dict[str, Any]]) -> None:
    root, _ = unpacked
    assert not [p for p in ("etc/hostname", "etc/resolv.conf", "etc/apt") if (root / p).exists()]
    home = os.fsencode(Path(__file__).resolve().parents[2])
    code = root / engine.CODE.lstrip("/")
    assert not [p for p in code.rglob("*") if p.is_file() and home in p.read_bytes()]
