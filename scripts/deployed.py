"""What is deployed of a stack, and the way to its cluster."""

from typing import Any

from infra.core.contract import Contract
from scripts import embedded, stackfile
from scripts.access import Access
from scripts.command import CommandError
from scripts.smoke import source


def of_stack(stack: str, context: str | None) -> tuple[Contract, Access]:
    """Contract of ``stack``, and its cluster: that of ``context``, else of the stack file, else the current one; of the
    stack ``local`` the embedded one while it is there.

    Raises CommandError when the stack was not deployed, RefusedError when its file cannot be read.
    """
    file = stackfile.read(stack)
    if stack == embedded.STACK and context is None and embedded.exists():
        return source.from_stack(stack, embedded.environment()), embedded.access()
    given: Any = file.given
    described = given.get("cluster") if isinstance(given, dict) else None
    planned = described.get("context") if isinstance(described, dict) else None
    if stack == embedded.STACK and not context and not planned:
        raise CommandError("there is no embedded cluster: make up makes one and deploys stack local to it")
    return source.from_stack(stack), Access(context=context or planned)
