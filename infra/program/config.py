"""The only place that reads Pulumi configuration."""

import pulumi

from infra.core.credentials import CONFIG_KEYS
from infra.core.errors import Refusal, RefusedError


def read() -> tuple[object, dict[str, pulumi.Output[str]]]:
    """The structured object ``embedding-serving:stack`` and the secret values that are set.

    Raises RefusedError when the object is missing, or when a secret was stored in plain text, is empty or has white
    space around it. No value is repeated in an error.
    """
    config = pulumi.Config()
    refusals = []
    secrets = {}
    for key in CONFIG_KEYS:
        value = config.get(key)
        if value is None:
            continue
        path = f"{config.name}:{key}"
        again = f"Set it again: pulumi config set --secret {path}"
        if not pulumi.runtime.is_config_secret(path):
            refusals.append(Refusal(path, "a value in plain text", "an encrypted value", again))
        elif not value or value != value.strip():
            why = "Keys are compared byte by byte: nobody would be let in. "
            refusals.append(
                Refusal(path, "an empty value or white space around it", "the bare key on one line", why + again)
            )
        secrets[key] = config.require_secret(key)
    if pulumi.runtime.is_config_secret(f"{config.name}:stack"):
        # Pulumi marks the whole object when a value in it was set with --secret, and hands that value over decrypted.
        why = f"Its values land readable in the state. Set it as pulumi config set --secret {config.name}:<name>."
        refusals.append(
            Refusal(f"{config.name}:stack", "a secret inside the object", "secret config keys of their own", why)
        )
    stack = config.get_object("stack")
    if stack is None:
        refusals.append(
            Refusal(
                f"{config.name}:stack",
                "nothing",
                "the object that describes the stack",
                "See stacks/Pulumi.local.yaml.",
            )
        )
    if refusals:
        raise RefusedError(refusals)
    return stack, secrets
