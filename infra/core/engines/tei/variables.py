"""Environment variables that a stack file may not set, or only with some values."""

import re
from collections.abc import Iterable, Mapping

#: Never of use: name -> why.
_REFUSED = {
    "HF_API_TOKEN": "TEI does not start with it beside HF_TOKEN; set the secret config key huggingFaceToken.",
    "API_KEY": "It would stand readable in the pod; set requireApiKey and the secret config key apiKey.",
    "HF_TOKEN": "It would stand readable in the pod; set the secret config key huggingFaceToken.",
    "PROMETHEUS_PORT": "Images that speak HTTP serve metrics on the HTTP port only.",
    "UDS_PATH": "Images that speak HTTP listen on a port.",
    "NVIDIA_VISIBLE_DEVICES": "The device plugin sets it to the GPU that this pod was given.",
    "CUDA_VISIBLE_DEVICES": "A pod sees one GPU, the one it was given; another number hides it and TEI serves on CPU.",
    "PATH": "The image's entrypoint looks for nvidia-smi there and ends when it is not found.",
}
#: Read by TEI's argument parser, which ends the process on any other text (recordings, startup/start-cases).
_NUMBERS = {"MAX_BATCH_REQUESTS"}
_SWITCHES = {"DISABLE_SPANS"}
_OFFLINE = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}
_OFF = {"", "0", "false", "no", "off"}


def faults(
    env: Mapping[str, str], planned: Iterable[str], *, flash_attention_only: bool, weights_at_hand: bool
) -> Iterable[tuple[str, str, str, str]]:
    """(name, given, allowed, why) of every variable of the stack file that cannot be deployed.

    ``planned`` are the names that the plan sets, ``weights_at_hand`` is true when a claim may hold the weights.
    """
    taken = set(planned)
    for name, value in env.items():
        if name in _REFUSED:
            yield name, "a value", "absent", _REFUSED[name]
        elif name in taken:
            yield name, "a value", "absent", "The plan sets it; use the workload's own key."
        elif name == "NVIDIA_DRIVER_CAPABILITIES" and not {"utility", "all"} & set(value.split(",")):
            yield name, repr(value), "a list with utility, or all", "TEI 1.9's entrypoint runs nvidia-smi."
        elif name in _NUMBERS and not re.fullmatch("[1-9][0-9]{0,8}", value):
            yield name, repr(value), "a number from 1", "TEI ends with a usage error."
        elif name in _SWITCHES and value not in {"true", "false"}:
            yield name, repr(value), "true or false", "TEI ends with a usage error."
        elif name in _OFFLINE and value.lower() not in _OFF and not weights_at_hand:
            yield (
                name,
                repr(value),
                "absent, or cache.existingClaim with the weights in it",
                "The model is a hub id, so its weights are downloaded at start.",
            )
        elif name == "USE_FLASH_ATTENTION" and flash_attention_only and value.lower() != "true":
            yield name, repr(value), "absent", "TEI serves this model with flash attention only."
    if {"DEFAULT_PROMPT", "DEFAULT_PROMPT_NAME"} <= set(env):
        yield "DEFAULT_PROMPT_NAME", "both", "one of DEFAULT_PROMPT and DEFAULT_PROMPT_NAME", "TEI takes one."
