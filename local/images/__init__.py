"""Images of the embedded cluster, built here as OCI layout tars; nothing comes from a registry.

for archive in set(ensure(reporter).values()):
    ctr -n k8s.io image import ARCHIVE      # brings all names of that image
"""

import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from local.images import base, engine, names, tritonserver
from local.images.oci import ImageConfig, write_image, write_images, write_layer
from local.paths import CHECKOUT
from local.report import Reporter
from local.toolchain import ToolchainError
from local.toolchain import ensure as ensure_programs
from local.toolchain.cache import Entry, content_key
from local.toolchain.golang import target
from local.toolchain.programs import GO_PROGRAMS

__all__ = ["ensure", "model_files", "stand_ins", "triton"]

model_files = engine.model_files

#: Images of one name that stay in the cache: some for other checkouts, not one for every edit.
_KEPT = 4

#: Images that no stack can name yet.
_ON_REQUEST = {names.TRITON}

_OWN_SOURCE = Path(__file__).read_bytes() + (Path(__file__).parent / "oci.py").read_bytes()

_TRITON = "The real tritonserver 2.51 (24.10) from the wheel nvidia-pytriton 0.7.0: no GPU, Python backend only"

_STAND_IN = (
    "Stand-in of this project for text-embeddings-inference: MiniLM on the CPU, held to recordings of a real server"
)
_STAND_IN_NIM = "Stand-in of this project for an NVIDIA NIM: MiniLM on the CPU, made from NVIDIA's pages"
_STAND_IN_GRPC = (
    "Stand-in of this project for text-embeddings-inference, gRPC build: MiniLM on the CPU, made from its source"
)


def ensure(reporter: Reporter, only: Collection[str] | None = None) -> dict[str, Path]:
    """Image name -> OCI layout tar that holds the image under that name and all its others.

    ``only`` names the images that are needed; None means all but _ON_REQUEST. A tar's path changes with its content.
    Needs root on Debian unless everything is in the cache; raises ToolchainError, also for a name that is not built
    here.
    """
    made: dict[str, Path] = {}
    for called, make in _makers(reporter):
        if chosen := [name for name in called if (name not in _ON_REQUEST if only is None else name in only)]:
            made |= dict.fromkeys(chosen, make())
    if unknown := sorted(set(only or ()) - set(made)):
        known = ", ".join(name for called, _ in _makers(reporter) for name in called)
        raise ToolchainError(f"image {unknown[0]} is not built here; built are {known}")
    return made


def _makers(reporter: Reporter) -> list[tuple[Sequence[str], Callable[[], Path]]]:
    """Names of an image, and what makes it."""
    return [
        ((names.PAUSE,), partial(_static_program, "pause", names.PAUSE, reporter)),
        ((names.COREDNS,), partial(_static_program, "coredns", names.COREDNS, reporter)),
        *(((image.name,), partial(operator, image, reporter)) for image in names.OPERATORS),
        ((names.RAG_APP,), partial(rag_app, reporter)),
        (
            (*names.TEI_NAMES, *names.TEI_GRPC_NAMES, *(image.name for image in names.NIM_IMAGES)),
            partial(stand_ins, reporter),
        ),
        ((names.TRITON,), partial(triton, reporter)),
    ]


def operator(image: names.OperatorImage, reporter: Reporter) -> Path:
    """The OCI layout tar of an operator's image; see ensure."""
    return _static_program(
        image.program, image.name, reporter, path=image.path, user=image.user, writable=image.writable
    )


def _static_program(
    program: str, name: str, reporter: Reporter, *, path: str = "", user: str = "", writable: str = ""
) -> Path:
    """An image of one static program, in the root folder unless ``path`` says where."""
    (entry_of_program,) = (p.entry() for p in GO_PROGRAMS if p.name == program)
    path = path or f"/{program}"
    config = ImageConfig(entrypoint=[path], architecture=target()[1], working_dir=writable or "/", user=user)
    entry = Entry(f"image-{program}", content_key([entry_of_program.key, name, repr(config), _OWN_SOURCE]))

    def produce(work: Path, out: Path) -> None:
        layer = work / "layer"
        copied = layer / path.lstrip("/")
        copied.parent.mkdir(parents=True)
        shutil.copyfile(ensure_programs([program], reporter)[program], copied)
        copied.chmod(0o755)
        if writable:
            folder = layer / writable.lstrip("/")
            folder.mkdir()
            folder.chmod(0o777)
        write_layer(layer, work / "layer.tar", owner=0)
        write_image([work / "layer.tar"], config, [name], out / "image.tar")

    return entry.obtain(reporter, produce, f"image: {program}", keep=_KEPT) / "image.tar"


