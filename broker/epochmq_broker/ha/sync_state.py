# pure: who is in sync
"""A master's view of its replicas: how far each is, who is in sync, what is confirmed
(`AutoSwitchHAService`).

The SyncStateSet is the controller's; the master proposes changes and lives with not knowing their fate for a
while. The rules:

- **Proposing.** A replica that reached both the confirmed offset and the start of the present epoch is to
  be added; one that was not caught up for too long, or never connected, is to be removed. One proposal is
  under way at a time.
- **Not knowing.** Until the controller's answer is known, whoever is in the old set *or* in the proposed
  one counts as a member: its acknowledgement is waited for. An answer that got lost may have been a yes.
  (#5663)
- **Confirmed** is what every member has: `min(own end, every member's acknowledgement)`; with SYNC_FLUSH our
  own end is what is flushed, else a loss of power could take what is confirmed from the master alone. A
  member without a connection holds it where it is (#6662), an acknowledgement of zero or beyond what was sent
  is none (#6728, #1155). It never goes back while this mastership lasts.
- An acknowledgement beyond our own end is a lie or a mistake, and refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ConnectedReplica:
    """One connected replica. Times are milliseconds of the master's monotonic clock."""

    broker_id: int
    async_learner: bool = False
    ack_offset: int = -1
    """How far its log reaches, as it said; -1 before it said anything."""
    sent_end: int = -1
    """The master's end when a block was last sent to it."""
    sent_ms: int = 0
    connections: int = 1


@dataclass(frozen=True)
class SyncStateSetProposal:
    """A SyncStateSet to be asked of the controller, on top of the one of `set_epoch`."""

    members: frozenset[int]
    set_epoch: int


