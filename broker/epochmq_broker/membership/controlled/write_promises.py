# pure: promises of replicas, by which a master may write while the controllers are away
"""Keeps the promises that replicas give to their master. With a promise of every possible successor a master
may write without a lease (docs/develop/controller.md, "Promises of the replicas").

- A replica asks its master for a stamp, and returns it with its next request. That is its promise: for
  `PROMISE_MS` from the moment at which it *received* the stamp it does not become master.
- The master counts the promise from the moment at which it *sent* the stamp, on its own clock. The stamp on
  the wire is only a number.
- A replica promises only while it follows this master in this epoch and knows no later one.
- The replica's clock may be faster than the master's by `DRIFT`, and may leap forward: between two readings
  it counts at most `STRIDE_MS`. So the replica waits for `HELD_MS`.
- A process that has just started does not know what its predecessor has promised. It waits as if it had
  promised at its start.
- A master that no longer writes under an epoch says so, and the replica need not wait.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from msgspec import Struct

from epochmq_broker.membership.controlled.write_lease import WriteLease
from epochmq_broker.replication.ha.sync_state import SyncState

PROMISE_MS: Final = 300
"""For how long a master may count on one promise."""
POLL_MS: Final = 50
"""How often a replica promises. A master's right ends early by two of these, and by a round trip."""
DRIFT: Final = 0.05
"""The clocks of two machines differ in speed by at most this fraction. Real ones stay within 0.0005."""
STRIDE_MS: Final = 60
"""The most that a replica's clock counts between two readings. It is read with every poll."""
HELD_MS: Final = PROMISE_MS * (1 + DRIFT) + STRIDE_MS
"""For how long a replica keeps a promise."""
STAMPS_MAX: Final = 16
"""The stamps of one replica that the master remembers. Older ones have ended."""
MEMBERS_MIN: Final = 2
"""A master alone in its set has nobody who would learn of another master."""


class PromiseRequest(Struct, frozen=True):
    """A promise on its way to the master of `epoch`: by `number`, a stamp that the replica has got; 0 for
    none. `known_epoch`: the latest master epoch that the replica knows."""

    broker_id: int
    epoch: int
    number: int
    known_epoch: int


class StampAnswer(Struct, frozen=True):
    """The next stamp for a replica, 0 for none. `has_stopped`: this process does not write under the epoch of
    the request, and counts no promise for it any more."""

    number: int = 0
    has_stopped: bool = False


class MasterPromises:
    """The promises that one broker has got as a master. Times are milliseconds of its lease's clock."""

    def __init__(self, process: str) -> None:
        """`process`: a random name of this process. Stamps of an earlier process do not count."""
        self.process = process
        self.epoch: int | None = None
        self._number = 0
        self._stamps: dict[int, deque[tuple[int, float]]] = {}
        """By replica: the last stamps, as (number, when it was sent)."""
        self._until_ms: dict[int, float] = {}
        """By replica: until when it has promised."""

    def _begin(self, epoch: int | None) -> None:
        self.epoch = epoch
        self._stamps.clear()
        self._until_ms.clear()

    def answer(self, lease: WriteLease, request: PromiseRequest, now_ms: float) -> StampAnswer:
        """Takes a replica's promise, and returns the next stamp for it, which must be sent at once."""
        if self.epoch != lease.epoch:
            self._begin(lease.epoch)
        if lease.epoch == request.epoch and request.known_epoch > request.epoch:
            lease.end_promises()
        if lease.epoch is None or lease.epoch > request.epoch or lease.fenced:
            self._forget(request.broker_id)
            return StampAnswer(has_stopped=lease.epoch is None or lease.epoch >= request.epoch)
        if lease.epoch < request.epoch:
            return StampAnswer()
        if lease.promises_ended:
            self._forget(request.broker_id)
            return StampAnswer(has_stopped=not lease.is_open(now_ms))
        self._record(request.broker_id, request.number)
        return StampAnswer(self._stamp(request.broker_id, now_ms))

    def _stamp(self, broker_id: int, now_ms: float) -> int:
        self._number += 1
        self._stamps.setdefault(broker_id, deque(maxlen=STAMPS_MAX)).append((self._number, now_ms))
        return self._number

    def _record(self, broker_id: int, number: int) -> None:
        """A replica promises, by the number of a stamp that it got. Other numbers change nothing."""
        for known, sent_ms in self._stamps.get(broker_id, ()):
            if known == number:
                until_ms = sent_ms + PROMISE_MS
                self._until_ms[broker_id] = max(until_ms, self._until_ms.get(broker_id, -math.inf))

    def until_ms(self, sync: SyncState) -> float:
        """Until when every broker has promised that may be elected; -inf if one of them has not, or if it is
        not known which brokers may be elected."""
        if len(sync.members) < max(MEMBERS_MIN, sync.recorded_least):
            return -math.inf  # replicas outside the set may be elected
        return min(self._until_ms.get(one, -math.inf) for one in _others(sync))

    def missing(self, sync: SyncState, now_ms: float) -> frozenset[int]:
        """The possible successors without a promise that lasts."""
        return frozenset(one for one in _others(sync) if self._until_ms.get(one, -math.inf) <= now_ms)

    def _forget(self, broker_id: int) -> None:
        """No promise of this replica counts any more: it may be told that this master has stopped."""
        self._stamps.pop(broker_id, None)
        self._until_ms.pop(broker_id, None)


