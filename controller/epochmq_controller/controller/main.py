"""Runs the process `epochmq controller`: one controller, until SIGTERM or SIGINT, or until its disk fails."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from epochmq_controller import process
from epochmq_controller.controller import config as config_module
from epochmq_controller.controller.admin_api import ControllerAdminApi
from epochmq_controller.controller.server import ControllerServer
from epochmq_protocol.transport.admin_socket import AdminSocketServer

log = logging.getLogger(__name__)


def run(config_path: str | None, overrides: Mapping[str, str] | None = None) -> int:
    """Runs a controller. Returns 0 after an orderly stop, 1 if it could not listen or its disk failed, 2 for
    an invalid setting, which stderr explains."""
    return process.run("controller", lambda: load(config_path, overrides or {}), serve)


def load(config_path: str | None, overrides: Mapping[str, str]) -> config_module.LoadedControllerConfig:
    """Loads the settings of a file, or the defaults. Changed settings are written back to that file. (Java
    writes them to `configStorePath`, and never reads them.)"""
    text = process.read_config(config_path)
    if config_path is not None:
        overrides = {"configStorePath": config_path, **overrides}
    return config_module.load(text, overrides, process.environment())


async def serve(loaded: config_module.LoadedControllerConfig) -> int:
    """Runs a controller until SIGTERM or SIGINT, or until its disk fails, and stops it."""
    stop = process.stop_requested()
    server = ControllerServer(loaded, on_fatal=lambda _: stop.set())
    path = loaded.config.admin_socket_path
    admin_api = ControllerAdminApi(controller=server.controller, calls=server.calls)
    admin_server = AdminSocketServer(path, admin_api.operations()) if path else None
    try:
        await server.start()
        if admin_server is not None:
            await admin_server.start()
        # RocketMQ's text, which its scripts and images wait for.
        print(f"The Controller Server boot success. address {server.address}", flush=True)
        await stop.wait()
        log.info("stopping")
    finally:
        if admin_server is not None:
            await admin_server.stop()
        await server.stop()
    log.info("stopped")
    return process.EXIT_FAILED if server.failed else process.EXIT_OK
