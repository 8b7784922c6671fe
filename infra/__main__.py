"""Reads the stack file, makes the plan, deploys it and exports the contract."""

import sys

import pulumi

from infra.core import plan, settings
from infra.core.errors import RefusedError
from infra.program import config, deploy

#: Exit code by which a program tells Pulumi that the user has seen what is wrong.
_TOLD = 32

try:
    given, secrets = config.read()
    planned = plan.make(settings.load(given), name=pulumi.get_stack(), secrets=secrets)
except RefusedError as refused:
    for refusal in refused.refusals:
        pulumi.log.error(str(refusal))
    sys.exit(_TOLD)

pulumi.export("contract", deploy(planned, secrets))
