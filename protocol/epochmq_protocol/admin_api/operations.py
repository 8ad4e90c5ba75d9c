"""Names the operations of the admin socket and defines their arguments.

The sidecar's paths below `/v1/` and the verbs of `epochmq admin-call` have the same names. Unknown fields in
arguments are rejected.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MAX_LAG_BYTES_DEFAULT = 16 * 1024 * 1024
MAX_LAG_MS_DEFAULT = 15_000
TAKEOVER_ENTRIES_MAX = 1000
"""The most committed entries that a ready follower of a DLedger group may lack: with more it could not take
over the leadership (`RaftSettings.push_in_flight_max`)."""
LINGER_MAX_MS = 90_000
"""The longest time for which a former master forwards requests."""


class AdminOperation(StrEnum):
    """The operations by name."""

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
    ADOPT_STORE = "adopt-store"
    DISCARD_STORE = "discard-store"
    LOG_LEVEL = "log-level"
    CHANGE_CONFIG = "change-config"
    RELOAD_CONFIG = "reload-config"
    CHANGE_MEMBERS = "change-members"


class AdminArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of all arguments; used itself where an operation has none."""


class ReadinessLimits(AdminArguments, frozen=True, kw_only=True):
    """Arguments of STATE and METRICS: the lag up to which a replica counts as ready. `max_lag_ms`: how
    long ago it may have been caught up last."""

    max_lag_bytes: Annotated[int, Meta(ge=0)] = MAX_LAG_BYTES_DEFAULT
    max_lag_ms: Annotated[int, Meta(ge=0)] = MAX_LAG_MS_DEFAULT


class PromoteArguments(AdminArguments, frozen=True, kw_only=True):
    """Arguments of PROMOTE: the replica that becomes master; without an id, the replica that receives the
    request."""

    broker_id: Annotated[int, Meta(ge=1)] | None = None


class HandoverArguments(AdminArguments, frozen=True, kw_only=True):
    """Arguments of HANDOVER. `linger_ms`: how long the former master forwards requests to its successor,
    for clients with old routes. It stops earlier when such requests stop."""

    linger_ms: Annotated[int, Meta(ge=0, le=LINGER_MAX_MS)] = 0


class ChangeMembersArguments(AdminArguments, frozen=True, kw_only=True):
    """Arguments of CHANGE_MEMBERS: the id of the controller, or the broker of a DLedger group, to add, with
    its address (`host:port`), or to remove, without one."""

    member: Annotated[str, Meta(min_length=1, max_length=64)]
    address: Annotated[str, Meta(min_length=3, max_length=300)] | None = None


class LogLevelArguments(AdminArguments, frozen=True, kw_only=True):
    """Arguments of LOG_LEVEL: the level of a logger and of those below it. The empty name is the root of
    all."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
    logger: str = ""


class ChangeConfigArguments(AdminArguments, frozen=True, kw_only=True):
    """Arguments of CHANGE_CONFIG: keys and new values as in the configuration file. Either all change or
    none."""

    changes: Annotated[dict[str, str], Meta(min_length=1, max_length=200)]


class ReloadConfigArguments(AdminArguments, frozen=True, kw_only=True):
    """Arguments of RELOAD_CONFIG: all keys and values of a configuration file, and the `version` that the
    state shows from then on. Either all apply or none."""

    config: Annotated[dict[str, str], Meta(min_length=1, max_length=500)]
    version: Annotated[str, Meta(min_length=1, max_length=253)]
