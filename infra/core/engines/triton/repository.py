"""The model repository of a Triton server: config.pbtxt and files of every model, from the catalogue and a few choices.

A served model is an ensemble, the public endpoint, and its steps:

    embedding model `name`    name-tokenizer -> name-embedder -> name-pooler    text -> embedding
    reranker `name`           name-tokenizer -> name-reranker                   query, text -> logits

Tokenizer and pooler are Python models. Embedder and reranker are ONNX graphs in the onnxruntime backend, or, for
servers without it, in a Python model that runs the same file: `backend` and `kind` are all that differs.

Rules of config.pbtxt: triton-inference-server/core src/model_config_utils.cc at 73aad7c, onnxruntime_backend
src/onnxruntime.cc at 00fd3e8.
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from infra.core.catalogue import Model, ModelKind
from infra.core.engines.triton.signature import Signature, Tensor
from infra.core.errors import Refusal, quoted

#: What the ensembles take and give.
TEXT, QUERY, EMBEDDING, LOGITS = "text", "query", "embedding", "logits"

#: What the tokenizer can make; a graph that asks for more cannot be fed.
TOKEN_TENSORS = ("input_ids", "attention_mask", "token_type_ids")
_MASK = "attention_mask"

#: Name that exports give to a vector that is pooled inside the graph. BERT's `pooler_output` is no such vector.
_POOLED = "sentence_embedding"

#: Shortest length that texts are padded to; each further one doubles.
_SHORTEST = 16

#: The version directory of every generated model.
_VERSION = "1"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MIB = 1024**2
_GIB = 1024**3


class Backend(StrEnum):
    """What runs the ONNX graphs."""

    #: NVIDIA's image, on GPUs.
    ONNXRUNTIME = "onnxruntime"
    #: A server with the Python backend only, on the CPU.
    PYTHON = "python"


class Precision(StrEnum):
    """What TensorRT computes in. Inputs and outputs keep the types of the file."""

    FP32 = "FP32"
    FP16 = "FP16"
    INT8 = "INT8"


@dataclass(frozen=True)
class TensorRt:
    """The TensorRT accelerator of the onnxruntime backend.

    ``cache_path`` is a writable directory of the container that outlives it; without one, engines are built again at
    every start. ``calibration_table`` is the name of a file in the model's folder below it (see `cache_path`), and
    needed for INT8 unless the graph is quantized.
    """

    precision: Precision
    cache_path: str
    workspace_mib: int = 1024
    calibration_table: str | None = None


@dataclass(frozen=True)
class Served:
    """One model of a server, as a client sees it, and how it runs.

    ``output`` names the output of the graph; None takes `sentence_embedding` where there is one, else the token states.
    ``typical_tokens`` is the length that TensorRT optimizes for; None means half of ``max_tokens``.
    ``max_queue_size`` is how many requests wait before others are rejected; None lets them pile up.
    """

    name: str
    model: Model
    signature: Signature
    max_batch_size: int
    max_tokens: int
    queue_delay_us: int = 2000
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_size: int | None = None
    instances: int = 1
    tokenizer_instances: int = 1
    tensorrt: TensorRt | None = None
    typical_tokens: int | None = None
    truncate: bool = True
    normalize: bool = True
    output: str | None = None

    @property
    def reranks(self) -> bool:
        return self.model.kind is ModelKind.RERANKER

    @property
    def tokenizer(self) -> str:
        return f"{self.name}-tokenizer"

    @property
    def graph(self) -> str:
        """Name of the Triton model that runs the ONNX file: the one to scale on, and to wait for."""
        return f"{self.name}-{'reranker' if self.reranks else 'embedder'}"

    @property
    def pooler(self) -> str:
        return f"{self.name}-pooler"

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of the composing models, in order."""
        return (self.tokenizer, self.graph) if self.reranks else (self.tokenizer, self.graph, self.pooler)

    @property
    def result(self) -> Tensor | None:
        """The output of the graph that is used; None when the file has none that fits."""
        if self.output:
            return next((tensor for tensor in self.signature.outputs if tensor.name == self.output), None)
        pooled = [t for t in self.signature.outputs if t.name == _POOLED]
        wanted = 2 if self.reranks else 3
        return next((t for t in (*pooled, *self.signature.outputs) if t in pooled or len(t.shape) == wanted), None)


@dataclass(frozen=True)
class Source:
    """Where the files of a served model are.

    ``packages`` is a folder with the Python package `tokenizers` for the server's processor, which NVIDIA's image
    lacks; it is put beside the tokenizer.
    """

    onnx: Path
    tokenizer: Path
    packages: Path
    calibration_table: Path | None = None


