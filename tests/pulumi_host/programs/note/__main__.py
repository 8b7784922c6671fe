"""A provider with one resource type, `note:index:Note`: it keeps its inputs and reaches nothing outside.

Input `gate` is the path of a named pipe: creation announces itself there and then waits until Ctrl-C cancels it.
"""

# ruff: noqa: N802, ARG002 -- names and parameters of the methods are the protocol's.

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc


class Notes(provider_pb2_grpc.ResourceProviderServicer):
    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def Handshake(
        self, request: provider_pb2.ProviderHandshakeRequest, context: grpc.ServicerContext
    ) -> provider_pb2.ProviderHandshakeResponse:
        return provider_pb2.ProviderHandshakeResponse(accept_secrets=True)

    def GetPluginInfo(self, request: Empty, context: grpc.ServicerContext) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version="1.0.0")

    def CheckConfig(
        self, request: provider_pb2.CheckRequest, context: grpc.ServicerContext
    ) -> provider_pb2.CheckResponse:
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: provider_pb2.DiffRequest, context: grpc.ServicerContext) -> provider_pb2.DiffResponse:
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)

    def Configure(
        self, request: provider_pb2.ConfigureRequest, context: grpc.ServicerContext
    ) -> provider_pb2.ConfigureResponse:
        return provider_pb2.ConfigureResponse(acceptSecrets=True, supportsPreview=True)

    def Check(self, request: provider_pb2.CheckRequest, context: grpc.ServicerContext) -> provider_pb2.CheckResponse:
        return provider_pb2.CheckResponse(inputs=request.news)

    def Diff(self, request: provider_pb2.DiffRequest, context: grpc.ServicerContext) -> provider_pb2.DiffResponse:
        old, new = MessageToDict(request.old_inputs), MessageToDict(request.news)
        changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        answer = provider_pb2.DiffResponse.DIFF_SOME if changed else provider_pb2.DiffResponse.DIFF_NONE
        return provider_pb2.DiffResponse(changes=answer, diffs=changed)

    def Create(self, request: provider_pb2.CreateRequest, context: grpc.ServicerContext) -> provider_pb2.CreateResponse:
        gate = MessageToDict(request.properties).get("gate")
        if gate and not request.preview:
            Path(gate).write_text("creating\n")
            self.cancelled.wait()
            context.abort(grpc.StatusCode.CANCELLED, "creation was cancelled")
        return provider_pb2.CreateResponse(id="" if request.preview else "note", properties=request.properties)

    def Update(self, request: provider_pb2.UpdateRequest, context: grpc.ServicerContext) -> provider_pb2.UpdateResponse:
        return provider_pb2.UpdateResponse(properties=request.news)

    def Delete(self, request: provider_pb2.DeleteRequest, context: grpc.ServicerContext) -> Empty:
        return Empty()

    def Cancel(self, request: Empty, context: grpc.ServicerContext) -> Empty:
        self.cancelled.set()
        return Empty()


if __name__ == "__main__":
    server = grpc.server(ThreadPoolExecutor(8))
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(Notes(), server)
    print(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    server.wait_for_termination()
