"""What the container is told by its environment; names by release as in infra/core/engines/nim/variables.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local.engines.nim.models import MODELS, Model

#: Names that end the start of 2.1 and newer, and what took their place.
_RETIRED = {"NIM_MODEL_NAME": "NIM_ENGINE_MODEL_NAME", "NIM_MODEL_PATH": "NIM_ENGINE_MODEL_PATH"}
_TRUE = {"1", "true", "True", "TRUE"}


class StartError(Exception):
    """The container ends before it is ready. Never holds the value of a key."""


@dataclass(frozen=True)
class Configuration:
    """How one container runs."""

    model: Model
    version: str
    host: str
    port: int
    served_name: str
    weights_path: Path
    json_log: bool
    #: Requests that may be waiting or running; None: no limit (1.x).
    queue: int | None
    #: Of Triton's metrics; None: there is no Triton inside (2.x).
    triton_metrics_port: int | None


def read(environment: Mapping[str, str]) -> Configuration:
    """The configuration of the image that STAND_IN_NIM_MODEL and STAND_IN_NIM_VERSION name (the image sets both).

    Raises:
        StartError: a key is missing, a name is retired, or a value cannot be read.
    """
    name, version = environment.get("STAND_IN_NIM_MODEL", ""), environment.get("STAND_IN_NIM_VERSION", "")
    model = MODELS.get(name)
    if model is None:
        raise StartError(f"STAND_IN_NIM_MODEL is {name!r}: this stand-in serves {', '.join(MODELS)}")
    try:
        major, minor = (int(part) for part in version.split(".")[:2])
    except ValueError:
        raise StartError(f"STAND_IN_NIM_VERSION is {version!r}: it has to be a release such as 1.10.1") from None
    return _one(environment, model, version) if major == 1 else _two(environment, model, version, minor)


def _one(environment: Mapping[str, str], model: Model, version: str) -> Configuration:
    _require(environment, "NGC_API_KEY")
    return Configuration(
        model=model,
        version=version,
        # For tests outside a container; a NIM listens on all addresses.
        host=environment.get("STAND_IN_HOST", "0.0.0.0"),  # noqa: S104
        port=_number(environment, "NIM_HTTP_API_PORT", 8000),
        served_name=environment.get("NIM_SERVED_MODEL_NAME") or model.id,
        weights_path=Path(environment.get("NIM_CACHE_PATH") or "/opt/nim/.cache"),
        json_log=environment.get("NIM_JSONL_LOGGING") in _TRUE,
        queue=None,
        triton_metrics_port=_number(environment, "STAND_IN_TRITON_METRICS_PORT", 8002),
    )


def _two(environment: Mapping[str, str], model: Model, version: str, minor: int) -> Configuration:
    server, engine = ("SERVER_", "ENGINE_") if minor >= 1 else ("", "")
    for old, new in _RETIRED.items():
        if engine and old in environment:
            raise StartError(f"{old} is not read any more and ends the start of {version}: set {new}")
    ngc = environment.get(f"NIM_{engine}MODEL_DOWNLOAD_PROVIDER") == "ngc"
    _require(environment, "NGC_API_KEY" if ngc else "HF_TOKEN")
    address = environment.get(f"NIM_{server}BIND_ADDR") or "0.0.0.0:8000"
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise StartError(f"NIM_{server}BIND_ADDR is {address!r}: it has to be host:port")
    return Configuration(
        model=model,
        version=version,
        host=host,
        port=int(port),
        served_name=environment.get(f"NIM_{engine}MODEL_NAME") or model.id,
        weights_path=Path(environment.get(f"NIM_{engine}MODEL_PATH") or "/model"),
        json_log=environment.get("LOG_FORMAT", "").lower() == "json",
        queue=_number(environment, f"NIM_{server}MAX_QUEUE_SIZE", 1024),
        triton_metrics_port=None,
    )


def _require(environment: Mapping[str, str], key: str) -> None:
    if not environment.get(key, "").strip():
        raise StartError(f"{key} is not set: weights cannot be downloaded (this stand-in only looks whether it is set)")


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal():
        raise StartError(f"{name} is {text!r}: it has to be a whole number")
    return int(text)


def check_weights_path(path: Path) -> None:
    """Downloads would go there: a directory that cannot be written to ends the start, as in a NIM.

    Raises:
        StartError: with the number that public reports quote (os error 13).
    """
    probe = path / ".stand-in"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StartError(f"cannot write to {path}: {error.strerror} (os error {error.errno})") from None
