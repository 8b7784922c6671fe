"""Rules about images, and what an image says about the engine in it."""

import re
from collections.abc import Iterable, Iterator

from infra.core import catalogue
from infra.core.catalogue import Gpu
from infra.core.engines.tei import images as tei
from infra.core.plan import GPU_PRODUCT_LABEL
from infra.core.references import floats, parse
from infra.core.rules.objects import Container, Object, Pod, pod_of
from infra.core.rules.rule import ALWAYS_MANDATORY, MANDATORY_FROM_STAGING, Finding, ObjectRule

#: Resources of NVIDIA's device plugin: whole GPUs, shared ones and MIG slices.
GPU_RESOURCES = "nvidia.com/"
#: Last part of the repository -> engine.
_ENGINES = {"text-embeddings-inference": "tei", "tritonserver": "triton"}
_TEI_TAG = re.compile(r"^(?P<prefix>(?:[a-z0-9]+-)*?)(?P<version>\d+\.\d+(?:\.\d+)?|latest)(?P<grpc>-grpc)?$")


def engine_of(container: Container) -> str | None:
    """tei, triton or nim; None when the image is none of theirs."""
    repository = parse(container.image).repository
    if "/nim/" in repository:
        return "nim"
    return _ENGINES.get(repository.rsplit("/", 1)[-1])


def speaks_grpc(container: Container) -> bool:
    """Whether this is TEI's gRPC build."""
    return (parse(container.image).tag or "").endswith("-grpc")


def wants_gpu(container: Container) -> bool:
    """Whether the container asks for a GPU of any sort."""
    wanted = (*container.resources("limits"), *container.resources("requests"))
    return any(key.startswith(GPU_RESOURCES) for key in wanted)


def serving(given: Object) -> tuple[Pod, list[Container]] | None:
    """The pod and its containers that serve a model: engines that are known, and whatever holds a GPU."""
    pod = pod_of(given)
    if pod is None:
        return None
    found = [container for container in pod.running() if engine_of(container) or wants_gpu(container)]
    return (pod, found) if found else None


def _image_and_gpu(given: Object) -> Iterable[Finding]:
    pod = pod_of(given)
    if pod is None:
        return
    for container in pod.containers():
        if engine_of(container) != "tei":
            continue
        path, reference = f"{container.path}.image", parse(container.image)
        match = _TEI_TAG.match(reference.tag or "")
        if match is None:
            yield Finding(
                path,
                f"the tag {reference.tag!r} does not say which GPU the image is made for",
                "Use a release tag with the prefix of the GPU, such as 89-1.9.3 for L4",
            )
            continue
        # `latest` is the build for compute capability 8.0, as tags without a prefix are.
        prefix = match["prefix"]
        made_for_cpu = tei.runs(prefix, None)
        if not wants_gpu(container):
            if not made_for_cpu:
                yield Finding(
                    path,
                    f"{reference.tag} needs a GPU and the container asks for none",
                    f"Set the limit nvidia.com/gpu, or use {tei.prefix_for(None)}{match['version']}",
                )
            continue
        if made_for_cpu:
            yield Finding(
                path,
                f"{reference.tag} computes on the CPU and the container holds a GPU",
                "Use the image with the prefix of the GPU, or drop the limit nvidia.com/gpu",
            )
            continue
        for label, value, gpu in _gpus(pod.spec):
            if gpu is None:
                yield Finding(
                    f"{pod.path}: {label}",
                    f"{value!r} is no GPU of the catalogue, so that nothing says whether {reference.tag} runs on it",
                    "Check the spelling, or add the GPU to infra/core/catalogue/gpus.yaml",
                )
            elif not tei.runs(prefix, gpu):
                wanted = tei.prefix_for(gpu)
                yield Finding(
                    path,
                    f"{reference.tag} does not start on {gpu.name} (compute capability {gpu.compute_capability}), "
                    f"which {label} asks for",
                    f"Use {wanted}{match['version']}" if wanted is not None else "TEI has no image for this GPU",
                )


def _gpus(spec: Object) -> Iterator[tuple[str, str, Gpu | None]]:
    """The GPUs on which the pod may land, as node selector or required affinity name them."""
    chosen = [(f"nodeSelector {label}", label, value) for label, value in spec.get("nodeSelector", {}).items()]
    named = [entry for entry in chosen if entry[1] in _GPU_OF_LABEL]
    if not named:
        required = spec.get("affinity", {}).get("nodeAffinity", {})
        terms = required.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", ())
        named = [
            (f"nodeAffinity {expression['key']}", expression["key"], value)
            for term in terms
            for expression in term.get("matchExpressions", ())
            if expression["key"] in _GPU_OF_LABEL and expression["operator"] == "In"
            for value in expression.get("values", ())
        ]
    for where, label, value in named:
        yield where, str(value), _GPU_OF_LABEL[label](str(value))


def _by_product(value: str) -> Gpu | None:
    # Time-slicing appends -SHARED to the product's name.
    product = value.removesuffix("-SHARED")
    return next((gpu for gpu in catalogue.gpus().values() if gpu.product_label == product), None)


def _by_instance_type(value: str) -> Gpu | None:
    instance = catalogue.instance_types().get(value)
    return catalogue.gpus()[instance.gpu] if instance else None


def _by_family(value: str) -> Gpu | None:
    return next((gpu for gpu in catalogue.gpus().values() if value in gpu.families), None)


#: Node labels that name a GPU, written by GPU feature discovery, by the cloud provider and by Karpenter.
_GPU_OF_LABEL = {
    GPU_PRODUCT_LABEL: _by_product,
    "node.kubernetes.io/instance-type": _by_instance_type,
    "karpenter.k8s.aws/instance-family": _by_family,
    "karpenter.k8s.aws/instance-gpu-name": catalogue.find_gpu,
}


def _image_version(given: Object) -> Iterable[Finding]:
    pod = pod_of(given)
    if pod is None:
        return
    for container in pod.containers():
        path, reference = f"{container.path}.image", parse(container.image)
        if not container.image:
            yield Finding(path, "there is no image", "Name an image with its version")
        elif reference.digest:
            continue
        elif reference.tag is None:
            yield Finding(path, f"{container.image!r} has no tag, which means latest", "Name a version or a digest")
        elif _moves(reference.tag, three_numbers=engine_of(container) == "tei"):
            yield Finding(
                path,
                f"the tag {reference.tag!r} names another image from one day to the next",
                "Name a version with its patch number (89-1.9.3), or a digest",
            )


def _moves(tag: str, *, three_numbers: bool) -> bool:
    # 89-1.9 moves with every patch, and TEI's flags change between patches (1.9.1 and 1.9.2).
    return floats(tag) or (three_numbers and re.search(r"(^|-)\d+\.\d+\.\d+(-grpc)?$", tag) is None)


IMAGE_AND_GPU = ObjectRule(
    "image-and-gpu", "The image is made for the GPU that the pod lands on", ALWAYS_MANDATORY, _image_and_gpu
)
IMAGE_VERSION = ObjectRule(
    "image-version", "Images have a version that does not move", MANDATORY_FROM_STAGING, _image_version
)
