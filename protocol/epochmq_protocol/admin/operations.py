"""The operations of the local socket by name, and what they take. The sidecar's paths below `/v1/` and the
verbs of `epochmq admin-call` have the same names. Unknown fields are refused."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MAX_LAG_BYTES_DEFAULT = 16 * 1024 * 1024
MAX_LAG_MS_DEFAULT = 15_000
LINGER_MAX_MS = 90_000
"""So long a former master passes requests on."""


class Op(StrEnum):
    """What may be asked."""

    LIVE = "live"
    STATE = "state"
    EPOCHS = "epochs"
    EPOCH_FILE = "epoch-file"
    SYNC_STATE_SET = "sync-state-set"
    LAG = "lag"
    LEASE = "lease"
    CONFIG = "config"
    METRICS = "metrics"
    PROMOTE = "promote"
    HANDOVER = "handover"
    FENCE = "fence"
    UNFENCE = "unfence"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    LOG_LEVEL = "log-level"
    CHANGE_CONFIG = "change-config"


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What an operation takes: nothing, for one."""


class Limits(Arguments, frozen=True, kw_only=True):
    """STATE, METRICS: up to what lag a replica is ready. `max_lag_ms`: how long ago it may have been caught
    up last."""

    max_lag_bytes: Annotated[int, Meta(ge=0)] = MAX_LAG_BYTES_DEFAULT
    max_lag_ms: Annotated[int, Meta(ge=0)] = MAX_LAG_MS_DEFAULT


class Promote(Arguments, frozen=True, kw_only=True):
    """PROMOTE: which replica is to be the master; the one that is asked, if none is named."""

    broker_id: Annotated[int, Meta(ge=1)] | None = None


class Handover(Arguments, frozen=True, kw_only=True):
    """HANDOVER. `linger_ms`: how long to go on passing requests to the next master after it, for clients that
    have not asked for routes since; shorter when there are no such requests any more."""

    linger_ms: Annotated[int, Meta(ge=0, le=LINGER_MAX_MS)] = 0


class LogLevel(Arguments, frozen=True, kw_only=True):
    """LOG_LEVEL: of this logger and those below it; the root is all of them."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
    logger: str = ""


class ChangeConfig(Arguments, frozen=True, kw_only=True):
    """CHANGE_CONFIG: keys and their new values, as in the configuration file. All or none."""

    changes: Annotated[dict[str, str], Meta(min_length=1, max_length=200)]
