# pure: which replicas are in sync
"""Keeps a master's view of its replicas: their end offsets, who is in sync, what is confirmed
(`AutoSwitchHAService`).

The controllers own the SyncStateSet. The master proposes changes, and may not know their fate for a while.
The rules:

- **Proposals.** A replica that has reached both the confirmed offset and the start of the present epoch is
  proposed to be added, unless it was not caught up for too long. A member that was not caught up for too
  long, or never connected, is proposed to be removed. One proposal is under way at a time.
- **Refused.** If the controllers refuse a replica that was to be added, it is left out of the next proposals
  for a growing pause. So it blocks no other change of the set.
- **Too small.** With `allAckInSyncStateSet`, a set of fewer than `minInSyncReplicas` members acknowledges and
  confirms nothing. So the replicas that leave it then keep every acknowledged message, and the controllers
  may elect them (`ReplicaGroup.eligible_members`). Only a set that the controllers have accepted counts. The
  minimum that they have recorded with it counts, too: they do not know yet that it was lowered.
- **Alone.** With `allAckInSyncStateSet`, a master that would be the only member first flushes its log up to
  the confirmed offset, and confirms only flushed bytes until the fate of its proposal is known. Otherwise, if
  it lost power, only those that it has removed would have the confirmed bytes.
- **Unknown fate.** Until the controllers' response is known, every broker in the old set *or* in the proposed
  set counts as a member, and its acknowledgement is required. A lost response may have been an acceptance.
  (#5663)
- **Confirmed** are the bytes that every member has: `min(own end, every member's acknowledgement)`. With
  SYNC_FLUSH the own end is the flushed offset, because a power loss could otherwise take confirmed bytes from
  the master alone. A member without a connection holds the confirmed offset where it is (#6662). An
  acknowledgement of zero, or beyond what was sent, does not count (#6728, #1155). The confirmed offset never
  decreases during a mastership.
- **Whole records.** Replicas acknowledge parts of records. Replicas and controllers are told the last record
  end at or before the confirmed offset (`confirmed_records`), because a part does not survive a stop.
- **What may be acknowledged.** `confirmed_records` also lies in at least `minInSyncReplicas` logs: a master
  alone acknowledges nothing, and others need not keep what only it has.
- An acknowledgement beyond the end of the master's log is a protocol error, and is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from epochmq_broker.replication.ha.record_ends import RecordEnds
from epochmq_protocol.errors import InvariantError


@dataclass
class ConnectedReplica:
    """One connected replica. Times are milliseconds of the master's monotonic clock, offsets are log
    offsets."""

    broker_id: int
    async_learner: bool = False
    ack_offset: int = -1
    """The end offset that it reported last; -1 before its first report. Invariant: -1 <= ack_offset <= end of
    the master's log."""
    sent_end: int = -1
    """The end offset of the master's log when the last block was sent to it. Invariant: at most the present
    end."""
    sent_ms: int = 0
    connections: int = 1
    """Invariant: at least 1; without any the replica is dropped."""


@dataclass(frozen=True)
class RefusedReplica:
    """Why the controllers refused to add a replica, and until when it is not proposed again."""

    reason: str
    until_ms: int
    pause_ms: int


REFUSED_PAUSE_MS = 200
"""How long a replica is not proposed after the controllers first refused it; each further refusal doubles it.
A replica's first heartbeat often comes a little later than its first acknowledgement."""
REFUSED_PAUSE_MAX_MS = 10_000


@dataclass(frozen=True)
class SyncStateSetProposal:
    """A SyncStateSet to propose to the controllers, as the successor of the set of `set_epoch`."""

    members: frozenset[int]
    set_epoch: int
    least: int = 1
    """With how many members the new set acknowledges messages."""


