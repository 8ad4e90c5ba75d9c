"""Runs the process of a broker: reads the configuration, serves until SIGTERM or SIGINT, and stops in
order."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
from collections.abc import Mapping

from epochmq_broker.broker import Broker
from epochmq_broker.config.broker_config import LoadedBrokerConfig, load_broker_config
from epochmq_protocol.errors import ConfigError
from epochmq_protocol.log_lines import JsonLinesFormatter, log_to_stderr
from epochmq_protocol.transport import loop

log = logging.getLogger(__name__)

FAULTS_OF_THE_MACHINE = frozenset(
    {
        errno.EACCES,
        errno.EADDRINUSE,
        errno.EADDRNOTAVAIL,
        errno.EISDIR,
        errno.ENOENT,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)
"""Errors that a person mends outside of the broker: a port, a path, a disk. Their message says all."""
EXIT_OK, EXIT_FAILED, EXIT_CONFIG = 0, 1, 2


def run(config_path: str | None, overrides: Mapping[str, str] | None = None) -> int:
    """Serves with the settings of the file (RocketMQ's `broker.conf`) and the overrides. Returns the exit
    code: 0 after an orderly stop, 2 for an invalid configuration, 1 for any other failure."""
    log_to_stderr(JsonLinesFormatter())
    try:
        loaded = load_broker_config(config_path, overrides)
    except ConfigError as error:
        log.error("%s", error, extra={"key": error.key, "value": error.value, "expected": error.expected})
        return EXIT_CONFIG
    for warning in loaded.warnings:
        log.warning("%s", warning)
    if idle := sorted(loaded.without_effect):
        log.info("RocketMQ keys without effect: %s", ", ".join(idle))
    try:
        return loop.run(_serve(loaded))
    except ConfigError as error:
        log.error("%s", error, extra={"key": error.key, "value": error.value, "expected": error.expected})
        return EXIT_CONFIG
    except OSError as error:
        if error.errno not in FAULTS_OF_THE_MACHINE:
            log.exception("the broker failed")
        else:
            where = f"{error.filename}: " if error.filename is not None else ""
            log.error("the broker cannot run: %s%s", where, error.strerror or error)
        return EXIT_FAILED
    except Exception:
        log.exception("the broker failed")
        return EXIT_FAILED


async def _serve(loaded: LoadedBrokerConfig) -> int:
    stop = asyncio.Event()
    running = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, stop.set)
    broker = Broker(loaded)
    try:
        await broker.start()
        await stop.wait()
    finally:
        await broker.stop()
    return EXIT_OK