def padded_lengths(max_tokens: int) -> tuple[int, ...]:
    """Lengths in tokens that texts are padded to, ascending: 16, 32, ... and ``max_tokens``."""
    lengths = []
    length = _SHORTEST
    while length < max_tokens:
        lengths.append(length)
        length *= 2
    return (*lengths, max_tokens)


def cache_path(served: Served, tensorrt: TensorRt) -> str:
    """Folder of this model's engines: models share the directory, and a calibration table is looked for here."""
    return f"{tensorrt.cache_path.rstrip('/')}/{served.graph}"


def shared_memory_bytes(served: Sequence[Served], backend: Backend = Backend.ONNXRUNTIME) -> int:
    """What /dev/shm of the container has to hold: tensors pass it on their way into Python models and back.

    64 MiB per instance of a Python model, as the Python backend reserved until it learned to grow, and the tensors of
    a full batch for its poolers and graphs; 1 GiB at least, which NVIDIA's start-up banner recommends.
    """
    needed = 0
    for one in served:
        instances = one.tokenizer_instances + (0 if one.reranks else 1)
        states = one.max_batch_size * one.max_tokens * one.model.hidden * 4
        copies = 0 if one.reranks or _is_pooled(one) else 1
        if backend is Backend.PYTHON:
            instances += one.instances
            copies += one.instances if copies else 0
        needed += instances * 64 * _MIB + copies * states
    return max(_GIB, needed)


def refusals(served: Served, path: str) -> list[Refusal]:
    """Why ``served`` cannot be generated; ``path`` is its place in the stack file."""
    found: list[Refusal] = []

    def refuse(key: str, given: object, allowed: str, why: str) -> None:
        found.append(Refusal(f"{path}.{key}" if key else path, quoted(given), allowed, why))

    if not _NAME.fullmatch(served.name):
        refuse("name", served.name, "letters, digits, . _ -", "It becomes directories of the model repository")
    if served.model.kind not in {ModelKind.EMBEDDING, ModelKind.RERANKER}:
        allowed = f"{ModelKind.EMBEDDING}, {ModelKind.RERANKER}"
        refuse("model", f"{served.model.id} ({served.model.kind})", allowed, "Others need a pipeline of their own")
    if served.max_batch_size < 1:
        refuse("maxBatchSize", served.max_batch_size, "1 and more", "With 0 Triton does not batch")
    for size in served.preferred_batch_sizes:
        if not 1 <= size <= served.max_batch_size:
            why = "Triton refuses a preferred batch size above max_batch_size"
            refuse("preferredBatchSizes", size, f"1 to {served.max_batch_size}", why)
    if not 1 <= served.max_tokens <= served.model.max_tokens:
        why = f"{served.model.id} has no positions for more"
        refuse("maxTokens", served.max_tokens, f"1 to {served.model.max_tokens}", why)
    if served.typical_tokens and served.typical_tokens > served.max_tokens:
        refuse("typicalTokens", served.typical_tokens, f"1 to {served.max_tokens}", "It is one of the lengths served")
    names = [tensor.name for tensor in served.signature.inputs]
    if extra := [name for name in names if name not in TOKEN_TENSORS]:
        refuse(
            "onnx",
            f"input {extra[0]}",
            ", ".join(TOKEN_TENSORS),
            "A tokenizer does not make this input; export without it",
        )
    if served.result is None:
        outputs = ", ".join(tensor.name for tensor in served.signature.outputs)
        wanted = (
            "logits [batch, 1]"
            if served.reranks
            else f"{_POOLED} [batch, dimension], or token states [batch, sequence, hidden]"
        )
        refuse("onnx", f"outputs {outputs}", wanted, "No output of the graph can be used")
    trt = served.tensorrt
    if trt and trt.precision is Precision.INT8 and not (trt.calibration_table or served.signature.quantized):
        why = "TensorRT needs the range of every tensor: from a calibration table, or from a quantized graph (QDQ)"
        refuse("precision", "INT8", "FP32, FP16; or INT8 with calibrationTable, or with a quantized ONNX file", why)
    return found


def configs(served: Served, backend: Backend) -> dict[str, pb.ModelConfig]:
    """The configuration of each Triton model of ``served``, which has no `refusals`; the ensemble comes last."""
    steps = {served.tokenizer: _tokenizer(served), served.graph: _graph(served, backend)}
    if not served.reranks:
        steps[served.pooler] = _pooler(served)
    return steps | {served.name: _ensemble(served, list(steps.values()))}


def pbtxt(config: pb.ModelConfig) -> str:
    """The text of a config.pbtxt."""
    text: str = text_format.MessageToString(config)
    return text


