"""What every process answers alike."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from epochmq_protocol.admin.operations import LogLevel
from epochmq_protocol.admin.states import Config, LevelSet

SECRETS = ("password", "credential", "secret", "authenticationuser")
"""What is in the names of RocketMQ's keys whose values nobody is shown."""
HIDDEN = "***"


@cache
def own_version() -> str:
    """The version of what runs; `unknown` when it runs from files that nobody installed."""
    try:
        return version("epochmq")
    except PackageNotFoundError:
        return "unknown"


def settings_shown(config: Mapping[str, str]) -> Config:
    """Settings as they are answered: sorted, without the values of those that are secrets."""
    return Config(
        config={
            key: HIDDEN if value and any(word in key.lower() for word in SECRETS) else value
            for key, value in sorted(config.items())
        }
    )


def set_level(wanted: LogLevel) -> LevelSet:
    """Sets the level of a logger, and says what it was."""
    logger = logging.getLogger(wanted.logger)
    before = logging.getLevelName(logger.getEffectiveLevel())
    logger.setLevel(wanted.level)
    return LevelSet(logger=wanted.logger, level=wanted.level, before=before)