def rag_app(reporter: Reporter) -> Path:
    """The OCI layout tar of the sample app, which needs nothing but the base's Python; see ensure."""
    source = CHECKOUT / "examples" / "rag_app" / "app.py"
    config = ImageConfig(
        entrypoint=["/usr/bin/python3", "-B", "/opt/rag-app/app.py"],
        architecture=target()[1],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        ports=["8000/tcp"],
    )
    key = content_key([base.entry().key, source.read_bytes(), repr(config), _OWN_SOURCE])
    entry = Entry("image-rag-app", key)

    def produce(work: Path, out: Path) -> None:
        copied = work / "layer" / "opt" / "rag-app" / source.name
        copied.parent.mkdir(parents=True)
        shutil.copyfile(source, copied)
        write_layer(work / "layer", work / "layer.tar", owner=0)
        layers = [base.build(reporter) / "layer.tar", work / "layer.tar"]
        write_image(layers, config, [names.RAG_APP], out / "image.tar")

    return entry.obtain(reporter, produce, "image: sample app", keep=_KEPT) / "image.tar"


def stand_ins(reporter: Reporter) -> Path:
    """The OCI layout tar of the stand-ins for TEI, HTTP and gRPC build, and for NIM; see ensure."""
    packages = engine.packages_layer(reporter)
    layers = [
        base.build(reporter) / "layer.tar",
        packages,
        engine.model_layer(reporter),
        engine.code_layer(reporter, packages),
    ]
    config = ImageConfig(
        entrypoint=["/usr/bin/python3", "-m", "local.engines.tei"],
        # As in the official image, whose entry point and environment this follows.
        cmd=["--json-output"],
        architecture=target()[1],
        env={
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PORT": "80",
            "HUGGINGFACE_HUB_CACHE": "/data",
            "PYTHONPATH": f"{engine.CODE}:{engine.PACKAGES}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "LC_ALL": "C.UTF-8",
        },
        labels={"stand-in": "true", "org.opencontainers.image.description": _STAND_IN},
        ports=["80/tcp"],
    )
    grpc = replace(
        config,
        entrypoint=["/usr/bin/python3", "-m", "local.engines.tei.grpc"],
        labels={"stand-in": "true", "org.opencontainers.image.description": _STAND_IN_GRPC},
    )
    nims = [(_nim(config, image), (image.name,)) for image in names.NIM_IMAGES]
    images = [(config, names.TEI_NAMES), (grpc, names.TEI_GRPC_NAMES), *nims]
    keys = [layer.parent.name for layer in layers]
    entry = Entry("image-stand-ins", content_key([*keys, repr(images), _OWN_SOURCE]))

    def produce(_work: Path, out: Path) -> None:
        write_images(layers, images, out / "image.tar")

    return entry.obtain(reporter, produce, "image: stand-ins for TEI and NIM", keep=_KEPT) / "image.tar"


def _nim(config: ImageConfig, image: names.NimImage) -> ImageConfig:
    """The TEI stand-in's image as a NIM's: user and port are those of the real ones."""
    python = {name: value for name, value in config.env.items() if name not in {"PORT", "HUGGINGFACE_HUB_CACHE"}}
    return replace(
        config,
        entrypoint=["/usr/bin/python3", "-m", "local.engines.nim"],
        cmd=(),
        env=python | {"STAND_IN_NIM_MODEL": image.model, "STAND_IN_NIM_VERSION": image.tag},
        labels={"stand-in": "true", "org.opencontainers.image.description": _STAND_IN_NIM},
        ports=["8000/tcp"],
        user="1000",
    )


def triton(reporter: Reporter) -> Path:
    """The OCI layout tar of tritonserver; see ensure."""
    layers = [
        base.build(reporter) / "layer.tar",
        tritonserver.server_layer(reporter) / "layer.tar",
        tritonserver.packages_layer(reporter) / "layer.tar",
    ]
    config = ImageConfig(
        # As in NVIDIA's image: the arguments name the program, `tritonserver --model-repository=...`.
        entrypoint=[tritonserver.ENTRYPOINT],
        architecture=target()[1],
        env=tritonserver.ENVIRONMENT,
        labels={"org.opencontainers.image.description": _TRITON},
        ports=["8000/tcp", "8001/tcp", "8002/tcp"],
        working_dir=tritonserver.SERVER,
    )
    entry = Entry("image-triton", content_key([*(layer.parent.name for layer in layers), repr(config), _OWN_SOURCE]))

    def produce(_work: Path, out: Path) -> None:
        write_image(layers, config, [names.TRITON], out / "image.tar")

    return entry.obtain(reporter, produce, "image: tritonserver", keep=_KEPT) / "image.tar"
