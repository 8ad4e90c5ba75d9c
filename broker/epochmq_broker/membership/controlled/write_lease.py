# pure: whether a master may write
"""Keeps a master's write lease (for the controllers' side see docs/controller.md, "Write leases").

- A lease starts when its request was *sent*, on a clock of this machine that also runs while the machine is
  suspended. The wall clock does not matter.
- A mastership begins without a lease, and the master writes nothing before it has one. If the leading
  controller is known to grant no leases, as RocketMQ's do not, the master writes without one, as in RocketMQ.
- A lease of another epoch is ignored.
- A fenced master writes no more under its epoch, whatever is granted, because it has reported that to the
  controllers.
- A master renews its lease when half of it has passed. A late renewal is repeated at every controller,
  because another one may lead by then.
- Without a lease a master may write while every possible successor has promised not to become master
  (`write_promises`). That needs the controllers' statement, which comes with a lease, that they elect
  successors from the SyncStateSet only. It lasts for `STATEMENT_MS`, and ends when a leading controller
  says that this broker is not the master.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from epochmq_protocol.errors import InvariantError
from epochmq_protocol.write_promise import STATEMENT_MS

RENEWALS_PER_LEASE: Final = 2
"""How often a master that holds a lease renews it during a lease. The leading controller of many groups pays
for each renewal."""
REQUESTS_PER_LEASE: Final = 3
"""How often a master without a lease requests one during the length of a lease."""
LATE_SHARE: Final = 0.4
"""A renewal is late if less than this share of the lease is left."""
REQUEST_INTERVAL_MIN_MS: Final = 40
"""The least time between two requests for a lease; also used until the length of a lease is known."""


class WriteRight(enum.Enum):
    """What permits a master to write."""

    NOT_NEEDED = "not needed"
    """The leading controller grants no leases."""
    LEASE = "lease"
    PROMISES = "promises"
    """The replicas' promises, without a lease."""
    NONE = "none"


