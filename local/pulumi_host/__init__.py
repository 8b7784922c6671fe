"""Pulumi on the embedded toolchain: the environment for the CLI and the Python language host that it starts.

The official language host is part of the official CLI; the Go module proxy serves only the CLI itself in the pinned
version. `local.pulumi_host.server` speaks the same protocol (`LanguageRuntime` of the installed SDK), so programs and
policy packs do not notice the difference. Whoever has the official CLI uses the official host.
"""

import os
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

from local.paths import CHECKOUT

PASSPHRASE = "embedding-serving-local"  # noqa: S105
"""Passphrase of the stack `local`. It is public and protects nothing of value: the secrets of that stack are keys for
engines on loopback. With a fixed passphrase the encryption salt in the committed stack file stays as it is."""


def environment(bin_dir: Path, state: Path) -> dict[str, str]:
    """The environment in which `pulumi` of `bin_dir` runs without an account, on files below `state`.

    bin_dir: holds `pulumi`, `pulumi-language-python-exec` and the providers (`pulumi-resource-*`).
    state: backend in `pulumi/`, PULUMI_HOME with the plugins in `pulumi-home/`, temporary files in `tmp/`; all are
    created.

    Returns the caller's environment without its own Pulumi settings (account, backend, passphrase), plus ours.
    """
    backend, home = state / "pulumi", state / "pulumi-home"
    backend.mkdir(parents=True, exist_ok=True)
    temporary = state / "tmp"
    temporary.mkdir(exist_ok=True)
    temporary.chmod(0o700)
    if not (bin_dir / "pulumi-language-python").exists():
        _install(home, "language-python", metadata.version("pulumi"), CHECKOUT / "local/bin/pulumi-language-python")
    for provider in bin_dir.glob("pulumi-resource-*"):
        package = provider.name.removeprefix("pulumi-resource-")
        _install(home, f"resource-{package}", metadata.version(f"pulumi-{package}"), provider)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PULUMI_")}
    return inherited | {
        "PATH": os.pathsep.join([str(bin_dir), inherited.get("PATH", os.defpath)]),
        "PULUMI_BACKEND_URL": f"file://{quote(str(backend))}",
        "PULUMI_HOME": str(home),
        # The Kubernetes provider leaves kubeconfigs with client keys there: they go when the state goes.
        "TMPDIR": str(temporary),
        "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        # The plugins are installed in PULUMI_HOME; for those found on PATH the CLI prints a warning in every run.
        "PULUMI_IGNORE_AMBIENT_PLUGINS": "true",
    }


def _install(home: Path, name: str, version: str, program: Path) -> None:
    """Put `program` where the CLI looks for installed plugins: `<home>/plugins/<name>-v<version>/pulumi-<name>`."""
    link = home / "plugins" / f"{name}-v{version}" / f"pulumi-{name}"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink() or link.readlink() != program:
        link.unlink(missing_ok=True)
        link.symlink_to(program)
