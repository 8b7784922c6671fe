"""Reads stacks/Pulumi.<stack>.yaml as Pulumi does, without Pulumi."""

import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from local.paths import CHECKOUT
from scripts.command import CommandError

FOLDER = CHECKOUT / "stacks"
PROJECT = "embedding-serving"
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
    """The file of the stack ``name``. Raises CommandError with one line when there is none or it is no valid YAML."""
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
    if not isinstance(config, dict) or f"{PROJECT}:stack" not in config:
        raise CommandError(
            f"{shown}: no key {PROJECT}:stack under config; stacks/Pulumi.local.yaml shows how a stack is described"
        )
    secrets = {
        key.removeprefix(f"{PROJECT}:")
        for key, value in config.items()
        if isinstance(key, str)
        and key.startswith(f"{PROJECT}:")
        and isinstance(value, dict)
        and set(value) == {"secure"}
    }
    return StackFile(name, path, config[f"{PROJECT}:stack"], frozenset(secrets))


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
