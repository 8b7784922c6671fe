"""gRPC surface of the router (images with the tag suffix `-grpc`), on PORT; metrics over HTTP on PROMETHEUS_PORT.

No recordings of a real gRPC server exist: this follows the source as read in router/src/grpc/server.rs (265deb2a),
backends/src/lib.rs (028192f1), tonic-health (0196ac3b) and metrics-exporter-prometheus (0b0d4c5e). What is known,
derived or left out: docs/local-tei.md.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from aiohttp import web

from local.engines.tei import GIT_SHA, VERSION
from local.engines.tei.arguments import Arguments
from local.engines.tei.infer import CPU_MAX_BATCH_REQUESTS, Infer, Timings
from local.engines.tei.logs import GRPC_SERVER, Log
from local.engines.tei.process import StartError, os_error, shown_address, signalled
from local.engines.tei.service import ENDS, ErrorType, Metadata, Options, Origin, RefusedError, ServedModel, Service
from local.engines.tei.service import refusal as refusal_of
from local.engines.tei_protocol import MESSAGES, METHODS, Method

SOURCE = "router/src/grpc/server.rs"
#: tonic's default; the router sets none, and --payload-limit concerns HTTP only.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
#: Inputs of one stream that are read ahead (GRPC_MAX_PARALLEL_STREAM_REQUESTS).
_PARALLEL_STREAM_REQUESTS = 1024
#: The router waits for running requests without a limit of its own.
_FOREVER_SECONDS = 365 * 24 * 3600.0

_CODES = {
    ErrorType.BACKEND: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorType.EMPTY: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorType.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorType.UNHEALTHY: grpc.StatusCode.UNAVAILABLE,
    ErrorType.VALIDATION: grpc.StatusCode.INVALID_ARGUMENT,
}
_MODEL_TYPES = {"embedding": 0, "classifier": 1, "reranker": 2}
#: Services whose health follows the backend, by kind of model; of the others only Info and Tokenize ever serve.
_SERVES = {
    "embedding": ("tei.v1.Embed",),
    "classifier": ("tei.v1.Predict",),
    "reranker": ("tei.v1.Predict", "tei.v1.Rerank"),
}
_ALWAYS_SERVING = ("", "tei.v1.Info", "tei.v1.Tokenize")
_SERVING, _NOT_SERVING = 1, 2

Message = Any
Context = Any
#: Answers one message of a method; the caller holds a permit. None: the method has no answer with metadata.
Answer = Callable[[Message], Awaitable[tuple[Message, Metadata | None]]]


class _StatusError(Exception):
    """An answer with a status code that is no refusal of the model."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class GrpcServer:
    """The methods of `tei_protocol`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._infer = service.infer
        self._model = service.model
        #: One input each; with a permit, unless the tokenizer alone answers.
        self._answers: dict[str, Answer] = {
            "Info": self._info,
            "Embed": self._embed,
            "EmbedSparse": self._embed_sparse,
            "EmbedAll": self._embed_all,
            "Predict": self._predict,
            "PredictPair": self._predict_pair,
            "Rerank": self._rerank,
            "Tokenize": self._tokenize,
            "Decode": self._decode,
            "Check": self._check,
        }

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """One per service."""
        services: dict[str, dict[str, grpc.RpcMethodHandler]] = {}
        for method in METHODS.values():
            services.setdefault(method.service, {})[method.name] = self._handler(method)
        return [grpc.method_handlers_generic_handler(service, methods) for service, methods in services.items()]

    def _handler(self, method: Method) -> grpc.RpcMethodHandler:
        # Messages are handed over as bytes, because the size limit of gRPC's own has another code than tonic's.
        if method.request_stream and method.response_stream:
            return grpc.stream_stream_rpc_method_handler(self._stream(method))
        if method.request_stream:
            return grpc.stream_unary_rpc_method_handler(self._rerank_stream(method))
        if method.response_stream:
            return grpc.unary_stream_rpc_method_handler(self._watch)
        return grpc.unary_unary_rpc_method_handler(self._unary(method))

    # -- calls

    def _unary(self, method: Method) -> Callable[[bytes, Context], Awaitable[bytes]]:
        counted = method.service in {"tei.v1.Embed", "tei.v1.Predict"}
        answer = self._answers[method.name]

        async def call(data: bytes, context: Context) -> bytes:
            try:
                self._authorize(method, context)
                request = _read(method, data)
                if counted:
                    reply, metadata = await self._counted(method, answer, request)
                else:
                    reply, metadata = await answer(request)
                if metadata is not None:
                    await context.send_initial_metadata(tuple(metadata.headers().items()))
            except (*ENDS, _StatusError) as error:
                await _abort(context, error)
            return bytes(reply.SerializeToString())

        return call

    async def _counted(self, method: Method, answer: Answer, request: Message) -> tuple[Message, Metadata | None]:
        """One input with one permit. The router counts a second request where it means a success, as in /predict."""
        self._service.count_request("single")
        if method.name == "PredictPair":
            _pair(request)
        with self._infer.permit(_span(method)):
            result = await answer(request)
        self._service.count_request("single")
        return result

    def _stream(self, method: Method) -> Callable[[AsyncIterator[bytes], Context], AsyncIterator[bytes]]:
        """Answers in the order of the requests; each waits for a permit, none is refused for overload."""
        answer = self._answers[method.name.removesuffix("Stream")]
        permits = method.service != "tei.v1.Tokenize"

        async def call(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            answers: asyncio.Queue[asyncio.Task[tuple[Message, Metadata | None]] | None]
            answers = asyncio.Queue(_PARALLEL_STREAM_REQUESTS)
            started: set[asyncio.Task[Any]] = set()

            async def read() -> None:
                async for data in requests:
                    if permits:
                        await self._infer.wait_for_permit()
                    task = asyncio.create_task(self._one_of_stream(method, answer, data))
                    if permits:
                        task.add_done_callback(lambda _task: self._infer.return_permit())
                    started.add(task)
                    task.add_done_callback(started.discard)
                    await answers.put(task)
                await answers.put(None)

            try:
                self._authorize(method, context)
                reader = asyncio.create_task(read())
                started.add(reader)
                while (task := await answers.get()) is not None:
                    reply, _ = await task
                    yield bytes(reply.SerializeToString())
            except (*ENDS, _StatusError) as error:
                await _abort(context, error)
            finally:
                for unfinished in started:
                    unfinished.cancel()

        return call

    async def _one_of_stream(self, method: Method, answer: Answer, data: bytes) -> tuple[Message, Metadata | None]:
        return await answer(_read(method, data))

    def _rerank_stream(self, method: Method) -> Callable[[AsyncIterator[bytes], Context], Awaitable[bytes]]:
        async def call(_requests: AsyncIterator[bytes], context: Context) -> bytes:
            try:
                self._authorize(method, context)
            except _StatusError as error:
                await _abort(context, error)
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method.path} is not in this stand-in: call Rerank")
            raise AssertionError("abort raises")

        return call

    def _authorize(self, method: Method, context: Context) -> None:
        """Health needs no key, every service of the router does."""
        given = dict(context.invocation_metadata() or ()).get("authorization")
        if method.service.startswith("tei.") and not self._service.accepts_key(given):
            raise _StatusError(grpc.StatusCode.UNAUTHENTICATED, "No valid auth token")

    # -- methods

    async def _info(self, _request: Message) -> tuple[Message, None]:
        arguments, model = self._service.arguments, self._model
        reply = MESSAGES["InfoResponse"](
            version=VERSION,
            sha=GIT_SHA,
            # The one text of this message that the real server leaves open: an image that is not the official one.
            docker_label=model.stand_in,
            model_id=arguments.model_id,
            model_sha=arguments.revision,
            model_dtype=model.dtype,
            model_type=_MODEL_TYPES[model.kind],
            max_concurrent_requests=arguments.max_concurrent_requests,
            max_input_length=model.max_input_length,
            max_batch_tokens=arguments.max_batch_tokens,
            max_batch_requests=CPU_MAX_BATCH_REQUESTS,
            max_client_batch_size=arguments.max_client_batch_size,
            tokenization_workers=model.tokenization_workers,
        )
        return reply, None

    async def _embed(self, request: Message) -> tuple[Message, Metadata]:
        started = time.perf_counter()
        normalize = request.normalize if request.HasField("normalize") else True
        vector, timings = await self._service.vectors(
            request.inputs, _options(request, normalize=normalize), "embed", pooled=True
        )
        metadata = self._answered("embed", started, request.inputs, timings)
        return MESSAGES["EmbedResponse"](embeddings=vector.tolist(), metadata=_metadata(metadata)), metadata

    async def _embed_all(self, request: Message) -> tuple[Message, Metadata]:
        started = time.perf_counter()
        states, timings = await self._service.vectors(request.inputs, _options(request), "embed_all", pooled=False)
        metadata = self._answered("embed_all", started, request.inputs, timings)
        tokens = [MESSAGES["TokenEmbedding"](embeddings=state.tolist()) for state in states]
        return MESSAGES["EmbedAllResponse"](token_embeddings=tokens, metadata=_metadata(metadata)), metadata

    async def _embed_sparse(self, request: Message) -> tuple[Message, Metadata]:
        started = time.perf_counter()
        entries, timings = await self._service.sparse_vector(request.inputs, _options(request), "embed_sparse")
        metadata = self._answered("embed_sparse", started, request.inputs, timings)
        values = [MESSAGES["SparseValue"](index=index, value=float(value)) for index, value in entries]
        return MESSAGES["EmbedSparseResponse"](sparse_embeddings=values, metadata=_metadata(metadata)), metadata

    async def _predict(self, request: Message) -> tuple[Message, Metadata]:
        return await self._predicted(request, request.inputs)

    async def _predict_pair(self, request: Message) -> tuple[Message, Metadata]:
        return await self._predicted(request, _pair(request))

    async def _predicted(self, request: Message, text: str | tuple[str, str]) -> tuple[Message, Metadata]:
        started = time.perf_counter()
        scores, timings = await self._service.scores(text, _options(request, raw_scores=request.raw_scores), "predict")
        metadata = self._answered("predict", started, text, timings)
        predictions = [
            MESSAGES["Prediction"](score=float(score), label=label) for label, score in self._service.labelled(scores)
        ]
        return MESSAGES["PredictResponse"](predictions=predictions, metadata=_metadata(metadata)), metadata

    async def _rerank(self, request: Message) -> tuple[Message, Metadata]:
        span = "rerank"
        texts = list(request.texts)
        if not texts:
            raise self._service.empty("`texts` cannot be empty", span)
        if self._model.kind != "reranker":
            # As in the source, which names the other kind than the one that is asked for.
            wanted = "re-ranker" if self._model.kind == "classifier" else "classifier"
            error = self._service.wrong_model_type(f"model is not a {wanted} model", span)
            raise _StatusError(grpc.StatusCode.FAILED_PRECONDITION, error.message)
        options = _options(request, raw_scores=request.raw_scores)
        ranks, metadata = await self._service.rerank(request.query, texts, options, span, wait=True)
        self._service.answered(span, metadata)
        rows = [
            MESSAGES["Rank"](index=index, text=texts[index] if request.return_text else None, score=float(score))
            for index, score in ranks
        ]
        return MESSAGES["RerankResponse"](ranks=rows, metadata=_metadata(metadata)), metadata

    async def _tokenize(self, request: Message) -> tuple[Message, None]:
        work = self._infer.tokenization.tokenize(
            request.inputs,
            add_special_tokens=request.add_special_tokens,
            prompt_name=request.prompt_name if request.HasField("prompt_name") else None,
        )
        (tokens,) = await self._service.tokenized([work])
        rows = [
            MESSAGES["SimpleToken"](
                id=token.id, text=token.text, special=token.special, start=token.start, stop=token.stop
            )
            for token in tokens
        ]
        return MESSAGES["EncodeResponse"](tokens=rows), None

    async def _decode(self, request: Message) -> tuple[Message, None]:
        work = self._infer.tokenization.decode(list(request.ids), skip_special_tokens=request.skip_special_tokens)
        (text,) = await self._service.tokenized([work])
        return MESSAGES["DecodeResponse"](text=text), None

    def _answered(self, span: str, started: float, text: str | tuple[str, str], timings: Timings) -> Metadata:
        characters = sum(len(part) for part in ((text,) if isinstance(text, str) else text))
        metadata = Metadata(started, characters, [timings])
        self._service.answered(span, metadata)
        return metadata

    # -- health: what the last batch left behind. Nothing is run or waited for, unlike GET /health of the HTTP build.

    async def _check(self, request: Message) -> tuple[Message, None]:
        return MESSAGES["HealthCheckResponse"](status=self._health(request.service)), None

    def _health(self, service: str) -> int:
        known = {*_ALWAYS_SERVING, *(name for names in _SERVES.values() for name in names)}
        if service not in known:
            raise _StatusError(grpc.StatusCode.NOT_FOUND, "service not registered")
        follows = service in _SERVES[self._model.kind] and self._infer.backend.healthy
        return _SERVING if follows or service in _ALWAYS_SERVING else _NOT_SERVING

    async def _watch(self, _data: bytes, context: Context) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Watch is not in this stand-in: call Check")


def _read(method: Method, data: bytes) -> Message:
    if len(data) > MAX_MESSAGE_BYTES:
        found = f"found {len(data)} bytes, the limit is: {MAX_MESSAGE_BYTES} bytes"
        raise _StatusError(grpc.StatusCode.OUT_OF_RANGE, f"Error, decoded message length too large: {found}")
    return method.request.FromString(data)


async def _abort(context: Context, error: Exception) -> None:
    """Ends the call; raises."""
    if isinstance(error, _StatusError):
        await context.abort(error.code, error.message)
    refused = refusal_of(error)
    await context.abort(_CODES[refused.error_type], refused.message)


def _options(request: Message, *, normalize: bool = True, raw_scores: bool = False) -> Options:
    """Here `truncate` is what the request says, and absent means no: --auto-truncate concerns HTTP only."""
    named = "prompt_name" in request.DESCRIPTOR.fields_by_name and request.HasField("prompt_name")
    return Options(
        truncate=request.truncate,
        direction="left" if request.truncation_direction else "right",
        prompt_name=request.prompt_name if named else None,
        normalize=normalize,
        raw_scores=raw_scores,
    )


def _pair(request: Message) -> str | tuple[str, str]:
    inputs = list(request.inputs)
    if len(inputs) not in {1, 2}:
        message = f"`inputs` must have a single or two elements. Given: {len(inputs)}"
        raise RefusedError(ErrorType.VALIDATION, message)
    return inputs[0] if len(inputs) == 1 else (inputs[0], inputs[1])


def _metadata(metadata: Metadata) -> Message:
    return MESSAGES["Metadata"](
        compute_chars=metadata.characters,
        compute_tokens=metadata.tokens,
        total_time_ns=int(metadata.total * 1e9),
        tokenization_time_ns=int(metadata.tokenization * 1e9),
        queue_time_ns=int(metadata.queue * 1e9),
        inference_time_ns=int(metadata.inference * 1e9),
    )


def _span(method: Method) -> str:
    names = {"Embed": "embed", "EmbedSparse": "embed_sparse", "EmbedAll": "embed_all"}
    return names.get(method.name, "predict")


async def _serve_metrics(infer: Infer, host: str, port: int) -> web.AppRunner:
    """The exporter answers every path with the metrics, but /health with OK."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="OK" if request.path == "/health" else infer.metrics.text())

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise StartError(f"failed to create HTTP listener: {os_error(error)}") from None
    return runner


