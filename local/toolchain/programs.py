"""The table: which program comes from where, and when the user's own will do."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from local.toolchain.debian import DebianFiles
from local.toolchain.golang import MODULES, GoModuleFile, GoProgram, module_dir
from local.toolchain.process import run_logged

Version = tuple[int, ...]

_KUBERNETES = MODULES / "kubernetes"
_PULUMI = MODULES / "pulumi"

_COMPONENT_VERSION = (
    "-X k8s.io/component-base/version.gitVersion=v{version} -X k8s.io/component-base/version.gitMajor={major} "
    "-X k8s.io/component-base/version.gitMinor={minor} -X k8s.io/component-base/version.gitTreeState=archive"
)


def _kubernetes(name: str, usual_seconds: int) -> GoProgram:
    package = f"k8s.io/kubernetes/cmd/{name}"
    return GoProgram(
        name, _KUBERNETES, package, "k8s.io/kubernetes", ldflags=_COMPONENT_VERSION, usual_seconds=usual_seconds
    )


def _provider_schema(source: Path, env: dict[str, str], log: Path) -> None:
    """The two files that the provider embeds, out of its module, minified, with the version that its SDK expects."""
    module = "github.com/pulumi/pulumi-kubernetes/provider/v4"
    files = module_dir(module, source, env, log) / "cmd" / "pulumi-resource-kubernetes"
    generated = source / "generated"
    generated.mkdir()
    for name in ("schema.json", "terraform-mapping.json"):
        content = json.loads((files / name).read_text())
        if name == "schema.json":
            content["version"] = PROVIDER_VERSION
        (generated / name).write_text(json.dumps(content, separators=(",", ":")))


#: Of pulumi-kubernetes. The Go module says v4.0.0 with a date; this is the release that the date belongs to.
#: Has to be that of the Python package in pyproject.toml, or the engine warns of a mismatch.
PROVIDER_VERSION = "4.25.0"


def _few_providers(source: Path, env: dict[str, str], log: Path) -> None:
    """A copy of External Secrets' module whose two lists of plug-ins are those of our folder.

    Its controllers import the lists themselves, so there is no main to write without them, and Go's own -overlay
    refuses files of the module cache.
    """
    module = "github.com/external-secrets/external-secrets"
    upstream = source / "upstream"
    # Contents without modes: everything in Go's module cache is read-only.
    shutil.copytree(module_dir(module, source, env, log), upstream, copy_function=shutil.copyfile)
    for kind in ("provider", "generator"):
        target = upstream / "pkg" / kind / "register"
        target.chmod(0o755)
        shutil.copyfile(source / kind / "register.go", target / "register.go")
    run_logged(
        ["go", "mod", "edit", f"-replace={module}=./upstream"],
        what="preparing the module of External Secrets",
        log=log,
        server="the Go module proxy",
        cwd=source,
        env=env,
    )


#: Prometheus numbers its Go module 0.XYY.Z for release X.Y.Z, because it breaks its Go interfaces in any release.
PROMETHEUS_VERSION = "3.16.0"

_PROMETHEUS_COMMON = "-X github.com/prometheus/common/version.Version={version}"


def _prometheus(name: str, usual_seconds: int) -> GoProgram:
    return GoProgram(
        name,
        MODULES / "prometheus",
        f"github.com/prometheus/prometheus/cmd/{name}",
        version=PROMETHEUS_VERSION,
        ldflags=_PROMETHEUS_COMMON,
        # Discovery by Kubernetes only: the clients of all clouds would double what is compiled.
        tags="remove_all_sd enable_kubernetes_sd",
        usual_seconds=usual_seconds,
    )


def _prometheus_operator(name: str, command: str, usual_seconds: int) -> GoProgram:
    module = "github.com/prometheus-operator/prometheus-operator"
    return GoProgram(
        name,
        MODULES / "prometheus-operator",
        f"{module}/cmd/{command}",
        module,
        ldflags=_PROMETHEUS_COMMON,
        usual_seconds=usual_seconds,
    )


def _keda(name: str, command: str, usual_seconds: int) -> GoProgram:
    module = "github.com/kedacore/keda/v2"
    return GoProgram(
        name,
        MODULES / "keda",
        f"{module}/cmd/{command}",
        module,
        ldflags=f"-X {module}/version.Version={{version}}",
        usual_seconds=usual_seconds,
    )


#: Built in this order, and so that what shares dependencies stands together.
GO_PROGRAMS: tuple[GoProgram | GoModuleFile, ...] = (
    GoProgram("etcd", _KUBERNETES, "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", usual_seconds=77),
    _kubernetes("kube-apiserver", 330),
    _kubernetes("kube-controller-manager", 40),
    _kubernetes("kube-scheduler", 10),
    _kubernetes("kubelet", 40),
    _kubernetes("kube-proxy", 10),
    _kubernetes("kubectl", 20),
    GoProgram("pause", MODULES / "pause", ".", usual_seconds=2),
    GoProgram(
        "coredns", MODULES / "coredns", "github.com/coredns/coredns", "github.com/coredns/coredns", usual_seconds=180
    ),
    GoProgram(
        "pulumi",
        _PULUMI,
        "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
        "github.com/pulumi/pulumi/pkg/v3",
        ldflags="-X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=v{version}",
        usual_seconds=400,
    ),
    GoModuleFile(
        "pulumi-language-python-exec",
        _PULUMI,
        "github.com/pulumi/pulumi/sdk/v3",
        "python/cmd/pulumi-language-python-exec",
    ),
    GoProgram(
        "pulumi-resource-kubernetes",
        MODULES / "pulumi-kubernetes",
        ".",
        version=PROVIDER_VERSION,
        ldflags="-X main.version={version}",
        usual_seconds=360,
        prepare=_provider_schema,
    ),
    GoProgram(
        "metrics-server",
        MODULES / "metrics-server",
        "sigs.k8s.io/metrics-server/cmd/metrics-server",
        "sigs.k8s.io/metrics-server",
        ldflags="-X k8s.io/client-go/pkg/version.gitVersion=v{version}",
        usual_seconds=160,
    ),
    _prometheus("prometheus", 270),
    _prometheus("promtool", 20),
    _prometheus_operator("prometheus-operator", "operator", 170),
    _prometheus_operator("prometheus-config-reloader", "prometheus-config-reloader", 10),
    _keda("keda-operator", "operator", 360),
    _keda("keda-adapter", "adapter", 93),
    _keda("keda-admission-webhooks", "webhooks", 6),
    GoProgram(
        "external-secrets",
        MODULES / "external-secrets",
        "github.com/external-secrets/external-secrets",
        "github.com/external-secrets/external-secrets",
        usual_seconds=120,
        prepare=_few_providers,
    ),
    GoProgram(
        "kube-score",
        MODULES / "kube-score",
        "github.com/zegl/kube-score/cmd/kube-score",
        "github.com/zegl/kube-score",
        usual_seconds=30,
    ),
)

DEBIAN_FILES: tuple[DebianFiles, ...] = (
    DebianFiles(
        "containerd",
        {
            "containerd": "usr/bin/containerd",
            "containerd-shim-runc-v2": "usr/bin/containerd-shim-runc-v2",
            "ctr": "usr/bin/ctr",
        },
    ),
    DebianFiles("runc", {"runc": "usr/sbin/runc"}),
    DebianFiles("containernetworking-plugins", {"cni-plugins": "usr/lib/cni"}),
)

#: Program on PATH -> Debian package that brings it. Any version does.
SYSTEM_PROGRAMS: dict[str, str] = {
    "iptables": "iptables",
    "conntrack": "conntrack",
    "socat": "socat",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "openssl": "openssl",
}

#: Where distributions and the upstream archive put CNI plugins; the cluster uses these four.
CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
CNI_PLUGINS = ("bridge", "host-local", "loopback", "portmap")


@dataclass(frozen=True)
class OnPath:
    """The user's own programs, used together or not at all and from one folder.

    ``arguments`` make the first of them print its version; ``least`` <= version < ``below`` is sufficient.
    """

    programs: tuple[str, ...]
    arguments: tuple[str, ...]
    least: Version
    below: Version

    def accepts(self, version: Version) -> bool:
        return self.least <= version < self.below


def on_path_rules() -> tuple[OnPath, ...]:
    """What is accepted from PATH. Everything else (etcd and the Kubernetes servers, CoreDNS, the provider) is ours:
    the cluster is tested with these versions and nobody has them on PATH by accident.
    """
    kubectl = _pinned("kubectl")
    return (
        # Server and client may differ by one minor version: https://kubernetes.io/releases/version-skew-policy/
        OnPath(("kubectl",), ("version", "--client"), (kubectl[0], kubectl[1] - 1), (kubectl[0], kubectl[1] + 2)),
        # A CLI speaks to the language host of its own release, so the three go together.
        OnPath(
            ("pulumi", "pulumi-language-python", "pulumi-language-python-exec"),
            ("version",),
            _pinned("pulumi"),
            (_pinned("pulumi")[0] + 1,),
        ),
        # 1.6 is what the cluster was tried with; 2.x reads another configuration.
        OnPath(("containerd", "containerd-shim-runc-v2", "ctr"), ("--version",), (1, 6), (2,)),
        OnPath(("runc",), ("--version",), (1, 1), (2,)),
    )


def _pinned(name: str) -> Version:
    (program,) = (p for p in GO_PROGRAMS if p.name == name)
    return tuple(int(part) for part in program.pinned.split("."))


def search_path(excluded: tuple[Path, ...]) -> str:
    """PATH without the folders below ``excluded``: there lie our own programs, put there by `make shell`."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(f for f in folders if f and not any(Path(f).absolute().is_relative_to(x) for x in excluded))
