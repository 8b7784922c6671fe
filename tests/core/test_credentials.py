"""Credentials in plain text: what the stack file refuses, a pod written by hand is refused for too, and the reverse."""

import pytest

from infra.core import rules
from tests.core.kubernetes import tei
from tests.core.plans import refused, refused_at, stack

pytestmark = pytest.mark.core

# Put together here, so that no scanner takes this file for a leak.
VALUES = [
    "hf_" + "a" * 20,
    "token=hf_" + "a" * 20,
    "my_hf_" + "a" * 20,
    "nvapi-" + "a" * 12,
    "AKIA" + "A1" * 8,
    "ASIA" + "A1" * 8,
    *(f"{kind}_" + "a1" * 12 for kind in ("ghp", "gho", "ghr", "ghs", "ghu", "github_pat")),
    "sk-" + "a1" * 8,
    "sk-" + "proj-a_b-1" + "a" * 12,
    "sk-" + "ant-api03-" + "a" * 12,
    "eyJ" + "a" * 10 + "." + "b" * 10 + "." + "c" * 5,
    "-----BEGIN RSA " + "PRIVATE KEY-----",
    "https://user:word@registry.acme.com",
    "https://user:wo:rd@registry.acme.com",
]
NAMES = ["HF_TOKEN", "HFTOKEN", "NGC_API_KEY", "DB_PASSWORD", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "CREDENTIALS"]


def _of_a_pod(**environment: str) -> list[str]:
    found = rules.judge([tei(**environment)])
    return [str(one) for one in found if one.rule == "secrets-in-env"]


@pytest.mark.parametrize("value", VALUES)
def test_case_99_a_credential_is_refused_in_the_stack_file_and_in_a_pod_and_not_repeated(value: str) -> None:
    [said] = _of_a_pod(SETTING=value)
    assert "looks like a credential" in said
    line = refused_at(stack(env={"SETTING": value}), "serving[0].env.SETTING")
    assert "a credential" in line
    assert value not in said + line


@pytest.mark.parametrize("name", NAMES)
def test_a_value_under_the_name_of_a_credential_is_refused_in_both(name: str) -> None:
    [said] = _of_a_pod(**{name: "plain-word"})
    assert f"{name} is given in plain text" in said
    line = refused_at(stack(env={name: "plain-word"}), f"serving[0].env.{name}")
    assert "a credential" in line
    assert "plain-word" not in said + line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MODEL", "acme/sk-multilingual-base-v2"),
        ("TASK", "ask-everything-you-want-to-know"),
        ("OTHER", "shf_" + "a" * 20),
        ("MAX_BATCH_TOKENS", "16384"),
        ("ENDPOINT", "http://collector:4317/v1"),
        ("PROXY", "http://$(PROXY_USER):$(PROXY_WORD)@proxy:3128"),
    ],
)
def test_what_only_resembles_a_credential_is_accepted_in_both(name: str, value: str) -> None:
    assert _of_a_pod(**{name: value}) == []
    assert not any("credential" in line for line in refused(stack(env={name: value})))