def _require_free(host: str, port: int) -> None:
    """Raises StartError with the reason when a port cannot be bound; gRPC itself keeps the reason to its log."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise StartError("transport error", os_error(error)) from None


async def serve(arguments: Arguments, model: ServedModel, infer: Infer, log: Log, host: str) -> None:
    """Binds both ports, and serves until SIGTERM or SIGINT and then until every started call has its answer.

    Raises:
        StartError: a port cannot be bound.
    """
    log.always("gRPC build: follows the router's source, because nothing was recorded of a real gRPC server")
    origin = Origin(GRPC_SERVER, SOURCE)
    metrics = await _serve_metrics(infer, host, arguments.prometheus_port)
    metrics_address = shown_address(host, arguments.prometheus_port)
    log.info(GRPC_SERVER, f"{SOURCE}:0", f"Serving Prometheus metrics: {metrics_address}")
    options = [
        # Without it a second server on the same port would start, and take half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
    ]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers(tuple(GrpcServer(Service(arguments, model, infer, log, origin)).handlers()))
    address = shown_address(host, arguments.port)
    _require_free(host, arguments.port)
    server.add_insecure_port(address)
    await server.start()
    stopped = signalled(log)
    log.info(GRPC_SERVER, f"{SOURCE}:0", f"Starting gRPC server: {address}")
    log.info(GRPC_SERVER, f"{SOURCE}:0", "Ready")
    await stopped
    await server.stop(_FOREVER_SECONDS)
    await metrics.cleanup()
