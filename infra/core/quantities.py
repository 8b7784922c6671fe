"""Kubernetes quantities: ``500m`` CPU, ``1.5Gi`` memory."""

import re
from decimal import Decimal

_SUFFIXES = {
    "": Decimal(1),
    "m": Decimal(1) / 1000,
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T"), start=1)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti"), start=1)},
}
_QUANTITY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(m|k|[MGT]i?|Ki|)")
#: More than any node has; above lies a wrong suffix.
_MOST_CORES = 1024
_MOST_BYTES = 64 * 1024**4


def parse(text: str) -> Decimal:
    """The number a quantity stands for (cores, bytes).

    Raises ValueError when ``text`` is no positive Kubernetes quantity.
    """
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise ValueError("a Kubernetes quantity such as 500m, 2, 512Mi or 4Gi")
    value = Decimal(match[1]) * _SUFFIXES[match[2]]
    if value <= 0:
        raise ValueError("a quantity above zero")
    return value


def check_cpu(text: str) -> str:
    """``text``, when it is an amount of CPU. Raises ValueError with what is allowed."""
    if not Decimal("0.001") <= parse(text) <= _MOST_CORES:
        raise ValueError(f"cores from 1m to {_MOST_CORES}, such as 500m or 2")
    return text


def check_memory(text: str) -> str:
    """``text``, when it is an amount of memory or disk. Raises ValueError with what is allowed."""
    if not 2**20 <= parse(text) <= _MOST_BYTES:
        raise ValueError("bytes from 1Mi to 64Ti, such as 512Mi or 4Gi (500m would be half a byte)")
    return text


def millicores(text: str) -> int:
    """CPU in thousandths of a core, rounded up."""
    return -int(-parse(text) * 1000 // 1)


def mebibytes(text: str) -> int:
    """Memory in MiB, rounded up."""
    return -int(-parse(text) // 2**20)