def write(
    target: Path,
    models: Sequence[tuple[Served, Source]],
    backend: Backend,
    own: Mapping[str, Path] | None = None,
) -> None:
    """Write a model repository to the empty folder ``target``.

    ``own`` maps names to the user's model directories, copied as they are. `check.check` says whether Triton would load
    the result. Raises FileExistsError when two models have one name.
    """
    for served, source in models:
        for name, config in configs(served, backend).items():
            (target / name / _VERSION).mkdir(parents=True)
            (target / name / "config.pbtxt").write_text(pbtxt(config), encoding="utf-8")
        _write_tokenizer(target / served.tokenizer / _VERSION, source)
        _write_graph(target / served.graph / _VERSION, served, source, backend)
        if not served.reranks:
            _write_code("pooler", target / served.pooler / _VERSION)
    for name, folder in (own or {}).items():
        shutil.copytree(folder, target / name)


def _write_tokenizer(folder: Path, source: Source) -> None:
    _write_code("tokenizer", folder)
    shutil.copyfile(source.tokenizer, folder / "tokenizer.json")
    shutil.copytree(source.packages, folder / "packages", ignore=shutil.ignore_patterns("__pycache__"))


def _write_graph(folder: Path, served: Served, source: Source, backend: Backend) -> None:
    shutil.copyfile(source.onnx, folder / "model.onnx")
    for name in served.signature.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.onnx.parent / name, folder / name)
    if source.calibration_table and served.tensorrt and served.tensorrt.calibration_table:
        shutil.copyfile(source.calibration_table, folder / served.tensorrt.calibration_table)
    if backend is Backend.PYTHON:
        _write_code("onnx_graph", folder)


def _write_code(module: str, folder: Path) -> None:
    code = resources.files(f"{__package__}.python_models").joinpath(f"{module}.py").read_text(encoding="utf-8")
    (folder / "model.py").write_text(code, encoding="utf-8")


def _is_pooled(served: Served) -> bool:
    return served.result is not None and len(served.result.shape) == 2


def _tokenizer(served: Served) -> pb.ModelConfig:
    texts = (QUERY, TEXT) if served.reranks else (TEXT,)
    types = {tensor.name: tensor.data_type for tensor in served.signature.inputs}
    if not served.reranks and not _is_pooled(served):
        # The pooler asks for the mask even when the graph does not.
        types.setdefault(_MASK, "TYPE_INT64")
    config = _python(served, served.tokenizer, served.tokenizer_instances)
    config.input.extend(pb.ModelInput(name=name, data_type=pb.TYPE_STRING, dims=[1]) for name in texts)
    config.output.extend(
        pb.ModelOutput(name=name, data_type=pb.DataType.Value(kind), dims=[-1]) for name, kind in types.items()
    )
    _set(
        config,
        max_tokens=str(served.max_tokens),
        padded_lengths=",".join(map(str, padded_lengths(served.max_tokens))),
        truncate=str(served.truncate).lower(),
    )
    return config


def _graph(served: Served, backend: Backend) -> pb.ModelConfig:
    gpu = backend is Backend.ONNXRUNTIME
    config = pb.ModelConfig(
        name=served.graph,
        backend=backend.value,
        max_batch_size=served.max_batch_size,
        input=[_input(tensor) for tensor in served.signature.inputs],
        output=[_output(_result(served))],
        instance_group=[
            pb.ModelInstanceGroup(
                count=served.instances, kind=pb.ModelInstanceGroup.KIND_GPU if gpu else pb.ModelInstanceGroup.KIND_CPU
            )
        ],
        version_policy=_one_version(),
        dynamic_batching=_batching(served),
        model_warmup=_warmup(served),
    )
    if served.tensorrt:
        accelerator = pb.ModelOptimizationPolicy.ExecutionAccelerators.Accelerator(
            name="tensorrt", parameters=_accelerator(served, served.tensorrt)
        )
        config.optimization.execution_accelerators.gpu_execution_accelerator.append(accelerator)
    return config


def _pooler(served: Served) -> pb.ModelConfig:
    result = _result(served)
    config = _python(served, served.pooler, 1)
    config.input.append(_input(result))
    pooling = "none"
    if not _is_pooled(served):
        pooling = served.model.pooling or "mean"
        mask = next((t for t in served.signature.inputs if t.name == _MASK), Tensor(_MASK, "TYPE_INT64", (-1, -1)))
        config.input.append(_input(mask))
    config.output.append(pb.ModelOutput(name=EMBEDDING, data_type=pb.TYPE_FP32, dims=[result.shape[-1]]))
    _set(config, pooling=pooling, normalize=str(served.normalize).lower())
    return config


