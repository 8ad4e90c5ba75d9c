# pure: values only
"""What a broker knows of a SyncStateSet that it has proposed to the controllers."""

from __future__ import annotations

import enum
import re

import msgspec


class ChangePhase(enum.Enum):
    """What is known of a proposed SyncStateSet."""

    PROPOSED = "every response so far was clear"
    UNCERTAIN = "a question about it got no clear response: it may have been accepted"
    REREGISTERING = "registering again will show what became of it"
    REJECTED = "it was surely not accepted"


class PendingSyncStateSetChange(msgspec.Struct):
    """A SyncStateSet that was proposed under the master epoch `epoch`, on top of the set of `set_epoch`.
    `token` names the question that is under way, None while none is; the next one is due at `due_ms`."""

    members: frozenset[int]
    set_epoch: int
    epoch: int
    least: int = 1
    phase: ChangePhase = ChangePhase.PROPOSED
    token: int | None = None
    due_ms: int = 0
    remark: str = ""
    """Why it was rejected."""

    @property
    def waits_for_question(self) -> bool:
        """Whether the next step, at `due_ms`, is a question about it, or to report its rejection."""
        return self.token is None and self.phase is not ChangePhase.REREGISTERING


_REFUSED = re.compile(r"replicas \{(\d{1,18})\}")


def refused_replica(remark: str) -> int | None:
    """The broker id that a controller, RocketMQ's or EpochMQ's, names when it rejects a SyncStateSet because
    that replica is not alive or not registered. None if it names none."""
    found = _REFUSED.search(remark)
    return int(found[1]) if found is not None else None
