"""What the router's HTTP and gRPC servers share: requests counted, inputs run, answers before they are encoded."""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np

from local.engines.tei.arguments import Arguments
from local.engines.tei.bert import Floats, normalized, pool
from local.engines.tei.infer import BackendError, Infer, OverloadedError, Timings
from local.engines.tei.logs import Log, Span, rust_duration
from local.engines.tei.tokenization import Text, ValidationError

Item = TypeVar("Item")


class ErrorType(StrEnum):
    """The router's kinds of refusals; each server has its own code for each."""

    BACKEND = "Backend"
    EMPTY = "Empty"
    OVERLOADED = "Overloaded"
    UNHEALTHY = "Unhealthy"
    VALIDATION = "Validation"


class RefusedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, error_type: ErrorType, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.message = message


#: What a request may end with instead of an answer.
ENDS = (RefusedError, OverloadedError, ValidationError, BackendError)


def refusal(error: Exception) -> RefusedError:
    """One of `ENDS` as the refusal that a client gets."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, OverloadedError):
        return RefusedError(ErrorType.OVERLOADED, str(error))
    if isinstance(error, ValidationError):
        return RefusedError(ErrorType.EMPTY if error.empty else ErrorType.VALIDATION, str(error))
    return RefusedError(ErrorType.BACKEND, str(error))


@dataclass(frozen=True)
class ServedModel:
    """What the model is, as `/info` tells it, and how its vectors are pooled."""

    kind: str
    dtype: str
    shown_pooling: str
    pooling: str
    max_input_length: int
    tokenization_workers: int
    id2label: Mapping[str, str]
    label2id: Mapping[str, int]
    stand_in: str

    @property
    def model_type(self) -> dict[str, object]:
        if self.kind == "embedding":
            return {"embedding": {"pooling": self.shown_pooling}}
        return {self.kind: {"id2label": self.id2label, "label2id": self.label2id}}


class Metadata:
    """Sums over the inputs of one request, for headers, histograms and the log line. Seconds."""

    def __init__(self, started: float, characters: int, timings: Sequence[Timings]) -> None:
        self.total = time.perf_counter() - started
        self.characters = characters
        self.tokens = sum(item.tokens for item in timings)
        self.tokenization = sum(item.tokenization for item in timings) / len(timings)
        self.queue = sum(item.queue for item in timings) / len(timings)
        self.inference = sum(item.inference for item in timings) / len(timings)

    def headers(self) -> dict[str, str]:
        def milliseconds(seconds: float) -> str:
            return str(int(seconds * 1000))

        return {
            "x-compute-type": "gpu+optimized",
            "x-compute-time": milliseconds(self.total),
            "x-compute-characters": str(self.characters),
            "x-compute-tokens": str(self.tokens),
            "x-total-time": milliseconds(self.total),
            "x-tokenization-time": milliseconds(self.tokenization),
            "x-queue-time": milliseconds(self.queue),
            "x-inference-time": milliseconds(self.inference),
        }

    def span(self, name: str) -> Span:
        fields = {
            "total_time": self.total,
            "tokenization_time": self.tokenization,
            "queue_time": self.queue,
            "inference_time": self.inference,
        }
        return Span(name, {key: rust_duration(seconds) for key, seconds in fields.items()})


@dataclass(frozen=True)
class Options:
    """How the inputs of one request are to be treated."""

    truncate: bool
    direction: str = "right"
    prompt_name: str | None = None
    normalize: bool = True
    dimensions: int | None = None
    raw_scores: bool = False


@dataclass(frozen=True)
class Origin:
    """Where a server's log lines come from; line numbers by handler, 0 where none was recorded."""

    target: str
    source: str
    success_lines: Mapping[str, int] = field(default_factory=dict)
    batch_size_lines: Mapping[str, int] = field(default_factory=dict)


