"""Serves the admin API of a nameserver at its admin socket (`epochmq_protocol.admin_api`).

A process with `enableControllerInNamesrv` runs a nameserver and a controller. It serves the controller's
admin API, whose state includes the nameserver's counts and whose settings include the nameserver's.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from epochmq_controller.nameserver.config import KEYS
from epochmq_controller.nameserver.server import Nameserver
from epochmq_protocol import properties
from epochmq_protocol.admin_api import results
from epochmq_protocol.admin_api.common_operations import installed_version, redacted_config, set_log_level
from epochmq_protocol.admin_api.operations import (
    AdminArguments,
    AdminOperation,
    ChangeConfigArguments,
    LogLevelArguments,
    ReadinessLimits,
)
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.frame import request
from epochmq_protocol.transport import port_counts
from epochmq_protocol.transport.admin_socket import AdminOperationHandler, AdminSocketServer
from epochmq_protocol.transport.outgoing_tls import outgoing_metric_values

if TYPE_CHECKING:  # a nameserver alone does not load the controller
    from epochmq_controller.controller.admin_api import ControllerAdminApi
    from epochmq_controller.controller.server import ControllerServer


class NameserverAdminApi:
    """The admin API of one nameserver."""

    def __init__(self, nameserver: Nameserver) -> None:
        self._nameserver = nameserver
        self._controller: ControllerAdminApi | None = None

    def operations(self) -> dict[str, AdminOperationHandler]:
        """The handlers by operation."""
        return {
            AdminOperation.LIVE: AdminOperationHandler(AdminArguments, self._live),
            AdminOperation.STATE: AdminOperationHandler(ReadinessLimits, self._state),
            AdminOperation.METRICS: AdminOperationHandler(ReadinessLimits, self._metrics),
            AdminOperation.CONFIG: AdminOperationHandler(AdminArguments, self._config),
            AdminOperation.LOG_LEVEL: AdminOperationHandler(LogLevelArguments, self._log_level),
            AdminOperation.CHANGE_CONFIG: AdminOperationHandler(ChangeConfigArguments, self._change_config),
        }

    def operations_with(self, controller: ControllerAdminApi) -> dict[str, AdminOperationHandler]:
        """The handlers of a process that also runs a controller: the operations on the settings are for both,
        all other operations are the controller's."""
        self._controller = controller
        of_nameserver = self.operations()
        for_both: dict[str, AdminOperationHandler] = {
            name: of_nameserver[name] for name in (AdminOperation.CONFIG, AdminOperation.CHANGE_CONFIG)
        }
        return {**controller.operations(), **for_both}

    async def _live(self, _: AdminArguments, timeout_ms: float) -> results.ProcessLiveness:
        return results.ProcessLiveness(component="nameserver", pid=os.getpid(), version=installed_version())

    async def _state(self, _: ReadinessLimits, timeout_ms: float) -> results.NameserverState:
        return self.state()

    def state(self) -> results.NameserverState:
        """The state of the nameserver. One that responds is ready: it depends on no other process."""
        counts = self.counts()
        return results.NameserverState(
            address=counts.address,
            brokers=counts.brokers,
            broker_names=counts.broker_names,
            topics=counts.topics,
            ready=True,
            not_ready=[],
        )

    def counts(self) -> results.NameserverCounts:
        """The numbers of brokers, broker names and topics."""
        tables, server = self._nameserver.tables, self._nameserver.server
        return results.NameserverCounts(
            address=f"{server.host}:{server.port}",
            brokers=len(tables.live),
            broker_names=len(tables.brokers),
            topics=len(tables.topics),
        )

    async def _metrics(self, _: ReadinessLimits, timeout_ms: float) -> results.MetricValues:
        return results.MetricValues(
            state=self.state(), values=self.metric_values() | port_counts.metric_values()
        )

    def metric_values(self) -> dict[str, float]:
        """Metric name → value of what the state does not contain."""
        nameserver = self._nameserver
        return nameserver.server.certificates.metric_values("nameserver") | outgoing_metric_values(
            nameserver.outgoing, "nameserver"
        )

    async def _config(self, _: AdminArguments, timeout_ms: float) -> results.EffectiveConfig:
        response = await self._nameserver.calls.call(request(RequestCode.GET_NAMESRV_CONFIG))
        config = properties.parse(response.body.decode())
        if self._controller is not None:
            config = {**await self._controller.config(), **config}
        return redacted_config(config)

    async def _log_level(self, wanted: LogLevelArguments, timeout_ms: float) -> results.LogLevelResult:
        return set_log_level(wanted)

    async def _change_config(
        self, wanted: ChangeConfigArguments, timeout_ms: float
    ) -> results.EffectiveConfig:
        """Changes all settings or none. In a process with a controller: first all settings that the
        controller knows, or none, then all that the nameserver knows, or none. A key that both know changes
        in both; a key that neither knows goes to the nameserver, which rejects it."""
        controller = self._controller
        controller_changes = {
            key: value for key, value in wanted.changes.items() if controller and controller.knows(key)
        }
        nameserver_changes = {
            key: value
            for key, value in wanted.changes.items()
            if key in KEYS or key not in controller_changes
        }
        if controller is not None and controller_changes:
            await controller.change(controller_changes)
        if nameserver_changes:
            body = properties.rewrite("", nameserver_changes).encode()
            await self._nameserver.calls.call(request(RequestCode.UPDATE_NAMESRV_CONFIG, body=body))
        return await self._config(AdminArguments(), timeout_ms)


def admin_socket_server(
    nameserver: Nameserver, controller: ControllerServer | None
) -> AdminSocketServer | None:
    """The server of the process's admin socket, None if it has none. ConfigError for an invalid path."""
    path = nameserver.tables.config.admin_socket_path
    if not path:
        return None
    admin_api = NameserverAdminApi(nameserver)
    if controller is None:
        return AdminSocketServer(path, admin_api.operations())
    from epochmq_controller.controller.admin_api import ControllerAdminApi

    return AdminSocketServer(
        path,
        admin_api.operations_with(
            ControllerAdminApi(
                controller=controller.controller,
                calls=controller.calls,
                nameserver=admin_api.counts,
                metric_values=lambda: (
                    controller.server.certificates.metric_values("controller")
                    | outgoing_metric_values(controller.outgoing, "controller")
                    | admin_api.metric_values()
                ),
            )
        ),
    )
