"""Reads stacks/Pulumi.<stack>.yaml as Pulumi does, without Pulumi."""

import difflib
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra.core.credentials import CONFIG_KEYS
from infra.core.errors import Refusal, RefusedError
from local.paths import CHECKOUT
from scripts.command import CommandError

FOLDER = CHECKOUT / "stacks"
PROJECT = "embedding-serving"
_STACK = f"{PROJECT}:stack"
_SECRETS = tuple(f"{PROJECT}:{key}" for key in CONFIG_KEYS)
#: Likeness at which a key of another namespace is taken for a mistyped one of ours.
_ALIKE = 0.85
#: What is given for the name of a stack when a shell completes the name of its file.
_FILE = re.compile(r"(?:.*/)?Pulumi\.([^/]+)\.ya?ml")
#: PyYAML's words for a tab where a value or a key would begin.
_TAB = "found character '\\t' that cannot start any token"


@dataclass(frozen=True)
class StackFile:
    """``given`` is the object under embedding-serving:stack, ``secrets`` the names of the encrypted config keys."""

    name: str
    path: Path
    given: object
    secrets: frozenset[str]


def names(folder: Path = FOLDER) -> list[str]:
    """The stacks that have a file."""
    found = (path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in folder.glob("Pulumi.*.yaml"))
    return sorted(found)


def read(name: str, folder: Path = FOLDER) -> StackFile:
    """The file of the stack ``name``.

    Raises CommandError with one line when there is none or it is no valid YAML, and RefusedError for secrets in plain
    text and for config keys that nothing reads.
    """
    path = folder / f"Pulumi.{name}.yaml"
    shown = path.relative_to(CHECKOUT) if path.is_relative_to(CHECKOUT) else path
    if name not in names(folder):
        if file := _FILE.fullmatch(name):
            raise CommandError(f"{name} is a file; give the name of the stack only: STACK={file[1]}")
        there = ", ".join(names(folder)) or "none"
        raise CommandError(
            f"no stack file {shown}: stacks with a file are {there}; name one with STACK=, or copy "
            "stacks/Pulumi.local.yaml to it and change it (README, Configuration)"
        )
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        problem = error.problem or error.context
        if problem == _TAB:
            problem = "a tab: indent with spaces, YAML allows no tabs there"
        raise CommandError(f"{shown}{where}: {problem}") from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{shown}: byte {error.start + 1} is not UTF-8: save the file as UTF-8") from None
    except (yaml.YAMLError, ValueError) as error:
        raise CommandError(f"{shown}: {' '.join(str(error).split())}") from None
    config = content.get("config") if isinstance(content, dict) else None
    if isinstance(config, dict) and (refusals := tuple(_refusals(name, config))):
        raise RefusedError(refusals)
    if not isinstance(config, dict) or _STACK not in config:
        raise CommandError(
            f"{shown}: no key {PROJECT}:stack under config; stacks/Pulumi.local.yaml shows how a stack is described"
        )
    secrets = {key.removeprefix(f"{PROJECT}:") for key in _SECRETS if key in config}
    return StackFile(name, path, config[_STACK], frozenset(secrets))


def _refusals(stack: str, config: Mapping[Any, object]) -> Iterator[Refusal]:
    """No value is repeated: it may be a credential."""
    known = (_STACK, *_SECRETS)
    for key, value in config.items():
        if key in _SECRETS and not (isinstance(value, dict) and set(value) == {"secure"}):
            yield Refusal(
                key,
                "a value in plain text (not repeated here)",
                "an encrypted value",
                "Who can read the file has it: remove the line, have the secret replaced where it was issued, then "
                f"pulumi config set --secret {key} --stack {stack}",
            )
        elif isinstance(key, str) and key not in known:
            alike = f"{PROJECT}:{key}" if f"{PROJECT}:{key}" in known else None
            alike = alike or next(iter(difflib.get_close_matches(key, known, 1, _ALIKE)), None)
            if alike or key.startswith(f"{PROJECT}:"):
                yield Refusal(
                    key,
                    "a config key that nothing reads",
                    ", ".join(known),
                    f"Did you mean {alike}?" if alike else f"What a stack deploys stands under {_STACK}.",
                )


class _Loader(yaml.SafeLoader):
    """A key given twice is a mistake, as it is for Pulumi; PyYAML would take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key has to be a word", key_node.start_mark)
            if key_node.value in seen:
                problem = f"the key {key_node.value} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)
