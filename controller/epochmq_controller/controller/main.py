"""The process `epochmq controller`: settings in, one controller until SIGTERM or SIGINT, exit status out."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from epochmq_controller import process
from epochmq_controller.controller import config as configs
from epochmq_controller.controller.local_api import ControllerLocalApi
from epochmq_controller.controller.server import ControllerServer
from epochmq_protocol.transport.admin_socket import AdminSocketServer

log = logging.getLogger(__name__)


def run(config_path: str | None, overrides: Mapping[str, str] | None = None) -> int:
    """Runs a controller. 0: stopped in order; 1: it could not listen, or its disk failed; 2: a setting cannot
    be, said on stderr."""
    return process.run("controller", lambda: load(config_path, overrides or {}), serve)


def load(config_path: str | None, overrides: Mapping[str, str]) -> configs.LoadedControllerConfig:
    """Settings from a file, or the defaults. Changed settings are written back to that file (Java writes them
    to `configStorePath`, which it does not read again)."""
    text = process.read_config(config_path)
    if config_path is not None:
        overrides = {"configStorePath": config_path, **overrides}
    return configs.load(text, overrides, process.environment())


async def serve(loaded: configs.LoadedControllerConfig) -> int:
    """A controller from start to the first SIGTERM or SIGINT, and its orderly stop."""
    asked = process.stop_requested()
    service = ControllerServer(loaded, on_fatal=lambda _: asked.set())
    path = loaded.config.admin_socket_path
    admin = ControllerLocalApi(service.controller, service.calls)
    local = AdminSocketServer(path, admin.operations()) if path else None
    try:
        await service.start()
        if local is not None:
            await local.start()
        print(f"The Controller Server boot success. address {service.address}", flush=True)
        await asked.wait()
        log.info("stopping")
    finally:
        if local is not None:
            await local.stop()
        await service.stop()
    log.info("stopped")
    return process.EXIT_FAILED if service.failed else process.EXIT_OK
