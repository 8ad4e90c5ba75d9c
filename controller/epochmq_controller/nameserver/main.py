"""Runs the process `epochmq nameserver`: one nameserver and, with `enableControllerInNamesrv`, a controller
beside it, until SIGTERM or SIGINT.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epochmq_controller import process
from epochmq_controller.nameserver import config as config_module
from epochmq_controller.nameserver.admin_api import admin_socket_server
from epochmq_controller.nameserver.server import Nameserver

if TYPE_CHECKING:  # a nameserver alone does not load the controller
    from epochmq_controller.controller import config as controller_configs

log = logging.getLogger(__name__)

NAMESERVER_ONLY_KEYS = ("bindAddress", "listenPort")
"""Where the nameserver listens. A controller listens on its own address in `controllerDLegerPeers`."""


@dataclass(frozen=True)
class StartupSettings:
    """The settings of the nameserver and, if there is one, of the controller."""

    nameserver: config_module.LoadedNamesrvConfig
    controller: controller_configs.LoadedControllerConfig | None
    warnings: list[str]


def run(config_path: str | None, overrides: Mapping[str, str] | None = None) -> int:
    """Runs a nameserver. Returns 0 after an orderly stop, 1 if it could not listen or the controller's disk
    failed, 2 for an invalid setting, which stderr explains."""
    return process.run("nameserver", lambda: load(config_path, overrides or {}), serve)


def load(config_path: str | None, overrides: Mapping[str, str]) -> StartupSettings:
    """Loads the settings of a file, or the defaults. Changed settings are written back to that file, as in
    Java."""
    text = process.read_config(config_path)
    paths = {"kvConfigPath": "~/namesrv/kvConfig.json", "configStorePath": "~/namesrv/namesrv.properties"}
    defaults = {key: str(Path(path).expanduser()) for key, path in paths.items()} | process.environment()
    if config_path is not None:
        overrides = {**overrides, "configStorePath": config_path}
    loaded = config_module.load(text, overrides, defaults)
    if not loaded.config.enable_controller_in_namesrv:
        return StartupSettings(loaded, None, loaded.warnings)
    return _with_controller(text, overrides, defaults)


def _with_controller(text: str, overrides: Mapping[str, str], defaults: Mapping[str, str]) -> StartupSettings:
    """Loads the settings of both. Keys that both have (`scanNotActiveBrokerInterval`, `configBlackList`,
    those of the connections) count for both, as in Java. A key is unknown if neither knows it."""
    from epochmq_controller.controller import config as controller_configs

    loaded = config_module.load(text, overrides, defaults, known_elsewhere=controller_configs.KEYS)
    controller = controller_configs.load(
        text, overrides, defaults, without=NAMESERVER_ONLY_KEYS, known_elsewhere=config_module.KEYS
    )
    return StartupSettings(loaded, controller, loaded.warnings)


async def serve(startup: StartupSettings) -> int:
    """Runs a nameserver until SIGTERM or SIGINT, and stops it. If the disk of a controller in this process
    fails, the process ends: other nameservers serve routes, and a process that works in part would go
    unnoticed."""
    stop = process.stop_requested()
    nameserver = Nameserver(startup.nameserver)
    controller = None
    if startup.controller is not None:
        from epochmq_controller.controller.server import ControllerServer

        controller = ControllerServer(startup.controller, on_fatal=lambda _: stop.set())
    admin_server = admin_socket_server(nameserver, controller)
    try:
        await nameserver.start()
        address = f"{nameserver.server.host}:{nameserver.server.port}"
        if controller is not None:
            await controller.start()
            print(f"The ControllerManager boot success. address {controller.address}", flush=True)
        if admin_server is not None:
            await admin_server.start()
        print(f"The Name Server boot success. serializeType=JSON, address {address}", flush=True)
        log.info("the nameserver listens on %s", address)
        await stop.wait()
        log.info("stopping")
    finally:
        if admin_server is not None:
            await admin_server.stop()
        if controller is not None:
            await controller.stop()
        await nameserver.stop()
    log.info("stopped")
    return process.EXIT_FAILED if controller is not None and controller.failed else process.EXIT_OK
