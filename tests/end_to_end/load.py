"""Load on a Service while a test looks at the cluster, and what the cluster did meanwhile."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from kubernetes import client, config

from scripts.load import Closed, Result, Target, run

#: Loads end by themselves, in case nobody ends them.
_MOST_SECONDS = 600.0
_LOOK_EVERY_SECONDS = 0.5


class BackgroundLoad:
    """A closed load that runs until it is stopped. Requests that are unanswered then are given up and not counted."""

    def __init__(self, target: Target, clients: int) -> None:
        self.started = time.monotonic()
        #: When it was stopped.
        self.ended = float("inf")
        self._target = target
        self._clients = clients
        self._stop: Callable[[], object] = threading.Event().set
        self._running = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._result: Future[Result] = self._pool.submit(asyncio.run, self._run())
        self._running.wait()

    async def _run(self) -> Result:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stop.set)
        self._running.set()
        return await run(self._target, Closed(self._clients, seconds=_MOST_SECONDS), stop)

    def stop(self) -> Result:
        """Ends the load, if it has not ended yet, and says what came of it."""
        if not self._result.done():
            self._stop()
            self.ended = time.monotonic()
        self._pool.shutdown()
        return self._result.result()


@dataclass(frozen=True)
class Seen:
    """One look at a scaled workload: when, in time.monotonic(), and what there was."""

    at: float
    replicas: int
    ready: int
    #: Conditions of the ScaledObject, by type.
    conditions: Mapping[str, str]


@dataclass
class Watch:
    """Looks at a Deployment and its ScaledObject, which share a name, twice a second and keeps what it saw."""

    kubeconfig: str
    namespace: str
    name: str
    seen: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        api = config.new_client_from_config(self.kubeconfig)
        self._apps, self._custom = client.AppsV1Api(api), client.CustomObjectsApi(api)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def since(self, at: float) -> list[Seen]:
        """What was seen from then on."""
        return [seen for seen in list(self.seen) if seen.at >= at]

    def first(self, at: float, holds: Callable[[Seen], bool]) -> float | None:
        """When something held for the first time from ``at`` on."""
        return next((seen.at for seen in self.since(at) if holds(seen)), None)

    def _look(self) -> None:
        while not self._end.wait(_LOOK_EVERY_SECONDS):
            try:
                found: Any = self._custom.get_namespaced_custom_object(
                    "keda.sh", "v1alpha1", self.namespace, "scaledobjects", self.name
                )
                deployment = self._apps.read_namespaced_deployment(self.name, self.namespace)
            except client.ApiException:
                # Both are gone once the stack is destroyed.
                continue
            conditions = found.get("status", {}).get("conditions", [])
            self.seen.append(
                Seen(
                    at=time.monotonic(),
                    replicas=deployment.spec.replicas,
                    ready=deployment.status.ready_replicas or 0,
                    conditions={one["type"]: one["status"] for one in conditions},
                )
            )
