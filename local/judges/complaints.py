"""What a judge says of one object, and which family of objects that is."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

#: Part of a stack's folder with the objects of operators, which come as their projects publish them.
OPERATORS_FOLDER = "addons"
#: Label app.kubernetes.io/name of a workload -> the engine in it.
_ENGINES = {"text-embeddings-inference": "tei", "triton-inference-server": "triton", "nim": "nim"}


@dataclass(frozen=True)
class Remark:
    """A check of a judge that an object failed. ``file`` is relative to the folder that was judged."""

    check: str
    title: str
    file: str
    kind: str
    name: str


@dataclass(frozen=True)
class Complaint:
    """A remark with its judge, and the family of the object: an engine, ``operators`` or ``stack``."""

    judge: str
    family: str
    remark: Remark

    def __str__(self) -> str:
        said = self.remark
        return f"{self.judge}: {said.file}: {said.kind} {said.name} ({self.family}): {said.check}: {said.title}"


def complaints_of(judge: str, folder: Path, remarks: Iterable[Remark]) -> list[Complaint]:
    """The remarks of one judge about manifests in ``folder``, with families, in the order of files and checks."""
    found = {Complaint(judge, _family(folder, remark), remark) for remark in remarks}
    return sorted(found, key=lambda one: (one.remark.file, one.remark.check, one.remark.kind, one.remark.name))


def _family(folder: Path, remark: Remark) -> str:
    path = Path(remark.file)
    if OPERATORS_FOLDER in path.parts[:-1]:
        return "operators"
    documents = list(yaml.safe_load_all((folder / path).read_text(encoding="utf-8")))
    named = [one for one in documents if (one["kind"], one["metadata"]["name"]) == (remark.kind, remark.name)]
    # checkov speaks of the pods of a Deployment too, which are no document of their own.
    labels = (named or documents)[0]["metadata"].get("labels", {})
    return _ENGINES.get(labels.get("app.kubernetes.io/name", ""), "stack")
