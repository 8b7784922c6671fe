"""Checks of a Text Embeddings Inference workload that speaks gRPC (images with the tag suffix `-grpc`).

Methods, codes and texts are those of the source (router/src/grpc/server.rs, 265deb2a); nothing was recorded of a real
gRPC server. One call is one text, so only rerankers have a limit of texts per request.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self, TypeVar

import grpc
import requests

from infra.core.catalogue import ModelKind
from infra.core.contract import WorkloadContract
from local.engines.tei_protocol import MESSAGES, METHODS
from scripts.smoke import answers
from scripts.smoke.results import Check, NotProvenError, UnmetError, UnreachableError

#: Beyond what the engine may take: port-forward and network.
_EXTRA_SECONDS = 10
#: Services that say SERVING once a model of the kind computes.
_HEALTHY_SERVICES = {
    ModelKind.EMBEDDING: ("tei.v1.Embed",),
    ModelKind.SPARSE: ("tei.v1.Embed",),
    ModelKind.CLASSIFIER: ("tei.v1.Predict",),
    ModelKind.RERANKER: ("tei.v1.Rerank", "tei.v1.Predict"),
}
_STATUS = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")


Answer = TypeVar("Answer")


class CallError(Exception):
    """A call that ended with a status; `code` is its name, such as RESOURCE_EXHAUSTED."""

    def __init__(self, method: str, code: str, details: str) -> None:
        super().__init__(f"{method}: {code} {details!r}")
        self.code = code
        self.details = details


@dataclass(frozen=True)
class Info:
    """What Info/Info says of the process."""

    version: str
    model_id: str
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_client_batch_size: int


@dataclass(frozen=True)
class Rank:
    """A text of a rerank request by its index, with its score."""

    index: int
    score: float


@dataclass(frozen=True)
class Prediction:
    """A class and its score."""

    label: str
    score: float


class TeiGrpcClient:
    """A TEI server at ``target`` ("host:port"), without TLS. ``api_key`` is sent with every call and shown nowhere.

    Every method raises CallError when the call ends with another status than OK.
    """

    def __init__(self, target: str, api_key: str | None = None, timeout: float = 60) -> None:
        # The way to the Service is loopback: a proxy of the environment would be asked for its own loopback.
        # A connection of its own: one connection carries a limited number of calls at a time.
        options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(target, options=options)
        self._key = api_key
        self._timeout = timeout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def health(self, service: str) -> str:
        """SERVING or NOT_SERVING; the empty name is the process, which always serves."""
        answer = self._call("/grpc.health.v1.Health/Check", MESSAGES["HealthCheckRequest"](service=service))
        return _STATUS[answer.status]

    def info(self) -> Info:
        answer = self._call("/tei.v1.Info/Info", MESSAGES["InfoRequest"]())
        return Info(**{name: getattr(answer, name) for name in Info.__dataclass_fields__})

    def embed(self, text: str) -> list[float]:
        """The vector of a text, normalised: releases differ in what they do unasked."""
        request = MESSAGES["EmbedRequest"](inputs=text, truncate=True, normalize=True)
        return list(self._call("/tei.v1.Embed/Embed", request).embeddings)

    def embed_sparse(self, text: str) -> dict[int, float]:
        """Weights above zero by vocabulary entry."""
        answer = self._call("/tei.v1.Embed/EmbedSparse", MESSAGES["EmbedSparseRequest"](inputs=text, truncate=True))
        return {entry.index: entry.value for entry in answer.sparse_embeddings}

    def rerank(self, query: str, texts: Sequence[str]) -> list[Rank]:
        """Texts by their indices, best first."""
        request = MESSAGES["RerankRequest"](query=query, texts=texts, truncate=True)
        return [Rank(rank.index, rank.score) for rank in self._call("/tei.v1.Rerank/Rerank", request).ranks]

    def predict(self, text: str) -> list[Prediction]:
        """Classes, best first."""
        answer = self._call("/tei.v1.Predict/Predict", MESSAGES["PredictRequest"](inputs=text, truncate=True))
        return [Prediction(found.label, found.score) for found in answer.predictions]

    def begin(self, path: str, text: str) -> Callable[[], tuple[str, str]]:
        """Starts a call with one text (Embed, EmbedSparse, Predict); returns what waits for its code and details."""
        request = METHODS[path].request(inputs=text, truncate=True)
        call = self._callable(path).future(request, timeout=self._timeout, metadata=self._metadata())
        return lambda: (call.code().name, call.details() or "")

    def _call(self, path: str, request: Any) -> Any:
        try:
            return self._callable(path)(request, timeout=self._timeout, metadata=self._metadata())
        except grpc.RpcError as error:
            raise CallError(path, error.code().name, error.details() or "") from None

    def _callable(self, path: str) -> Any:
        method = METHODS[path]
        return self._channel.unary_unary(
            path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )

    def _metadata(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self._key}")] if self._key else []


class TeiGrpcService:
    """A workload of the contract behind a port-forward.

    Args:
        target: "host:port" of the Service's gRPC port.
        api_key: sent with every call and shown nowhere.
        metrics_url: base URL of the port that Prometheus reads (PROMETHEUS_PORT); None when it was not reached.
    """

    def __init__(
        self, workload: WorkloadContract, target: str, api_key: str | None = None, metrics_url: str | None = None
    ) -> None:
        self.workload = workload
        self._target = target
        self._key = api_key
        self._metrics_url = metrics_url
        self._timeout = workload.budgets["longest_request"] + _EXTRA_SECONDS
        self._kind = ModelKind(workload.model.kind)
        self._logs = f"kubectl -n {workload.namespace} logs deployment/{workload.deployment}"

    def checks(self) -> list[Check]:
        """Every check that applies to the workload."""
        kinds = {
            ModelKind.EMBEDDING: [
                Check("dimension and norm", self.vector),
                Check("similar texts", self.similarity),
            ],
            ModelKind.SPARSE: [Check("sparse vector", self.sparse)],
            ModelKind.RERANKER: [Check("order of texts", self.order), Check("batch limit", self.batch_limit)],
            ModelKind.CLASSIFIER: [Check("classes", self.classes)],
        }
        checks = [Check("health", self.health), Check("info", self.info), *kinds[self._kind]]
        checks.append(Check("metrics", self.metrics))
        if self.workload.api_key_secret:
            checks.append(Check("API key", self.key_enforced))
        return checks

    def health(self) -> str:
        """What the probes ask: needs no key, and waits for nothing."""
        for service in _HEALTHY_SERVICES[self._kind]:
            status = self._asked(partial(TeiGrpcClient.health, service=service))
            if status != "SERVING":
                raise UnmetError(
                    f"grpc.health.v1 says {status} for {service}",
                    f"the last batch failed, or the model is no {self._kind}; read {self._logs} and restart the pod if "
                    "the GPU is lost",
                )
        return f"grpc.health.v1: SERVING for {', '.join(_HEALTHY_SERVICES[self._kind])}"

    def info(self) -> str:
        """The configuration that the process runs with, as far as gRPC tells it."""
        told = self._asked(lambda client: client.info())
        limits = self.workload.limits
        expected = Info(
            version=self.workload.version,
            model_id=self.workload.model.id,
            max_concurrent_requests=limits["max_concurrent_requests"],
            max_input_length=limits["max_input_tokens"],
            max_batch_tokens=limits["max_batch_tokens"],
            max_client_batch_size=limits["max_client_batch_size"],
        )
        answers.as_planned(asdict(told), asdict(expected))
        return f"{self.workload.model.id}, TEI {self.workload.version}, and the limits as planned"

    def vector(self) -> str:
        """Length of the vector, and that it is normalised."""
        return answers.dimension_and_norm(self._embedded(answers.QUESTION), self.workload)

    def similarity(self) -> str:
        """That vectors mean something: weights that were not loaded give vectors too."""
        texts = (answers.QUESTION, answers.SIMILAR, answers.UNRELATED)
        return answers.meaning(*map(self._embedded, texts))

    def sparse(self) -> str:
        """A SPLADE model gives weights of vocabulary entries."""
        weights = self._asked(lambda client: client.embed_sparse(answers.QUERY))
        if not weights or min(weights.values()) <= 0:
            raise UnmetError("Embed/EmbedSparse: no weights above zero", f"is the pooling splade? {self._logs}")
        return f"{len(weights)} vocabulary entries with a weight"

    def order(self) -> str:
        """The one text that answers the query comes first."""
        ranks = self._asked(lambda client: client.rerank(answers.QUERY, answers.TEXTS))
        found = [(rank.index, rank.score) for rank in ranks]
        return answers.order(found, "Rerank/Rerank", self.workload, self._logs)

    def classes(self) -> str:
        """A classifier gives a score per class."""
        found = self._asked(lambda client: client.predict(answers.QUESTION))
        if not found or not all(0 <= prediction.score <= 1 for prediction in found):
            raise UnmetError("Predict/Predict: no scores from 0 to 1", f"is the model a classifier? {self._logs}")
        return ", ".join(f"{prediction.label} {prediction.score:.3f}" for prediction in found[:3])

    def batch_limit(self) -> str:
        """As many texts as one request may hold, then one more."""
        most = self.workload.limits["max_client_batch_size"]
        asked = self.workload.top_k or most
        texts = [f"text {number}" for number in range(max(asked, most) + 1)]
        for size in sorted({asked, most}):
            if len(self._asked(partial(TeiGrpcClient.rerank, query=answers.QUERY, texts=texts[:size]))) != size:
                raise UnmetError(f"Rerank/Rerank with {size} texts: not one score per text", f"read {self._logs}")
        texts = texts[: most + 1]
        text = f"batch size {most + 1} > maximum allowed batch size {most}"
        with self._client(self._key) as client:
            try:
                client.rerank(answers.QUERY, texts)
                said = "OK"
            except CallError as error:
                said = f"{error.code} {error.details!r}"
        if said != f"INVALID_ARGUMENT {text!r}":
            raise UnmetError(
                f"Rerank/Rerank with {most + 1} texts: {said}, expected INVALID_ARGUMENT with {text!r}",
                "the engine has another client limit than the plan: run pulumi up, and look for env in the stack file "
                "that overrides the plan",
            )
        answered = f"{most} texts" if asked == most else f"{asked} (topK) and {most} texts"
        return f"{answered} answered, {most + 1} refused with INVALID_ARGUMENT"

    def metrics(self) -> str:
        """Counters that scaling and alerts read: absent until the first request, so after traffic."""
        if self._metrics_url is None:
            raise NotProvenError(f"metrics are on port {self.workload.metrics_port}, which was not reached")
        before = self._requests_counted()
        self._one_request()
        after = self._requests_counted()
        if not after > before:
            raise UnmetError(
                f"te_request_count stayed at {after:.0f} while a request was answered",
                f"does {self._metrics_url} belong to another pod? No dashboard, alert or scaler sees this workload",
            )
        return f"te_request_count went from {before:.0f} to {after:.0f} with one request"

    def key_enforced(self) -> str:
        """Clients without the key, or with another one, get nothing."""
        if not self._key:
            raise UnmetError(
                f"Secret {self.workload.api_key_secret} has no key {self.workload.api_key_secret_key}",
                "set it with pulumi config set --secret embedding-serving:apiKey, then pulumi up",
            )
        for what, key in (("no key", None), ("another key", "not-the-key")):
            code = self._info_code(key)
            if code != "UNAUTHENTICATED":
                raise UnmetError(
                    f"Info/Info with {what}: {code}, expected UNAUTHENTICATED",
                    "anyone who reaches the Service can use it: check API_KEY of the pods, then pulumi up",
                )
        code = self._info_code(self._key)
        if code != "OK":
            raise UnmetError(
                f"Info/Info with the key of Secret {self.workload.api_key_secret}: {code}, expected OK",
                "the pods have another key than the Secret, or it ends with a line break: set it again, pulumi up",
            )
        return "UNAUTHENTICATED without the key and with another one, OK with it"

    def _info_code(self, key: str | None) -> str:
        with self._client(key) as client:
            try:
                client.info()
            except CallError as error:
                return error.code
        return "OK"

    def _embedded(self, text: str) -> list[float]:
        return self._asked(lambda client: client.embed(text))

    def _one_request(self) -> None:
        requests_by_kind: dict[ModelKind, Callable[[TeiGrpcClient], object]] = {
            ModelKind.EMBEDDING: lambda client: client.embed(answers.QUESTION),
            ModelKind.SPARSE: lambda client: client.embed_sparse(answers.QUESTION),
            ModelKind.RERANKER: lambda client: client.rerank(answers.QUERY, answers.TEXTS[:1]),
            ModelKind.CLASSIFIER: lambda client: client.predict(answers.QUESTION),
        }
        self._asked(requests_by_kind[self._kind])

    def _requests_counted(self) -> float:
        url = f"{self._metrics_url}{self.workload.metrics_path}"
        try:
            with requests.Session() as session:
                session.trust_env = False
                answer = session.get(url, timeout=self._timeout)
        except requests.RequestException as error:
            raise UnreachableError(
                f"GET {self.workload.metrics_path} on port {self.workload.metrics_port}: {type(error).__name__}",
                f"is PROMETHEUS_PORT of the pods the one that the contract names? {self._logs}",
            ) from None
        if answer.status_code != 200:
            raise UnmetError(
                f"GET {self.workload.metrics_path}: {answer.status_code}", "Prometheus gets the same answer"
            )
        return answers.requests_counted(answer.text)

    def _client(self, key: str | None) -> TeiGrpcClient:
        return TeiGrpcClient(self._target, key, self._timeout)

    def _asked(self, ask: Callable[[TeiGrpcClient], Answer]) -> Answer:
        """Retries while the engine is overloaded: other clients may be at work, and that is an answer as planned."""
        give_up = time.monotonic() + self._timeout
        pause = 0.5
        with self._client(self._key) as client:
            while True:
                try:
                    return ask(client)
                except CallError as error:
                    if error.code == "RESOURCE_EXHAUSTED" and time.monotonic() + pause < give_up:
                        time.sleep(pause)
                        pause *= 2
                        continue
                    raise self._unmet(error) from None

    def _unmet(self, error: CallError) -> UnmetError:
        if error.code == "DEADLINE_EXCEEDED":
            return UnreachableError(
                f"{error}: no answer within {self._timeout} s",
                f"the engine hangs or its queue is longer than longestRequestSeconds allows; read {self._logs}",
            )
        if error.code == "UNAVAILABLE":
            return UnreachableError(
                str(error),
                f"did the pod end while it was tested, or does it speak HTTP? kubectl -n {self.workload.namespace} get "
                f"pods, {self._logs}",
            )
        return UnmetError(str(error), f"read {self._logs}")
