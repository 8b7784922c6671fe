"""Kubernetes quantities: ``500m`` CPU, ``1.5Gi`` memory."""

import re
from decimal import Decimal, InvalidOperation

_SUFFIXES = {
    "": Decimal(1),
    "m": Decimal(1) / 1000,
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P"), start=1)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), start=1)},
}
_QUANTITY = re.compile(r"^(\d+(?:\.\d+)?)(m|k|[MGTP]i?|Ki|)$")


def parse(text: str) -> Decimal:
    """The number a quantity stands for (cores, bytes).

    Raises ValueError when ``text`` is no positive Kubernetes quantity.
    """
    match = _QUANTITY.match(text.strip())
    if not match:
        raise ValueError("a Kubernetes quantity such as 500m, 2, 512Mi or 4Gi")
    try:
        value = Decimal(match[1]) * _SUFFIXES[match[2]]
    except InvalidOperation as error:
        raise ValueError("a Kubernetes quantity such as 500m, 2, 512Mi or 4Gi") from error
    if value <= 0:
        raise ValueError("a quantity above zero")
    return value


def millicores(text: str) -> int:
    """CPU in thousandths of a core, rounded up."""
    return -int(-parse(text) * 1000 // 1)


def mebibytes(text: str) -> int:
    """Memory in MiB, rounded up."""
    return -int(-parse(text) // 2**20)
