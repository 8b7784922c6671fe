"""An engine in pods of its own, behind a Service."""

from pulumi_kubernetes.core import v1 as core

from infra.core.plan import SERVICE_PORT
from infra.program.serving import pods
from infra.program.serving.workload import CENTRALIZED, SIDECAR, ServedWorkload


class CentralizedWorkload(ServedWorkload):
    """Clients reach the engine through the Service."""

    TYPE = CENTRALIZED
    OTHER = SIDECAR

    def _containers(self) -> tuple[list[core.ContainerArgs], list[core.ContainerArgs]]:
        workload = self._workload
        pre_stop = workload.budgets.pre_stop
        return [], [pods.engine(workload.engine, workload.image, self._env, pre_stop=pre_stop, sidecar=False)]

    def _service_ports(self) -> list[core.ServicePortArgs]:
        engine = self._workload.engine
        main, *others = engine.ports
        return [
            core.ServicePortArgs(
                name=main.name,
                port=SERVICE_PORT,
                target_port=main.name,
                app_protocol="kubernetes.io/h2c" if engine.protocol == "grpc" else None,
            ),
            *(core.ServicePortArgs(name=port.name, port=port.number, target_port=port.name) for port in others),
        ]

    def _client_port(self) -> str:
        return self._workload.engine.ports[0].name

    def _scraped_ports(self) -> list[str]:
        return [metrics.port for metrics in self._workload.engine.metrics]
