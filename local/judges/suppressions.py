"""What outside judges say and the blueprint does not follow, as data with a reason per entry."""

from fnmatch import fnmatch
from pathlib import Path, PurePath

import yaml
from pydantic import BaseModel, ConfigDict, Field

FILE = Path(__file__).with_name("suppressions.yaml")


class Suppression(BaseModel):
    """One check of one judge that does not count for one family of objects."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    judge: str
    check: str
    title: str
    #: Engine or part of the stack that it is about.
    family: str
    #: Patterns of file names in manifests/<stack>/.
    files: tuple[str, ...] = Field(min_length=1)
    reason: str = Field(min_length=40)

    def covers(self, check: str, file: str) -> bool:
        """Whether a complaint of the judge is this one. ``file`` is a path or a name of a manifest."""
        return check == self.check and any(fnmatch(PurePath(file).name, pattern) for pattern in self.files)


def read(judge: str) -> tuple[Suppression, ...]:
    """The suppressions of one judge, in the order of the file."""
    rows = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return tuple(entry for row in rows if (entry := Suppression.model_validate(row)).judge == judge)
