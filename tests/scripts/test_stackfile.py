"""Stack files as a person writes them, mistakes included."""

from pathlib import Path

import pytest

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
        "  embedding-serving:plain: text\n"
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


def test_a_file_that_is_no_text_is_one_line(folder: Path) -> None:
    (folder / "Pulumi.wrong.yaml").write_bytes(b"config: \xff\xfe\n")
    with pytest.raises(CommandError, match=r"Pulumi\.wrong\.yaml: byte 9 is not UTF-8: save the file as UTF-8"):
        stackfile.read("wrong", folder)
