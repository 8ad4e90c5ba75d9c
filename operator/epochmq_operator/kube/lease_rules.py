"""Who of several operators works: the one that holds a Lease.

A holder renews the Lease long before it runs out, and stops writing a good while before: `RENEW_DEADLINE_S`
after the last renewal was *sent*. Whoever waits takes the Lease over once it saw it unchanged, by its own
clock, for as long as it lasts. Clocks need not agree, only run at about the same speed; and no two operators
write at a time, because a write that the former sent in time has its answer, or its timeout, before the next
one begins:

    RENEW_DEADLINE_S + the timeout of a request < DURATION_S
"""

# pure: a Lease as it was read and the time in, what to write out.

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
"""An operator whose work has not moved for so long renews no more: it would keep others from working."""


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A Lease's content, and since when (seconds of our own monotonic clock) it has been the same."""

    spec: Mapping[str, Any]
    since_s: float


def observe(before: ObservedLease | None, spec: Mapping[str, Any], now_s: float) -> ObservedLease:
    """The Lease was read at `now_s`."""
    if before is not None and before.spec == spec:
        return before
    return ObservedLease(dict(spec), now_s)


def may_take(observed: ObservedLease, me: str, now_s: float) -> bool:
    """Whether this operator may take the Lease: nobody holds it, it does itself, or the holder let it run
    out."""
    holder = observed.spec.get("holderIdentity")
    if not holder or holder == me:
        return True
    lasts = observed.spec.get("leaseDurationSeconds")
    return now_s - observed.since_s > (lasts if isinstance(lasts, int) and 0 < lasts <= 3600 else DURATION_S)


def spec_when_held(spec: Mapping[str, Any], me: str, now: float) -> dict[str, Any]:
    """The Lease's content once this operator holds it. `now` is in seconds since 1970, for people."""
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
    """The Lease's content when its holder leaves: the next one need not wait. The API server takes no empty
    name."""
    kept = {key: value for key, value in spec.items() if key != "holderIdentity"}
    return {**kept, "leaseDurationSeconds": 1}


def may_write(renewed_s: float | None, now_s: float) -> bool:
    """Whether one who last sent a renewal that succeeded at `renewed_s` may begin a write."""
    return renewed_s is not None and now_s - renewed_s < RENEW_DEADLINE_S


def is_stalled(progress_s: float, now_s: float) -> bool:
    """Whether work that moved last at `moved_s` does so no more."""
    return now_s - progress_s > STALLED_AFTER_S
