"""Implements the operations of the admin socket that are the same in every process: version, settings, log
level."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from epochmq_protocol.admin_api.operations import LogLevelArguments
from epochmq_protocol.admin_api.results import EffectiveConfig, LogLevelResult

SECRET_KEY_WORDS = ("password", "credential", "secret", "authenticationuser")
"""A configuration key that contains one of these words has a secret value."""
REDACTED = "***"


@cache
def installed_version() -> str:
    """The version of the installed package; `unknown` when the process runs from a source tree that is not
    installed."""
    try:
        return version("epochmq")
    except PackageNotFoundError:
        return "unknown"


def redacted_config(config: Mapping[str, str]) -> EffectiveConfig:
    """The settings, sorted by key, with secret values replaced by `***`."""
    return EffectiveConfig(
        config={
            key: REDACTED if value and any(word in key.lower() for word in SECRET_KEY_WORDS) else value
            for key, value in sorted(config.items())
        }
    )


def set_log_level(wanted: LogLevelArguments) -> LogLevelResult:
    """Sets the level of a logger; the result has the former level."""
    logger = logging.getLogger(wanted.logger)
    before = logging.getLevelName(logger.getEffectiveLevel())
    logger.setLevel(wanted.level)
    return LogLevelResult(logger=wanted.logger, level=wanted.level, before=before)
