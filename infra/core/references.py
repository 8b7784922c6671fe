"""References of container images."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """An image reference in its parts."""

    repository: str
    tag: str | None
    digest: str | None


def parse(image: str) -> Reference:
    """``registry:5000/name:tag@sha256:...`` in its parts."""
    rest, _, digest = image.partition("@")
    repository, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        repository, tag = rest, ""
    return Reference(repository, tag or None, digest or None)


def floats(tag: str) -> bool:
    """Whether a tag names another image from one day to the next, or may."""
    if {"latest", "nightly", "edge", "main", "master"} & set(re.split(r"[-_.]", tag.lower())):
        return True
    return re.search(r"\d+\.\d+|[0-9a-f]{7,}", tag) is None
