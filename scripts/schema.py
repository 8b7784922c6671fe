"""Writes stacks/schema.json from the settings: `python -m scripts.schema`. With --check nothing is written."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from infra.core import settings
from local.paths import CHECKOUT

PATH = CHECKOUT / "stacks" / "schema.json"


def text() -> str:
    """What the file has to hold."""
    return json.dumps(settings.schema(), indent=2, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None, path: Path = PATH) -> int:
    """Exit code: 1 when --check finds the file stale."""
    parser = argparse.ArgumentParser(prog="python -m scripts.schema", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the file is stale instead of writing it")
    wanted = text()
    if not parser.parse_args(arguments).check:
        path.write_text(wanted, encoding="utf-8")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == wanted:
        return 0
    print(f"error: {path.name} is not what the settings say: run python -m scripts.schema", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
