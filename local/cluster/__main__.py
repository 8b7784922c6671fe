"""`python -m local.cluster up | status | down | publish | exec -- COMMAND`."""

import argparse
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from local import cluster
from local.cluster import ClusterError, PartStatus
from local.report import PlainReporter
from local.toolchain import ToolchainError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m local.cluster", description="The embedded Kubernetes.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("up", help="build or find what is needed, start what does not run")
    commands.add_parser("status", help="health, age and log of every part; exit status 1 unless all are healthy")
    commands.add_parser("down", help="end and remove everything but the build cache")
    publish = commands.add_parser("publish", help="reach a port of a Service on 127.0.0.1; prints the URL")
    publish.add_argument("name", help="name of the published port, yours to choose")
    publish.add_argument("namespace")
    publish.add_argument("service")
    publish.add_argument("port", type=int, help="port of the Service")
    inside = commands.add_parser("exec", help="run a command in the cluster's namespaces, with kubectl and ctr")
    inside.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    given = parser.parse_args(arguments)
    try:
        return _run(given, inside)
    except (ClusterError, ToolchainError) as error:
        print(error, file=sys.stderr)
        return 1


def _run(given: argparse.Namespace, inside: argparse.ArgumentParser) -> int:
    if given.command == "up":
        cluster.up(PlainReporter())
        print(f"export KUBECONFIG={cluster.kubeconfig_path()}")
    elif given.command == "down":
        cluster.down(PlainReporter())
    elif given.command == "publish":
        print(cluster.publish(given.name, given.namespace, given.service, given.port))
    elif given.command == "exec":
        words = given.words[1:] if given.words[:1] == ["--"] else given.words
        if not words:
            inside.error("no command given")
        return cluster.execute(words)
    else:
        return show(cluster.status(), Console())
    return 0


def show(parts: list[PartStatus], console: Console) -> int:
    """Print the table of `status`; returns the exit status."""
    if not parts:
        console.print("there is no embedded cluster; `make up` starts it")
        return 1
    table = Table(box=None, pad_edge=False)
    for column in ("part", "health", "pid", "up", "log"):
        table.add_column(column, overflow="fold")
    for part in parts:
        health = Text(part.detail, style="green" if part.healthy else "red")
        age = "" if part.uptime is None else age_text(part.uptime)
        table.add_row(part.name, health, str(part.pid or ""), age, str(part.log or ""))
    console.print(table)
    return 0 if all(part.healthy for part in parts) else 1


def age_text(seconds: float) -> str:
    """``75`` as ``1m15s``; no unit above hours."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


if __name__ == "__main__":
    sys.exit(main())
