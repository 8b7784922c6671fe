"""HTTP surface of the router: paths, bodies, headers, status codes and counters as recorded (recording index.json)."""

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from local.engines.tei import GIT_SHA, VERSION, requests
from local.engines.tei.arguments import Arguments
from local.engines.tei.bert import Floats
from local.engines.tei.infer import CPU_MAX_BATCH_REQUESTS, Infer, Timings
from local.engines.tei.json_input import BodyError, Shape, read_body
from local.engines.tei.logs import HTTP_SERVER, Log
from local.engines.tei.process import StartError, os_error, shown_address, signalled
from local.engines.tei.service import (
    ENDS,
    ErrorType,
    Metadata,
    Options,
    Origin,
    RefusedError,
    ServedModel,
    Service,
    refusal,
)
from local.engines.tei.tokenization import Text

SOURCE = "router/src/http/server.rs"
ORIGIN = Origin(HTTP_SERVER, SOURCE, {"embed": 737, "openai_embed": 1318}, {"embed": 657})
_STATUS = {
    ErrorType.BACKEND: 424,
    ErrorType.EMPTY: 400,
    ErrorType.OVERLOADED: 429,
    ErrorType.UNHEALTHY: 503,
    ErrorType.VALIDATION: 422,
}

#: Served without a key; also GET, but not POST, on "/" (recordings auth/).
PUBLIC_PATHS = frozenset({"/health", "/ping", "/metrics", "/docs", "/docs/", "/api-doc/openapi.json"})

Item = TypeVar("Item")
Handler = Callable[[web.Request], Awaitable["_Response"]]


class _Response(web.Response):
    """Tells when it was sent; until then its connection is not idle."""

    on_sent: Callable[[], object] | None = None

    async def write_eof(self, data: bytes = b"") -> None:
        await super().write_eof(data)
        if self.on_sent is not None:
            self.on_sent()


def float_text(value: np.float32) -> str:
    """A float32 as serde_json prints it: shortest digits, an exponent only below 1e-5 and from 1e16 on."""
    if not np.isfinite(value):
        return "null"
    text = str(value)
    if "e" not in text:
        return text
    mantissa, exponent = text.split("e")
    if exponent == "-05":
        return np.format_float_positional(value, unique=True, trim="0")
    return f"{mantissa}e{int(exponent)}"


def _vector(values: Floats) -> str:
    return "[" + ",".join(map(float_text, values)) + "]"


def _sparse(entries: Sequence[tuple[int, np.float32]]) -> str:
    return "[" + ",".join(f'{{"index":{index},"value":{float_text(value)}}}' for index, value in entries) + "]"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class _Answer:
    text: str
    metadata: Metadata


