"""What every process answers alike."""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from epochmq_protocol.admin.operations import LogLevel
from epochmq_protocol.admin.states import LevelSet


@cache
def own_version() -> str:
    """The version of what runs; `unknown` when it runs from files that nobody installed."""
    try:
        return version("epochmq")
    except PackageNotFoundError:
        return "unknown"


def set_level(wanted: LogLevel) -> LevelSet:
    """Sets the level of a logger, and says what it was."""
    logger = logging.getLogger(wanted.logger)
    before = logging.getLevelName(logger.getEffectiveLevel())
    logger.setLevel(wanted.level)
    return LevelSet(logger=wanted.logger, level=wanted.level, before=before)
