"""Texts to vectors and scores: tokenizer, batches and forward pass are those of the TEI stand-in."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np

from local.engines.nim.models import Model
from local.engines.tei.bert import Bert, Floats, TokenizedInput, normalized, pool
from local.engines.tei.infer import Backend, Forward, Infer
from local.engines.tei.logs import Log
from local.engines.tei.metrics import Metrics
from local.engines.tei.models import MINILM_DIRECTORY, CosineReranker, models_directory
from local.engines.tei.tokenization import Text, Tokenization, ValidationError

Item = TypeVar("Item")

_BATCH_TOKENS = 16384
#: Which side of a long text is cut off.
_DIRECTIONS = {"START": "left", "END": "right", "NONE": "right"}


class InputError(Exception):
    """A text that the model does not take: 400."""


def load(model: Model) -> Forward:
    """Reads the weights and computes once. Blocks for about a second.

    Raises:
        FileNotFoundError: the model files are not where STAND_IN_MODELS says.
    """
    bert = Bert(models_directory() / MINILM_DIRECTORY)
    if model.dimension is None:
        forward: Forward = CosineReranker(bert).logits
    else:
        # Models take longer texts than MiniLM has positions for.
        def forward(batch: Sequence[TokenizedInput]) -> list[Floats]:
            cut = [TokenizedInput(i.ids[: bert.max_positions], i.type_ids[: bert.max_positions]) for i in batch]
            return [normalized(pool(states, "mean")) for states in bert.hidden_states(cut)]

    forward([TokenizedInput([101, 102], [0, 0])])
    return forward


class Service:
    """One loaded model. To be made on the event loop that calls it."""

    def __init__(self, model: Model, forward: Forward) -> None:
        self._model = model
        # Metrics and log lines of the TEI stand-in's parts are TEI's: nobody reads them here.
        metrics = Metrics(model.max_tokens)
        self._tokenization = Tokenization(
            models_directory() / MINILM_DIRECTORY / "tokenizer.json",
            workers=1,
            max_input_length=model.max_tokens,
            prompts=None,
            default_prompt=None,
            metrics=metrics,
        )
        self._infer = Infer(
            backend=Backend(forward, asyncio.get_running_loop()),
            tokenization=self._tokenization,
            metrics=metrics,
            log=Log("off", json_output=False),
            max_concurrent_requests=1,
            max_batch_tokens=_BATCH_TOKENS,
        )

    async def embed(
        self, texts: Sequence[str], input_type: str, truncate: str, dimensions: int | None
    ) -> tuple[list[Floats], int]:
        """Vectors of length 1 and the number of tokens.

        Raises:
            InputError: a text is empty, or too long for truncate NONE.
        """
        # What the real models put in front of a text, so that queries and passages differ here too.
        prefixed = [f"{input_type}: {text}" for text in texts]
        if not all(texts):
            raise InputError("input must not be an empty string")
        counts = [await self._tokens(text) for text in prefixed]
        self._check(counts, truncate)
        found = await _all([self._run(text, truncate) for text in prefixed])
        size = self._model.dimension or 0
        vectors = [np.pad(vector, (0, size - len(vector))) for vector in found]
        if dimensions is not None:
            vectors = [normalized(vector[:dimensions]) for vector in vectors]
        return vectors, sum(min(count, self._model.max_tokens) for count in counts)

    async def rank(self, query: str, passages: Sequence[str], truncate: str) -> list[float]:
        """A logit for each passage, in their order.

        Raises:
            InputError: a text is empty, or a pair too long for truncate NONE.
        """
        if not query or not all(passages):
            raise InputError("query and passages must not be empty")
        asked = await self._tokens(query)
        # Both have [CLS] and [SEP]; a pair has one [CLS].
        self._check([asked + await self._tokens(text) - 1 for text in passages], truncate)
        found = await _all([self._run((query, text), truncate) for text in passages])
        return [float(logits[0]) for logits in found]

    def _check(self, counts: Sequence[int], truncate: str) -> None:
        limit = self._model.max_tokens
        for count in counts:
            if truncate == "NONE" and count > limit:
                raise InputError(f"Input length {count} exceeds maximum allowed token size {limit}")

    async def _tokens(self, text: str) -> int:
        return len(await self._tokenization.tokenize(text, add_special_tokens=True, prompt_name=None))

    async def _run(self, text: Text, truncate: str) -> Floats:
        try:
            result, _ = await self._infer.infer(
                text, truncate=True, direction=_DIRECTIONS[truncate], prompt_name=None, context=()
            )
        except ValidationError as error:
            raise InputError(str(error)) from None
        return result


async def _all(work: Sequence[Coroutine[Any, Any, Item]]) -> list[Item]:
    """Results in order; every one has ended when the first error is raised."""
    results = await asyncio.gather(*work, return_exceptions=True)
    good: list[Item] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        good.append(result)
    return good
