"""From parsed arguments to a served port: model, warm-up, and only then the listener. Order and texts as recorded."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from local.engines.tei import models
from local.engines.tei.arguments import Arguments
from local.engines.tei.bert import Bert, InferenceError, TokenizedInput
from local.engines.tei.infer import CPU_MAX_BATCH_REQUESTS, Backend, Forward, Infer, abort
from local.engines.tei.logs import BACKEND, BACKEND_CANDLE, CORE_TOKENIZATION, ROUTER, Log
from local.engines.tei.metrics import Metrics
from local.engines.tei.process import StartError
from local.engines.tei.service import ServedModel
from local.engines.tei.tokenization import Tokenization, ValidationError, find_prompt

_GELU_NOTE = (
    "The `config.json` contains `hidden_act=gelu` and GeLU + tanh approximation will be used instead of exact GeLU "
    "(aka. GeLU erf), which might lead to subtle differences with Transformers or Sentence Transformers outputs which "
    "use exact GeLU when `hidden_act=gelu`, unless specified otherwise. GeLU + tanh is more efficient and more "
    "consistent across devices (e.g., cuBLASLt comes with fused GeLU + tanh), and will have negligible impact on the "
    "inference quality."
)
_MODEL_TYPES = (
    "`bert`, `deberta-v2`, `camembert`, `distilbert`, `gemma3_text`, `gte`, `new`, `mpnet`, `mistral`, `modernbert`, "
    "`nomic_bert`, `qwen2`, `qwen3`, `bidirectional_pplx_qwen3`, `roberta`, `xlm-roberta`, `llama`, `llama_bidirec`"
)
_BACKEND_MISSING = ("Could not create backend", "Could not start backend: Could not start a suitable backend")


#: A build's server: binds its ports, serves until a signal, and returns when every started request has its answer.
Serve = Callable[[Arguments, ServedModel, Infer, Log, str], Awaitable[None]]


def _read_config(directory: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    except FileNotFoundError:
        raise StartError("`config.json` not found", "No such file or directory (os error 2)") from None
    return config


def _pooling(directory: Path, config: dict[str, Any], given: str | None, log: Log) -> str:
    if given == "splade":
        raise StartError("Splade pooling is not supported: model is not a ForMaskedLM model")
    if given:
        return given
    path = directory / "1_Pooling" / "config.json"
    if not path.exists():
        if "bert" in config["model_type"]:
            message = (
                "The `--pooling` arg is not set and we could not find a pooling configuration "
                "(`1_Pooling/config.json`) for this model but the model is a BERT variant. Defaulting to `CLS` pooling."
            )
            log.warn(ROUTER, "router/src/lib.rs:445", message)
            return "cls"
        raise StartError(
            "The `--pooling` arg is not set and we could not find a pooling configuration (`1_Pooling/config.json`) "
            "for this model."
        )
    modes = json.loads(path.read_text())
    return "cls" if modes["pooling_mode_cls_token"] else "mean"


def _max_input_length(directory: Path, config: dict[str, Any], log: Log) -> int:
    path = directory / "sentence_bert_config.json"
    if path.exists():
        return int(json.loads(path.read_text())["max_seq_length"])
    log.warn(ROUTER, "router/src/lib.rs:203", "Could not find a Sentence Transformers config")
    return int(config["max_position_embeddings"])


def _within_budget(length: int, arguments: Arguments, log: Log) -> int:
    budget = arguments.max_batch_tokens
    if length <= budget:
        return length
    exceeds = f"The maximum input length is `{length}` which exceeds `--max-batch-tokens={budget}`."
    if not arguments.auto_truncate:
        raise StartError(
            f"{exceeds} Either increase `--max-batch-tokens` to at least `{length}`, or set `--auto-truncate true` so "
            f"that regardless the maximum input length, those are truncated to `{budget}` tokens."
        )
    log.warn(
        ROUTER,
        "router/src/lib.rs:214",
        f"{exceeds} Input sequences will be truncated to `{budget}` tokens, as `--auto-truncate` is either not "
        f"provided (defaults to true) or provided as true. To avoid truncation, increase `--max-batch-tokens` to at "
        f"least `{length}` and set `--auto-truncate false`.",
    )
    return budget


def _tokenization_workers(given: int | None) -> int:
    return given if given is not None else min(max((os.cpu_count() or 1) - 1, 1), 64)


def _prompts(directory: Path) -> dict[str, str] | None:
    path = directory / "config_sentence_transformers.json"
    found: dict[str, str] | None = json.loads(path.read_text()).get("prompts") if path.exists() else None
    return found


def _use_hub_cache(model_id: str, cache: str | None) -> None:
    """Creates the folder into which the router would download, so that a cache that cannot be written is noticed."""
    if cache is None:
        return
    try:
        (Path(cache) / ("models--" + model_id.replace("/", "--"))).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError("Could not download model artifacts", f"{error.strerror} (os error {error.errno})") from None


def _kind(config: dict[str, Any]) -> tuple[str, dict[str, str], dict[str, int]]:
    """Kind of model and its labels, from the architectures of its config.json."""
    if not any(name.endswith("Classification") for name in config["architectures"]):
        return "embedding", {}, {}
    if "id2label" not in config:
        raise StartError("`config.json` does not contain `id2label`")
    return "classifier" if len(config["id2label"]) > 1 else "reranker", config["id2label"], config["label2id"]


def _load(arguments: Arguments, log: Log) -> tuple[Path, ServedModel]:
    """The model's directory and description; everything that can be refused before the weights are read."""
    model_id = arguments.model_id
    directory = Path(model_id)
    substitute = models.substitute(model_id)
    if not directory.is_dir():
        if substitute is None and model_id != models.MINILM_ID:
            raise StartError(models.refusal(model_id))
        _use_hub_cache(model_id, arguments.huggingface_hub_cache)
        directory = models.models_directory() / models.MINILM_DIRECTORY
        if not directory.is_dir():
            raise StartError(f"the stand-in's model files are not at {directory}: set STAND_IN_MODELS to their parent")
    config = _read_config(directory)
    kind, id2label, label2id = _kind(config)
    if substitute is not None and substitute.kind == "reranker":
        kind, id2label, label2id = "reranker", {"0": "LABEL_0"}, {"LABEL_0": 0}
    sparse = substitute is not None and substitute.kind == "sparse"
    pooling = shown_pooling = "mean"
    if kind != "embedding" and arguments.pooling:
        message = "`--pooling` arg is set but model is a classifier. Ignoring `--pooling` arg."
        log.warn(ROUTER, "router/src/lib.rs:414", message)
    elif sparse:
        # Of these models nothing but SPLADE pooling makes sense, and nothing else is computed here.
        if arguments.pooling not in {None, "splade"}:
            raise StartError(f"this is a stand-in, which serves {model_id} with --pooling splade only")
        pooling = shown_pooling = "splade"
    elif kind == "embedding":
        shown_pooling = _pooling(directory, config, arguments.pooling, log)
        if substitute is None:
            pooling = shown_pooling
        elif arguments.pooling is None:
            shown_pooling = substitute.pooling
    if not (directory / "tokenizer.json").exists():
        missing = 'Os { code: 2, kind: NotFound, message: "No such file or directory" }'
        supported = "text-embeddings-inference only supports fast tokenizers"
        abort(f"tokenizer.json not found. {supported}: {missing}", "router/src/lib.rs:145:62", "main")
    length = substitute.max_input_length if substitute else _max_input_length(directory, config, log)
    length = _within_budget(length, arguments, log)
    log.info(ROUTER, "router/src/lib.rs:221", f"Maximum number of tokens per request: {length}")
    workers = _tokenization_workers(arguments.tokenization_workers)
    if workers == 0:
        abort("capacity cannot be zero", "<registry>/async-channel-2.3.1/src/lib.rs:124:5", "main")
    served = ServedModel(
        kind=kind,
        dtype=arguments.dtype or "float32",
        shown_pooling=shown_pooling,
        pooling=pooling,
        max_input_length=length,
        tokenization_workers=workers,
        id2label=id2label,
        label2id=label2id,
        stand_in=models.sentence(model_id),
    )
    return directory, served


