"""What a Triton server would refuse in a model repository, said before it is uploaded.

For generated models and for directories that users bring. Each problem quotes the line of Triton's log, read off a
real server (2.51, tests/local_engines/test_triton.py) or, for the onnxruntime backend, in onnxruntime_backend
src/onnxruntime.cc and onnxruntime_utils.cc at 00fd3e8. Not checked: what only a backend can know of its own file
formats (TensorRT plans, TorchScript), and inputs and outputs that are left to Triton to complete.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from infra.core.engines.triton.signature import Signature, Tensor, UnreadableError, read

#: Backends in NVIDIA's image tritonserver:<yy.mm>-py3.
#: Source: docs/backend_platform_support_matrix.md of triton-inference-server/backend at 1d36963, Ubuntu 22.04, without
#: those that have images of their own (vLLM, TensorRT-LLM).
NVIDIA_BACKENDS = frozenset({"dali", "fil", "onnxruntime", "openvino", "python", "pytorch", "tensorflow", "tensorrt"})

#: Older way to name a backend. Source: core src/model_config_utils.cc, GetBackendTypeFromPlatform.
_PLATFORMS = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "tensorrt_plan": "tensorrt",
}
_ENSEMBLE = "ensemble"

#: What a backend loads when the configuration does not say.
_MODEL_FILES = {"onnxruntime": "model.onnx", "python": "model.py", "pytorch": "model.pt", "tensorrt": "model.plan"}

_PRECISIONS = ("FP32", "FP16", "BF16", "INT8")

#: Parameters of the TensorRT accelerator; the server does not load a model with another one.
_ACCELERATOR = {
    "int8_calibration_table_name",
    "int8_use_native_calibration_table",
    "max_workspace_size_bytes",
    "precision_mode",
    "trt_auxiliary_streams",
    "trt_build_heuristics_enable",
    "trt_builder_optimization_level",
    "trt_context_memory_sharing_enable",
    "trt_cuda_graph_enable",
    "trt_detailed_build_log",
    "trt_dla_core",
    "trt_dla_enable",
    "trt_dump_ep_context_model",
    "trt_dump_subgraphs",
    "trt_engine_cache_enable",
    "trt_engine_cache_path",
    "trt_engine_cache_prefix",
    "trt_ep_context_embed_mode",
    "trt_ep_context_file_path",
    "trt_extra_plugin_lib_paths",
    "trt_force_sequential_engine_build",
    "trt_force_timing_cache",
    "trt_layer_norm_fp32_fallback",
    "trt_max_partition_iterations",
    "trt_min_subgraph_size",
    "trt_profile_max_shapes",
    "trt_profile_min_shapes",
    "trt_profile_opt_shapes",
    "trt_sparsity_enable",
    "trt_tactic_sources",
    "trt_timing_cache_enable",
    "trt_timing_cache_path",
}
_PROFILES = ("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes")


@dataclass(frozen=True)
class Problem:
    """A model that would not load, or would load and not do what its configuration says.

    ``triton`` is what the server's log would say, and empty where the server would not complain.
    """

    model: str
    triton: str
    why: str

    def __str__(self) -> str:
        said = f"Triton would refuse it: {self.triton}. " if self.triton else ""
        return f"model {self.model}: {said}{self.why}"


#: What Triton would say, and what to do.
_Found = Iterator[tuple[str, str]]


def check(repository: Path, backends: Collection[str] = NVIDIA_BACKENDS, gpus: int = 1) -> list[Problem]:
    """Everything wrong with the models of ``repository``, by model.

    ``backends`` are those of the server's image, ``gpus`` how many the container sees.
    """
    configs: dict[str, pb.ModelConfig] = {}
    problems = []
    for folder in sorted(path for path in repository.iterdir() if path.is_dir()):
        file = folder / "config.pbtxt"
        try:
            text = file.read_text(encoding="utf-8") if file.exists() else ""
            configs[folder.name] = text_format.Parse(text, pb.ModelConfig())
        except (text_format.ParseError, UnicodeDecodeError) as error:
            why = f"Line and column, then what is wrong: {' '.join(str(error).split())}"
            problems.append(Problem(folder.name, "failed to read text proto from", why))
    for name, config in configs.items():
        found = [*_named(name, config), *_batching(name, config)]
        if config.platform == _ENSEMBLE or config.HasField("ensemble_scheduling"):
            found += _ensemble(name, config, configs)
        else:
            found += [*_tensors(name, config), *_warmup(config)]
            found += _instances(name, config, gpus)
            found += _files(repository / name, config, backends)
        problems += [Problem(name, triton, why) for triton, why in found]
    return problems


def _named(folder: str, config: pb.ModelConfig) -> _Found:
    if config.name and config.name != folder:
        yield (
            f"unexpected directory name '{folder}' for model '{config.name}', directory name must equal model name",
            "Rename the directory, or leave the name out of config.pbtxt",
        )


def _tensors(name: str, config: pb.ModelConfig) -> _Found:
    for kind, tensors in (("input", config.input), ("output", config.output)):
        for tensor in tensors:
            if tensor.data_type == pb.TYPE_INVALID:
                yield f"model {kind} '{tensor.name}' must specify 'data_type' for {name}", "Add data_type: TYPE_..."
            if not tensor.dims:
                yield f"model {kind} '{tensor.name}' must specify 'dims' for {name}", "Add dims, without the batch"
            if any(size < 1 and size != -1 for size in tensor.dims):
                yield (
                    f"model {kind} '{tensor.name}' dimension must be integer >= 1, or -1 to indicate a variable-size "
                    f"dimension for {name}",
                    f"dims are {list(tensor.dims)}",
                )


def _batching(name: str, config: pb.ModelConfig) -> _Found:
    if config.max_batch_size < 0:
        yield f"'max_batch_size' must be non-negative value for {name}", "0 means no batching"
    if not config.HasField("dynamic_batching"):
        return
    for size in config.dynamic_batching.preferred_batch_size:
        if size <= 0:
            yield f"dynamic batching preferred size must be positive for {name}", f"A size is {size}"
        elif size > config.max_batch_size:
            why = f"{size} is above max_batch_size {config.max_batch_size}"
            yield f"dynamic batching preferred size must be <= max batch size for {name}", why
    if config.max_batch_size == 0 and not config.dynamic_batching.preferred_batch_size:
        yield "", "dynamic_batching does nothing while max_batch_size is 0: set it to the largest batch, or remove both"


def _instances(name: str, config: pb.ModelConfig, gpus: int) -> _Found:
    for number, group in enumerate(config.instance_group):
        called = f"instance group {group.name or f'{name}_{number}'} of model {name}"
        if group.kind == pb.ModelInstanceGroup.KIND_CPU and group.gpus:
            yield f"{called} has kind KIND_CPU but specifies one or more GPUs", "Remove gpus, or use KIND_GPU"
        elif group.kind == pb.ModelInstanceGroup.KIND_GPU and not gpus and not group.gpus:
            yield f"{called} has kind KIND_GPU but no GPUs are available", "The container sees no GPU"
        for gpu in group.gpus:
            if group.kind == pb.ModelInstanceGroup.KIND_GPU and gpu >= gpus:
                seen = ", ".join(map(str, range(gpus))) or "none"
                why = (
                    f"The container sees GPUs {seen}, numbered from 0 whatever the node has; leave gpus out to use all"
                )
                yield f"{called} specifies invalid or unsupported gpu id {gpu}", why


def _warmup(config: pb.ModelConfig) -> _Found:
    inputs = {tensor.name: tensor for tensor in config.input}
    for sample in config.model_warmup:
        if sample.batch_size == 0:
            yield "", f"warm-up sample '{sample.name}' is skipped without a word: its batch_size is 0"
            continue
        if config.max_batch_size and sample.batch_size > config.max_batch_size:
            yield (
                f"failed to run warmup sample '{sample.name}': batch size {sample.batch_size}",
                f"max_batch_size is {config.max_batch_size}",
            )
        for name, given in sample.inputs.items():
            if any(size < 1 for size in given.dims):
                why = f"dims are {list(given.dims)}: a warm-up needs numbers, and no batch dimension"
                yield f"warmup setting expects all variable-size dimensions are specified for input '{name}'", why
            if given.WhichOneof("input_data_type") is None:
                yield f"warmup setting expects input '{name}' to have input_data_type set", "zero_data fits token ids"
            if given.random_data and given.data_type in {pb.TYPE_INT64, pb.TYPE_INT32}:
                yield "", f"random_data for '{name}' gives token ids outside the vocabulary: use zero_data"
            if name in inputs and given.data_type != inputs[name].data_type:
                types = [
                    pb.DataType.Name(kind).removeprefix("TYPE_") for kind in (given.data_type, inputs[name].data_type)
                ]
                yield f"inference input '{name}' data-type is '{types[0]}', but model", f"It expects {types[1]}"
        if missing := [name for name in inputs if name not in sample.inputs and not inputs[name].optional]:
            yield (
                f"expected {len(inputs)} inputs but got {len(inputs) - len(missing)} inputs for model",
                f"Warm-up sample '{sample.name}' lacks {', '.join(missing)}",
            )


def _ensemble(name: str, config: pb.ModelConfig, configs: dict[str, pb.ModelConfig]) -> _Found:
    if config.platform != _ENSEMBLE:
        # Its words depend on whether Triton completes configurations.
        yield "", 'A model with ensemble_scheduling needs platform: "ensemble"'
        return
    if not config.HasField("ensemble_scheduling"):
        yield f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble", "Add its steps"
        return
    why = "It belongs to the composing models"
    if config.instance_group:
        yield f"instance group should not be specified for ensemble '{name}'", why
    if config.HasField("optimization"):
        yield f"optimization should not be specified for ensemble '{name}'", why
    if config.model_warmup:
        yield f"model_warmup can not be specified for ensemble '{name}'", why
    if not config.ensemble_scheduling.step:
        yield f"must specify 'step' for ensemble '{name}'", "Add its steps"
    else:
        yield from _steps(name, config, configs)


def _steps(name: str, config: pb.ModelConfig, configs: dict[str, pb.ModelConfig]) -> _Found:
    steps = config.ensemble_scheduling.step
    # An ensemble tensor -> who says so, its type, and its shape with the batch.
    known = {t.name: (name, t.data_type, _full(config, t)) for t in (*config.input, *config.output)}
    for step in steps:
        member = configs.get(step.model_name)
        if member is None:
            yield (
                f"ensemble {name} contains models that are not available or ambiguous: {step.model_name}",
                "Its directory is not in the repository, or its configuration cannot be read",
            )
            continue
        if member.max_batch_size < config.max_batch_size:
            yield (
                f"ensemble {name} allows maximum batch size {config.max_batch_size}, but it contains model "
                f"{step.model_name} which only allows maximum batch size to be {member.max_batch_size}",
                "Set both to the same size",
            )
        yield from _step(name, step, member, known)
    used = {tensor for step in steps for tensor in step.input_map.values()}
    written = {tensor for step in steps for tensor in step.output_map.values()}
    for tensor in config.input:
        if tensor.name not in used:
            yield f"ensemble input '{tensor.name}' for ensemble {name}' is not used", "No step takes it"
    for tensor in config.output:
        if tensor.name not in written:
            yield f"ensemble output '{tensor.name}' for ensemble {name}' is not used", "No step makes it"


def _step(
    name: str, step: pb.ModelEnsembling.Step, member: pb.ModelConfig, known: dict[str, tuple[str, int, tuple[int, ...]]]
) -> _Found:
    model = step.model_name
    inputs = {tensor.name: tensor for tensor in member.input}
    outputs = {tensor.name: tensor for tensor in member.output}
    # A model that leaves its tensors to Triton to complete cannot be compared.
    strange = [(key, tensor) for key, tensor in step.input_map.items() if inputs and key not in inputs]
    missing = [key for key in inputs if key not in step.input_map and not inputs[key].optional]
    said = f"in ensemble {name}, ensemble tensor"
    for key, tensor in strange:
        has = f"It has {', '.join(inputs)}"
        yield f"{said} {tensor} is mapping to non-existing input {key} in model {model}", has
    if missing and not strange:
        yield "", f"step {model} of the ensemble gives no {', '.join(missing)}: map every input of the model"
    for key, tensor in step.output_map.items():
        if outputs and key not in outputs:
            has = f"It has {', '.join(outputs)}"
            yield f"{said} {tensor} is mapped from non-existing output {key} in model {model}", has
    pairs = [(tensor, inputs[key]) for key, tensor in step.input_map.items() if key in inputs]
    pairs += [(tensor, outputs[key]) for key, tensor in step.output_map.items() if key in outputs]
    for tensor, declared in pairs:
        shape = _full(member, declared)
        who, kind, other = known.setdefault(tensor, (model, declared.data_type, shape))
        if kind != declared.data_type:
            types = [pb.DataType.Name(one) for one in (kind, declared.data_type)]
            inferred = f"{types[0]} is inferred from model {who} while {types[1]} is inferred from model {model}"
            yield f"{said} {tensor}: inconsistent data type: {inferred}", "Both have to be the same"
        elif not _compatible(other, shape):
            inferred = (
                f"{_text(other)} is inferred from model {who} while {_text(shape)} is inferred from model {model}"
            )
            yield f"{said} {tensor}: inconsistent shape: {inferred}", "Both have to be the same, or -1"


def _files(folder: Path, config: pb.ModelConfig, backends: Collection[str]) -> _Found:
    name = folder.name
    backend = config.backend or _PLATFORMS.get(config.platform, "")
    if config.platform and not config.backend and not backend:
        yield f"unexpected platform type '{config.platform}' for {name}", f"Known are {', '.join(_PLATFORMS)}"
        return
    versions = _versions(folder, config)
    if not versions:
        wanted = ", ".join(map(str, config.version_policy.specific.versions)) or "1"
        yield (
            f"at least one version must be available under the version policy of model '{name}'",
            f"Put the model file into the directory {name}/{wanted}",
        )
    if not backend:
        # Triton finds the backend by the file, where there is one of a known name.
        backend = next(
            (one for one, file in _MODEL_FILES.items() if any((version / file).exists() for version in versions)), ""
        )
        if not backend and versions:
            files = ", ".join(_MODEL_FILES.values())
            yield f"Could not determine backend for model '{name}'", f'Add backend: "...", or one of {files}'
            return
    if backend not in backends and not list(folder.rglob(f"libtriton_{backend}.so")) and versions:
        said = (
            f"unable to find backend library for backend '{backend}', try specifying runtime on the model configuration"
        )
        yield said, f"The image has {', '.join(sorted(backends))}; another needs its libtriton_{backend}.so here"
    for version in versions:
        yield from _version(version, config, backend)


def _version(version: Path, config: pb.ModelConfig, backend: str) -> _Found:
    name = version.parent.name
    file = version / (config.default_model_filename or _MODEL_FILES.get(backend, ""))
    if backend in _MODEL_FILES and not file.exists():
        where = f"{name}/{version.name}/{file.name}"
        if backend == "python":
            yield f"Python model file not found in '{where}'", "Triton then neither becomes ready nor exits"
        else:
            yield "unable to find", f"There is no {where}"
        return
    if backend != "onnxruntime":
        return
    yield from _accelerators(config)
    try:
        signature = read(file)
    except UnreadableError as error:
        yield "", f"Triton would not load it: {error}"
        return
    for missing in (name for name in signature.files if not (version / name).exists()):
        yield "", f"Triton would not load it: the graph keeps weights in {missing}, which is not beside {file.name}"
    if config.input and config.output:
        yield from _graph(name, config, signature)


def _graph(name: str, config: pb.ModelConfig, signature: Signature) -> _Found:
    """The checks of the onnxruntime backend, in its order and words."""
    if len(config.input) != len(signature.inputs):
        given = ", ".join(tensor.name for tensor in signature.inputs)
        yield (
            f"unable to load model '{name}', configuration expects {len(config.input)} inputs, model provides "
            f"{len(signature.inputs)}",
            f"The file declares {given}",
        )
    for kind, tensors, declared in (
        ("input", config.input, signature.inputs),
        ("output", config.output, signature.outputs),
    ):
        known = {tensor.name: tensor for tensor in declared}
        for tensor in tensors:
            if tensor.name not in known:
                allowed = ", ".join(sorted(known))
                said = f"unexpected inference {kind} '{tensor.name}', allowed {kind}s are: {allowed}"
                yield said, "Names are those of the file"
                continue
            model = known[tensor.name]
            expected = pb.DataType.Name(tensor.data_type)
            if expected != model.data_type:
                yield (
                    f"unable to load model '{name}', configuration expects datatype {expected} for {kind} "
                    f"'{tensor.name}', model provides {model.data_type}",
                    "The precision of TensorRT does not change the types of inputs and outputs",
                )
            yield from _shape(name, config, tensor, model)


def _shape(name: str, config: pb.ModelConfig, tensor: pb.ModelInput | pb.ModelOutput, model: Tensor) -> _Found:
    said = f"model '{name}', tensor '{tensor.name}': "
    if config.max_batch_size and (not model.shape or model.shape[0] != -1):
        yield (
            f"{said}for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {_text(model.shape)}",
            "Export with a dynamic batch axis, or set max_batch_size to 0",
        )
        return
    shape = _full(config, tensor)
    fits = len(shape) == len(model.shape) and all(
        theirs in {-1, ours} for ours, theirs in zip(shape, model.shape, strict=True)
    )
    if not fits:
        yield (
            f"{said}the model expects {len(model.shape)} dimensions (shape {_text(model.shape)}) but the model "
            f"configuration specifies {len(shape)} dimensions",
            f"With max_batch_size {config.max_batch_size} the complete shape is {_text(shape)}",
        )


def _accelerators(config: pb.ModelConfig) -> _Found:
    for accelerator in config.optimization.execution_accelerators.gpu_execution_accelerator:
        if accelerator.name == "cuda":
            continue
        if accelerator.name != "tensorrt":
            yield f"unknown Execution Accelerator '{accelerator.name}' is requested", "Known are cuda and tensorrt"
            continue
        given = accelerator.parameters
        for key in sorted(given):
            if key not in _ACCELERATOR:
                said = f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator"
                yield said, f"Known are {', '.join(sorted(_ACCELERATOR))}"
        mode = given.get("precision_mode", _PRECISIONS[0])
        if mode not in _PRECISIONS:
            yield f"unsupported precision mode '{mode}' is requested", f"Known are {', '.join(_PRECISIONS)}"
        if given.get("trt_engine_cache_enable", "").lower() not in {"1", "true"} or not given.get(
            "trt_engine_cache_path"
        ):
            yield (
                "",
                (
                    "TensorRT builds its engines again at every start, for minutes: set trt_engine_cache_enable and "
                    "trt_engine_cache_path, on a volume"
                ),
            )
        if missing := [key for key in _PROFILES if not given.get(key)]:
            why = "TensorRT builds an engine again for every new range of shapes, during requests"
            yield "", f"{why}: set {', '.join(missing)}"
        if not config.model_warmup:
            yield (
                "",
                "TensorRT builds its engines during the first requests: add model_warmup, smallest and largest shapes",
            )


def _versions(folder: Path, config: pb.ModelConfig) -> list[Path]:
    """Version directories that the policy serves; without one the latest."""
    there = sorted((int(path.name), path) for path in folder.iterdir() if path.is_dir() and path.name.isdecimal())
    policy = config.version_policy
    if policy.HasField("specific"):
        return [path for number, path in there if number in policy.specific.versions]
    if policy.HasField("all"):
        return [path for _, path in there]
    return [path for _, path in there[-(policy.latest.num_versions or 1) :]]


def _full(config: pb.ModelConfig, tensor: pb.ModelInput | pb.ModelOutput) -> tuple[int, ...]:
    dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
    return (-1, *dims) if config.max_batch_size else tuple(dims)


def _compatible(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(one) == len(other) and all(a == b or -1 in {a, b} for a, b in zip(one, other, strict=True))


def _text(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"