class Service:
    """Runs the inputs of requests. `span` is the name of the handler, as log lines show it."""

    def __init__(self, arguments: Arguments, model: ServedModel, infer: Infer, log: Log, origin: Origin) -> None:
        self.arguments = arguments
        self.model = model
        self.infer = infer
        self.metrics = infer.metrics
        self._log = log
        self._origin = origin

    def accepts_key(self, authorization: str | None) -> bool:
        """Whether a client that sent this header may call what needs the API key."""
        key = self.arguments.api_key
        # An empty key, or one with a line end, is never met by a header (recording auth/odd-keys.json).
        return key is None or (bool(key.strip()) and authorization == f"Bearer {key}")

    # -- what is counted and logged

    def count_request(self, method: str) -> None:
        self.metrics.count("te_request_count", method=method)

    def answered(self, span: str, metadata: Metadata) -> None:
        """Histograms and log line of a request that succeeded."""
        for name in ("tokenization", "queue", "inference"):
            self.metrics.observe(f"te_request_{name}_duration", getattr(metadata, name))
        self.metrics.observe("te_request_duration", metadata.total)
        source = f"{self._origin.source}:{self._origin.success_lines.get(span, 0)}"
        self._log.info(self._origin.target, source, "Success", metadata.span(span))

    def warn(self, message: str, span: str, line: int = 0) -> None:
        self._log.warn(self._origin.target, f"{self._origin.source}:{line}", message, Span(span))

    def _error(self, message: str, span: str, line: int = 0) -> None:
        self._log.error(self._origin.target, f"{self._origin.source}:{line}", message, Span(span))

    def empty(self, message: str, span: str) -> RefusedError:
        self.metrics.failure("validation")
        self._error(message, span)
        return RefusedError(ErrorType.EMPTY, message)

    def wrong_model_type(self, message: str, span: str) -> BackendError:
        self.metrics.failure("model_type")
        self._error(message, span)
        return BackendError(message)

    def check_batch_size(self, size: int, span: str) -> None:
        """Raises RefusedError when a client may not send that many inputs at once."""
        limit = self.arguments.max_client_batch_size
        if size > limit:
            message = f"batch size {size} > maximum allowed batch size {limit}"
            self.metrics.failure("batch_size")
            self._error(message, span, self._origin.batch_size_lines.get(span, 0))
            raise RefusedError(ErrorType.VALIDATION, message)

    # -- inputs

    async def all(self, work: Sequence[Coroutine[Any, Any, Item]], *, permits_taken: bool) -> list[Item]:
        """Results in order; the first failed input's error once all have ended, as `join_all` gives it."""
        tasks = [asyncio.ensure_future(item) for item in work]
        if permits_taken:
            for task in tasks:
                task.add_done_callback(lambda _task: self.infer.return_permit())
        results = await asyncio.gather(*tasks, return_exceptions=True)
        good: list[Item] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            good.append(result)
        return good

    async def vectors(self, text: Text, options: Options, span: str, *, pooled: bool) -> tuple[Floats, Timings]:
        """Vector of one input (pooled), or one vector per token. The caller holds a permit."""
        sparse = self.model.pooling == "splade"
        if sparse and pooled and options.normalize:
            raise self.wrong_model_type("`normalize` is not available for SPLADE models", span)
        if sparse and not pooled:
            raise self.wrong_model_type("this is a stand-in, which has one vector per text for SPLADE models", span)
        name = "embed_pooled" if pooled else "embed_all"
        if options.dimensions == 0:
            self.metrics.failure("validation")
            raise ValidationError("`dimensions` should be positive")
        if self.model.kind != "embedding":
            raise self.wrong_model_type("Model is not an embedding model", span)
        self.metrics.count("te_embed_count")
        started = time.perf_counter()
        states, timings = await self.infer.infer(
            text,
            truncate=options.truncate,
            direction=options.direction,
            prompt_name=options.prompt_name,
            context=(Span(span), Span(name, _span_fields(options, pooled=pooled), quoted=False)),
        )
        result = states
        if pooled:
            result = states if sparse else pool(states, self.model.pooling)
            if options.dimensions is not None:
                if options.dimensions > len(result):
                    self.metrics.failure("validation")
                    raise ValidationError("`dimensions` should be smaller than the maximum embedding dimension.")
                result = result[: options.dimensions]
            if options.normalize:
                result = normalized(result)
        self._record_input("embed", started, timings)
        return result, timings

    async def sparse_vector(
        self, text: Text, options: Options, span: str
    ) -> tuple[list[tuple[int, np.float32]], Timings]:
        """Vocabulary entries and their weights, without those that are 0. The caller holds a permit.

        From the source (core/src/infer.rs, router/src/http/server.rs); no SPLADE model was recorded.
        """
        if self.model.pooling != "splade":
            raise self.wrong_model_type("Model is not an embedding model with SPLADE pooling", span)
        weights, timings = await self.vectors(text, replace(options, normalize=False), span, pooled=True)
        return [(int(index), weights[index]) for index in np.flatnonzero(weights)], timings

    async def scores(self, text: Text, options: Options, span: str) -> tuple[list[np.float32], Timings]:
        """Scores of one input, one per label. The caller holds a permit."""
        if self.model.kind == "embedding":
            raise self.wrong_model_type("Model is not a classifier model", span)
        self.metrics.count("te_predict_count")
        started = time.perf_counter()
        logits, timings = await self.infer.infer(
            text,
            truncate=options.truncate,
            direction=options.direction,
            prompt_name=None,
            context=(Span(span), Span("predict")),
        )
        scores = logits
        if not options.raw_scores:
            if len(logits) > 1:
                exponentials = np.exp(logits - logits.max())
                scores = exponentials / exponentials.sum()
            else:
                scores = (1 / (1 + np.exp(-logits))).astype(np.float32)
        self._record_input("predict", started, timings)
        return list(scores), timings

    async def scores_with_permit(self, text: Text, options: Options, span: str) -> tuple[list[np.float32], Timings]:
        with self.infer.permit(span):
            return await self.scores(text, options, span)

    async def _scores_once_permitted(self, text: Text, options: Options, span: str) -> tuple[list[np.float32], Timings]:
        await self.infer.wait_for_permit()
        try:
            return await self.scores(text, options, span)
        finally:
            self.infer.return_permit()

    async def rerank(
        self, query: str, texts: Sequence[str], options: Options, span: str, *, wait: bool
    ) -> tuple[list[tuple[int, np.float32]], Metadata]:
        """Index and score of each text, best first. `wait`: for permits, as the gRPC server does, or refuse."""
        started = time.perf_counter()
        self.count_request("batch")
        self.check_batch_size(len(texts), span)
        score = self._scores_once_permitted if wait else self.scores_with_permit
        results = await self.all([score((query, text), options, span) for text in texts], permits_taken=False)
        self.metrics.count("te_request_success", method="batch")
        characters = sum(len(query) + len(text) for text in texts)
        metadata = Metadata(started, characters, [timings for _, timings in results])
        return ranked([scores[0] for scores, _ in results]), metadata

    def _record_input(self, kind: str, started: float, timings: Timings) -> None:
        self.metrics.count(f"te_{kind}_success")
        self.metrics.observe(f"te_{kind}_duration", time.perf_counter() - started)
        for name in ("tokenization", "queue", "inference"):
            self.metrics.observe(f"te_{kind}_{name}_duration", getattr(timings, name))

    def labelled(self, scores: Sequence[np.float32]) -> list[tuple[str, np.float32]]:
        """Label and score, best first."""
        return [(self.model.id2label[str(index)], score) for index, score in ranked(scores)]

    # -- the tokenizer alone; its failures count

    async def tokenized(self, work: Sequence[Coroutine[Any, Any, Item]]) -> list[Item]:
        try:
            return await self.all(work, permits_taken=False)
        except ValidationError:
            self.metrics.failure("tokenization")
            raise


def ranked(scores: Sequence[np.float32]) -> list[tuple[int, np.float32]]:
    """Index and score, best first. Sorted ascending and then reversed: equal scores come with the last index first."""
    return sorted(enumerate(scores), key=lambda item: item[1])[::-1]


def _span_fields(options: Options, *, pooled: bool) -> dict[str, str]:
    fields = {
        "truncate": str(options.truncate).lower(),
        "truncation_direction": options.direction.capitalize(),
        "prompt_name": "None" if options.prompt_name is None else f'Some("{options.prompt_name}")',
    }
    if pooled:
        fields["normalize"] = str(options.normalize).lower()
        fields["dimensions"] = "None" if options.dimensions is None else f"Some({options.dimensions})"
    return fields