def _default_prompt(arguments: Arguments, prompts: dict[str, str] | None) -> str | None:
    if arguments.default_prompt_name is None:
        return arguments.default_prompt
    try:
        return find_prompt(arguments.default_prompt_name, prompts)
    except ValidationError as error:
        raise StartError(str(error).removeprefix("Input validation error: ")) from None


def _start_backend(directory: Path, served: ServedModel, substituted: bool, log: Log) -> Forward:
    log.info(ROUTER, "router/src/lib.rs:271", "Starting model backend")
    config = _read_config(directory)
    failed = "Could not start Candle backend: Could not start backend: "
    if config["model_type"] != "bert":
        variants = f"unknown variant `{config['model_type']}`, expected one of {_MODEL_TYPES}"
        message = f"{failed}Model is not supported\n\nCaused by:\n    {variants}"
        log.error(BACKEND, "backends/src/lib.rs:490", message)
        raise StartError(*_BACKEND_MISSING)
    if not (directory / "model.safetensors").exists():
        log.error(BACKEND, "backends/src/lib.rs:490", f"{failed}No such file or directory (os error 2)")
        raise StartError(*_BACKEND_MISSING)
    log.warn(BACKEND_CANDLE, "backends/candle/src/lib.rs:229", _GELU_NOTE)
    log.info(BACKEND_CANDLE, "backends/candle/src/lib.rs:299", "Starting Bert model on Cpu")
    bert = Bert(directory)
    if served.pooling == "splade":
        return models.TokenWeights(bert).weights
    if served.kind == "embedding":
        return bert.hidden_states
    return models.CosineReranker(bert).logits if substituted else bert.logits


