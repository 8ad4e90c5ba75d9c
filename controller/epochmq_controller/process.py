"""Does what the processes of this package have in common: logging, configuration, signals and exit status."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from epochmq_protocol.errors import ConfigError
from epochmq_protocol.log_lines import LogfmtFormatter, log_to_stderr
from epochmq_protocol.transport import run as run_loop

log = logging.getLogger(__name__)

EXIT_OK, EXIT_FAILED, EXIT_BAD_CONFIG = 0, 1, 2


class HasWarnings(Protocol):
    """Settings that were loaded from a configuration file."""

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings about the file."""


L = TypeVar("L", bound=HasWarnings)


def run(role: str, load: Callable[[], L], serve: Callable[[L], Coroutine[Any, Any, int]]) -> int:
    """Loads the settings and serves until the end. Returns the exit status: that of `serve`, 1 if an address
    is not available or a disk failed, 2 for an invalid setting. Stderr explains the last two in a
    sentence."""
    log_to_stderr(LogfmtFormatter())
    try:
        loaded = load()
        for warning in loaded.warnings:
            log.warning("%s", warning)
        return run_loop(serve(loaded))
    except ConfigError as error:
        print(f"epochmq {role}: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIG
    except OSError as error:
        print(f"epochmq {role}: {error}", file=sys.stderr)
        return EXIT_FAILED


def read_config(path: str | None) -> str:
    """The text of the file of `--config`, empty without one. ConfigError if it cannot be read."""
    if path is None:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--config", path, f"a readable file in UTF-8 ({error})") from None


def environment() -> dict[str, str]:
    """The settings of the environment (`ROCKETMQ_HOME`). The file wins over them."""
    home = os.environ.get("ROCKETMQ_HOME")
    return {"rocketmqHome": home} if home else {}


def stop_requested() -> asyncio.Event:
    """Returns an event that SIGTERM and SIGINT set."""
    loop = asyncio.get_running_loop()
    requested = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, requested.set)
    return requested
