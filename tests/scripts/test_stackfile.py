"""Stack files as a person writes them, mistakes included."""

from pathlib import Path

import pytest

from infra.core.errors import RefusedError
from scripts import stackfile
from scripts.command import CommandError

pytestmark = pytest.mark.core


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "Pulumi.dev.yaml").write_text("config: {'embedding-serving:stack': {environment: dev}}\n")
    return tmp_path


def _refusal(folder: Path, text: str) -> str:
    (folder / "Pulumi.wrong.yaml").write_text(text)
    with pytest.raises(CommandError) as caught:
        stackfile.read("wrong", folder)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{folder}/")


def test_the_object_and_the_names_of_secrets_are_read_without_their_values(folder: Path) -> None:
    (folder / "Pulumi.prod.yaml").write_text(
        "encryptionsalt: v1:x\n"
        "config:\n"
        "  aws:region: us-east-1\n"
        "  other:token: {secure: v1:aaaa}\n"
        "  embedding-serving:apiKey: {secure: v1:bbbb}\n"
        "  embedding-serving:stack: {environment: prod}\n"
    )
    file = stackfile.read("prod", folder)
    assert file.given == {"environment": "prod"}
    assert file.secrets == {"apiKey"}
    assert "bbbb" not in repr(file)


def test_every_committed_stack_file_is_read() -> None:
    assert "local" in stackfile.names()
    for name in stackfile.names():
        assert stackfile.read(name).name == name


def test_an_unknown_stack_is_answered_with_those_there_are(folder: Path) -> None:
    with pytest.raises(CommandError, match=r"no stack file .*Pulumi\.nope\.yaml: stacks with a file are dev;"):
        stackfile.read("nope", folder)


def test_an_unknown_stack_is_answered_with_how_it_is_made(folder: Path) -> None:
    with pytest.raises(CommandError, match=r"copy stacks/Pulumi\.local\.yaml to it .*README, Configuration"):
        stackfile.read("nope", folder)


@pytest.mark.parametrize("given", ["stacks/Pulumi.dev.yaml", "Pulumi.dev.yaml", "/elsewhere/Pulumi.dev.yml"])
def test_the_path_of_a_stack_file_is_answered_with_the_name(folder: Path, given: str) -> None:
    with pytest.raises(CommandError, match=r"give the name of the stack only: STACK=dev$"):
        stackfile.read(given, folder)


def test_a_stack_name_cannot_lead_out_of_the_folder(folder: Path) -> None:
    with pytest.raises(CommandError, match="no stack file"):
        stackfile.read("../dev", folder)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("config:\n  a: [1\nb: 2\n", "Pulumi.wrong.yaml:3:2: "),
        ("config:\n\ta: 1\n", "Pulumi.wrong.yaml:2:1: a tab: indent with spaces"),
        ("config:\n  a: 1\n  a: 2\n", "Pulumi.wrong.yaml:3:3: the key a is given twice"),
        (
            "config:\n  embedding-serving:stack:\n    serving:\n      - {x: 1, x: 2}\n",
            "Pulumi.wrong.yaml:4:16: the key x",
        ),
        ("config:\n  ? [a]\n  : 1\n", "Pulumi.wrong.yaml:2:5: a key has to be a word"),
        ("config:\n  a: !!python/name:os.system\n", "Pulumi.wrong.yaml:2:6: "),
        ("config:\n  a: \u0007\n", "Pulumi.wrong.yaml: "),
        ("config:\n  a: 2024-99-99\n", "Pulumi.wrong.yaml: month must be in 1..12"),
        ("", "Pulumi.wrong.yaml: no key embedding-serving:stack"),
        ("- 1\n", "Pulumi.wrong.yaml: no key embedding-serving:stack"),
        ("config: text\n", "Pulumi.wrong.yaml: no key embedding-serving:stack"),
        ("config:\n  aws:region: x\n", "Pulumi.wrong.yaml: no key embedding-serving:stack"),
    ],
)
def test_a_mistake_is_one_line_with_file_and_line_number(folder: Path, text: str, says: str) -> None:
    assert _refusal(folder, text).startswith(says)


def _refused(folder: Path, line: str) -> str:
    (folder / "Pulumi.wrong.yaml").write_text(f"config:\n  embedding-serving:stack: {{}}\n  {line}\n")
    with pytest.raises(RefusedError) as caught:
        stackfile.read("wrong", folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "value", ["sk-a-secret-value", "{secure: v1:x, more: sk-a-secret-value}", "['sk-a-secret-value']"]
)
@pytest.mark.parametrize("key", ["embedding-serving:apiKey", "embedding-serving:huggingFaceToken"])
def test_a_secret_in_plain_text_is_refused_without_its_value(folder: Path, key: str, value: str) -> None:
    said = _refused(folder, f"{key}: {value}")
    assert said.startswith(f"{key}: got a value in plain text")
    assert said.endswith(f"pulumi config set --secret {key} --stack wrong")
    assert "sk-a-secret-value" not in said


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("embedding-serving:stak", "embedding-serving:stack"),
        ("embedding-serving:apikey", "embedding-serving:apiKey"),
        ("embedding-service:stack", "embedding-serving:stack"),
        ("embeding-serving:apiKey", "embedding-serving:apiKey"),
        ("stack", "embedding-serving:stack"),
    ],
)
def test_a_mistyped_config_key_is_answered_with_the_one_that_was_meant(folder: Path, key: str, meant: str) -> None:
    said = _refused(folder, f"{key}: sk-a-secret-value")
    assert said.startswith(f"{key}: got a config key that nothing reads")
    assert said.endswith(f"Did you mean {meant}?")
    assert "sk-a-secret-value" not in said


def test_a_config_key_that_is_like_none_is_answered_with_all_there_are(folder: Path) -> None:
    said = _refused(folder, "embedding-serving:replicas: 3")
    assert "allowed: embedding-serving:stack, embedding-serving:apiKey, " in said


def test_a_file_that_is_no_text_is_one_line(folder: Path) -> None:
    (folder / "Pulumi.wrong.yaml").write_bytes(b"config: \xff\xfe\n")
    with pytest.raises(CommandError, match=r"Pulumi\.wrong\.yaml: byte 9 is not UTF-8: save the file as UTF-8"):
        stackfile.read("wrong", folder)
