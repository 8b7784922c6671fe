"""PID 1 of the embedded cluster's namespaces. Run as a script, standard library only.

Started as ``unshare --pid --mount --net --ipc --uts --fork --mount-proc python init.py STATE_DIR MARKER``. It prepares
mounts and network, writes ``/run/ready`` and then only reaps. Killing it makes the kernel end every process of the
cluster and drop its mounts and interfaces.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

NODE_NAME = "embedded-0"
NODE_ADDRESS = "10.200.0.1"
SERVICE_CIDR = "10.96.0.0/16"

#: The state directory as the processes inside see it: short, so that socket paths stay below 108 bytes.
STATE_INSIDE = "/run/cluster"
READY = "/run/ready"

#: Values the kubelet insists on and would write for the whole machine (pkg/kubelet/cm/container_manager_linux.go,
#: setupKernelTunables, v1.35). Files with these values are laid over the real ones, so the host keeps its own.
KUBELET_TUNABLES = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}


def run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        print(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}", flush=True)
        sys.exit(1)


def prepare_mounts(state: str) -> None:
    # Nothing mounted here reaches the host (unshare made everything a slave); inside, the kubelet needs propagation.
    run("mount", "--make-rshared", "/")
    # Shim sockets, network namespaces of pods and xtables.lock live in /run and vanish with this mount.
    state_fd = os.open(state, os.O_PATH | os.O_DIRECTORY)
    run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run")
    Path(STATE_INSIDE).mkdir()
    run("mount", "--bind", f"/proc/{os.getpid()}/fd/{state_fd}", STATE_INSIDE)
    os.close(state_fd)
    # Some paths are compiled into the kubelet and CNI (/var/lib/kubelet/device-plugins, /var/lib/cni,
    # /var/log/containers): what they write there goes to memory instead of the host's disk.
    for place in ("/var/lib", "/var/log"):
        layers = Path("/run/overlay") / place.replace("/", "_")
        (layers / "upper").mkdir(parents=True)
        (layers / "work").mkdir()
        options = f"lowerdir={place},upperdir={layers}/upper,workdir={layers}/work"
        run("mount", "-t", "overlay", "overlay", "-o", options, place)
    # Volumes of pods (model caches) belong on disk.
    Path("/var/lib/kubelet").mkdir(exist_ok=True)
    run("mount", "--bind", f"{STATE_INSIDE}/kubelet", "/var/lib/kubelet")
    tunables = Path("/run/tunables")
    tunables.mkdir()
    for name, value in KUBELET_TUNABLES.items():
        file = tunables / name.replace("/", ".")
        file.write_text(f"{value}\n")
        run("mount", "--bind", str(file), f"/proc/sys/{name}")


def prepare_network() -> None:
    run("ip", "link", "set", "lo", "up")
    # A pair of its own ends as the node's interface: the kubelet refuses a loopback address.
    run("ip", "link", "add", "node0", "type", "veth", "peer", "name", "node0-peer")
    run("ip", "address", "add", f"{NODE_ADDRESS}/24", "dev", "node0")
    run("ip", "link", "set", "node0-peer", "up")
    run("ip", "link", "set", "node0", "up")
    # There is no default route, on purpose; without this one the node itself could not dial a ClusterIP.
    run("ip", "route", "add", SERVICE_CIDR, "dev", "node0")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    state = sys.argv[1]
    socket.sethostname(NODE_NAME)
    prepare_mounts(state)
    prepare_network()
    Path(READY).touch()
    while True:
        signal.sigwait({signal.SIGCHLD})
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


if __name__ == "__main__":
    main()
