"""Model directories that Triton does not load, each with its mistake; one table for the checker and the real server."""

from dataclasses import dataclass
from pathlib import Path

MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        return []
"""
GOOD = """backend: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_INT64 dims: -1 }
output { name: "y" data_type: TYPE_FP32 dims: 3 }
instance_group { kind: KIND_CPU }
"""
_STEP = 'model_name: "good" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" }'
ENSEMBLE = f"""platform: "ensemble"
max_batch_size: 4
input {{ name: "x" data_type: TYPE_INT64 dims: -1 }}
output {{ name: "y" data_type: TYPE_FP32 dims: 3 }}
ensemble_scheduling {{ step {{ {_STEP} }} }}
"""


def _warmup(rest: str) -> str:
    return f'{GOOD}model_warmup {{ name: "w" batch_size: 1 {rest} }}'


@dataclass(frozen=True)
class Broken:
    """``says`` is the beginning of what Triton's log says, with {name} for the model's."""

    config: str
    says: str
    version: str = "1"


BROKEN = {
    "renamed": Broken(
        f'name: "other"\n{GOOD}',
        "unexpected directory name '{name}' for model 'other', directory name must equal model name",
    ),
    "unversioned": Broken(
        GOOD, "at least one version must be available under the version policy of model '{name}'", version=""
    ),
    "other_version": Broken(
        f"{GOOD}version_policy {{ specific {{ versions: 7 }} }}",
        "at least one version must be available under the version policy of model '{name}'",
    ),
    "unclosed": Broken(f"{GOOD}dynamic_batching {{", "failed to read text proto from"),
    "unknown_key": Broken(f"{GOOD}nosuch: 1", "failed to read text proto from"),
    "unknown_backend": Broken(
        GOOD.replace('"python"', '"foo"'),
        "unable to find backend library for backend 'foo', try specifying runtime on the model configuration",
    ),
    "zero_size": Broken(
        GOOD.replace("dims: 3", "dims: 0"),
        "model output 'y' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for {name}",
    ),
    "no_dims": Broken(GOOD.replace("dims: 3", ""), "model output 'y' must specify 'dims' for {name}"),
    "no_type": Broken(GOOD.replace("data_type: TYPE_FP32", ""), "model output 'y' must specify 'data_type' for {name}"),
    "negative_batch": Broken(
        GOOD.replace("max_batch_size: 4", "max_batch_size: -4"),
        "'max_batch_size' must be non-negative value for {name}",
    ),
    "preferred_too_large": Broken(
        f"{GOOD}dynamic_batching {{ preferred_batch_size: 8 }}",
        "dynamic batching preferred size must be <= max batch size for {name}",
    ),
    "preferred_without_batching": Broken(
        GOOD.replace("max_batch_size: 4", "dynamic_batching { preferred_batch_size: 4 }"),
        "dynamic batching preferred size must be <= max batch size for {name}",
    ),
    "preferred_zero": Broken(
        f"{GOOD}dynamic_batching {{ preferred_batch_size: 0 }}",
        "dynamic batching preferred size must be positive for {name}",
    ),
    "gpu_on_cpu": Broken(
        GOOD.replace("kind: KIND_CPU", "kind: KIND_CPU gpus: 0"),
        "instance group {name}_0 of model {name} has kind KIND_CPU but specifies one or more GPUs",
    ),
    "no_gpu": Broken(
        GOOD.replace("KIND_CPU", "KIND_GPU"),
        "instance group {name}_0 of model {name} has kind KIND_GPU but no GPUs are available",
    ),
    "absent_gpu": Broken(
        GOOD.replace("kind: KIND_CPU", "kind: KIND_GPU gpus: 1"),
        "instance group {name}_0 of model {name} specifies invalid or unsupported gpu id 1",
    ),
    "warm_variable": Broken(
        _warmup('inputs { key: "x" value { data_type: TYPE_INT64 dims: -1 zero_data: true } }'),
        "warmup setting expects all variable-size dimensions are specified for input 'x'",
    ),
    "warm_other_type": Broken(
        _warmup('inputs { key: "x" value { data_type: TYPE_INT32 dims: 2 zero_data: true } }'),
        "inference input 'x' data-type is 'INT32', but model",
    ),
    "warm_no_data": Broken(
        _warmup('inputs { key: "x" value { data_type: TYPE_INT64 dims: 2 } }'),
        "warmup setting expects input 'x' to have input_data_type set",
    ),
    "warm_other_input": Broken(
        _warmup('inputs { key: "z" value { data_type: TYPE_INT64 dims: 2 zero_data: true } }'),
        "expected 1 inputs but got 0 inputs for model",
    ),
    "ensemble_instances": Broken(
        f"{ENSEMBLE}instance_group {{ kind: KIND_CPU }}",
        "instance group should not be specified for ensemble '{name}'",
    ),
    "ensemble_optimized": Broken(
        f"{ENSEMBLE}optimization {{ }}", "optimization should not be specified for ensemble '{name}'"
    ),
    "ensemble_warm": Broken(
        f'{ENSEMBLE}model_warmup {{ name: "w" }}', "model_warmup can not be specified for ensemble '{name}'"
    ),
    "ensemble_empty": Broken(ENSEMBLE.replace(f"step {{ {_STEP} }}", ""), "must specify 'step' for ensemble '{name}'"),
    "ensemble_unscheduled": Broken(
        GOOD.replace('backend: "python"', 'platform: "ensemble"'),
        "ensemble scheduling must be set for ensemble {name} whose platform is ensemble",
    ),
    "ensemble_of_unknown": Broken(
        ENSEMBLE.replace('"good"', '"nowhere"'),
        "ensemble {name} contains models that are not available or ambiguous: nowhere",
    ),
    "ensemble_too_large": Broken(
        ENSEMBLE.replace("max_batch_size: 4", "max_batch_size: 8"),
        "ensemble {name} allows maximum batch size 8, but it contains model good which only allows maximum batch size "
        "to be 4",
    ),
    "ensemble_other_input": Broken(
        ENSEMBLE.replace('input_map { key: "x"', 'input_map { key: "q"'),
        "in ensemble {name}, ensemble tensor x is mapping to non-existing input q in model good",
    ),
    "ensemble_other_output": Broken(
        ENSEMBLE.replace('output_map { key: "y"', 'output_map { key: "q"'),
        "in ensemble {name}, ensemble tensor y is mapped from non-existing output q in model good",
    ),
    "ensemble_other_type": Broken(
        ENSEMBLE.replace("TYPE_INT64", "TYPE_INT32"),
        "in ensemble {name}, ensemble tensor x: inconsistent data type: TYPE_INT32 is inferred from model {name} while "
        "TYPE_INT64 is inferred from model good",
    ),
    "ensemble_other_shape": Broken(
        ENSEMBLE.replace("dims: 3", "dims: 5"),
        "in ensemble {name}, ensemble tensor y: inconsistent shape: [-1,5] is inferred from model {name} while [-1,3] "
        "is inferred from model good",
    ),
    "ensemble_idle_input": Broken(
        f'{ENSEMBLE}input {{ name: "z" data_type: TYPE_INT64 dims: -1 }}',
        "ensemble input 'z' for ensemble {name}' is not used",
    ),
    "ensemble_silent": Broken(
        ENSEMBLE.replace('value: "y"', 'value: "k"'), "ensemble output 'y' for ensemble {name}' is not used"
    ),
}


def add(repository: Path, name: str, config: str, version: str = "1") -> None:
    """Write a model directory with a Python model."""
    folder = repository / name / version
    folder.mkdir(parents=True)
    if version:
        (folder / "model.py").write_text(MODEL)
    (repository / name / "config.pbtxt").write_text(config)
