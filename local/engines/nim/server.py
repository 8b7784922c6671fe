"""HTTP surface of embedding and reranking NIMs, as NVIDIA's pages and public reports have it."""

import asyncio
import base64
import json
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from local.engines.nim import models
from local.engines.nim.configuration import Configuration, StartError, check_weights_path
from local.engines.nim.service import InputError, Service, load

INPUT_TYPES = ("query", "passage")
_EMBEDDING_TRUNCATE = ("NONE", "START", "END")
_RANKING_TRUNCATE = ("NONE", "END")
_MOST_PASSAGES = 512
#: Tokens and passages of a request fit well below.
_BODY_BYTES = 64 * 2**20

Body = Mapping[str, Any]
Answer = Callable[[Service, Body], Awaitable[dict[str, Any]]]


class RefusedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """Serves before the model is loaded, and says that it is not ready."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._model = configuration.model
        self._sentence = models.sentence(configuration.model, configuration.version)
        self._service: Service | None = None
        self._pending = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        #: Triton's counters, by name.
        self._triton: Counter[str] = Counter()

    def ready(self, service: Service) -> None:
        """From now on requests are computed."""
        self._service = service

    def application(self) -> web.Application:
        """What listens on the HTTP port."""
        application = web.Application(client_max_size=_BODY_BYTES, middlewares=[self._count])
        route = application.router
        route.add_get("/v1/health/live", self._live)
        route.add_get("/v1/health/ready", self._ready)
        route.add_get("/v1/models", self._models)
        route.add_get("/v1/metrics", self._metrics)
        if self._model.dimension is None:
            route.add_post("/v1/ranking", self._answering(self._rank))
        else:
            route.add_post("/v1/embeddings", self._answering(self._embed))
        application.on_response_prepare.append(self._say_so)
        return application

    def triton_application(self) -> web.Application:
        """What listens on Triton's metrics port in 1.x."""
        application = web.Application()
        application.router.add_get("/metrics", self._triton_metrics)
        application.on_response_prepare.append(self._say_so)
        return application

    async def _say_so(self, _request: web.Request, response: web.StreamResponse) -> None:
        response.headers["x-stand-in"] = self._sentence

    @web.middleware
    async def _count(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = _error(error.status, error.reason)
        route = request.match_info.route.resource
        self._requests[route.canonical if route else "other", response.status] += 1
        return response

    # -- what is not computed

    async def _live(self, _request: web.Request) -> web.Response:
        return _json({"object": "health.response", "message": "live", "live": True})

    async def _ready(self, _request: web.Request) -> web.Response:
        ready = self._service is not None
        body = {"object": "health.response", "message": "ready" if ready else "not ready", "ready": ready}
        return _json(body, 200 if ready else 503)

    async def _models(self, _request: web.Request) -> web.Response:
        row = {"id": self._configuration.served_name, "object": "model", "stand_in": self._sentence}
        return _json({"object": "list", "data": [row]})

    async def _metrics(self, _request: web.Request) -> web.Response:
        # No page names a NIM's own metrics: these are the stand-in's, so that nobody takes them for a NIM's.
        lines = ["# TYPE stand_in_nim_requests_total counter"]
        for (path, status), count in sorted(self._requests.items()):
            lines.append(f'stand_in_nim_requests_total{{path="{path}",status="{status}"}} {count}')
        lines += ["# TYPE stand_in_nim_requests_pending gauge", f"stand_in_nim_requests_pending {self._pending}"]
        return web.Response(text="\n".join(lines) + "\n")

    async def _triton_metrics(self, _request: web.Request) -> web.Response:
        labels = f'{{model="{self._model.id.replace("/", "_")}",version="1"}}'
        lines = []
        for name in ("request_success", "request_failure", "count", "exec_count", "request_duration_us"):
            full = f"nv_inference_{name}"
            lines += [f"# TYPE {full} counter", f"{full}{labels} {self._triton[name]}"]
        pending = "nv_inference_pending_request_count"
        lines += [f"# TYPE {pending} gauge", f"{pending}{labels} {self._pending}"]
        return web.Response(text="\n".join(lines) + "\n")

    # -- what is computed

    def _answering(self, answer: Answer) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            try:
                return _json(await self._admitted(request, answer))
            except RefusedError as error:
                return _error(error.status, str(error))
            except InputError as error:
                return _error(400, str(error))

        return handle

    async def _admitted(self, request: web.Request, answer: Answer) -> dict[str, Any]:
        """The answer, unless the model is not loaded or too many requests wait."""
        if self._service is None:
            raise RefusedError(503, "not ready")
        queue = self._configuration.queue
        if queue is not None and self._pending >= queue:
            raise RefusedError(503, "queue full")
        started = time.perf_counter()
        self._pending += 1
        try:
            result = await answer(self._service, await _read(request))
        except BaseException:
            self._triton["request_failure"] += 1
            raise
        finally:
            self._pending -= 1
        self._triton.update({"request_success": 1, "exec_count": 1})
        self._triton["request_duration_us"] += int(1e6 * (time.perf_counter() - started))
        return result

    def _input_type(self, body: Body) -> str:
        """By the field, or by the ending of the model's name (text-embedding/1.5.0/reference)."""
        served = self._configuration.served_name
        name, given = body.get("model"), body.get("input_type")
        if not isinstance(name, str):
            raise RefusedError(422, "model: a string is required")
        if given is not None and given not in INPUT_TYPES:
            raise RefusedError(422, f"input_type: it has to be one of {', '.join(INPUT_TYPES)}")
        for word in INPUT_TYPES:
            if name == f"{served}-{word}":
                return word
        self._check_model(name)
        if given is None:
            raise RefusedError(400, "'input_type' parameter is required for asymmetric models")
        return str(given)

    def _check_model(self, name: object) -> None:
        if name != self._configuration.served_name:
            raise RefusedError(404, f"Unknown model: {name}")

    async def _embed(self, service: Service, body: Body) -> dict[str, Any]:
        input_type = self._input_type(body)
        given = body.get("input")
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise RefusedError(422, "input: a string or a list of strings is required")
        encoding = _one_of(body, "encoding_format", ("float", "base64"))
        if body.get("embedding_type", "float") != "float":
            raise RefusedError(400, "embedding_type: this stand-in gives float only")
        truncate = _one_of(body, "truncate", _EMBEDDING_TRUNCATE)
        vectors, tokens = await service.embed(texts, input_type, truncate, self._dimensions(body))
        self._triton["count"] += len(texts)
        rows = [
            {
                "index": index,
                "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode()
                if encoding == "base64"
                else [float(value) for value in vector],
                "object": "embedding",
            }
            for index, vector in enumerate(vectors)
        ]
        return {
            "object": "list",
            "data": rows,
            "model": self._configuration.served_name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    def _dimensions(self, body: Body) -> int | None:
        given = body.get("dimensions")
        size = self._model.dimension or 0
        if given is None or given == size:
            return None
        if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= size:
            raise RefusedError(400, f"dimensions: it has to be a number from 1 to {size}")
        if not self._model.dynamic:
            raise RefusedError(400, f"dimensions: {self._model.id} gives {size} dimensions only")
        return given

    async def _rank(self, service: Service, body: Body) -> dict[str, Any]:
        self._check_model(body.get("model"))
        passages = body.get("passages")
        if not isinstance(passages, list) or not passages:
            raise RefusedError(422, "passages: a list of objects with text is required")
        if len(passages) > _MOST_PASSAGES:
            raise RefusedError(400, f"passages: {_MOST_PASSAGES} at most, given {len(passages)}")
        texts = [_text(passage, "passages") for passage in passages]
        truncate = _one_of(body, "truncate", _RANKING_TRUNCATE)
        logits = await service.rank(_text(body.get("query"), "query"), texts, truncate)
        self._triton["count"] += len(texts)
        order = sorted(range(len(logits)), key=lambda index: -logits[index])
        return {"rankings": [{"index": index, "logit": logits[index]} for index in order]}


async def _read(request: web.Request) -> Body:
    try:
        body = json.loads(await request.read())
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise RefusedError(422, "the body is no JSON") from None
    if not isinstance(body, dict):
        raise RefusedError(422, "the body is no JSON object")
    return body


def _one_of(body: Body, key: str, allowed: tuple[str, ...]) -> str:
    """The value of ``key``; the first of ``allowed`` where it is absent."""
    given = body.get(key, allowed[0])
    if given not in allowed:
        raise RefusedError(422, f"{key}: it has to be one of {', '.join(allowed)}")
    return str(given)


def _text(given: object, key: str) -> str:
    text = given.get("text") if isinstance(given, dict) else None
    if not isinstance(text, str):
        raise RefusedError(422, f"{key}: an object with text is required")
    return text


def _json(body: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.json_response(body, status=status)


def _error(status: int, message: str) -> web.Response:
    # Public reports show {"error": ...} most often, and {"detail": ...}: only status and text can be relied on.
    return _json({"error": message}, status)


class _Log:
    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json

    def __call__(self, message: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"timestamp": now, "level": "INFO", "message": message}) if self._json else message
        print(line, flush=True)


async def serve(configuration: Configuration) -> None:
    """Listens, loads the model, and serves until SIGTERM or SIGINT and then until started requests have their answer.

    Raises:
        StartError: weights cannot be kept or read, or a port cannot be bound.
    """
    log = _Log(as_json=configuration.json_log)
    log(models.sentence(configuration.model, configuration.version))
    check_weights_path(configuration.weights_path)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = Server(configuration)
    runners = [await _listen(server.application(), configuration.host, configuration.port)]
    if configuration.triton_metrics_port is not None:
        port = configuration.triton_metrics_port
        runners.append(await _listen(server.triton_application(), configuration.host, port))
    log(f"Listening on {configuration.host}:{configuration.port}, loading the model")
    try:
        forward = await loop.run_in_executor(None, load, configuration.model)
    except FileNotFoundError as error:
        raise StartError(f"the stand-in's model files are missing ({error}): set STAND_IN_MODELS") from None
    server.ready(Service(configuration.model, forward))
    log("Ready")
    await stop.wait()
    log("Stopping")
    for runner in runners:
        await runner.cleanup()


async def _listen(application: web.Application, host: str, port: int) -> web.AppRunner:
    # A client that goes away is not computed for.
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=600)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=1024).start()
    except OSError as error:
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return runner
