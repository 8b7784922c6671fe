"""Writing OCI images as files: layers out of folders, and a layout in one tar that `ctr image import` reads.

Format: https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md. The same folders give the same bytes:
entries are sorted, times are zero, and owners are numbers.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"

#: A fixed date, because an image has to have one.
_CREATED = "1970-01-01T00:00:00Z"


@dataclass(frozen=True)
class ImageConfig:
    """How a container of the image starts, as in the OCI image configuration; without ``user`` it runs as root."""

    entrypoint: Sequence[str]
    architecture: str
    cmd: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Sequence[str] = ()
    working_dir: str = "/"
    user: str = ""

    def document(self, diff_ids: Sequence[str]) -> dict[str, Any]:
        """The configuration's JSON; ``diff_ids`` are the digests of the uncompressed layers, lowest first."""
        return {
            "created": _CREATED,
            "architecture": self.architecture,
            "os": "linux",
            "config": {
                "Entrypoint": list(self.entrypoint),
                "Cmd": list(self.cmd),
                "Env": [f"{k}={v}" for k, v in sorted(self.env.items())],
                "Labels": dict(sorted(self.labels.items())),
                "ExposedPorts": {port: {} for port in self.ports},
                "WorkingDir": self.working_dir,
            }
            | ({"User": self.user} if self.user else {}),
            "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        }


def write_layer(folder: Path, target: Path, *, owner: int | None = None) -> None:
    """Write ``folder`` as a layer whose root it is.

    ``owner`` replaces every owner and group; None keeps them, which a root file system needs.
    """

    def normal(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = 0
        entry.uname = entry.gname = ""
        if owner is not None:
            entry.uid = entry.gid = owner
        return entry

    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=normal)


def write_image(layers: Sequence[Path], config: ImageConfig, names: Sequence[str], target: Path) -> None:
    """Write an OCI layout of one image under several names; ``layers`` are uncompressed tars, lowest first."""
    write_images(layers, [(config, names)], target)


def write_images(layers: Sequence[Path], images: Sequence[tuple[ImageConfig, Sequence[str]]], target: Path) -> None:
    """Write an OCI layout of images that differ in their configuration only, each under several names.

    ``layers`` are uncompressed tars, lowest first; the layout holds them once.
    """
    descriptors = [
        {"mediaType": _LAYER, "digest": f"sha256:{_file_digest(layer)}", "size": layer.stat().st_size}
        for layer in layers
    ]
    blobs: list[bytes] = []
    manifests: list[dict[str, Any]] = []
    for config, names in images:
        config_blob = _json(config.document([str(d["digest"]) for d in descriptors]))
        manifest_blob = _json(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": _descriptor(_CONFIG, config_blob),
                "layers": descriptors,
            }
        )
        blobs += [manifest_blob, config_blob]
        manifest = _descriptor(_MANIFEST, manifest_blob) | {
            "platform": {"os": "linux", "architecture": config.architecture}
        }
        # containerd creates an image for each descriptor with this annotation.
        manifests += [
            manifest
            | {
                "annotations": {
                    "io.containerd.image.name": name,
                    "org.opencontainers.image.ref.name": name.rpartition(":")[2],
                }
            }
            for name in names
        ]
    index = _json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests})
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", index)
        for blob in blobs:
            _add(archive, _blob_path(hashlib.sha256(blob).hexdigest()), blob)
        for digest, layer in {str(d["digest"]): p for d, p in zip(descriptors, layers, strict=True)}.items():
            entry = tarfile.TarInfo(_blob_path(digest.removeprefix("sha256:")))
            entry.size = layer.stat().st_size
            with layer.open("rb") as source:
                archive.addfile(entry, source)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}


def _blob_path(digest: str) -> str:
    return f"blobs/sha256/{digest}"


def _file_digest(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
