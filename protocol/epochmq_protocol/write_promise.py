"""Defines the request by which a replica promises its master not to become master, and what controllers and
brokers must agree on about these promises (docs/develop/controller.md, "Promises of the replicas")."""

from __future__ import annotations

from typing import Final

from epochmq_protocol.headers_base import Header
from epochmq_protocol.integers import Int, Long

SUCCESSORS_FROM_SET_FIELD: Final = "successorsFromSet"
"""Our own ext field of the response to a heartbeat that requests a write lease. `true`, with a lease:
successors of this master come from the SyncStateSet and the eligible members only. `false`, without one: the
leading controller says that the sender is not its group's master of this epoch."""
STATEMENT_MS: Final = 15 * 60_000
"""How long a master may rely on the last such statement. So a person who has a replica outside the
SyncStateSet elected while the master cannot be reached knows when it has stopped."""


class WritePromiseRequestHeader(Header, kw_only=True):
    """Request of WRITE_PROMISE. `broker_id`: the replica's, by the controllers. `epoch`: the master's.
    `number`: the stamp by which the replica promises, 0 for none. `known_epoch`: the latest master epoch
    that it knows; a later one than `epoch` has replaced the master, and makes it stop."""

    broker_name: str
    broker_id: Long
    epoch: Int
    number: Long = 0
    known_epoch: Int = 0


class WritePromiseResponseHeader(Header, kw_only=True):
    """Response to WRITE_PROMISE. `process`: a random name of the master's process. `number`: the next stamp,
    0 for none. `has_stopped`: this process does not write under this epoch, and will not. `may_write`: it
    may, by a lease or by promises; earlier releases do not say so."""

    process: str = ""
    number: Long = 0
    has_stopped: bool = False
    may_write: bool = False
