"""Command lines and configuration files of the cluster's parts. Paths are those seen inside the namespaces."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from local.cluster.init import NODE_ADDRESS, NODE_NAME, SERVICE_CIDR, STATE_INSIDE
from local.cluster.namespaces import Part
from local.cluster.pki import Pki, write_private

POD_CIDR = "10.244.0.0/24"
DNS_ADDRESS = "10.96.0.10"
CLUSTER_DOMAIN = "cluster.local"

API_PORT = 6443
ETCD_PORT = 2379
CONTAINERD_METRICS_PORT = 1338
CONTROLLER_MANAGER_PORT = 10257
SCHEDULER_PORT = 10259
KUBELET_HEALTH_PORT = 10248
PROXY_HEALTH_PORT = 10256

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
API_SERVER_INSIDE = f"https://127.0.0.1:{API_PORT}"
ADMIN_KUBECONFIG = "admin.kubeconfig"

#: Everything a cluster needs besides its images, as local.toolchain names it.
PROGRAMS = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"),
    *("containerd", "containerd-shim-runc-v2", "ctr", "runc", "cni-plugins"),
    *("iptables", "conntrack", "ip", "nsenter", "unshare", "openssl"),
)


@dataclass(frozen=True)
class Options:
    """What differs from one cluster to the next.

    ``gpus`` is a number written into the node's status, there is no device behind it; ``gpu_product`` is the value of
    the label that NVIDIA's GPU feature discovery would set. ``hpa_sync_seconds`` is how often autoscalers are evaluated
    (Kubernetes' own default).
    """

    gpus: int = 2
    gpu_product: str = "NVIDIA-L4"
    hpa_sync_seconds: int = 15

    def node_labels(self) -> dict[str, str | None]:
        """Labels as a merge patch; None removes one."""
        return {
            "nvidia.com/gpu.present": "true" if self.gpus else None,
            "nvidia.com/gpu.count": str(self.gpus) if self.gpus else None,
            "nvidia.com/gpu.product": self.gpu_product if self.gpus else None,
        }


class Layout:
    """Where the files of one cluster are, from outside and from inside its namespaces."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.config = state / "config"
        self.pki = state / "pki"
        self.logs = state / "logs"
        self.kubeconfig = state / "kubeconfig"
        self.published = state / "published.json"
        self.imported = state / "imported.json"

    def make(self) -> None:
        """Create the directories; only their owner may look in."""
        self.state.mkdir(parents=True, exist_ok=True)
        self.state.chmod(0o700)
        for name in ("config", "pki", "logs", "tmp", "etcd", "containerd", "kubelet", "pod-logs", "cni"):
            (self.state / name).mkdir(exist_ok=True)
        (self.state / "etcd").chmod(0o700)

    @staticmethod
    def inside(name: str) -> str:
        return f"{STATE_INSIDE}/{name}"

    def log(self, part: str) -> Path:
        return self.logs / f"{part}.log"


class Configuration:
    """Writes the files and names the parts that read them."""

    def __init__(
        self, layout: Layout, programs: Mapping[str, Path], cgroup: str, pause_image: str, options: Options
    ) -> None:
        self.layout = layout
        self.programs = programs
        self.cgroup = cgroup
        self.pause_image = pause_image
        self.options = options

    def write(self, pki: Pki) -> None:
        """Write every file; same input, same bytes."""
        for user in ("admin", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"):
            kubeconfig = pki.kubeconfig(user, API_SERVER_INSIDE, "embedded")
            write_private(self.layout.config / f"{user}.kubeconfig", kubeconfig)
        write_private(self.layout.config / "containerd.toml", self._containerd())
        write_private(self.layout.config / "kubelet.yaml", yaml.safe_dump(self._kubelet()))
        write_private(self.layout.config / "kube-proxy.yaml", yaml.safe_dump(self._proxy()))
        # For pods that ask for the node's resolver: there is no route out, so there is none.
        write_private(self.layout.config / "resolv.conf", "")
        write_private(self.layout.state / "cni" / "10-pods.conflist", json.dumps(self._cni()))

    def etcd(self) -> Part:
        return self._part(
            "etcd",
            f"--data-dir={self._in('etcd')}",
            f"--listen-client-urls=http://127.0.0.1:{ETCD_PORT}",
            f"--advertise-client-urls=http://127.0.0.1:{ETCD_PORT}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            # A power cut may cost the cluster, which holds nothing that `make up` does not make again.
            "--unsafe-no-fsync",
            "--auto-compaction-retention=1h",
        )

    def api_server(self) -> Part:
        pki = self._in("pki")
        return self._part(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
            "--bind-address=0.0.0.0",
            f"--secure-port={API_PORT}",
            f"--advertise-address={NODE_ADDRESS}",
            f"--service-cluster-ip-range={SERVICE_CIDR}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--client-ca-file={pki}/ca.crt",
            f"--tls-cert-file={pki}/kube-apiserver.crt",
            f"--tls-private-key-file={pki}/kube-apiserver.key",
            f"--kubelet-client-certificate={pki}/kube-apiserver-kubelet-client.crt",
            f"--kubelet-client-key={pki}/kube-apiserver-kubelet-client.key",
            f"--kubelet-certificate-authority={pki}/ca.crt",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
            f"--service-account-key-file={pki}/service-account.pub",
            f"--service-account-signing-key-file={pki}/service-account.key",
            # Aggregated APIs (metrics-server, KEDA) are called with this certificate.
            f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
            f"--proxy-client-key-file={pki}/front-proxy-client.key",
        )

    def controller_manager(self) -> Part:
        pki = self._in("pki")
        return self._part(
            "kube-controller-manager",
            *self._client("kube-controller-manager"),
            f"--root-ca-file={pki}/ca.crt",
            f"--service-account-private-key-file={pki}/service-account.key",
            f"--cluster-signing-cert-file={pki}/ca.crt",
            f"--cluster-signing-key-file={pki}/ca.key",
            "--use-service-account-credentials=true",
            f"--horizontal-pod-autoscaler-sync-period={self.options.hpa_sync_seconds}s",
        )

    def scheduler(self) -> Part:
        return self._part("kube-scheduler", *self._client("kube-scheduler"))

    def containerd(self) -> Part:
        file = self.layout.config / "containerd.toml"
        return self._part("containerd", f"--config={self._in('config/containerd.toml')}", files=(file,))

    def kubelet(self) -> Part:
        return self._part(
            "kubelet",
            f"--config={self._in('config/kubelet.yaml')}",
            f"--kubeconfig={self._in('config/kubelet.kubeconfig')}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={NODE_ADDRESS}",
            files=(self.layout.config / "kubelet.yaml",),
        )

    def proxy(self) -> Part:
        file = self.layout.config / "kube-proxy.yaml"
        return self._part("kube-proxy", f"--config={self._in('config/kube-proxy.yaml')}", files=(file,))

    def _part(self, name: str, *arguments: str, files: tuple[Path, ...] = ()) -> Part:
        return Part(name, (str(self.programs[name]), *arguments), files)

    def _in(self, name: str) -> str:
        return self.layout.inside(name)

    def _client(self, user: str) -> tuple[str, ...]:
        kubeconfig = self._in(f"config/{user}.kubeconfig")
        return (
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            # There is only one of each; after a restart it goes on at once.
            "--leader-elect=false",
        )

    def _containerd(self) -> str:
        quoted = json.dumps
        return f"""version = 2
root = {quoted(self._in("containerd"))}
state = "/run/containerd"
# "opt" would create /opt/containerd on the host.
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]

[grpc]
  address = {quoted(CONTAINERD_SOCKET)}

[metrics]
  address = "127.0.0.1:{CONTAINERD_METRICS_PORT}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = {quoted(self.pause_image)}
  disable_apparmor = true
  # Where lowering oom_score_adj is not permitted (containers as machines), runc dies without this.
  restrict_oom_score_adj = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {quoted(str(self.programs["cni-plugins"]))}
    conf_dir = {quoted(self._in("cni"))}

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = {quoted(str(self.programs["runc"]))}
      SystemdCgroup = false
"""

    def _kubelet(self) -> dict[str, Any]:
        pki = self._in("pki")
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": NODE_ADDRESS,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{pki}/kubelet-serving.crt",
            "tlsPrivateKeyFile": f"{pki}/kubelet-serving.key",
            # How soon a pod sees a change of a mounted Secret, and Prometheus what to scrape. 1m by default.
            "syncFrequency": "10s",
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": CLUSTER_DOMAIN,
            "resolvConf": self._in("config/resolv.conf"),
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "podLogsDir": self._in("pod-logs"),
            "volumePluginDir": self._in("kubelet/volume-plugins"),
            # Without per-QoS cgroups the root is ignored, and pods of every checkout land in /k8s.io.
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroup,
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            # cadvisor finds the size of a file system by its block device; btrfs and overlay have none to find.
            "localStorageCapacityIsolation": os.major(self.layout.state.stat().st_dev) != 0,
            # Images cannot be pulled again, so none may be collected; a fairly full disk is not the node's problem.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "500Mi"},
        }

    def _proxy(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": self._in("config/kube-proxy.kubeconfig")},
            "clusterCIDR": POD_CIDR,
            "hostnameOverride": NODE_NAME,
            "healthzBindAddress": f"127.0.0.1:{PROXY_HEALTH_PORT}",
            "metricsBindAddress": "127.0.0.1:10249",
            "oomScoreAdj": 0,
            "nodePortAddresses": ["primary"],
            # 0 leaves the kernel's own values, which are the host's.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            # Would need route_localnet, which opens the node's loopback to pods.
            "iptables": {"localhostNodePorts": False, "minSyncPeriod": "100ms"},
        }

    def _cni(self) -> dict[str, Any]:
        return {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    # Every pod is routed, none bridged: answers pass the node's NAT without br_netfilter on the host.
                    "type": "ptp",
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": POD_CIDR}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                        "dataDir": "/run/cni",
                    },
                }
            ],
        }
