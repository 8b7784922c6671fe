"""The gRPC build of the stand-in in a process of its own, and a client that speaks by `tei_protocol`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import grpc

from local.engines.tei_protocol import MESSAGES, METHODS
from tests.local_engines.engine import HANG, HOST, Engine, free_port

MODULE = "local.engines.tei.grpc"


class GrpcEngine(Engine):
    """`python -m local.engines.tei.grpc`; its metrics are on a port of their own."""

    def __init__(self, arguments: Sequence[str], directory: Path, *, metrics_port: int | None = None) -> None:
        metrics_port = free_port() if metrics_port is None else metrics_port
        super().__init__([*arguments, "--prometheus-port", str(metrics_port)], directory, module=MODULE)
        self.http_port = metrics_port
        self.channel = grpc.insecure_channel(f"{HOST}:{self.port}", options=[("grpc.enable_http_proxy", 0)])

    def __exit__(self, *arguments: object) -> None:
        self.channel.close()
        super().__exit__(*arguments)

    def call(self, path: str, *, key: str | None = None, **fields: Any) -> Any:
        """The answer to one message; raises grpc.RpcError."""
        return self.start(path, key=key, **fields).result()

    def start(self, path: str, *, key: str | None = None, **fields: Any) -> Any:
        """A call under way: a future whose result is the answer."""
        method = METHODS[path]
        call = self.channel.unary_unary(
            path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return call.future(method.request(**fields), timeout=HANG, metadata=_metadata(key))

    def stream(self, path: str, requests: Iterable[dict[str, Any]], *, key: str | None = None) -> list[Any]:
        """All answers of a stream, in order; raises grpc.RpcError."""
        method = METHODS[path]
        call = self.channel.stream_stream(
            path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        messages = (method.request(**fields) for fields in requests)
        return list(call(messages, timeout=HANG, metadata=_metadata(key)))

    def refused(self, path: str, *, key: str | None = None, **fields: Any) -> tuple[str, str]:
        """Code and text of a call that has to fail."""
        try:
            answer = self.call(path, key=key, **fields)
        except grpc.RpcError as error:
            return error.code().name, error.details()
        raise AssertionError(f"{path} was answered: {answer}")

    def health(self, service: str) -> str:
        answer = self.call("/grpc.health.v1.Health/Check", service=service)
        enum = MESSAGES["HealthCheckResponse"].DESCRIPTOR.fields_by_name["status"].enum_type
        return str(enum.values_by_number[answer.status].name)


def _metadata(key: str | None) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {key}")] if key is not None else []
