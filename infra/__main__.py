"""Reads the stack file, makes the plan, deploys it and exports the contract."""

import pulumi

from infra.core import plan, settings
from infra.core.errors import RefusedError
from infra.program import config, deploy

try:
    given, secrets = config.read()
    planned = plan.make(settings.load(given), name=pulumi.get_stack(), secrets=secrets)
except RefusedError as refused:
    # RunError ends the program with this text alone; anything else would show a traceback.
    raise pulumi.RunError(f"This stack cannot be deployed:\n{refused}") from None

pulumi.export("contract", deploy(planned, secrets))
