"""Names under which the locally built images are imported into containerd.

``stand-in.local`` marks what stands in for something else; ``built.local`` what is the real program, built here.
No registry answers under either name, so a missing import fails at once instead of pulling something else.
"""

import re
from dataclasses import dataclass

from infra.core import catalogue

#: containerd's ``sandbox_image``. One static binary, local/toolchain/go/pause.
PAUSE = "built.local/pause:embedded"

#: The sample app (examples/rag_app), which a sidecar's tests deploy.
RAG_APP = "built.local/rag-app:1.0.0"

#: CoreDNS from its own Go module. The binary is /coredns; it has no file capabilities, so a pod that is not root
#: has to listen on a port above 1024 (Service port 53 to that port).
COREDNS = "built.local/coredns:1.15.0"


@dataclass(frozen=True)
class OperatorImage:
    """The image of an operator: one static binary, at the path that upstream's manifests start.

    ``user`` is that of the upstream image: manifests that ask for runAsNonRoot without naming a user rely on it.
    ``writable`` is a folder that any user may write to, and the working directory.
    """

    program: str
    upstream: str
    path: str
    user: str
    writable: str = ""

    @property
    def name(self) -> str:
        """What it is imported as: the upstream name below ``built.local``, so that a prefix maps one to the other."""
        return f"built.local/{self.upstream}"


#: Tags are those of the releases that the Go modules belong to; tests compare them with go.mod and the catalogue.
OPERATORS = (
    OperatorImage(
        "metrics-server", "registry.k8s.io/metrics-server/metrics-server:v0.9.0", "/metrics-server", user="65534"
    ),
    OperatorImage(
        "prometheus",
        "quay.io/prometheus/prometheus:v3.16.0",
        "/bin/prometheus",
        user="65534",
        writable="/prometheus",
    ),
    OperatorImage(
        "prometheus-operator",
        "quay.io/prometheus-operator/prometheus-operator:v0.92.0",
        "/bin/operator",
        user="65534",
    ),
    OperatorImage(
        "prometheus-config-reloader",
        "quay.io/prometheus-operator/prometheus-config-reloader:v0.92.0",
        "/bin/prometheus-config-reloader",
        user="65534",
    ),
    OperatorImage("keda-operator", "ghcr.io/kedacore/keda:2.20.2", "/keda", user="65532:65532"),
    OperatorImage(
        "keda-adapter", "ghcr.io/kedacore/keda-metrics-apiserver:2.20.2", "/keda-adapter", user="65532:65532"
    ),
    OperatorImage(
        "keda-admission-webhooks",
        "ghcr.io/kedacore/keda-admission-webhooks:2.20.2",
        "/keda-admission-webhooks",
        user="65532:65532",
    ),
    # Two providers of its many: local/toolchain/go/external-secrets/provider.
    OperatorImage(
        "external-secrets", "ghcr.io/external-secrets/external-secrets:v0.16.2", "/bin/external-secrets", user="65534"
    ),
)

#: The real tritonserver, out of a wheel that bundles it: no GPU, and no backend but Python's. Made by
#: local/images/tritonserver.py.
TRITON = "built.local/nvcr.io/nvidia/tritonserver:24.10-py3"

#: The TEI stand-in (local/engines/tei) takes the official image's place under this repository, with the official tags.
TEI_REPOSITORY = "stand-in.local/huggingface/text-embeddings-inference"

#: Tag prefixes of the official image, one per GPU generation, and of the CPU builds. All of them name the one stand-in.
#: Source: docs/source/en/supported_models.md of text-embeddings-inference 1.9. A test compares with the plan.
TEI_PREFIXES = ("turing-", "", "86-", "89-", "hopper-", "100-", "120-", "121-", "cuda-", "cpu-", "cpu-arm64-")

#: The release whose recordings the stand-in is held to; a stack that pins another one has no image here.
TEI_VERSION = "1.9.3"

TEI_NAMES = tuple(f"{TEI_REPOSITORY}:{prefix}{TEI_VERSION}" for prefix in TEI_PREFIXES)

#: The gRPC builds: another executable in the official images, another entry point here. There is none of `cuda-`.
#: Source: .github/workflows/matrix.json of text-embeddings-inference at 0d124dc ("grpc" of each row).
TEI_GRPC_NAMES = tuple(f"{TEI_REPOSITORY}:{prefix}{TEI_VERSION}-grpc" for prefix in TEI_PREFIXES if prefix != "cuda-")


@dataclass(frozen=True)
class NimImage:
    """A NIM that the stand-in (local/engines/nim) stands in for: an image is one model in one release."""

    model: str
    tag: str

    @property
    def name(self) -> str:
        """What it is imported as."""
        return f"stand-in.local/nim/{self.model}:{self.tag}"


#: Every NIM of the catalogue with a release tag; moving tags have no image here.
NIM_IMAGES = tuple(
    NimImage(row.image.removeprefix("nvcr.io/nim/"), row.tag)
    for row in catalogue.images()
    if row.engine == "nim" and re.fullmatch(r"[\d.]+", row.tag)
)