class Server:
    def __init__(self, arguments: Arguments, model: ServedModel, infer: Infer, log: Log) -> None:
        self._arguments = arguments
        self._model = model
        self._infer = infer
        self._service = Service(arguments, model, infer, log, ORIGIN)
        self._draining = False
        self._busy: set[object] = set()
        self._routes: dict[str, dict[str, Handler]] = {
            "/": {"GET": self._health, "POST": self._by_model_type},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health},
            "/metrics": {"GET": self._metrics_text},
            "/docs": {"GET": self._docs_redirect},
            "/docs/": {"GET": self._docs},
            "/api-doc/openapi.json": {"GET": self._openapi},
            "/info": {"GET": self._info},
            "/invocations": {"POST": self._by_model_type},
            "/embed": {"POST": self._embed},
            "/embed_all": {"POST": self._embed_all},
            "/embed_sparse": {"POST": self._embed_sparse},
            "/predict": {"POST": self._predict},
            "/rerank": {"POST": self._rerank},
            "/similarity": {"POST": self._similarity},
            "/tokenize": {"POST": self._tokenize},
            "/decode": {"POST": self._decode},
            "/embeddings": {"POST": self._openai},
            "/v1/embeddings": {"POST": self._openai},
            "/vertex": {"POST": self._vertex},
        }

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._handle)
        application.on_response_prepare.append(self._as_the_router_writes_headers)
        return application

    async def drain(self, connections: Callable[[], Sequence[RequestHandler]]) -> None:
        """Closes idle connections, lets every started request finish, however long it takes, and returns then.

        Args:
            connections: those that are open at the time of the call.
        """
        self._draining = True
        while open_connections := connections():
            # A moment for requests that have arrived to be started.
            await asyncio.sleep(0.01)
            for connection in open_connections:
                if connection not in self._busy:
                    connection.force_close()

    async def _as_the_router_writes_headers(self, _request: web.Request, response: web.StreamResponse) -> None:
        headers = {name.lower(): value for name, value in response.headers.items()}
        headers.pop("server", None)
        # aiohttp leaves it out where no body follows; the router sends it on HEAD too (recording embed/53).
        headers.setdefault("content-length", str(response.content_length or 0))
        last = {name: headers.pop(name) for name in ("content-length", "date", "connection") if name in headers}
        if self._draining:
            response.force_close()
            last["connection"] = "close"
        response.headers.clear()
        response.headers.extend(headers | last)

    # -- dispatch

    async def _handle(self, request: web.Request) -> web.Response:
        connection = request.protocol
        self._busy.add(connection)
        try:
            response = await self._dispatch(request)
        except BaseException:
            self._busy.discard(connection)
            raise
        response.on_sent = lambda: self._busy.discard(connection)
        return response

    async def _dispatch(self, request: web.Request) -> _Response:
        route = self._routes.get(request.path, {})
        allowed = ",".join(sorted({*route, *({"HEAD"} if "GET" in route else ())}))
        if request.method == "OPTIONS":
            return self._preflight(allowed)
        handler = route.get("GET" if request.method == "HEAD" else request.method)
        headers = {"allow": allowed} if route and handler is None else None
        protected = route and request.path not in PUBLIC_PATHS and not (request.path == "/" and handler == self._health)
        if protected and not self._service.accepts_key(request.headers.get("Authorization")):
            return self._respond(request, 401, headers=headers)
        if handler is None:
            return self._respond(request, 405 if route else 404, headers=headers)
        try:
            return await handler(request)
        except BodyError as error:
            return self._respond(request, error.status, error.text, "text/plain; charset=utf-8")
        except ENDS as error:
            return self._refused(request, handler, refusal(error))

    def _refused(self, request: web.Request, handler: Handler, error: RefusedError) -> _Response:
        status = _STATUS[error.error_type]
        shape: dict[str, object] = {"error": error.message, "error_type": error.error_type}
        if handler == self._openai:
            shape = {"message": error.message, "code": status, "type": error.error_type}
        return self._respond(request, status, _json(shape), "application/json")

    def _preflight(self, allowed: str) -> _Response:
        headers = {
            "access-control-allow-origin": "*",
            "vary": "origin, access-control-request-method, access-control-request-headers",
            "access-control-allow-methods": "GET,POST",
            "access-control-allow-headers": "content-type",
        }
        if allowed:
            headers["allow"] = allowed
        return _Response(status=200, headers=headers)

    def _respond(
        self,
        request: web.Request,
        status: int,
        text: str = "",
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> _Response:
        all_headers = {"content-type": content_type} if content_type else {}
        all_headers |= {"location": "/docs/"} if status == 303 else {}
        compute = {name: value for name, value in (headers or {}).items() if name != "allow"}
        all_headers |= compute
        all_headers["vary"] = "origin, access-control-request-method, access-control-request-headers"
        origins = self._arguments.cors_allow_origin
        origin = "*" if origins is None else request.headers.get("Origin", "")
        if origins is None or origin in origins:
            all_headers["access-control-allow-origin"] = origin
        if headers and "allow" in headers:
            all_headers["allow"] = headers["allow"]
        return _Response(status=status, body=text.encode(), headers=all_headers)

    async def _read(self, request: web.Request, shape: Shape) -> Any:
        content_type = request.headers.get("Content-Type", "").split(";")[0].strip().lower()
        subtype = content_type.removeprefix("application/")
        if content_type == subtype or not (subtype == "json" or subtype.endswith("+json")):
            raise BodyError(415, "Expected request with `Content-Type: application/json`")
        body = bytearray()
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > self._arguments.payload_limit:
                raise BodyError(413, "Failed to buffer the request body: length limit exceeded")
        return read_body(bytes(body), shape)

    def _answered(self, request: web.Request, span: str, answer: _Answer) -> _Response:
        self._service.answered(span, answer.metadata)
        return self._respond(request, 200, answer.text, "application/json", answer.metadata.headers())

    # -- pieces that several endpoints share

    async def _embed_inputs(
        self, inputs: Any, options: Options, span: str, *, pooled: bool
    ) -> tuple[list[Floats], Metadata]:
        def vectors(text: Text) -> Coroutine[Any, Any, tuple[Floats, Timings]]:
            return self._service.vectors(text, options, span, pooled=pooled)

        return await self._each_input(inputs, vectors, span)

    async def _each_input(
        self, inputs: Any, answer: Callable[[Text], Coroutine[Any, Any, tuple[Item, Timings]]], span: str
    ) -> tuple[list[Item], Metadata]:
        started = time.perf_counter()
        single = isinstance(inputs, str) or requests.is_ids(inputs)
        method = "single" if single else "batch"
        self._service.count_request(method)
        if single:
            with self._infer.permit(span):
                results = [await answer(inputs)]
        else:
            self._service.check_batch_size(len(inputs), span)
            self._infer.take_permits(len(inputs), span)
            results = await self._service.all([answer(item) for item in inputs], permits_taken=True)
        self._infer.metrics.count("te_request_success", method=method)
        characters = len(inputs) if single else sum(map(len, inputs))
        return [given for given, _ in results], Metadata(started, characters, [timings for _, timings in results])

    def _truncate(self, given: bool | None) -> bool:
        return self._arguments.auto_truncate if given is None else given

    # -- endpoints

    async def _health(self, request: web.Request) -> _Response:
        if await self._infer.backend.health():
            return self._respond(request, 200)
        body = _json({"error": "unhealthy", "error_type": ErrorType.UNHEALTHY})
        return self._respond(request, 503, body, "application/json")

    async def _metrics_text(self, request: web.Request) -> _Response:
        return self._respond(request, 200, self._infer.metrics.text(), "text/plain; charset=utf-8")

    async def _info(self, request: web.Request) -> _Response:
        arguments, model = self._arguments, self._model
        info = {
            "model_id": arguments.model_id,
            "model_sha": arguments.revision,
            "model_dtype": model.dtype,
            "served_model_name": arguments.served_model_name or arguments.model_id,
            "model_type": model.model_type,
            "max_concurrent_requests": arguments.max_concurrent_requests,
            "max_input_length": model.max_input_length,
            "max_batch_tokens": arguments.max_batch_tokens,
            "max_batch_requests": CPU_MAX_BATCH_REQUESTS,
            "max_client_batch_size": arguments.max_client_batch_size,
            "auto_truncate": arguments.auto_truncate,
            "tokenization_workers": model.tokenization_workers,
            "version": VERSION,
            "sha": GIT_SHA,
            "docker_label": None,
            "stand_in": model.stand_in,
        }
        return self._respond(request, 200, _json(info), "application/json")

    async def _by_model_type(self, request: web.Request) -> _Response:
        return await {"embedding": self._embed, "reranker": self._rerank}.get(self._model.kind, self._predict)(request)

    async def _embed(self, request: web.Request) -> _Response:
        body = await self._read(request, requests.EMBED)
        return self._answered(request, "embed", await self._embed_answer(body, "embed"))

    async def _embed_answer(self, body: Mapping[str, Any], span: str) -> _Answer:
        options = Options(
            truncate=self._truncate(body["truncate"]),
            direction=body["truncation_direction"],
            prompt_name=body["prompt_name"],
            normalize=body["normalize"],
            dimensions=body["dimensions"],
        )
        vectors, metadata = await self._embed_inputs(body["inputs"], options, span, pooled=True)
        return _Answer("[" + ",".join(map(_vector, vectors)) + "]", metadata)

    async def _embed_all(self, request: web.Request) -> _Response:
        body = await self._read(request, requests.EMBED_UNPOOLED)
        options = Options(
            truncate=self._truncate(body["truncate"]),
            direction=body["truncation_direction"],
            prompt_name=body["prompt_name"],
        )
        states, metadata = await self._embed_inputs(body["inputs"], options, "embed_all", pooled=False)
        text = "[" + ",".join("[" + ",".join(map(_vector, tokens)) + "]" for tokens in states) + "]"
        return self._answered(request, "embed_all", _Answer(text, metadata))

    async def _embed_sparse(self, request: web.Request) -> _Response:
        span = "embed_sparse"
        body = await self._read(request, requests.EMBED_UNPOOLED)
        options = Options(
            truncate=self._truncate(body["truncate"]),
            direction=body["truncation_direction"],
            prompt_name=body["prompt_name"],
        )

        def weights(text: Text) -> Coroutine[Any, Any, tuple[list[tuple[int, np.float32]], Timings]]:
            return self._service.sparse_vector(text, options, span)

        vectors, metadata = await self._each_input(body["inputs"], weights, span)
        return self._answered(request, span, _Answer("[" + ",".join(map(_sparse, vectors)) + "]", metadata))

    async def _openai(self, request: web.Request) -> _Response:
        span = "openai_embed"
        body = await self._read(request, requests.OPENAI)
        served = self._arguments.served_model_name or self._arguments.model_id
        if body["model"] not in {None, "", served}:
            message = (
                f"The provided `model={body['model']}` has not been found, the `model` parameter should be provided "
                f"either empty or with `model={served}` instead."
            )
            self._service.warn(message, span, 1161)
        options = Options(truncate=self._arguments.auto_truncate, dimensions=body["dimensions"])
        vectors, metadata = await self._embed_inputs(body["input"], options, span, pooled=True)
        rows = []
        for index, vector in enumerate(vectors):
            shown = _vector(vector)
            if body["encoding_format"] == "base64":
                shown = _json(base64.b64encode(vector.astype("<f4").tobytes()).decode())
            rows.append(f'{{"object":"embedding","embedding":{shown},"index":{index}}}')
        usage = _json({"prompt_tokens": metadata.tokens, "total_tokens": metadata.tokens})
        text = f'{{"object":"list","data":[{",".join(rows)}],"model":{_json(served)},"usage":{usage}}}'
        return self._answered(request, span, _Answer(text, metadata))

    async def _similarity(self, request: web.Request) -> _Response:
        body = await self._read(request, requests.SIMILARITY)
        sentences = body["inputs"]["sentences"]
        if not sentences:
            message = "`inputs.sentences` cannot be empty"
            raise self._service.empty(message, "similarity")
        self._service.check_batch_size(len(sentences) + 1, "similarity")
        parameters = body["parameters"] or {}
        options = Options(
            truncate=self._truncate(parameters.get("truncate")),
            direction=parameters.get("truncation_direction", "right"),
            prompt_name=parameters.get("prompt_name"),
        )
        inputs = [body["inputs"]["source_sentence"], *sentences]
        vectors, metadata = await self._embed_inputs(inputs, options, "similarity", pooled=True)
        scores = np.array([vectors[0] @ vector for vector in vectors[1:]], dtype=np.float32)
        return self._answered(request, "similarity", _Answer(_vector(scores), metadata))

    async def _rerank(self, request: web.Request) -> _Response:
        body = await self._read(request, requests.RERANK)
        return self._answered(request, "rerank", await self._rerank_answer(body))

    async def _rerank_answer(self, body: Mapping[str, Any]) -> _Answer:
        span = "rerank"
        query, texts = body["query"], body["texts"]
        if not texts:
            raise self._service.empty("`texts` cannot be empty", span)
        if self._model.kind != "reranker":
            raise self._service.wrong_model_type("model is not a re-ranker model", span)
        options = self._score_options(body)
        ranks, metadata = await self._service.rerank(query, texts, options, span, wait=False)
        rows = []
        for index, score in ranks:
            text = f'"text":{_json(texts[index])},' if body["return_text"] else ""
            rows.append(f'{{"index":{index},{text}"score":{float_text(score)}}}')
        return _Answer("[" + ",".join(rows) + "]", metadata)

    def _score_options(self, body: Mapping[str, Any]) -> Options:
        return Options(
            truncate=self._truncate(body["truncate"]),
            direction=body["truncation_direction"],
            raw_scores=body["raw_scores"],
        )

    async def _predict(self, request: web.Request) -> _Response:
        body = await self._read(request, requests.PREDICT)
        return self._answered(request, "predict", await self._predict_answer(body))

    async def _predict_answer(self, body: Mapping[str, Any]) -> _Answer:
        span = "predict"
        started = time.perf_counter()
        inputs = body["inputs"]
        options = self._score_options(body)
        if isinstance(inputs, str) or isinstance(inputs[0], str):
            self._service.count_request("single")
            texts = [_sequence(inputs)]
            results = [await self._service.scores_with_permit(texts[0], options, span)]
            # The router counts a second request here where it means a success (recording classifier/04).
            self._service.count_request("single")
            text = _labelled_text(self._service.labelled(results[0][0]))
        else:
            self._service.count_request("batch")
            self._service.check_batch_size(len(inputs), span)
            texts = [_sequence(item) for item in inputs]
            work = [self._service.scores_with_permit(item, options, span) for item in texts]
            results = await self._service.all(work, permits_taken=False)
            self._infer.metrics.count("te_request_success", method="batch")
            text = "[" + ",".join(_labelled_text(self._service.labelled(scores)) for scores, _ in results) + "]"
        characters = sum(len(item) if isinstance(item, str) else sum(map(len, item)) for item in texts)
        return _Answer(text, Metadata(started, characters, [timings for _, timings in results]))

    async def _tokenize(self, request: web.Request) -> _Response:
        span = "tokenize"
        body = await self._read(request, requests.TOKENIZE)
        inputs = body["inputs"]
        texts = [inputs] if isinstance(inputs, str) else inputs
        if not texts:
            raise self._service.empty("`inputs` cannot be empty", span)
        self._service.check_batch_size(len(texts), span)
        work = [
            self._infer.tokenization.tokenize(
                text, add_special_tokens=body["add_special_tokens"], prompt_name=body["prompt_name"]
            )
            for text in texts
        ]
        tokens = await self._service.tokenized(work)
        rows = [[asdict(token) for token in row] for row in tokens]
        return self._respond(request, 200, _json(rows), "application/json")

    async def _decode(self, request: web.Request) -> _Response:
        body = await self._read(request, requests.DECODE)
        ids = body["ids"]
        lists = [ids] if requests.is_ids(ids) else ids
        self._service.check_batch_size(len(lists), "decode")
        work = [
            self._infer.tokenization.decode(item, skip_special_tokens=body["skip_special_tokens"]) for item in lists
        ]
        texts = await self._service.tokenized(work)
        return self._respond(request, 200, _json(texts), "application/json")

    async def _vertex(self, request: web.Request) -> _Response:
        body = await self._read(request, requests.VERTEX)
        instances = body["instances"]
        self._service.check_batch_size(len(instances), "vertex_compatibility")
        shape = {"embedding": requests.EMBED, "reranker": requests.RERANK}.get(self._model.kind, requests.PREDICT)
        bodies = [read_body(_json(instance).encode(), shape) for instance in instances]
        answers = await self._service.all([self._instance(item) for item in bodies], permits_taken=False)
        for answer in answers:
            self._answered(request, "vertex_compatibility", answer)
        text = '{"predictions":[' + ",".join(answer.text for answer in answers) + "]}"
        return self._respond(request, 200, text, "application/json")

    async def _instance(self, body: Mapping[str, Any]) -> _Answer:
        if self._model.kind == "embedding":
            return await self._embed_answer(body, "embed")
        if self._model.kind == "reranker":
            return await self._rerank_answer(body)
        return await self._predict_answer(body)

    async def _docs_redirect(self, request: web.Request) -> _Response:
        return self._respond(request, 303)

    async def _docs(self, request: web.Request) -> _Response:
        page = "<!DOCTYPE html>\n<title>Stand-in</title>\n<p>Stand-in for the router's Swagger page.</p>\n"
        return self._respond(request, 200, page, "text/html")

    async def _openapi(self, request: web.Request) -> _Response:
        inference = ("200", "400", "413", "422", "424", "429")
        text_only = ("200", "400", "413", "422")
        posts = ("embed", "embed_all", "embed_sparse", "predict", "rerank", "similarity", "v1/embeddings")
        paths = {f"/{name}": _operation("post", inference) for name in posts}
        paths |= {f"/{name}": _operation("post", text_only) for name in ("decode", "tokenize")}
        paths["/health"] = _operation("get", ("200", "503"))
        paths |= {path: _operation("get", ("200",)) for path in ("/info", "/metrics")}
        document = {
            "openapi": "3.0.3",
            "info": {"title": "Text Embeddings Inference", "description": self._model.stand_in, "version": VERSION},
            "paths": paths,
            "components": {},
            "tags": [],
        }
        return self._respond(request, 200, _json(document), "application/json")


def _operation(method: str, codes: Sequence[str]) -> dict[str, object]:
    return {method: {"responses": {code: {"description": ""} for code in codes}}}


def _labelled_text(labelled: Sequence[tuple[str, np.float32]]) -> str:
    rows = [f'{{"score":{float_text(score)},"label":{_json(label)}}}' for label, score in labelled]
    return "[" + ",".join(rows) + "]"


def _sequence(value: str | list[str]) -> str | tuple[str, str]:
    if isinstance(value, str):
        return value
    return value[0] if len(value) == 1 else (value[0], value[1])


async def serve(arguments: Arguments, model: ServedModel, infer: Infer, log: Log, host: str) -> None:
    """Binds the port, and serves until SIGTERM or SIGINT and then until every started request has its answer.

    Raises:
        StartError: the port cannot be bound.
    """
    server = Server(arguments, model, infer, log)
    runner = web.AppRunner(
        server.application(),
        access_log=None,
        # A client that goes away frees its permit at once (recording overload/22).
        handler_cancellation=True,
        # The router has no time limit of its own on idle connections.
        keepalive_timeout=24 * 3600,
    )
    await runner.setup()
    site = web.TCPSite(runner, host, arguments.port, backlog=1024)
    address = shown_address(host, arguments.port)
    try:
        await site.start()
    except OSError as error:
        raise StartError(f"Could not bind TCP Listener on {address}", os_error(error)) from None
    stopped = signalled(log)
    log.info(HTTP_SERVER, f"{SOURCE}:1880", f"Starting HTTP server: {address}")
    log.info(HTTP_SERVER, f"{SOURCE}:1881", "Ready")
    await stopped
    await site.stop()
    await server.drain(lambda: runner.server.connections if runner.server else [])
    await runner.cleanup()
