# pure: whether a master may write
"""A master's side of write leases (the controller's, and why it works: docs/controller.md, "Write leases").

- A lease counts from the moment its request was *sent*, on a clock of this machine that also counts while the
  machine is suspended. The wall clock does not matter.
- A mastership begins without a lease, and writes nothing before it has one, unless the leading controller
  is known to grant none: RocketMQ's do not, and then RocketMQ's behaviour is all there is.
- What was granted for another epoch counts for nothing.
- A fenced mastership writes no more, whatever is granted: it has told the controller so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class WriteLease:
    """The lease of one broker. Times are milliseconds of one monotonic clock."""

    epoch: int | None = None
    """The master epoch it is for; None while this broker is no master."""
    until_ms: float = 0.0
    duration_ms: int = 0
    """The length of the latest lease granted, 0 before the first."""
    leader_grants: bool | None = None
    """Whether the leading controller grants leases; None while that is not known."""
    fenced: bool = False

    def begin(self, epoch: int) -> None:
        """A mastership begins, or goes on under another epoch."""
        self.epoch, self.until_ms, self.fenced = epoch, 0.0, False

    def end(self) -> None:
        """This broker is no master any more."""
        self.epoch, self.until_ms, self.fenced = None, 0.0, False

    def fence(self) -> None:
        """Nothing more is written under this epoch."""
        self.fenced = True

    def record_grant(self, epoch: int, sent_ms: float, lease_ms: int) -> None:
        """A lease was granted for `lease_ms` from `sent_ms` on."""
        self.duration_ms, self.leader_grants = lease_ms, True
        if epoch == self.epoch:
            self.until_ms = max(self.until_ms, sent_ms + lease_ms)

    def is_open(self, now_ms: float) -> bool:
        """Whether this broker may write now."""
        if self.epoch is None or self.fenced:
            return False
        return self.leader_grants is False or now_ms < self.until_ms

    def needs_renewal(self, now_ms: float) -> bool:
        """Whether a lease is needed and less than half of one is left."""
        if self.epoch is None or self.fenced or self.leader_grants is False:
            return False
        return self.until_ms - now_ms < self.duration_ms / 2
