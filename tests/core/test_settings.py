"""Reading a stack file: one line per mistake, with the path, and nothing that looks like a credential repeated."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from infra.core import settings
from infra.core.errors import RefusedError
from scripts import schema
from tests import stacks
from tests.core.plans import refused, refused_at, stack

pytestmark = pytest.mark.core


def test_the_committed_stack_local_is_read() -> None:
    assert settings.load(stacks.committed("local")).environment == "local"


@pytest.mark.parametrize("given", [None, [], "text", 5])
def test_what_is_no_object_is_refused(given: object) -> None:
    [line] = refused(given)
    assert line.startswith("stack: got ")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("max_batch_tokens", "maxBatchTokens"), ("maxbatchtokens", "maxBatchTokens"), ("replica", "replicas")],
)
def test_an_unknown_key_is_answered_with_the_nearest_one(key: str, nearest: str) -> None:
    unknown: dict[str, Any] = {key: 5}
    line = refused_at(stack(**unknown), f"serving[0].{key}")
    assert f"allowed: {nearest}." in line


def test_an_unknown_key_that_resembles_nothing_does_not_list_thirty_keys() -> None:
    line = refused_at(stack(xyzzy=1), "serving[0].xyzzy")
    assert "stacks/schema.json" in line
    assert len(line) < 120


def test_an_unknown_key_of_a_small_section_lists_its_keys() -> None:
    line = refused_at(stack(rollout={"xyzzy": 1}), "serving[0].rollout.xyzzy")
    assert "maxSurge, maxUnavailable" in line


def test_all_mistakes_are_told_at_once() -> None:
    given = stack(replicas=-1, dtype="bfloat16", pool={"nodes": 0}, changes={"environment": "production"})
    paths = {line.split(":")[0] for line in refused(given)}
    assert paths == {
        "stack.serving[0].replicas",
        "stack.serving[0].dtype",
        "stack.nodePools[0].nodes",
        "stack.environment",
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "Embed"),
        ("name", "1embed"),
        ("name", "a" * 41),
        ("name", "embed\n"),
        ("model", "/models/bge"),
        ("model", "./bge"),
        ("model", "BAAI/bge large"),
        ("revision", "../main"),
        ("servedModelName", "bge\x00"),
        ("servedModelName", "bge large"),
        ("servedModelName", ""),
        ("version", "latest\n"),
        ("digest", "sha256:1234"),
        ("digest", "latest"),
        ("replicas", "2"),
        ("replicas", 2.0),
        ("replicas", True),
        ("replicas", 10**30),
        ("maxConcurrentRequests", 0),
        ("maxClientBatchSize", 0),
        ("maxBatchTokens", 0),
        ("maxBatchTokens", 10**7),
        ("topK", 0),
        ("payloadLimit", 0),
        ("tokenizationWorkers", 0),
        ("longestRequestSeconds", 0),
        ("autoTruncate", "yes"),
        ("serviceName", "embed.default"),
        ("dtype", "bfloat16"),
        ("engine", "triton"),
        ("topology", "beside"),
    ],
)
def test_a_value_that_no_deployment_can_have_is_refused_where_it_stands(key: str, value: Any) -> None:
    refused_at(stack(**{key: value}), f"serving[0].{key}")


@pytest.mark.parametrize("value", ["512Mi", "0", "-1", "1e3", "٣", " 2", "2\n", "0.0001", "2000", True, "two"])
def test_an_amount_of_cpu_is_cores_or_millicores(value: object) -> None:
    refused_at(stack(resources={"cpu": value}), "serving[0].resources.cpu")


@pytest.mark.parametrize("value", ["500m", "0", "512", 1, "4gb", "4 Gi", "9" * 16, "1Pi", "-4Gi", "4.Gi"])
def test_an_amount_of_memory_has_a_unit(value: object) -> None:
    refused_at(stack(resources={"memory": value}), "serving[0].resources.memory")


@pytest.mark.parametrize("cpu", [2, 0.5, "2", "500m"])
def test_cpu_may_be_written_as_a_number_as_in_kubernetes(cpu: object) -> None:
    assert refused(stack(resources={"cpu": cpu})) == []


@pytest.mark.parametrize(
    ("labels", "key"),
    [
        ({"-team": "rag"}, "-team"),
        ({"team": "a b"}, "team"),
        ({"team": "x" * 64}, "team"),
        ({"Acme.com/team": "rag"}, "Acme.com/team"),
        ({"/team": "rag"}, "/team"),
        ({"team": 5}, "team"),
    ],
)
def test_a_label_that_the_api_server_would_refuse_is_refused(labels: dict[str, Any], key: str) -> None:
    for field in ("labels", "podLabels"):
        changed: dict[str, Any] = {field: labels}
        refused_at(stack(**changed), f"serving[0].{field}.{key}")
    refused_at(stack(pool={"nodeSelector": labels}), f"nodePools[0].nodeSelector.{key}")


@pytest.mark.parametrize(
    "value", ["https://registry.acme.com", "registry.acme.com/", "Registry.acme.com", "ghcr", "", "a b.c"]
)
def test_a_mirror_that_is_no_registry_is_refused(value: str) -> None:
    given = stack(changes={"images": {"mirrors": {"ghcr.io": value}}})
    refused_at(given, "images.mirrors.ghcr.io")


@pytest.mark.parametrize(
    "value", ["registry.acme.com", "registry.acme.com:5000/ghcr/x", "localhost:5000", "registry:5000"]
)
def test_a_mirror_may_have_a_port_and_folders(value: str) -> None:
    assert refused(stack(changes={"images": {"mirrors": {"ghcr.io": value}}})) == []


@pytest.mark.parametrize("value", ["x\x00", "x\x1b[31m", 5, None, True])
def test_an_environment_value_is_printable_text(value: object) -> None:
    refused_at(stack(env={"OTLP_ENDPOINT": value}), "serving[0].env.OTLP_ENDPOINT")


@pytest.mark.parametrize("name", ["lower", "A-B", "1A", "A=B", ""])
def test_an_environment_name_is_upper_case(name: str) -> None:
    refused_at(stack(env={name: "x"}), f"serving[0].env.{name}")


@pytest.mark.parametrize("key", [True, 80, None, 1.5])
def test_a_key_that_yaml_did_not_read_as_text_is_refused(key: object) -> None:
    given = stack()
    given["serving"][0]["env"] = {key: "x"}
    [line] = refused(given)
    assert line.startswith(f"stack.serving[0].env.{key!r}: ")


def test_an_anchor_inside_itself_is_refused() -> None:
    given = stack()
    given["serving"].append(given["serving"])
    assert all("one more level" in line for line in refused(given))


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0, -1.0, 10**400])
def test_a_model_has_a_finite_number_of_parameters(value: float) -> None:
    model = {"id": "a/b", "kind": "embedding", "architecture": "bert", "layers": 2, "hidden": 32, "maxTokens": 512}
    refused_at(stack(changes={"models": [{**model, "parametersM": value}]}), "models[0].parametersM")


def test_an_integer_too_long_to_print_is_refused() -> None:
    assert "thousands of digits" in refused_at(stack(replicas=16**5000), "serving[0].replicas")


def test_a_refusal_is_one_line_whatever_the_key_is() -> None:
    given = stack()
    given["serving"][0]["a\nb\u2028c\x1b[2J"] = 1
    [line] = refused(given)
    assert "\\n" in line
    assert line.isprintable()


_SECRETS = [
    "hf_" + "aB3" * 10,
    "nvapi-" + "x1" * 20,
    "AKIA" + "A1" * 8,
    "ghp_" + "a1" * 18,
    "sk-" + "a1" * 20,
    "https://user:pass@registry.acme.com",
    "-----BEGIN RSA PRIVATE KEY-----",
    "Bearer hf_" + "aB3" * 10,
]


@pytest.mark.parametrize("secret", _SECRETS)
def test_a_credential_is_refused_wherever_it_stands_and_not_repeated(secret: str) -> None:
    places: list[tuple[dict[str, Any], str]] = [
        (stack(env={"SETTING": secret}), "serving[0].env.SETTING"),
        (stack(servedModelName=secret), "serving[0].servedModelName"),
        (stack(changes={"images": {"pullSecrets": [secret]}}), "images.pullSecrets[0]"),
        (stack(changes={"images": {"mirrors": {"ghcr.io": secret}}}), "images.mirrors.ghcr.io"),
    ]
    for written, path in places:
        line = refused_at(written, path)
        assert secret not in line
        assert "pulumi config set --secret" in line


@pytest.mark.parametrize(
    "key", ["hfToken", "HF_TOKEN", "ngcApiKey", "NGC_API_KEY", "password", "secretKey", "clientSecret"]
)
@pytest.mark.parametrize("value", ["correct horse", 123456])
def test_a_value_under_the_name_of_a_credential_is_refused_and_not_repeated(key: str, value: Any) -> None:
    for written, path in (
        (stack(env={key: value}), f"serving[0].env.{key}"),
        (stack(**{key: value}), f"serving[0].{key}"),
    ):
        assert str(value) not in refused_at(written, path)


def test_a_secret_stored_with_path_inside_the_object_is_refused() -> None:
    line = refused_at(stack(env={"ANY": {"secure": "v1:abc:def"}}), "serving[0].env.ANY")
    assert "v1:abc" not in line


def test_a_count_of_tokens_is_no_credential() -> None:
    line = refused_at(stack(maxBatchTokens="4096"), "serving[0].maxBatchTokens")
    assert "'4096'" in line, "an ordinary mistake, told as one"


def test_the_switch_that_is_named_after_a_key_does_not_repeat_what_stands_there() -> None:
    assert "swordfish" not in refused_at(stack(requireApiKey="swordfish"), "serving[0].requireApiKey")


def test_a_key_of_another_engine_is_answered_with_the_engine_that_has_it() -> None:
    line = refused_at(stack(weights="ngc"), "serving[0].weights")
    assert "got a key of engine nim; allowed: keys of engine tei." in line


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("replicas", "2", "got '2'; allowed: a whole number, without quotes."),
        ("requireApiKey", "yes", "got 'yes'; allowed: true or false, without quotes."),
        ("requireApiKey", "swordfish", "got neither true nor false (not repeated here); allowed: true or false, "),
        ("autoTruncate", 1, "got 1; allowed: true or false, without quotes."),
        ("engine", "vllm", "got 'vllm'; allowed: tei, nim. It says what serves the models."),
    ],
)
def test_a_value_of_the_wrong_kind_is_answered_with_how_yaml_writes_the_right_one(
    key: str, value: Any, says: str
) -> None:
    assert says in refused_at(stack(**{key: value}), f"serving[0].{key}")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings_of_hypothesis(deadline=None, derandomize=True, max_examples=100)
@given(_VALUES)
def test_any_value_is_read_or_refused_and_nothing_else(value: Any) -> None:
    for written in (value, {**stack(), "serving": value}, stack(tokens=value)):
        try:
            settings.load(written)
        except RefusedError as error:
            told = error.refusals
        else:
            continue
        assert told
        assert all(refusal.path.startswith("stack") for refusal in told)


def test_the_committed_schema_is_what_the_settings_say() -> None:
    assert schema.main(["--check"]) == 0


def test_a_stale_schema_fails_the_check_with_one_line(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stale = tmp_path / "schema.json"
    stale.write_text("{}")
    assert schema.main(["--check"], stale) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "python -m scripts.schema" in line
    assert schema.main([], stale) == 0
    assert schema.main(["--check"], stale) == 0


def test_the_schema_knows_every_key_of_the_committed_stacks() -> None:
    document = json.loads(schema.text())

    def known(node: dict[str, Any], value: Any, path: str) -> None:
        for option in node.get("anyOf", []):
            if option.get("type") != "null":
                node = option
        if "$ref" in node:
            node = document["$defs"][node["$ref"].rsplit("/", 1)[1]]
        if isinstance(value, dict) and "properties" in node:
            for key, item in value.items():
                assert key in node["properties"], f"{path}.{key}"
                known(node["properties"][key], item, f"{path}.{key}")
        if isinstance(value, list):
            for item in value:
                known(node["items"], item, path)

    for path in stacks.STACKS.glob("Pulumi.*.yaml"):
        name = path.name.removeprefix("Pulumi.").removesuffix(".yaml")
        known(document["$defs"]["Stack"], stacks.committed(name), name)