def _ensemble(served: Served, steps: Sequence[pb.ModelConfig]) -> pb.ModelConfig:
    """Tensors keep their names between the steps. Triton refuses instance groups, optimization and warm-up here."""
    config = pb.ModelConfig(
        name=served.name,
        platform="ensemble",
        max_batch_size=served.max_batch_size,
        version_policy=_one_version(),
    )
    config.input.extend(steps[0].input)
    config.output.extend(steps[-1].output)
    used = {tensor.name for step in steps[1:] for tensor in step.input} | {tensor.name for tensor in steps[-1].output}
    for step in steps:
        config.ensemble_scheduling.step.append(
            pb.ModelEnsembling.Step(
                model_name=step.name,
                model_version=-1,
                input_map={tensor.name: tensor.name for tensor in step.input},
                output_map={tensor.name: tensor.name for tensor in step.output if tensor.name in used},
            )
        )
    return config


def _python(served: Served, name: str, instances: int) -> pb.ModelConfig:
    return pb.ModelConfig(
        name=name,
        backend="python",
        max_batch_size=served.max_batch_size,
        instance_group=[pb.ModelInstanceGroup(count=instances, kind=pb.ModelInstanceGroup.KIND_CPU)],
        version_policy=_one_version(),
        # What is there is taken at once: only the graph gains by waiting for more.
        dynamic_batching=pb.ModelDynamicBatching(),
    )


def _set(config: pb.ModelConfig, **parameters: str) -> None:
    for name, value in parameters.items():
        config.parameters[name].string_value = value


def _one_version() -> pb.ModelVersionPolicy:
    return pb.ModelVersionPolicy(latest=pb.ModelVersionPolicy.Latest(num_versions=1))


def _result(served: Served) -> Tensor:
    if served.result is None:
        raise ValueError(f"{served.name}: no output of the graph fits; refusals() says so")
    return served.result


def _input(tensor: Tensor) -> pb.ModelInput:
    return pb.ModelInput(name=tensor.name, data_type=pb.DataType.Value(tensor.data_type), dims=tensor.shape[1:])


def _output(tensor: Tensor) -> pb.ModelOutput:
    return pb.ModelOutput(name=tensor.name, data_type=pb.DataType.Value(tensor.data_type), dims=tensor.shape[1:])


def _batching(served: Served) -> pb.ModelDynamicBatching:
    batching = pb.ModelDynamicBatching(
        max_queue_delay_microseconds=served.queue_delay_us, preferred_batch_size=served.preferred_batch_sizes
    )
    if served.max_queue_size:
        batching.default_queue_policy.max_queue_size = served.max_queue_size
    return batching


def _warmup(served: Served) -> list[pb.ModelWarmup]:
    """The smallest and the largest batch. Zeros are token ids of every vocabulary; random ones need not be."""
    shortest, longest = padded_lengths(served.max_tokens)[0], served.max_tokens

    def sample(name: str, batch_size: int, length: int) -> pb.ModelWarmup:
        inputs = {
            tensor.name: pb.ModelWarmup.Input(
                data_type=pb.DataType.Value(tensor.data_type),
                dims=[length if size == -1 else size for size in tensor.shape[1:]],
                zero_data=True,
            )
            for tensor in served.signature.inputs
        }
        return pb.ModelWarmup(name=name, batch_size=batch_size, inputs=inputs)

    return [sample("smallest", 1, shortest), sample("largest", served.max_batch_size, longest)]


def _accelerator(served: Served, tensorrt: TensorRt) -> dict[str, str]:
    """Parameters of the accelerator. Without profile shapes it builds an engine again whenever a shape is new."""
    lengths = padded_lengths(served.max_tokens)
    wanted = served.typical_tokens or served.max_tokens // 2
    typical = next(length for length in lengths if length >= wanted)

    def shapes(batch_size: int, length: int) -> str:
        return ",".join(f"{tensor.name}:{batch_size}x{length}" for tensor in served.signature.inputs)

    parameters = {
        "precision_mode": tensorrt.precision.value,
        "max_workspace_size_bytes": str(tensorrt.workspace_mib * _MIB),
        "trt_engine_cache_enable": "true",
        "trt_engine_cache_path": cache_path(served, tensorrt),
        "trt_profile_min_shapes": shapes(1, lengths[0]),
        "trt_profile_opt_shapes": shapes(max(served.preferred_batch_sizes, default=served.max_batch_size), typical),
        "trt_profile_max_shapes": shapes(served.max_batch_size, served.max_tokens),
    }
    if tensorrt.precision is Precision.INT8 and tensorrt.calibration_table:
        parameters["int8_calibration_table_name"] = tensorrt.calibration_table
    return parameters