def _others(sync: SyncState) -> frozenset[int]:
    """The brokers that may be elected in the place of this master."""
    return sync.members_or_proposed - {sync.self_id}


class Promised(Struct, frozen=True):
    """The master to which a replica promises: the process, and its epoch."""

    process: str
    epoch: int


class ReplicaPromises:
    """The promises that one broker has given as a replica. Times are milliseconds of its monotonic clock."""

    def __init__(self, now_ms: float) -> None:
        """`now_ms`: when the process has started."""
        self._ms = 0.0
        """The time that this clock has counted since the start."""
        self._seen_ms = now_ms
        self._held: dict[Promised | None, float] = {None: HELD_MS}
        """Until when each promise lasts; that of None may have been given by an earlier process."""
        self._stamp: tuple[Promised, int, float] | None = None
        """The newest stamp, and when it was received."""
        self._heard: tuple[int, float] | None = None
        """The epoch of the master that sent it and may write, as it said, and when; by the driver's clock."""

    def read(self, now_ms: float) -> None:
        """Reads the clock."""
        self._ms += min(now_ms - self._seen_ms, STRIDE_MS)
        self._seen_ms = now_ms
        if any(until_ms <= self._ms for until_ms in self._held.values()):
            self._held = {to: until_ms for to, until_ms in self._held.items() if until_ms > self._ms}

    def received(self, to: Promised, number: int, now_ms: float, *, may_write: bool = False) -> None:
        """A stamp of this master has arrived. `may_write`: what the master says of itself."""
        self.read(now_ms)
        self._stamp = to, number, self._ms
        self._heard = (to.epoch, now_ms) if may_write else None

    def heard_epoch(self, now_ms: float) -> int | None:
        """The epoch of the master that has sent the newest stamp, if that was just now and it may write."""
        if self._heard is None:
            return None
        epoch, received_ms = self._heard
        return epoch if now_ms - received_ms <= PROMISE_MS else None

    def promise(self, epoch: int, now_ms: float) -> int:
        """Promises to the master of this epoch, by the number of its stamp that is returned: from now on this
        broker does not become master before `ends`. 0: there is no stamp of it, and no promise."""
        self.read(now_ms)
        if self._stamp is None or self._stamp[0].epoch != epoch:
            return 0
        to, number, received_ms = self._stamp
        self._held[to] = max(received_ms + HELD_MS, self._held.get(to, 0.0))
        return number

    def released(self, to: Promised) -> None:
        """This master does not write under this epoch any more."""
        self._held.pop(to, None)

    def left_ms(self, now_ms: float) -> float:
        """For how long this broker may not become master; 0 if it may."""
        self.read(now_ms)
        return max((until_ms - self._ms for until_ms in self._held.values()), default=0.0)

    @property
    def holders(self) -> frozenset[Promised]:
        """The masters to which a promise lasts, as of the last reading."""
        return frozenset(to for to in self._held if to is not None)
