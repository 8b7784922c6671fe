"""The contract: what was deployed, readable again, without any secret."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.core import contract
from infra.core.errors import RefusedError
from tests import stacks
from tests.core.plans import made, stack

pytestmark = pytest.mark.core


def _stacks() -> list[dict[str, Any]]:
    reranker = stack("A10G", model="BAAI/bge-reranker-large", topK=64, replicas=2)
    return [stacks.committed("local"), stack(), stack(None, requireApiKey=True), reranker]


@pytest.mark.parametrize("given_stack", _stacks())
def test_a_contract_is_read_back_as_it_was_written(given_stack: dict[str, Any]) -> None:
    written = contract.of(made(given_stack, ("apiKey",)))
    assert contract.read(json.loads(json.dumps(written.to_dict()))) == written


def test_the_contract_says_how_to_reach_and_test_a_workload() -> None:
    [found] = contract.of(made(stack(servedModelName="embeddings", serviceName="vectors"))).workloads
    assert found.url == "http://vectors.embedding-serving.svc.cluster.local:80"
    assert (found.model.client_name, found.model.kind, found.model.dimension) == ("embeddings", "embedding", 1024)
    assert found.openai_api
    assert found.limits["max_client_batch_size"] == 32
    assert not found.stand_in


def test_the_selector_of_the_contract_is_that_of_the_plan() -> None:
    plan = made(stack())
    [found], [planned] = contract.of(plan).workloads, plan.workloads
    assert found.selector == planned.selector
    assert found.selector.items() <= planned.labels.items()


def test_a_reranker_has_no_openai_api_and_no_dimension() -> None:
    [found] = contract.of(made(stack(model="BAAI/bge-reranker-large"))).workloads
    assert (found.model.kind, found.model.dimension, found.openai_api) == ("reranker", None, False)


def test_the_contract_names_the_secret_and_key_of_the_api_key() -> None:
    [found] = contract.of(made(stack(requireApiKey=True), ("apiKey",))).workloads
    assert (found.api_key_secret, found.api_key_secret_key) == ("embed-keys", "apiKey")
    [renamed] = contract.of(made(stack(requireApiKey=True), ("apiKey",))).with_secret_names({"embed": "k-1"}).workloads
    assert renamed.api_key_secret == "k-1"


@pytest.mark.parametrize("version", [0, contract.VERSION + 1, None, "1"])
def test_a_contract_of_another_version_is_refused_with_the_next_step(version: object) -> None:
    output = {**contract.of(made(stack())).to_dict(), "version": version}
    with pytest.raises(ValueError, match="run pulumi up from this checkout first"):
        contract.read(output)


@pytest.mark.parametrize("output", [None, [], "contract"])
def test_a_stack_without_a_contract_is_refused_with_the_next_step(output: object) -> None:
    with pytest.raises(ValueError, match="no contract output: run pulumi up first"):
        contract.read(output)


def test_a_contract_with_a_field_too_few_is_refused_with_the_next_step() -> None:
    output = contract.of(made(stack())).to_dict()
    del output["workloads"][0]["url"]
    with pytest.raises(ValueError, match="run pulumi up"):
        contract.read(output)


_SECRET = st.one_of(
    st.from_regex(r"hf_[A-Za-z0-9]{20,40}", fullmatch=True),
    st.from_regex(r"nvapi-[A-Za-z0-9_]{20,40}", fullmatch=True),
    st.from_regex(r"AKIA[0-9A-Z]{16}", fullmatch=True),
    st.from_regex(r"ghp_[A-Za-z0-9]{36}", fullmatch=True),
)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    secret=_SECRET,
    place=st.sampled_from(
        ["name", "model", "revision", "servedModelName", "serviceName", "version", "digest", "dtype"]
    ),
    before=st.sampled_from(["", " ", "Bearer ", "x="]),
)
def test_a_secret_never_gets_into_a_plan_a_contract_or_an_error(secret: str, place: str, before: str) -> None:
    keys: dict[str, Any] = {place: before + secret}
    for given_stack in (
        stack(**keys),
        stack(env={"ANYTHING": before + secret}),
        stack(labels={"team": before + secret}),
    ):
        with pytest.raises(RefusedError) as refused:
            made(given_stack)
        assert secret not in str(refused.value)
        assert secret not in repr(refused.value.refusals)


def test_a_plan_and_a_contract_name_secrets_and_hold_none() -> None:
    plan = made(stack(requireApiKey=True), ("apiKey", "huggingFaceToken"))
    [variable] = [found for found in plan.workloads[0].engine.env if found.name == "API_KEY"]
    assert variable.value is None
    assert variable.secret is not None
    assert "huggingFaceToken" not in json.dumps(contract.of(plan).to_dict()), "this model needs no token"
