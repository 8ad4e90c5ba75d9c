# pure: who may write until when
"""Write leases: at most one master of a group may write at any instant, whatever the network does.

A master asks for a lease with its heartbeat and counts it, on its own monotonic clock, from the moment it
*sent* the request. The controller grants it only after a quorum round trip that began after the request's
arrival has shown that it still leads. Then, with `duration` the lease's length and `drift` the bound on how
much two clocks differ in speed:

1. A lease whose request arrived at `t` (controller's clock) ends, by the controller's clock, before
   `t + duration * (1 + drift)`: the request was sent before it arrived. `promised_ms` keeps that moment.
2. The controller makes nobody else writable before `promised_ms`, unless the holder has said that it is
   fenced.
3. A controller that has just become leader knows no promises. But any grant of an earlier leader was
   confirmed by a quorum, of which at least one member later elected the new leader; so its request arrived
   before the new leadership began, and its lease ends within one `duration * (1 + drift)` of it. The new
   leader waits that long, for every group, also for one that it does not know: an earlier leader may have
   removed it while its master held a lease.
4. While an election is being decided or committed nothing is granted to its group. So an election that is in
   the log, whatever becomes of it, was proposed when no lease was out, and none went out after it.

From 1 to 4: when a new master becomes writable, every lease granted to another has run out.

All times here are a `LeapLimitedClock`'s, so that one leap of the controller's clock within a lease does no
harm.
"""

from __future__ import annotations

from dataclasses import dataclass

DRIFT = 0.05
"""Clocks of two machines may run up to this much faster or slower than each other. Real ones stay within
0.0005."""


class LeapLimitedClock:
    """A clock that counts at most `stride_ms` between two looks at the real one, however far that has gone.

    Time that nobody watched might be a leap (a machine suspended, moved, or set anew) instead of time that
    brokers lived through, too. To wait longer than needed is always safe.
    """

    def __init__(self, now_ms: float, clock_step_ms: float) -> None:
        self.clock_step_ms = clock_step_ms
        self.ms = now_ms
        self._seen_ms = now_ms

    def advance_to(self, now_ms: float) -> float:
        """The patient time, milliseconds, after looking at the real clock."""
        self.ms += min(now_ms - self._seen_ms, self.clock_step_ms)
        self._seen_ms = now_ms
        return self.ms


@dataclass
class GrantedLease:
    """To whom the right to write was given, under which master epoch, and until when at the latest."""

    holder: int
    epoch: int
    ends_ms: float


class LeaseTable:
    """One leadership's leases. Times are the leader's patient clock, in milliseconds."""

    def __init__(self, duration_ms: int, leap_ms: float, leads_since_ms: float) -> None:
        """`leap_ms`: how much of a leap the clock may have counted as time."""
        self.duration_ms = duration_ms
        self.lease_bound_ms = duration_ms * (1 + DRIFT) + leap_ms
        self.unknown_leases_until_ms = leads_since_ms + self.lease_bound_ms
        self.last_end_ms = self.unknown_leases_until_ms
        """After this moment no lease is out."""
        self.granted: dict[str, GrantedLease] = {}
        self.fenced: dict[str, int] = {}
        """The master epoch up to which a group's holder has confirmed that it stopped writing."""
        self.electing: set[str] = set()
        """Groups whose next master is being decided: no lease is granted there."""

    def grant(self, name: str, holder: int, epoch: int, arrived_ms: float) -> bool:
        """Grants a lease that was asked for at `arrived_ms` and confirmed by a quorum since. The caller has
        checked that `holder` is the group's master of `epoch`."""
        if name in self.electing or self.is_fenced(name, epoch):
            return False
        known = self.granted.get(name)
        end_ms = arrived_ms + self.lease_bound_ms
        held_by_another = known is not None and known.holder != holder and known.ends_ms > arrived_ms
        if known is not None and held_by_another and self.fenced.get(name, -1) < known.epoch:
            return False
        if known is None or known.holder != holder or known.ends_ms < end_ms:
            self.granted[name] = GrantedLease(holder, epoch, end_ms)
            self.last_end_ms = max(self.last_end_ms, end_ms)
        return True

    def confirm_fenced(self, name: str, epoch: int) -> None:
        """The master of this epoch says that it accepts no more writes under it, and will not again. The
        caller has checked that it is the master of this epoch."""
        self.fenced[name] = max(self.fenced.get(name, -1), epoch)

    def is_fenced(self, name: str, epoch: int) -> bool:
        """Whether the master of this epoch has confirmed that it writes no more."""
        return 0 < epoch <= self.fenced.get(name, -1)

    def lease_end_ms(self, name: str, master_epoch: int) -> float:
        """From when on another master may be made; a moment in the past means now. `master_epoch` is the
        epoch of the group's present master."""
        if self.is_fenced(name, master_epoch):
            return 0.0
        known = self.granted.get(name)
        return max(known.ends_ms if known is not None else 0.0, self.unknown_leases_until_ms)

    def forget(self, name: str) -> None:
        """The group is gone, and its epochs begin anew. What was promised stays promised."""
        self.fenced.pop(name, None)
        self.electing.discard(name)

    def drop_expired(self, now_ms: float) -> None:
        """Drops promises that have run out."""
        self.granted = {name: one for name, one in self.granted.items() if one.ends_ms > now_ms}
