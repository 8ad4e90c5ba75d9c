"""Decides by rules which of several operators is active: the holder of the operator lease, a Lease object.

The holder renews the Lease long before it expires, and stops writing well before: `RENEW_DEADLINE_S` after it
*sent* the last successful renewal. A standby operator takes the Lease over after the Lease has been unchanged
for its whole duration by the clock of the standby. The clocks need not agree, only run at about the same
speed. No two operators write at a time, because a write of the former holder has its response, or its
timeout, before the next holder starts:

    RENEW_DEADLINE_S + the timeout of a request < DURATION_S
"""

# pure: takes a Lease as it was read and the time; returns what to write.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

DURATION_S = 22
RENEW_DEADLINE_S = 16.0
RENEW_EVERY_S = 4.0
LOOK_EVERY_S = 2.0
STALLED_AFTER_S = 60.0
"""An operator whose event loop makes no progress for this time stops renewing, so that another can take
over."""


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """The content of a Lease, and since when it is unchanged, in seconds of this operator's monotonic
    clock."""

    spec: Mapping[str, Any]
    since_s: float


def observe(before: ObservedLease | None, spec: Mapping[str, Any], now_s: float) -> ObservedLease:
    """Updates the observation by the Lease as read at `now_s`."""
    if before is not None and before.spec == spec:
        return before
    return ObservedLease(dict(spec), now_s)


def may_take(observed: ObservedLease, me: str, now_s: float) -> bool:
    """Whether this operator may take the Lease: it has no holder, this operator holds it, or the holder let
    it expire."""
    holder = observed.spec.get("holderIdentity")
    if not holder or holder == me:
        return True
    lasts = observed.spec.get("leaseDurationSeconds")
    return now_s - observed.since_s > (lasts if isinstance(lasts, int) and 0 < lasts <= 3600 else DURATION_S)


def spec_when_held(spec: Mapping[str, Any], me: str, now: float) -> dict[str, Any]:
    """The content of the Lease when this operator holds it. `now`, in seconds since 1970, is for users."""
    again = spec.get("holderIdentity") == me
    turns = spec.get("leaseTransitions")
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "holderIdentity": me,
        "leaseDurationSeconds": DURATION_S,
        "acquireTime": spec.get("acquireTime") or stamp if again else stamp,
        "renewTime": stamp,
        "leaseTransitions": (turns if isinstance(turns, int) else 0) + (0 if again else 1),
    }


def spec_when_released(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the Lease after its holder released it, so that the next one need not wait. The API
    server rejects an empty holder."""
    kept = {key: value for key, value in spec.items() if key != "holderIdentity"}
    return {**kept, "leaseDurationSeconds": 1}


def may_write(renewed_s: float | None, now_s: float) -> bool:
    """Whether a holder may begin a write that sent its last successful renewal at `renewed_s`."""
    return renewed_s is not None and now_s - renewed_s < RENEW_DEADLINE_S


def is_stalled(progress_s: float, now_s: float) -> bool:
    """Whether an event loop that made progress last at `progress_s` is stalled."""
    return now_s - progress_s > STALLED_AFTER_S
