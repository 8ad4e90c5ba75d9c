"""What a nameserver answers at its local socket (`epochmq_protocol.admin`). With a controller inside, the
process is a controller there that has a nameserver, too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from epochmq_controller.nameserver.config import KEYS
from epochmq_controller.nameserver.server import Nameserver
from epochmq_protocol import properties
from epochmq_protocol.admin import states
from epochmq_protocol.admin.operations import Arguments, ChangeConfig, Limits, LogLevel, Op
from epochmq_protocol.admin.process import own_version, set_level, settings_shown
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.frame import request
from epochmq_protocol.transport.local_socket import LocalServer, Operation

if TYPE_CHECKING:  # a nameserver alone holds nothing of the controller in memory
    from epochmq_controller.controller.local_api import ControllerLocalApi
    from epochmq_controller.controller.server import ControllerServer


class NameserverLocalApi:
    """One nameserver's."""

    def __init__(self, nameserver: Nameserver) -> None:
        self._nameserver = nameserver
        self._controller: ControllerLocalApi | None = None

    def operations(self) -> dict[str, Operation]:
        """By name."""
        return {
            Op.LIVE: Operation(Arguments, self._live),
            Op.STATE: Operation(Limits, self._state),
            Op.METRICS: Operation(Limits, self._metrics),
            Op.CONFIG: Operation(Arguments, self._config),
            Op.LOG_LEVEL: Operation(LogLevel, self._log_level),
            Op.CHANGE_CONFIG: Operation(ChangeConfig, self._change_config),
        }

    def beside(self, controller: ControllerLocalApi) -> dict[str, Operation]:
        """Of both: the settings are those of both, everything else is the controller's to say."""
        self._controller = controller
        own = self.operations()
        both: dict[str, Operation] = {name: own[name] for name in (Op.CONFIG, Op.CHANGE_CONFIG)}
        return {**controller.operations(), **both}

    async def _live(self, _: Arguments, timeout_ms: float) -> states.Live:
        return states.Live(component="nameserver", pid=os.getpid(), version=own_version())

    async def _state(self, _: Limits, timeout_ms: float) -> states.NameserverState:
        return self.state()

    def state(self) -> states.NameserverState:
        """A nameserver that answers is ready: it waits for nobody."""
        part = self.part()
        return states.NameserverState(
            address=part.address,
            brokers=part.brokers,
            broker_names=part.broker_names,
            topics=part.topics,
            ready=True,
            not_ready=[],
        )

    def part(self) -> states.NameserverPart:
        """What it knows."""
        tables, server = self._nameserver.tables, self._nameserver.server
        return states.NameserverPart(
            address=f"{server.host}:{server.port}",
            brokers=len(tables.live),
            broker_names=len(tables.brokers),
            topics=len(tables.topics),
        )

    async def _metrics(self, _: Limits, timeout_ms: float) -> states.Metrics:
        return states.Metrics(state=self.state(), figures={})

    async def _config(self, _: Arguments, timeout_ms: float) -> states.Config:
        answer = await self._nameserver.calls.call(request(RequestCode.GET_NAMESRV_CONFIG))
        config = properties.parse(answer.body.decode())
        if self._controller is not None:
            config = {**await self._controller.config(), **config}
        return settings_shown(config)

    async def _log_level(self, wanted: LogLevel, timeout_ms: float) -> states.LevelSet:
        return set_level(wanted)

    async def _change_config(self, wanted: ChangeConfig, timeout_ms: float) -> states.Config:
        """All or none; with a controller inside, of each of the two."""
        controller = self._controller
        theirs = {key: value for key, value in wanted.changes.items() if controller and controller.knows(key)}
        own = {key: value for key, value in wanted.changes.items() if key in KEYS or key not in theirs}
        if controller is not None and theirs:
            await controller.change(theirs)
        if own:
            body = properties.rewrite("", own).encode()
            await self._nameserver.calls.call(request(RequestCode.UPDATE_NAMESRV_CONFIG, body=body))
        return await self._config(Arguments(), timeout_ms)


def local_server(nameserver: Nameserver, controller: ControllerServer | None) -> LocalServer | None:
    """The socket of the process, None when it has none. ConfigError for a path that cannot be."""
    path = nameserver.tables.config.admin_socket_path
    if not path:
        return None
    admin = NameserverLocalApi(nameserver)
    if controller is None:
        return LocalServer(path, admin.operations())
    from epochmq_controller.controller.local_api import ControllerLocalApi

    return LocalServer(
        path, admin.beside(ControllerLocalApi(controller.controller, controller.calls, admin.part))
    )
