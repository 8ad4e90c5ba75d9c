"""What a nameserver answers at its local socket (`epochmq_protocol.admin_api`). With a controller inside, the
process is a controller there that has a nameserver, too."""

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
from epochmq_protocol.transport.admin_socket import AdminOperationHandler, AdminSocketServer

if TYPE_CHECKING:  # a nameserver alone holds nothing of the controller in memory
    from epochmq_controller.controller.local_api import ControllerLocalApi
    from epochmq_controller.controller.server import ControllerServer


class NameserverLocalApi:
    """One nameserver's."""

    def __init__(self, nameserver: Nameserver) -> None:
        self._nameserver = nameserver
        self._controller: ControllerLocalApi | None = None

    def operations(self) -> dict[str, AdminOperationHandler]:
        """By name."""
        return {
            AdminOperation.LIVE: AdminOperationHandler(AdminArguments, self._live),
            AdminOperation.STATE: AdminOperationHandler(ReadinessLimits, self._state),
            AdminOperation.METRICS: AdminOperationHandler(ReadinessLimits, self._metrics),
            AdminOperation.CONFIG: AdminOperationHandler(AdminArguments, self._config),
            AdminOperation.LOG_LEVEL: AdminOperationHandler(LogLevelArguments, self._log_level),
            AdminOperation.CHANGE_CONFIG: AdminOperationHandler(ChangeConfigArguments, self._change_config),
        }

    def beside(self, controller: ControllerLocalApi) -> dict[str, AdminOperationHandler]:
        """Of both: the settings are those of both, everything else is the controller's to say."""
        self._controller = controller
        own = self.operations()
        both: dict[str, AdminOperationHandler] = {
            name: own[name] for name in (AdminOperation.CONFIG, AdminOperation.CHANGE_CONFIG)
        }
        return {**controller.operations(), **both}

    async def _live(self, _: AdminArguments, timeout_ms: float) -> results.ProcessLiveness:
        return results.ProcessLiveness(component="nameserver", pid=os.getpid(), version=installed_version())

    async def _state(self, _: ReadinessLimits, timeout_ms: float) -> results.NameserverState:
        return self.state()

    def state(self) -> results.NameserverState:
        """A nameserver that answers is ready: it waits for nobody."""
        part = self.part()
        return results.NameserverState(
            address=part.address,
            brokers=part.brokers,
            broker_names=part.broker_names,
            topics=part.topics,
            ready=True,
            not_ready=[],
        )

    def part(self) -> results.NameserverCounts:
        """What it knows."""
        tables, server = self._nameserver.tables, self._nameserver.server
        return results.NameserverCounts(
            address=f"{server.host}:{server.port}",
            brokers=len(tables.live),
            broker_names=len(tables.brokers),
            topics=len(tables.topics),
        )

    async def _metrics(self, _: ReadinessLimits, timeout_ms: float) -> results.MetricValues:
        return results.MetricValues(state=self.state(), values={})

    async def _config(self, _: AdminArguments, timeout_ms: float) -> results.EffectiveConfig:
        answer = await self._nameserver.calls.call(request(RequestCode.GET_NAMESRV_CONFIG))
        config = properties.parse(answer.body.decode())
        if self._controller is not None:
            config = {**await self._controller.config(), **config}
        return redacted_config(config)

    async def _log_level(self, wanted: LogLevelArguments, timeout_ms: float) -> results.LogLevelResult:
        return set_log_level(wanted)

    async def _change_config(
        self, wanted: ChangeConfigArguments, timeout_ms: float
    ) -> results.EffectiveConfig:
        """All or none; with a controller inside, of each of the two."""
        controller = self._controller
        theirs = {key: value for key, value in wanted.changes.items() if controller and controller.knows(key)}
        own = {key: value for key, value in wanted.changes.items() if key in KEYS or key not in theirs}
        if controller is not None and theirs:
            await controller.change(theirs)
        if own:
            body = properties.rewrite("", own).encode()
            await self._nameserver.calls.call(request(RequestCode.UPDATE_NAMESRV_CONFIG, body=body))
        return await self._config(AdminArguments(), timeout_ms)


def local_server(nameserver: Nameserver, controller: ControllerServer | None) -> AdminSocketServer | None:
    """The socket of the process, None when it has none. ConfigError for a path that cannot be."""
    path = nameserver.tables.config.admin_socket_path
    if not path:
        return None
    admin = NameserverLocalApi(nameserver)
    if controller is None:
        return AdminSocketServer(path, admin.operations())
    from epochmq_controller.controller.local_api import ControllerLocalApi

    return AdminSocketServer(
        path, admin.beside(ControllerLocalApi(controller.controller, controller.calls, admin.part))
    )
