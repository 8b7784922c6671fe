"""Rules about what TEI is told. Sources: TEI 1.9.3 (router/src/main.rs) and recordings of a real server."""

import re
from collections.abc import Iterable, Iterator

from infra.core.rules.images import engine_of
from infra.core.rules.objects import Container, Object, pod_of, whole
from infra.core.rules.rule import ALWAYS_MANDATORY, Finding, ObjectRule

#: What TEI takes where nothing is given (docs/source/en/cli_arguments.md).
_DEFAULTS = {"MAX_CONCURRENT_REQUESTS": 512, "MAX_CLIENT_BATCH_SIZE": 32, "PORT": 80}


def _containers(given: Object) -> list[Container]:
    pod = pod_of(given)
    return [found for found in pod.running() if engine_of(found) == "tei"] if pod else []


def _place(container: Container, variable: str) -> str:
    return f"{container.path}.env[{variable}]"


def _batch_and_concurrency(given: Object) -> Iterable[Finding]:
    for container in _containers(given):
        numbers: dict[str, int] = {}
        for variable in (
            "MAX_CONCURRENT_REQUESTS",
            "MAX_CLIENT_BATCH_SIZE",
            "MAX_BATCH_TOKENS",
            "MAX_BATCH_REQUESTS",
            "PAYLOAD_LIMIT",
            "TOKENIZATION_WORKERS",
        ):
            text = container.setting(variable)
            number = _DEFAULTS.get(variable) if text is None else whole(text)
            if text is not None and (number is None or number < 1):
                # 0 concurrent requests or tokenization workers abort the server; other text is a parse error.
                yield Finding(_place(container, variable), f"{text!r} is no number above 0", "Give 1 or more")
            elif number is not None:
                numbers[variable] = number
        batch, places = numbers.get("MAX_CLIENT_BATCH_SIZE"), numbers.get("MAX_CONCURRENT_REQUESTS")
        if batch and places and batch > places:
            yield Finding(
                _place(container, "MAX_CLIENT_BATCH_SIZE"),
                f"{batch} is more than MAX_CONCURRENT_REQUESTS ({places}): a list takes one place per text, so that a "
                "full list is always answered with 429",
                f"Raise MAX_CONCURRENT_REQUESTS to {batch} or more",
            )
        if container.setting("TOKENIZATION_WORKERS") is None:
            yield Finding(
                _place(container, "TOKENIZATION_WORKERS"),
                "there is none: TEI starts a tokenizer per core of the node, each with a copy of the vocabulary, and "
                "the CPU limit throttles them",
                "Give the number of cores of the CPU limit",
            )


def _engine_settings(given: Object) -> Iterable[Finding]:
    containers = _containers(given)
    for container in containers:
        yield from _environment(container)
        for field in ("command", "workingDir"):
            if field in container.spec:
                yield Finding(
                    f"{container.path}.{field}",
                    "the entrypoint of the image, ./entrypoint.sh, finds the CUDA libraries and is a relative path",
                    "Remove it and use env or args",
                )
    for variable, default in (("PORT", "80"), ("PROMETHEUS_PORT", "9000")):
        seen: dict[str, Container] = {}
        for container in containers:
            port = container.setting(variable) or default
            if port in seen:
                yield Finding(
                    _place(container, variable),
                    f"{port} is the {variable} of {seen[port].path} too: the containers of a pod share their ports",
                    "Give each container its own",
                )
            seen[port] = container


def _environment(container: Container) -> Iterator[Finding]:
    if container.has_variable("HF_API_TOKEN"):
        yield Finding(
            _place(container, "HF_API_TOKEN"), "TEI does not start when HF_TOKEN is set beside it", "Use HF_TOKEN"
        )
    truncate = container.setting("AUTO_TRUNCATE")
    if truncate not in {"true", "false"}:
        yield Finding(
            _place(container, "AUTO_TRUNCATE"),
            f"{truncate!r}: TEI takes the words true and false, and its default changed from release to release",
            "Give true (long texts are cut) or false (they are refused)",
        )
    capabilities = container.setting("NVIDIA_DRIVER_CAPABILITIES")
    if capabilities is not None and not {"utility", "all"} & set(capabilities.split(",")):
        yield Finding(
            _place(container, "NVIDIA_DRIVER_CAPABILITIES"),
            f"{capabilities!r} lacks utility, and the entrypoint of TEI 1.9 ends without nvidia-smi",
            "Give compute,utility",
        )
    port = container.setting("PORT")
    number = _DEFAULTS["PORT"] if port is None else whole(port)
    if number is None or not 1024 <= number <= 65535:
        yield Finding(
            _place(container, "PORT"),
            f"{port or number!r}: a process that is not root opens ports from 1024 on",
            "Give 8080, and name it in the container's ports",
        )
    if container.has_variable("API_KEY") and not _hides_key(container.setting("LOG_LEVEL") or "info"):
        yield Finding(
            _place(container, "LOG_LEVEL"),
            "TEI prints its API key in its first log line",
            "Give info,text_embeddings_router=warn,text_embeddings_router::http=info",
        )


def _hides_key(log_level: str) -> bool:
    directives = [part.strip() for part in log_level.split(",")]
    for_router = [part.partition("=")[2] for part in directives if part.startswith("text_embeddings_router=")]
    general = [part for part in directives if re.fullmatch(r"[a-z]+", part)]
    return (for_router or general or ["info"])[-1] in {"warn", "error", "off"}


BATCH_AND_CONCURRENCY = ObjectRule(
    "batch-and-concurrency",
    "What a client may send fits into what TEI takes at a time",
    ALWAYS_MANDATORY,
    _batch_and_concurrency,
)
ENGINE_SETTINGS = ObjectRule(
    "engine-settings", "TEI starts with its settings and keeps its key", ALWAYS_MANDATORY, _engine_settings
)