@dataclass
class WriteLease:
    """The write lease of one broker. Times are milliseconds of one monotonic clock."""

    epoch: int | None = None
    """The master epoch of the lease; None while this broker is not a master."""
    until_ms: float = 0.0
    """When the lease ends. Invariant: 0 while this broker is not a master; otherwise measured from
    `sent_ms`, and never shortened under one epoch."""
    sent_ms: float = 0.0
    """When the request of the present lease was *sent*. Invariant: not in the future, so a lease lasts no
    longer than its length from the moment at which the controller can have known of it."""
    duration_ms: int = 0
    """The length of the latest granted lease; 0 before the first."""
    leader_grants: bool | None = None
    """Whether the leading controller grants leases; None while unknown."""
    fenced: bool = False
    promised_until_ms: float = -math.inf
    """Until when every possible successor has promised. Invariant: -inf without a statement."""
    stated_ms: float = -math.inf
    """When the last lease was requested with which the controllers stated, under this epoch, that successors
    come from the SyncStateSet only; -inf if they have not. Invariant: not in the future."""
    promises_ended: bool = False
    """Whether promises do not count any more under this epoch, because a later one has begun."""
    lapses: int = 0
    """How often this master lost the right to write, by a lease that ran out while not every replica had
    promised, since the start. A lease that is given up, in a switchover or after a disk failure, does not
    count."""
    on_change: Callable[[], None] = field(default=lambda: None, compare=False)
    """Called after each change of `open_until_ms` by a method."""

    def begin(self, epoch: int) -> None:
        """Starts a mastership, or continues it under another epoch, without a lease."""
        self._reset(epoch)

    def end(self) -> None:
        """Ends the mastership."""
        self._reset(None)

    def _reset(self, epoch: int | None) -> None:
        self.epoch, self.until_ms, self.sent_ms, self.fenced = epoch, 0.0, 0.0, False
        self.promised_until_ms = self.stated_ms = -math.inf
        self.promises_ended = False
        self.on_change()

    def fence(self) -> None:
        """Forbids writes under this epoch for good."""
        self.fenced = True
        self.on_change()

    def leader_found(self, *, grants: bool) -> None:
        """Records whether the leading controller grants leases."""
        self.leader_grants = grants
        self.on_change()

    def record_grant(self, epoch: int, sent_ms: float, lease_ms: int, *, from_set: bool = False) -> None:
        """Records a lease of `lease_ms` that was requested at `sent_ms`. `from_set`: the controllers state
        that successors come from the SyncStateSet only."""
        self.duration_ms, self.leader_grants = lease_ms, True
        until_ms = sent_ms + lease_ms
        if epoch == self.epoch and until_ms > self.until_ms:
            self.until_ms, self.sent_ms = until_ms, sent_ms
        if epoch == self.epoch and from_set:
            self.stated_ms = max(self.stated_ms, sent_ms)
        elif epoch == self.epoch and sent_ms > self.stated_ms:
            self.withdraw_statement(epoch)
        self.on_change()

    def withdraw_statement(self, epoch: int) -> None:
        """A leading controller does not state any more that the successors of this epoch's master come from
        the SyncStateSet: promises do not count before the next statement."""
        if epoch == self.epoch:
            self.stated_ms = self.promised_until_ms = -math.inf
            self.on_change()

    def record_promises(self, until_ms: float) -> None:
        """Every possible successor has promised until `until_ms`; -inf: not every one has."""
        if self.epoch is None or self.promises_ended:
            return
        self.promised_until_ms = min(until_ms, self.stated_ms + STATEMENT_MS)
        self.on_change()

    def end_promises(self) -> None:
        """A later epoch has begun: no promise counts under this one any more."""
        self.promises_ended, self.promised_until_ms = True, -math.inf
        self.on_change()

    def note_lapse(self, now_ms: float) -> None:
        """Counts the right to write if it has run out, once."""
        if self.epoch is not None and not self.fenced and self.until_ms > 0 and not self.is_open(now_ms):
            self.lapses, self.until_ms = self.lapses + 1, 0.0
            self.on_change()

    def open_until_ms(self) -> float:
        """Until when the broker may write: -inf if it may not, inf if no lease is needed."""
        if self.epoch is None or self.fenced:
            return -math.inf
        if self.leader_grants is False:
            return math.inf
        return max(self.until_ms, self.promised_until_ms)

    def right(self, now_ms: float) -> WriteRight:
        """What permits this broker to write at `now_ms`."""
        if not self.is_open(now_ms):
            return WriteRight.NONE
        if self.leader_grants is False:
            return WriteRight.NOT_NEEDED
        return WriteRight.LEASE if now_ms < self.until_ms else WriteRight.PROMISES

    def is_open(self, now_ms: float) -> bool:
        """Whether the broker may write at `now_ms`."""
        return now_ms < self.open_until_ms()

    def needs_renewal(self, now_ms: float) -> bool:
        """Whether a lease is needed and its renewal is late."""
        if self.epoch is None or self.fenced or self.leader_grants is False:
            return False
        return self.until_ms - now_ms < self.duration_ms * LATE_SHARE

    def next_request_ms(self, requested_ms: float) -> float:
        """When to request the lease again from a controller that was asked at `requested_ms`: after half of a
        lease, or as soon as the renewal is late. A grant, also of another controller, postpones it."""
        soonest_ms = requested_ms + REQUEST_INTERVAL_MIN_MS
        if requested_ms >= self.until_ms:
            return max(soonest_ms, requested_ms + self.duration_ms / REQUESTS_PER_LEASE)
        late_ms = self.until_ms - self.duration_ms * LATE_SHARE
        return max(soonest_ms, min(requested_ms + self.duration_ms / RENEWALS_PER_LEASE, late_ms))

    def check_invariants(self, now_ms: float) -> None:
        """Raises InvariantError if the lease contradicts the rules at its fields. O(1)."""
        if self.epoch is None and (self.until_ms or self.sent_ms):
            raise InvariantError(
                "WriteLease", "only a master holds a lease", epoch=self.epoch, until_ms=self.until_ms
            )
        if self.stated_ms > now_ms or (self.promised_until_ms > self.stated_ms + STATEMENT_MS):
            raise InvariantError(
                "WriteLease",
                "promises count only for a time after the controllers' statement",
                stated_ms=self.stated_ms,
                promised_until_ms=self.promised_until_ms,
                now_ms=now_ms,
            )
        if self.sent_ms > now_ms or self.until_ms < self.sent_ms:
            raise InvariantError(
                "WriteLease",
                "a lease begins when its request was sent",
                sent_ms=self.sent_ms,
                until_ms=self.until_ms,
                now_ms=now_ms,
            )
