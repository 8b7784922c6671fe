"""What outside judges say and the blueprint does not follow, as data with a reason per entry."""

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

from local.judges.complaints import Complaint

FILE = Path(__file__).with_name("suppressions.yaml")


class Suppression(BaseModel):
    """One check of one judge that does not count for one family of objects."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    judge: str
    check: str
    title: str
    #: An engine, ``operators`` or ``stack``, as in `Complaint`.
    family: str
    #: Patterns of kind and name: Deployment *.
    objects: tuple[str, ...] = Field(min_length=1)
    reason: str = Field(min_length=40)

    def covers(self, complaint: Complaint) -> bool:
        """Whether ``complaint`` does not count."""
        return any(_matches(self, pattern, complaint) for pattern in self.objects)


def _matches(known: Suppression, pattern: str, complaint: Complaint) -> bool:
    said = complaint.remark
    return (known.judge, known.family, known.check) == (complaint.judge, complaint.family, said.check) and fnmatch(
        f"{said.kind} {said.name}", pattern
    )


def read() -> tuple[Suppression, ...]:
    """All suppressions, in the order of the file."""
    return tuple(Suppression.model_validate(row) for row in yaml.safe_load(FILE.read_text(encoding="utf-8")))


def not_suppressed(complaints: Iterable[Complaint], known: Iterable[Suppression]) -> list[Complaint]:
    """The complaints that no suppression covers."""
    known = tuple(known)
    return [complaint for complaint in complaints if not any(one.covers(complaint) for one in known)]


def unused(complaints: Iterable[Complaint], known: Iterable[Suppression]) -> list[str]:
    """What covers no complaint any more, one line for each pattern of objects."""
    complaints = tuple(complaints)
    return [
        f"{one.judge} {one.check}, family {one.family}: {pattern}"
        for one in known
        for pattern in one.objects
        if not any(_matches(one, pattern, complaint) for complaint in complaints)
    ]
