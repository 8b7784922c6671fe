"""A shell with the pinned kubectl and pulumi on PATH, the embedded cluster's kubeconfig and the local Pulumi state.

Arguments after -- are run instead of a shell.
"""

import os
import signal
import subprocess
import sys

from scripts import embedded
from scripts.command import CommandError, parser_of, run

_EXAMPLE = """examples:
  make shell
  python -m scripts.shell -- kubectl get pods -A -o wide
  python -m scripts.shell -- pulumi stack output contract --json --stack local
"""


def main() -> int:
    parser = parser_of("scripts.shell", __doc__, _EXAMPLE)
    parser.add_argument("command", nargs="*", help="program and arguments to run instead of $SHELL")
    arguments = parser.parse_args()
    if not embedded.exists():
        raise CommandError("there is no embedded cluster here: run make up first")
    environment = embedded.environment()
    command = arguments.command or [os.environ.get("SHELL") or "bash"]
    if not arguments.command:
        print("kubectl and pulumi speak to the embedded cluster: kubectl get pods -A -o wide. exit leaves.")
    sys.stdout.flush()
    try:
        if arguments.command:
            os.execvpe(command[0], command, environment)  # noqa: S606 - this is what a shell is for
        # Ctrl-C is for what runs in the shell. Its status is that of its last line, and no failure of this command.
        signal.signal(signal.SIGINT, lambda *_: None)
        subprocess.run(command, env=environment, check=False)
    except OSError as error:
        raise CommandError(f"{command[0]} cannot be started: {error.strerror}") from None
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