@dataclass
class SyncState:
    """The state of one mastership."""

    self_id: int
    epoch_start: int
    """The start offset of this mastership's epoch. Invariant: at most `end`."""
    members: frozenset[int]
    """The SyncStateSet, as the controllers said last. Invariants: not empty; contains the master."""
    set_epoch: int
    """Never falls during a mastership: `adopt` ignores a set that is not newer."""
    confirm_offset: int
    """At the start, the end of a record. Never falls during a mastership. Invariants: at most `end`; whenever
    it advances while it depends on replicas, at most the reported end offset of every broker that may be a
    member (`_advance`)."""
    end: int
    """The end offset of the master's own log. Never falls during a mastership."""
    not_caught_up_max_ms: int
    since_ms: int
    all_ack: bool = False
    """`allAckInSyncStateSet`: only bytes that every member has are shown to consumers and acknowledged."""
    replicas: dict[int, ConnectedReplica] = field(default_factory=dict)
    caught_up_ms: dict[int, int] = field(default_factory=dict)
    proposed: frozenset[int] | None = None
    """The members of the proposal whose fate is unknown; None if there is none. Invariant: contains the
    master."""
    recorded_least: int = 1
    """The `min_copies` that the controllers have recorded with the present set."""
    refused: dict[int, RefusedReplica] = field(default_factory=dict)
    """The replicas that the controllers refused to add. Invariant: no members."""
    highest_ack: int = -1
    """The highest end offset that a replica has reported. Invariant: at least every `ack_offset`, at most
    `end`."""
    flushed: int | None = None
    """The flushed offset of the own log, if only flushed bytes count (SYNC_FLUSH); None: all bytes count."""
    durable: int | None = None
    """The flushed offset of the own log, whether only flushed bytes count or not; None if unknown."""
    min_copies: int = 1
    """`minInSyncReplicas` with `all_ack`, else 1."""
    confirmed_records: int = field(init=False)
    """The end of the last record that is confirmed as a whole and is in `min_copies` logs, as far as it is
    known. Never falls during a mastership. Invariant: at most `confirm_offset`."""
    _record_ends: RecordEnds = field(init=False)

    def __post_init__(self) -> None:
        self.confirmed_records = self.confirm_offset
        self._record_ends = RecordEnds(self.confirm_offset)
        self._record_ends.add(self.end)

    # Events of replicas -------------------------------------------------------------------------------------

    def replica_connected(self, broker_id: int, *, async_learner: bool) -> None:
        """A replica has sent its handshake. A second connection replaces the first."""
        known = self.replicas.get(broker_id)
        connections = known.connections + 1 if known is not None else 1
        self.replicas[broker_id] = ConnectedReplica(broker_id, async_learner, connections=connections)

    def replica_disconnected(self, broker_id: int) -> None:
        """A connection of the replica has ended; the replica stays connected while it has another one."""
        known = self.replicas.get(broker_id)
        if known is None:
            return
        known.connections -= 1
        if known.connections == 0:
            del self.replicas[broker_id]
            self.refused.pop(broker_id, None)

    def block_sent(self, broker_id: int, now_ms: int) -> None:
        """A block was sent: if the replica later acknowledges the present end, it was caught up at
        `now_ms`."""
        replica = self.replicas.get(broker_id)
        if replica is not None:
            replica.sent_end, replica.sent_ms = self.end, now_ms

    def nothing_to_send(self, broker_id: int, now_ms: int) -> None:
        """Everything was sent: if the replica has acknowledged all of it, it is caught up now."""
        replica = self.replicas.get(broker_id)
        if replica is not None and replica.ack_offset >= self.end:
            self._caught_up(replica, now_ms)

    def replica_acknowledged(self, broker_id: int, offset: int, now_ms: int) -> bool:
        """Records the end offset that a replica reports. False for an invalid offset, after which the caller
        should close the connection."""
        replica = self.replicas.get(broker_id)
        if replica is None or offset > self.end or offset < 0:
            return False
        replica.ack_offset = offset
        self.highest_ack = max(self.highest_ack, offset)
        if offset >= self.end:
            self._caught_up(replica, now_ms)
        elif replica.sent_end >= 0 and offset >= replica.sent_end:
            self._caught_up(replica, replica.sent_ms)
        self._advance()
        return True

    def _caught_up(self, replica: ConnectedReplica, at_ms: int) -> None:
        if not replica.async_learner:
            known = self.caught_up_ms.get(replica.broker_id, at_ms)
            self.caught_up_ms[replica.broker_id] = max(known, at_ms)

    def log_appended(self, end: int) -> None:
        """Records the new end of the master's own log, where a record ends."""
        self.end = end
        self._record_ends.add(end)
        if not self.waits_for_replicas:
            self._advance()

    def log_flushed_to(self, offset: int | None) -> None:
        """Records the flushed offset of the own log; None: flushing does not matter."""
        self.flushed = offset
        self._advance()

    @property
    def own_end(self) -> int:
        """The end offset up to which the own log counts."""
        end = self._end_beside_others
        return end if self.flushed is None else min(end, self.flushed)

    @property
    def _end_beside_others(self) -> int:
        """The end of the own log. While the master proposes to be alone, its flushed offset."""
        if self.all_ack and self.durable is not None and self.proposed == frozenset({self.self_id}):
            return min(self.end, self.durable)
        return self.end

    # Members ------------------------------------------------------------------------------------------------

    @property
    def members_or_proposed(self) -> frozenset[int]:
        """Every broker that may be a member now."""
        return self.members | self.proposed if self.proposed is not None else self.members

    @property
    def in_sync_count(self) -> int:
        """How many brokers, the master included, may be in sync (RocketMQ's `inSyncReplicasNums`)."""
        proposed = len(self.proposed) if self.proposed is not None else 0
        return max(len(self.members), proposed)

    def change_to_propose(self, now_ms: int) -> SyncStateSetProposal | None:
        """The change to propose now; None if there is none, or while another proposal is under way."""
        if self.proposed is not None:
            return None
        members = frozenset(
            {self.self_id}
            | {one for one in self.members if not self._is_to_leave(one, now_ms)}
            | {one for one, replica in self.replicas.items() if self._may_join(one, replica, now_ms)}
        )
        if members == self.members and not self._frees_the_set:
            return None
        if members == {self.self_id} and self._lacks_flush:
            return None
        return SyncStateSetProposal(members, self.set_epoch, self.min_copies)

    @property
    def _frees_the_set(self) -> bool:
        """Whether `minInSyncReplicas` was lowered, and the set acknowledges nothing until the controllers
        know that: until then they may elect replicas outside it."""
        return self.min_copies <= len(self.members) < self.recorded_least

    @property
    def has_enough_members(self) -> bool:
        """Whether the set that the controllers have accepted has as many members as an acknowledgement
        needs."""
        return not self.all_ack or len(self.members) >= max(self.min_copies, self.recorded_least)

    @property
    def _lacks_flush(self) -> bool:
        """Whether a power loss of the master could take confirmed bytes from it."""
        return self.all_ack and self.durable is not None and self.durable < self.confirm_offset

    def _is_to_leave(self, broker_id: int, now_ms: int) -> bool:
        if broker_id == self.self_id:
            return False
        if broker_id not in self.replicas:
            # A closed connection shows at once what silence shows only later.
            return now_ms - self.since_ms > self.not_caught_up_max_ms or broker_id in self.caught_up_ms
        return self._is_late(broker_id, now_ms)

    def _is_late(self, broker_id: int, now_ms: int) -> bool:
        """Whether a replica was not caught up for too long. While a set is too small nothing is confirmed, so
        a replica that gets no bytes any more still has the confirmed ones: it must not join only to be
        removed again at once."""
        known = self.caught_up_ms.get(broker_id, self.since_ms)
        return now_ms - known > self.not_caught_up_max_ms

    def _may_join(self, broker_id: int, replica: ConnectedReplica, now_ms: int) -> bool:
        if broker_id in self.members or replica.async_learner:
            return False
        refused = self.refused.get(broker_id)
        if (refused is not None and now_ms < refused.until_ms) or self._is_late(broker_id, now_ms):
            return False
        # Zero may be the first report of a replica that has not looked at its log yet. In an empty group it
        # is the right value.
        has_reported = replica.ack_offset > 0 or replica.ack_offset == self.end == 0
        return has_reported and replica.ack_offset >= max(self.confirm_offset, self.epoch_start)

    def proposal_sent(self, members: frozenset[int]) -> None:
        """The proposal is under way: from now on its members count, whatever its fate."""
        assert self.proposed is None
        self.proposed = members

    def proposal_rejected(self, refused: int | None = None, reason: str = "", now_ms: int = 0) -> None:
        """The controllers surely did not accept the proposal: because of the replica `refused`, if they named
        one that was to be added."""
        self.proposed = None
        if refused is not None and refused not in self.members:
            known = self.refused.get(refused)
            pause_ms = REFUSED_PAUSE_MS if known is None else min(2 * known.pause_ms, REFUSED_PAUSE_MAX_MS)
            self.refused[refused] = RefusedReplica(reason, now_ms + pause_ms, pause_ms)
        self._advance()

    def adopt(
        self, members: frozenset[int], set_epoch: int, least: int = 1, *, elected: bool = False
    ) -> bool:
        """Uses the controllers' set, which acknowledges with `least` members; False if it is not newer than
        the known one. The set of a new master epoch (`elected`) is newer whatever its number: controllers
        that lost everything count anew."""
        if set_epoch <= self.set_epoch and not elected:
            return False
        self.members, self.set_epoch, self.proposed = members, set_epoch, None
        self.recorded_least = least
        for one in members & self.refused.keys():
            del self.refused[one]
        self._advance()
        return True

    # The confirmed offset -----------------------------------------------------------------------------------

    @property
    def waits_for_replicas(self) -> bool:
        """Whether the confirmed offset depends on other brokers. (As in RocketMQ, only with
        `allAckInSyncStateSet`.)"""
        return self.all_ack and (self.members_or_proposed != {self.self_id} or not self.has_enough_members)

    def _advance(self) -> None:
        self.confirm_offset = max(self.confirm_offset, self._computed_confirm_offset())
        copied = self.offset_reached_by(self.min_copies) if self.min_copies > 1 else self.confirm_offset
        self.confirmed_records = self._record_ends.advance(min(self.confirm_offset, copied))

    def _computed_confirm_offset(self) -> int:
        lowest = self.own_end
        if not self.waits_for_replicas:
            return lowest
        if not self.has_enough_members:
            return self.confirm_offset
        for one in self.members_or_proposed:
            if one == self.self_id:
                continue
            replica = self.replicas.get(one)
            if replica is None or replica.ack_offset <= 0:
                return self.confirm_offset
            lowest = min(lowest, replica.ack_offset)
        return lowest

    def replicated_to(self, offset: int) -> int:
        """How many logs, the master's included, reach `offset`. Learners do not count."""
        return 1 + sum(
            replica.ack_offset >= offset for replica in self.replicas.values() if not replica.async_learner
        )

    def replicated_to_all(self, offset: int) -> bool:
        """Whether the log of every broker that may be a member reaches `offset`."""
        others = self.members_or_proposed - {self.self_id}
        return all(one in self.replicas and self.replicas[one].ack_offset >= offset for one in others)

    def offset_reached_by(self, count: int) -> int:
        """The end offset that `count` logs have, the master's included; -1 if there are fewer. Learners do
        not count."""
        if count <= 1:
            return self.end
        acks = sorted(
            (replica.ack_offset for replica in self.replicas.values() if not replica.async_learner),
            reverse=True,
        )
        return acks[count - 2] if len(acks) >= count - 1 else -1

    def offset_reached_by_all(self) -> int:
        """The end offset that every broker which may be a member has; -1 while one of them is not
        connected."""
        lowest = self._end_beside_others
        for one in self.members_or_proposed:
            if one != self.self_id:
                replica = self.replicas.get(one)
                lowest = min(lowest, replica.ack_offset if replica is not None else -1)
        return lowest

    def count_within(self, gap: int) -> int:
        """How many logs, the master's included, lack fewer than `gap` bytes (RocketMQ's `inSyncReplicasNums`
        without a controller)."""
        return 1 + sum(self.end - replica.ack_offset < gap for replica in self.replicas.values())

    # Invariants ---------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raises InvariantError if the state contradicts the rules at its fields. O(replicas)."""
        if self.self_id not in self.members or (
            self.proposed is not None and self.self_id not in self.proposed
        ):
            raise InvariantError(
                "SyncState",
                "the SyncStateSet contains the master, as does every proposal",
                self_id=self.self_id,
                members=sorted(self.members),
                proposed=self.proposed,
            )
        end, highest_ack = self.end, self.highest_ack
        if self.confirm_offset > end or self.epoch_start > end or highest_ack > end:
            raise InvariantError(
                "SyncState",
                "confirm_offset, epoch_start and highest_ack are at most the end of the log",
                confirm_offset=self.confirm_offset,
                epoch_start=self.epoch_start,
                highest_ack=self.highest_ack,
                end=end,
            )
        if self.confirmed_records > self.confirm_offset:
            raise InvariantError(
                "SyncState",
                "confirmed_records is at most the confirm offset",
                confirmed_records=self.confirmed_records,
                confirm_offset=self.confirm_offset,
            )
        for broker_id, replica in self.replicas.items():
            if not (
                -1 <= replica.ack_offset <= highest_ack
                and replica.sent_end <= end
                and replica.connections > 0
                and replica.broker_id == broker_id
            ):
                raise InvariantError(
                    "SyncState",
                    "a connected replica has reported at most highest_ack, and was sent at most the log",
                    broker_id=broker_id,
                    replica=replica,
                    highest_ack=self.highest_ack,
                    end=end,
                )

    def check_advance(self, confirmed_before: int) -> None:
        """Raises InvariantError if the confirm offset has fallen, or has advanced beyond what every broker
        that may be a member has reported. For a caller that knows the offset before one event."""
        confirmed = self.confirm_offset
        if confirmed < confirmed_before:
            raise InvariantError(
                "SyncState",
                "the confirm offset never falls during a mastership",
                confirm_offset=confirmed,
                before=confirmed_before,
            )
        if confirmed > confirmed_before and self.waits_for_replicas and not self.replicated_to_all(confirmed):
            raise InvariantError(
                "SyncState",
                "the confirm offset advances to what every member has reported",
                confirm_offset=confirmed,
                before=confirmed_before,
                members=sorted(self.members_or_proposed),
                acknowledged={one.broker_id: one.ack_offset for one in self.replicas.values()},
            )