@dataclass
class SyncState:
    """One mastership."""

    self_id: int
    epoch_start: int
    """Where this mastership's epoch starts in the log."""
    members: frozenset[int]
    set_epoch: int
    confirm_offset: int
    end: int
    """The end of our own log."""
    not_caught_up_max_ms: int
    since_ms: int
    all_ack: bool = False
    """`allAckInSyncStateSet`: only what every member has is shown to consumers and acknowledged."""
    replicas: dict[int, ConnectedReplica] = field(default_factory=dict)
    caught_up_ms: dict[int, int] = field(default_factory=dict)
    proposed: frozenset[int] | None = None
    """A proposal whose fate is not known."""
    flushed: int | None = None
    """How far our own log is on disk, where only that counts (SYNC_FLUSH); None: all of it counts."""

    # What replicas do ---------------------------------------------------------------------------------------

    def replica_connected(self, broker_id: int, *, async_learner: bool) -> None:
        """A replica has introduced itself. A second connection takes the place of the first."""
        known = self.replicas.get(broker_id)
        connections = known.connections + 1 if known is not None else 1
        self.replicas[broker_id] = ConnectedReplica(broker_id, async_learner, connections=connections)

    def replica_disconnected(self, broker_id: int) -> None:
        """A connection of the replica ended; while another is there the replica is."""
        known = self.replicas.get(broker_id)
        if known is None:
            return
        known.connections -= 1
        if known.connections == 0:
            del self.replicas[broker_id]

    def block_sent(self, broker_id: int, now_ms: int) -> None:
        """A block was sent: whoever acknowledges our present end was caught up now."""
        replica = self.replicas.get(broker_id)
        if replica is not None:
            replica.sent_end, replica.sent_ms = self.end, now_ms

    def nothing_to_send(self, broker_id: int, now_ms: int) -> None:
        """The replica was sent everything there is."""
        replica = self.replicas.get(broker_id)
        if replica is not None and replica.ack_offset >= self.end:
            self._caught_up(replica, now_ms)

    def replica_acknowledged(self, broker_id: int, offset: int, now_ms: int) -> bool:
        """The replica says how far its log reaches; False for an offset that cannot be, after which it should
        be disconnected."""
        replica = self.replicas.get(broker_id)
        if replica is None or offset > self.end or offset < 0:
            return False
        replica.ack_offset = offset
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
        """Our own log has grown."""
        self.end = end
        if not self.waits_for_replicas:
            self._advance()

    def log_flushed_to(self, offset: int | None) -> None:
        """Our own log is on disk up to `offset`; None: what is on disk does not matter."""
        self.flushed = offset
        self._advance()

    @property
    def own_end(self) -> int:
        """Up to where our own log counts."""
        return self.end if self.flushed is None else min(self.end, self.flushed)

    # Members ------------------------------------------------------------------------------------------------

    @property
    def members_or_proposed(self) -> frozenset[int]:
        """Whoever may be a member by now."""
        return self.members | self.proposed if self.proposed is not None else self.members

    @property
    def in_sync_count(self) -> int:
        """How many replicas, this one included, a send may count on (`inSyncReplicasNums`)."""
        proposed = len(self.proposed) if self.proposed is not None else 0
        return max(len(self.members), proposed)

    def change_to_propose(self, now_ms: int) -> SyncStateSetProposal | None:
        """The change to propose now, if any. While one is under way there is none; ask again after its
        answer."""
        if self.proposed is not None:
            return None
        wanted = frozenset(
            {self.self_id}
            | {one for one in self.members if not self._is_to_leave(one, now_ms)}
            | {one for one, replica in self.replicas.items() if self._may_join(one, replica)}
        )
        return SyncStateSetProposal(wanted, self.set_epoch) if wanted != self.members else None

    def _is_to_leave(self, broker_id: int, now_ms: int) -> bool:
        if broker_id == self.self_id:
            return False
        if broker_id not in self.replicas:
            # A closed connection says at once what silence says later.
            return now_ms - self.since_ms > self.not_caught_up_max_ms or broker_id in self.caught_up_ms
        known = self.caught_up_ms.get(broker_id, self.since_ms)
        return now_ms - known > self.not_caught_up_max_ms

    def _may_join(self, broker_id: int, replica: ConnectedReplica) -> bool:
        if broker_id in self.members or replica.async_learner:
            return False
        # Zero may be the word of one that has not looked yet, but in an empty group it is all there is.
        said = replica.ack_offset > 0 or replica.ack_offset == self.end == 0
        return said and replica.ack_offset >= max(self.confirm_offset, self.epoch_start)

    def proposal_sent(self, members: frozenset[int]) -> None:
        """The proposal is on its way: from now on its members count, whatever becomes of it."""
        assert self.proposed is None
        self.proposed = members

    def proposal_rejected(self) -> None:
        """The controller has surely not taken the proposal."""
        self.proposed = None
        self._advance()

    def adopt(self, members: frozenset[int], set_epoch: int) -> bool:
        """The controller's set, by its answer or by looking; False for one that is not newer."""
        if set_epoch <= self.set_epoch:
            return False
        self.members, self.set_epoch, self.proposed = members, set_epoch, None
        self._advance()
        return True

    # Confirmed ----------------------------------------------------------------------------------------------

    @property
    def waits_for_replicas(self) -> bool:
        """Whether what is confirmed depends on others. (RocketMQ: only with `allAckInSyncStateSet`.)"""
        return self.all_ack and self.members_or_proposed != {self.self_id}

    def _advance(self) -> None:
        self.confirm_offset = max(self.confirm_offset, self._computed_confirm_offset())

    def _computed_confirm_offset(self) -> int:
        lowest = self.own_end
        if not self.waits_for_replicas:
            return lowest
        for one in self.members_or_proposed:
            if one == self.self_id:
                continue
            replica = self.replicas.get(one)
            if replica is None or replica.ack_offset <= 0:
                return self.confirm_offset
            lowest = min(lowest, replica.ack_offset)
        return lowest

    def replicated_to(self, offset: int) -> int:
        """How many logs, our own included, reach `offset` (learners do not count)."""
        return 1 + sum(
            replica.ack_offset >= offset for replica in self.replicas.values() if not replica.async_learner
        )

    def replicated_to_all(self, offset: int) -> bool:
        """Whether everybody who may be a member reaches `offset`."""
        others = self.members_or_proposed - {self.self_id}
        return all(one in self.replicas and self.replicas[one].ack_offset >= offset for one in others)

    def offset_reached_by(self, count: int) -> int:
        """The end of what `count` logs have, our own included; -1 when there are not so many (learners do not
        count)."""
        if count <= 1:
            return self.end
        acks = sorted(
            (replica.ack_offset for replica in self.replicas.values() if not replica.async_learner),
            reverse=True,
        )
        return acks[count - 2] if len(acks) >= count - 1 else -1

    def offset_reached_by_all(self) -> int:
        """The end of what everybody has who may be a member; -1 while one of them is not connected."""
        lowest = self.end
        for one in self.members_or_proposed:
            if one != self.self_id:
                replica = self.replicas.get(one)
                lowest = min(lowest, replica.ack_offset if replica is not None else -1)
        return lowest

    def count_within(self, gap: int) -> int:
        """How many logs, our own included, lack fewer than `gap` bytes (`inSyncReplicasNums` without a
        controller)."""
        return 1 + sum(self.end - replica.ack_offset < gap for replica in self.replicas.values())
