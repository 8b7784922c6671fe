"""Removes the embedded cluster: processes, mounts, namespaces and all its files, the state of the stack `local` with
them. The cache of built programs and images stays.
"""

import sys

from local import cluster, paths
from scripts import console, deploy, embedded
from scripts.command import parser_of, run

_EXAMPLE = """example:
  make down
"""


def main() -> int:
    parser = parser_of("scripts.down", __doc__, _EXAMPLE)
    parser.parse_args()
    with console.reporter() as reporter:
        there = cluster.down(reporter)
    deploy.end_plugins()
    # The objects that Pulumi's state describes went with the cluster.
    embedded.remove()
    if not there:
        print("There was no embedded cluster here.")
    print(f"Built programs and images are kept in {paths.cache_dir()}; the next make up uses them.")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
