"""An engine in each pod of an app. The Service leads to the app, which reaches the engine on localhost."""

from pulumi_kubernetes.core import v1 as core

from infra.core.plan import SERVICE_PORT, PlannedApp
from infra.program.serving import pods
from infra.program.serving.workload import CENTRALIZED, SIDECAR, ServedWorkload


class SidecarWorkload(ServedWorkload):
    """The engine is a native sidecar: ready before the app starts, and there until the app has ended."""

    TYPE = SIDECAR
    OTHER = CENTRALIZED

    @property
    def _app(self) -> PlannedApp:
        if self._workload.app is None:
            raise AssertionError(f"workload {self._workload.name} is a sidecar without an app")
        return self._workload.app

    def _containers(self) -> tuple[list[core.ContainerArgs], list[core.ContainerArgs]]:
        workload = self._workload
        # It gets no SIGTERM before the app has ended, so it need not wait for endpoints.
        engine = pods.engine(workload.engine, workload.image, self._env, pre_stop=None, sidecar=True)
        return [engine], [pods.app(self._app, self._env, pre_stop=workload.budgets.pre_stop)]

    def _service_ports(self) -> list[core.ServicePortArgs]:
        # For the ServiceMonitor alone: the NetworkPolicy lets nobody but Prometheus in. By number, because before 1.32
        # Kubernetes finds no named ports of init containers (kubernetes/kubernetes#127958), nor do some CNIs.
        scraped = dict(zip(self._workload.metrics_ports, self._scraped_ports(), strict=True))
        return [
            core.ServicePortArgs(name=self._app.port.name, port=SERVICE_PORT, target_port=self._app.port.name),
            *(core.ServicePortArgs(name=name, port=port, target_port=port) for name, port in scraped.items()),
        ]

    def _client_port(self) -> str:
        return self._app.port.name

    def _scraped_ports(self) -> list[int]:
        engine = self._workload.engine
        numbers = {port.name: port.number for port in engine.ports}
        return [numbers[metrics.port] for metrics in engine.metrics]
