# pure: write leases
"""Grants write leases: at most one master of a group may write at any instant, whatever the network does.

A master requests a lease with its heartbeat. It counts the lease on its own monotonic clock, from the moment
it *sent* the request. The controller grants the lease only after a quorum round trip, which started after the
request arrived, has confirmed its leadership. Let `duration` be the length of a lease, and `drift` the bound
on the difference in speed of two clocks:

1. A lease whose request arrived at `t` on the controller's clock ends before `t + duration * (1 + drift)` on
   that clock, because the request was sent before it arrived. `ends_ms` keeps that moment.
2. The controller makes no other broker writable before `ends_ms`, unless the holder has confirmed that it is
   fenced.
3. A new leader does not know the leases of earlier leaders. But a quorum confirmed each of them, and a member
   of that quorum later elected the new leader. So their requests arrived before the new leadership began, and
   the leases end within one `duration * (1 + drift)` of it. The new leader waits that long for every group,
   also for one that it does not know: an earlier leader may have removed a group whose master held a lease.
4. While an election is decided or committed, its group gets no lease. So an election in the log, whether it
   will be committed or not, was proposed when no lease was held, and none was granted after it.

From 1 to 4 follows: when a new master becomes writable, all leases of other brokers have ended.

All times here are those of a `LeapLimitedClock`, so that one leap of the controller's clock within a lease is
harmless.
"""

from __future__ import annotations

from dataclasses import dataclass

from epochmq_protocol.errors import InvariantError

DRIFT = 0.05
"""The clocks of two machines differ in speed by at most this fraction. Real ones stay within 0.0005."""


class LeapLimitedClock:
    """A clock that advances by at most `clock_step_ms` between two readings of the real clock.

    A larger difference may be a leap (a suspended or migrated machine, a changed clock) that the brokers'
    clocks did not make. To wait too long is always safe.
    """

    def __init__(self, now_ms: float, clock_step_ms: float) -> None:
        self.clock_step_ms = clock_step_ms
        self.ms = now_ms
        self._seen_ms = now_ms

    def advance_to(self, now_ms: float) -> float:
        """Reads the real clock. Returns the limited time in milliseconds."""
        self.ms += min(now_ms - self._seen_ms, self.clock_step_ms)
        self._seen_ms = now_ms
        return self.ms


@dataclass
class GrantedLease:
    """The holder of a lease, its master epoch, and when the lease ends at the latest."""

    holder: int
    epoch: int
    ends_ms: float
    """Measured from the arrival of the request, which was sent before. Invariant: at most
    `LeaseTable.lease_bound_ms` from now, and not after `LeaseTable.last_end_ms`."""


class LeaseTable:
    """The leases of one leadership. Times are milliseconds of the leader's leap-limited clock."""

    def __init__(self, duration_ms: int, leap_ms: float, leads_since_ms: float) -> None:
        """`leap_ms`: how much of a leap the clock may have taken for time."""
        self.duration_ms = duration_ms
        self.lease_bound_ms = duration_ms * (1 + DRIFT) + leap_ms
        self.unknown_leases_until_ms = leads_since_ms + self.lease_bound_ms
        self.last_end_ms = self.unknown_leases_until_ms
        """After this moment no lease is held. Invariant: not before `unknown_leases_until_ms`, nor before the
        end of any lease."""
        self.granted: dict[str, GrantedLease] = {}
        """By group: so at most one broker of a group holds a lease that this leader granted."""
        self.fenced_epochs: dict[str, int] = {}
        """Up to this master epoch a group's masters have confirmed that they accept no more writes."""
        self.electing: set[str] = set()
        """Groups in an election. They get no lease. Invariant: a group whose master is another broker than
        the holder of its lease had no unfenced lease when it elected (`check_holder`)."""

    def grant(self, name: str, holder: int, epoch: int, arrived_ms: float) -> bool:
        """Grants a lease that was requested at `arrived_ms`. The caller has confirmed its leadership since,
        and has checked that `holder` is the group's master of `epoch`."""
        if name in self.electing or self.is_fenced(name, epoch):
            return False
        known = self.granted.get(name)
        end_ms = arrived_ms + self.lease_bound_ms
        held_by_another = known is not None and known.holder != holder and known.ends_ms > arrived_ms
        if known is not None and held_by_another and self.fenced_epochs.get(name, -1) < known.epoch:
            return False
        if known is None or known.holder != holder:
            self.granted[name] = GrantedLease(holder, epoch, end_ms)
        elif known.ends_ms < end_ms:
            known.epoch, known.ends_ms = epoch, end_ms
        if end_ms > self.last_end_ms:
            self.last_end_ms = end_ms
        return True

    def confirm_fenced(self, name: str, epoch: int) -> None:
        """Records that the master of this epoch accepts no more writes under it. The caller has checked that
        the sender is the master of this epoch."""
        self.fenced_epochs[name] = max(self.fenced_epochs.get(name, -1), epoch)

    def is_fenced(self, name: str, epoch: int) -> bool:
        """Whether the master of this epoch has confirmed that it accepts no more writes."""
        return 0 < epoch <= self.fenced_epochs.get(name, -1)

    def lease_end_ms(self, name: str, master_epoch: int) -> float:
        """When the controller may elect another master. A past moment means now. `master_epoch` is the epoch
        of the group's present master."""
        if self.is_fenced(name, master_epoch):
            return 0.0
        known = self.granted.get(name)
        return max(known.ends_ms if known is not None else 0.0, self.unknown_leases_until_ms)

    def forget(self, name: str) -> None:
        """Forgets the epochs of a removed group, which may be created again. Its leases stay valid."""
        self.fenced_epochs.pop(name, None)
        self.electing.discard(name)

    def drop_expired(self, now_ms: float) -> None:
        """Drops leases that have ended."""
        self.granted = {name: one for name, one in self.granted.items() if one.ends_ms > now_ms}

    def check_invariants(self, now_ms: float) -> None:
        """Raises InvariantError if the leases contradict the rules at their fields. O(leases)."""
        bound_ms = now_ms + self.lease_bound_ms
        if not self.unknown_leases_until_ms <= min(self.last_end_ms, bound_ms):
            raise InvariantError(
                "LeaseTable",
                "leases of earlier leaders end within one bound of the beginning of this leadership",
                unknown_leases_until_ms=self.unknown_leases_until_ms,
                last_end_ms=self.last_end_ms,
                now_ms=now_ms,
            )
        for name, lease in self.granted.items():
            if lease.ends_ms > bound_ms or lease.ends_ms > self.last_end_ms:
                raise InvariantError(
                    "LeaseTable",
                    "a lease is measured from the arrival of its request",
                    group=name,
                    ends_ms=lease.ends_ms,
                    last_end_ms=self.last_end_ms,
                    now_ms=now_ms,
                    lease_bound_ms=self.lease_bound_ms,
                )

    def check_holder(self, name: str, master_id: int | None, now_ms: float) -> None:
        """Raises InvariantError if a group has got another master while the holder of its lease may still
        write."""
        lease = self.granted.get(name)
        if lease is None or master_id is None or lease.holder == master_id or lease.ends_ms <= now_ms:
            return
        if not self.is_fenced(name, lease.epoch):
            raise InvariantError(
                "LeaseTable",
                "no other broker is master while the holder of a lease may write",
                group=name,
                holder=lease.holder,
                epoch=lease.epoch,
                ends_ms=lease.ends_ms,
                master_id=master_id,
                now_ms=now_ms,
            )
