"""LanguageRuntime for Python: what the Pulumi engine asks of a language host.

The protocol is `pulumi.runtime.proto.language_pb2_grpc` of the installed SDK. Programs run under the SDK's own
executor, the file `pulumi-language-python-exec` of the Go module github.com/pulumi/pulumi/sdk/v3.
"""

# ruff: noqa: N802, ARG002 -- names and parameters of the methods are the protocol's.

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from queue import SimpleQueue
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto import language_pb2, language_pb2_grpc, plugin_pb2

from local.pulumi_host.interpreter import Interpreter, UnusableRuntimeError

Process = subprocess.Popen[bytes]

EXECUTOR = "pulumi-language-python-exec"
SHOWN_TO_THE_USER = 32
"""Exit code of the executor after it has reported an exception itself."""
PLUGIN_KINDS = ("analyzer", "resource")
"""Policy packs, and providers that a project names as a directory under `plugins`."""
GRACE_SECONDS = 3.0
"""Between SIGTERM and SIGKILL; below the 5 seconds after which the engine kills the host's process group."""


class LanguageHost(language_pb2_grpc.LanguageRuntimeServicer):
    """Starts programs and plugins as children in its own process group, so that none can outlive the engine."""

    def __init__(self, engine_address: str) -> None:
        self._engine_address = engine_address
        self._programs: set[Process] = set()
        self._plugins: set[Process] = set()
        self._cancelled = False

    def Handshake(
        self, request: language_pb2.LanguageHandshakeRequest, context: grpc.ServicerContext
    ) -> language_pb2.LanguageHandshakeResponse:
        return language_pb2.LanguageHandshakeResponse()

    def GetPluginInfo(self, request: Empty, context: grpc.ServicerContext) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version=metadata.version("pulumi"))

    def About(self, request: language_pb2.AboutRequest, context: grpc.ServicerContext) -> language_pb2.AboutResponse:
        found = _interpreter(request.info, context).probe()
        return language_pb2.AboutResponse(executable=found["executable"], version=found["version"])

    def GetProgramDependencies(
        self, request: language_pb2.GetProgramDependenciesRequest, context: grpc.ServicerContext
    ) -> language_pb2.GetProgramDependenciesResponse:
        packages = _interpreter(request.info, context).probe()["packages"]
        return language_pb2.GetProgramDependenciesResponse(
            dependencies=[
                language_pb2.DependencyInfo(name=package["name"], version=package["version"])
                for package in packages
                if package["direct"] or request.transitiveDependencies
            ]
        )

    def GetRequiredPackages(
        self, request: language_pb2.GetRequiredPackagesRequest, context: grpc.ServicerContext
    ) -> language_pb2.GetRequiredPackagesResponse:
        packages = _interpreter(request.info, context).probe()["packages"]
        return language_pb2.GetRequiredPackagesResponse(
            packages=[
                plugin_pb2.PackageDependency(
                    name=plugin.get("name") or package["name"].removeprefix("pulumi-").removeprefix("pulumi_"),
                    kind="resource",
                    version=plugin.get("version") or package["version"],
                    server=plugin.get("server", ""),
                )
                for package in packages
                if (plugin := package["plugin"]) and plugin.get("resource")
            ]
        )

    def InstallDependencies(
        self, request: language_pb2.InstallDependenciesRequest, context: grpc.ServicerContext
    ) -> Iterator[language_pb2.InstallDependenciesResponse]:
        interpreter = _interpreter(request.info, context)
        line = f"Nothing installed: the local language host uses {interpreter.executable} as it is\n"
        yield language_pb2.InstallDependenciesResponse(stdout=line.encode())

    def Run(self, request: language_pb2.RunRequest, context: grpc.ServicerContext) -> language_pb2.RunResponse:
        """Run a program to its end. The configuration goes through the environment: it holds decrypted secrets."""
        try:
            interpreter = Interpreter.of(request.info)
        except UnusableRuntimeError as error:
            return language_pb2.RunResponse(error=str(error))
        executor = shutil.which(EXECUTOR, mode=os.F_OK)
        if executor is None:
            return language_pb2.RunResponse(error=f"{EXECUTOR} is not on PATH: it lies beside pulumi after `make up`")
        values = {
            "monitor": request.monitor_address,
            "engine": self._engine_address,
            "project": request.project,
            "stack": request.stack,
            "organization": request.organization,
            "root_directory": request.info.root_directory,
            "pwd": request.pwd,
            "dry_run": "true" if request.dryRun else "false",
            "parallel": str(request.parallel),
        }
        options = [part for key, value in values.items() if value for part in (f"--{key}", value)]
        command = [interpreter.executable, "-u", executor, *options, request.info.entry_point or ".", *request.args]
        configuration = {
            "PULUMI_CONFIG": json.dumps(dict(request.config)),
            "PULUMI_CONFIG_SECRET_KEYS": json.dumps(list(request.configSecretKeys)),
        }
        try:
            # Output goes straight to the engine: it reads this process's own stdout and stderr.
            variables = interpreter.environment() | configuration
            with self._child(self._programs, context, command, cwd=request.pwd, env=variables) as child:
                code = child.wait()
        except OSError as error:
            return language_pb2.RunResponse(error=f"could not start the program: {error.strerror}")
        if code == 0:
            return language_pb2.RunResponse()
        if code == SHOWN_TO_THE_USER or self._cancelled:
            return language_pb2.RunResponse(bail=True)
        reason = f"exited with code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
        return language_pb2.RunResponse(error=f"the program {reason}")

    def RunPlugin(
        self, request: language_pb2.RunPluginRequest, context: grpc.ServicerContext
    ) -> Iterator[language_pb2.RunPluginResponse]:
        """Run a policy pack or a provider written in Python until it ends or the engine cancels the call."""
        if request.kind not in PLUGIN_KINDS:
            context.abort(
                grpc.StatusCode.UNIMPLEMENTED,
                f"the local language host runs plugins of the kinds {', '.join(PLUGIN_KINDS)}, not {request.kind!r}",
            )
        interpreter = _interpreter(request.info, context)
        directory = request.info.program_directory
        if request.kind == "analyzer":
            arguments = ["-m", "pulumi.policy", *request.args, directory]
        else:
            arguments = [directory, *request.args]
        activated = interpreter.environment()
        variables = activated | dict(entry.split("=", 1) for entry in request.env) | {"PATH": activated["PATH"]}
        output: SimpleQueue[language_pb2.RunPluginResponse | None] = SimpleQueue()

        def forward(stream: Any, response: Callable[[bytes], language_pb2.RunPluginResponse]) -> None:
            while chunk := stream.read1(65536):
                output.put(response(chunk))
            output.put(None)

        with self._child(
            self._plugins,
            context,
            [interpreter.executable, "-u", *arguments],
            cwd=request.pwd,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as child:
            streams = (
                (child.stdout, lambda chunk: language_pb2.RunPluginResponse(stdout=chunk)),
                (child.stderr, lambda chunk: language_pb2.RunPluginResponse(stderr=chunk)),
            )
            for reader in streams:
                threading.Thread(target=forward, args=reader, daemon=True).start()
            for _ in streams:
                yield from iter(output.get, None)
            yield language_pb2.RunPluginResponse(exitcode=child.wait())

    def Cancel(self, request: Empty, context: grpc.ServicerContext) -> Empty:
        """Ctrl-C: end the programs now. What providers have begun is finished and recorded by the engine."""
        self._cancelled = True
        for child in list(self._programs):
            child.terminate()
        return Empty()

    def end(self) -> None:
        """End every process of the group but this one; whatever ignores SIGTERM takes this process with it."""
        self._cancelled = True
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        for child in [*self._programs, *self._plugins]:
            try:
                child.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(0, signal.SIGKILL)

    @contextmanager
    def _child(
        self, group: set[Process], context: grpc.ServicerContext, command: list[Any], **options: Any
    ) -> Iterator[Process]:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, **options) as child:
            group.add(child)
            try:
                # The callback comes when the engine cancels the call or is gone, and after the end, where it is idle.
                if not context.add_callback(child.terminate) or self._cancelled:
                    child.terminate()
                yield child
            finally:
                group.discard(child)


def _interpreter(info: language_pb2.ProgramInfo, context: grpc.ServicerContext) -> Interpreter:
    try:
        return Interpreter.of(info)
    except UnusableRuntimeError as error:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        raise
