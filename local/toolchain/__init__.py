"""Programs of the embedded cluster and of Pulumi: found on PATH, in the cache, or built.

    tools = ensure(["etcd", "kubectl"], reporter)
    subprocess.run([tools["kubectl"], "version"])

`python -m local.toolchain` does the same from a shell.
"""

from local.toolchain.errors import ToolchainError
from local.toolchain.resolve import ALL, CLIENT, EMBEDDED, Found, ensure, find

__all__ = ["ALL", "CLIENT", "EMBEDDED", "Found", "ToolchainError", "ensure", "find"]