def _warm_up(forward: Forward, served: ServedModel, budget: int, positions: int, log: Log) -> None:
    """One batch at the token budget, at most four inputs as on every CPU, before the port is bound."""

    log.info(ROUTER, "router/src/lib.rs:289", "Warming up model")
    length = min(served.max_input_length, positions)
    count = min(max(budget // served.max_input_length, 1), CPU_MAX_BATCH_REQUESTS)
    try:
        forward([TokenizedInput([0] * length, [0] * length)] * count)
    except InferenceError as error:
        raise StartError("Model backend is not healthy", str(error)) from None
    log.warn(ROUTER, "router/src/lib.rs:303", f"Backend does not support a batch size > {CPU_MAX_BATCH_REQUESTS}")
    log.warn(ROUTER, "router/src/lib.rs:304", f"forcing `max_batch_requests={CPU_MAX_BATCH_REQUESTS}`")


def _host(arguments: Arguments, log: Log) -> str:
    try:
        return str(ip_address(arguments.hostname))
    except ValueError:
        log.warn(ROUTER, "router/src/lib.rs:354", "Invalid hostname, defaulting to 0.0.0.0")
        return "0.0.0.0"  # noqa: S104 - what the router does, for example with a pod's HOSTNAME


async def _serve(arguments: Arguments, log: Log, serve: Serve) -> None:
    directory, served = _load(arguments, log)
    metrics = Metrics(served.max_input_length)
    workers = served.tokenization_workers
    prompts = _prompts(directory)
    default_prompt = _default_prompt(arguments, prompts)
    log.info(CORE_TOKENIZATION, "core/src/tokenization.rs:38", f"Starting {workers} tokenization workers")
    tokenization = Tokenization(
        directory / "tokenizer.json",
        workers=workers,
        max_input_length=served.max_input_length,
        prompts=prompts,
        default_prompt=default_prompt,
        metrics=metrics,
    )
    substituted = models.substitute(arguments.model_id) is not None
    forward = _start_backend(directory, served, substituted, log)
    own_positions = int(_read_config(directory)["max_position_embeddings"])
    positions = own_positions if substituted else served.max_input_length
    _warm_up(forward, served, arguments.max_batch_tokens, positions, log)
    if arguments.max_concurrent_requests == 0:
        abort("mpsc bounded channel requires buffer > 0", "core/src/queue.rs:51:46", "main")
    infer = Infer(
        backend=Backend(forward, asyncio.get_running_loop()),
        tokenization=tokenization,
        metrics=metrics,
        log=log,
        max_concurrent_requests=arguments.max_concurrent_requests,
        max_batch_tokens=arguments.max_batch_tokens,
    )
    await serve(arguments, served, infer, log, _host(arguments, log))


def run(arguments: Arguments, log: Log, serve: Serve) -> int:
    """Serves with the server of one build until a signal; returns the exit code."""
    log.always(models.sentence(arguments.model_id))
    log.info(ROUTER, "router/src/main.rs:216", arguments.debug_text())
    if arguments.hf_api_token is not None:
        message = (
            "The `--hf-api-token` argument (and the `HF_API_TOKEN` env var) is deprecated and will be removed in a "
            "future version. Please use `--hf-token` (or the `HF_TOKEN` env var) instead."
        )
        log.warn(ROUTER, "router/src/main.rs:235", message)
    try:
        asyncio.run(_serve(arguments, log, serve))
    except StartError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0
