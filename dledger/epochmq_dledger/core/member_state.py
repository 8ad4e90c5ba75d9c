"""Holds the state that election, follower and leader share, and makes its transitions (`MemberState`).

Term, vote, role, log and committed index change only here; each transition emits its effects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from epochmq_dledger.core.membership import Membership, check_succession, recovered_memberships
from epochmq_dledger.core.raft_log import BodyLog, LogFullError, RaftLog
from epochmq_dledger.core.rejoin import Rejoin
from epochmq_dledger.core.types import (
    Alarm,
    ApplyCommitted,
    EraseDroppedEntries,
    Jitter,
    MembersChanged,
    RaftEffect,
    RaftRole,
    RaftSettings,
    RoleChanged,
    SavedMembership,
    SaveMemberships,
    SaveVote,
    SendResponse,
    Snapshot,
)
from epochmq_protocol.dledger import (
    FEATURE_MEMBERS,
    FEATURES,
    MEMBERS_CHANNEL,
    DLedgerEntry,
    RequestOrResponse,
    decode_members,
    encode_members,
)
from epochmq_protocol.errors import InvariantError, RemoteProtocolError


class MemberState:
    """Term, vote, role, leader, and how far the log is committed and durable.

    `synced_index`: entries up to it survive a power failure. This peer acknowledges nothing beyond it:
    neither to its leader nor, as a leader, in its own share of a quorum.
    """

    def __init__(
        self,
        settings: RaftSettings,
        log: RaftLog,
        jitter: Jitter,
        term: int,
        voted_for: str | None,
        committed: int,
        snapshot: Snapshot | None,
        memberships: Sequence[DLedgerEntry],
        body_log: BodyLog | None = None,
        saved_memberships: Sequence[SavedMembership] = (),
    ) -> None:
        """`memberships`: the membership entries of the log after the snapshot. `body_log`: the same log, if
        it takes a leader's entries as bodies; it has `saved_memberships` instead."""
        self.settings = settings
        self.log = log
        self.body_log = body_log
        self.jitter = jitter
        self.term = max(term, log.end_term, 0)
        """Never falls. Invariant: log.end_term <= term."""
        self.voted_for = voted_for if self.term == term else None
        """Invariant: one vote per term (Raft §5.2). `save_vote` checks it at every change."""
        self.role = RaftRole.CANDIDATE
        """Invariant: a peer that recovers lost data (`rejoin`) does not lead."""
        self.leader: str | None = None
        """Invariant: this peer exactly while it leads, another one while it follows, None for a
        candidate."""
        self.committed_index = min(committed, log.end_index)
        """Never falls. Invariant: -1 <= committed_index <= log.end_index."""
        self.synced_index = log.end_index
        """Invariant: -1 <= synced_index <= log.end_index."""
        self.snapshot = snapshot
        """The latest durable snapshot. Earlier entries may have been dropped. Invariant: its last entry is in
        the log and committed: log.begin_index <= snapshot.index <= committed_index."""
        initial = [peer for peer in settings.peers if not settings.joining or peer != settings.self_id]
        saved = recovered_memberships(saved_memberships, log, body_log) if body_log is not None else []
        in_snapshot = None
        if snapshot is not None and snapshot.members is not None:
            in_snapshot = snapshot.index, snapshot.members
        self.membership = Membership(initial, in_snapshot, saved=saved, decode=self.decode_members)
        self.rejoin: Rejoin | None = None
        """Set while this peer recovers lost data: it has no vote."""
        self.learner: str | None = None
        """A peer that this leader is adding to the group. Invariant: it is no voter."""
        self.features: dict[str, int] = {}
        """The protocol extensions that each peer supports, by its latest message."""
        self.group_features = 0
        """The extensions that all peers support, as this term's leader reports them."""
        self._alarms: dict[str, str] = {}
        self.effects: list[RaftEffect] = []
        self.is_erasing = False
        """Whether the driver is erasing dropped entries. The log takes no change meanwhile."""
        self._is_resetting = False
        """Whether the log was reset, and its first entry is not written yet."""
        self._after_erasure: list[RaftEffect] = []
        """Effects to emit once the erasure is complete."""
        self.heartbeat_round = 0
        """The number of the latest heartbeat round, over all leaderships of this process."""
        self._request_number = 0
        self.messages_rejected = 0
        """Messages of other peers that no correct peer sends (`message_bounds`)."""
        self.membership.add_entries(memberships)
        if saved != list(saved_memberships):
            self._save_memberships()
        self._report_members(changed=True)

    @property
    def voters(self) -> tuple[str, ...]:
        """The ids of the voters."""
        return self.membership.voters

    @property
    def is_voter(self) -> bool:
        """Whether this peer is a voter."""
        return self.settings.self_id in self.voters

    @property
    def quorum(self) -> int:
        """The number of voters that form a majority."""
        return len(self.voters) // 2 + 1

    @property
    def other_voters(self) -> list[str]:
        """The voters other than this peer."""
        return [peer for peer in self.voters if peer != self.settings.self_id]

    def accepts_sender(self, message: RequestOrResponse) -> bool:
        """Whether to accept a vote request, heartbeat or push: its sender is a voter, or an EpochMQ peer,
        which may know a membership that this peer has not received yet."""
        return message.leader_id in self.voters or bool((message.epochmq or 0) & FEATURE_MEMBERS)

    def emit(self, effect: RaftEffect) -> None:
        """Adds an effect to those of the present input."""
        self.effects.append(effect)

    def next_request_number(self) -> int:
        """A new number that identifies a request among those in flight."""
        self._request_number += 1
        return self._request_number

    def fill_request(self, request: RequestOrResponse, peer: str) -> None:
        """Sets the fields that every request carries."""
        request.group = self.settings.group
        request.local_id = self.settings.self_id
        request.remote_id = peer
        request.epochmq = FEATURES
        request.epochmq_agreed = self.settings.shared_settings
        if request.term < 0:
            request.term = self.term
        if request.leader_id is None:
            request.leader_id = self.settings.self_id

    def reply(
        self,
        call: int,
        request: RequestOrResponse,
        response: RequestOrResponse,
        *,
        after_erasure: bool = False,
    ) -> None:
        """Responds to a request and copies its ids into the response, as Java's `copyBaseInfo` does. `call`
        is the number by which the driver knows the request. `after_erasure`: the response waits until the log
        is writable."""
        response.group = request.group
        response.local_id = request.local_id
        response.remote_id = request.remote_id
        response.leader_id = request.leader_id
        if request.epochmq is not None:
            response.epochmq = FEATURES
            response.epochmq_agreed = self.settings.shared_settings
        if after_erasure:
            self.emit_after_erasure(SendResponse(call, response))
        else:
            self.emit(SendResponse(call, response))

    def learn_features(self, peer: str | None, message: RequestOrResponse) -> None:
        """Records the extensions that a peer supports. A message without them comes from a peer that supports
        none."""
        if (
            peer is not None
            and peer != self.settings.self_id
            and (peer in self.voters or peer == self.learner)
        ):
            self.features[peer] = message.epochmq or 0

    def all_support(self, feature: int) -> bool:
        """Whether every other voter supports this extension: each has said so, or the log names the voters,
        which only EpochMQ peers do."""
        if self.membership.addresses is not None:
            return bool(FEATURES & feature)
        return all(self.features.get(peer, 0) & feature for peer in self.other_voters)

    def has_same_settings(self, peer: str | None, message: RequestOrResponse) -> bool:
        """Whether a peer reports the same shared settings as this one. If not, its messages are ignored."""
        expected, reported = self.settings.shared_settings, message.epochmq_agreed
        if expected is None or reported is None or expected == reported:
            return True
        self.alarm(
            f"{peer}",
            f"peer {peer} has {reported}, expected {expected} as here; its messages are ignored until both "
            "are equal",
        )
        return False

    def alarm(self, about: str, text: str) -> None:
        """Logs an error about a subject, once for each text."""
        if self._alarms.get(about) != text and len(self._alarms) < 100:
            self._alarms[about] = text
            self.emit(Alarm(text))

    def reject_message(self, what: str, fault: str) -> None:
        """Counts a message that no correct peer sends, and logs it when their number has doubled."""
        self.messages_rejected = count = self.messages_rejected + 1
        if count & (count - 1) == 0:
            self.emit(Alarm(f"rejected {count} messages that no correct peer sends, now {what}: {fault}"))

    # The log, and the membership with it --------------------------------------------------------------------

    def append(self, entries: list[DLedgerEntry]) -> None:
        """Writes entries that follow the last one. LogFullError: the log has not changed. Report the failure
        with `emit_after_erasure`: bytes that were written must not come back after it."""
        with self._appending():
            self.log.append(entries)
        self._add_memberships(entries)

    def append_received(self, entries: list[DLedgerEntry]) -> None:
        """Appends entries that a leader has sent. Errors as `append`, and RemoteProtocolError: a membership
        entry cannot follow the one before, and the log has not changed."""
        before = self.membership.addresses
        for entry in entries:
            if entry.channel == MEMBERS_CHANNEL:
                after = self.decode_members(entry)
                check_succession(entry.index, before, after)
                before = after
        self.append(entries)

    def append_bodies(self, bodies: Sequence[bytes], channel: int = 0) -> None:
        """Appends entries of this term to a `BodyLog`, with a channel one entry only. Errors as `append`."""
        assert self.body_log is not None
        with self._appending():
            self.body_log.append_bodies(self.term, bodies, channel)
        if channel:
            self._add_memberships_at([self.log.end_index])

    def append_block(self, data: bytes) -> None:
        """Appends entries that this term's leader has sent as bytes to a `BodyLog`. Errors as `append`, and
        RemoteProtocolError."""
        assert self.body_log is not None
        with self._appending():
            block = self.body_log.append_received(data, term_max=self.term, members=self.membership.addresses)
        self._add_memberships_at(block.members)

    def _add_memberships_at(self, indexes: Sequence[int]) -> None:
        entries = [self.log.entry(index) for index in indexes]
        self._add_memberships([entry for entry in entries if entry is not None])

    def _add_memberships(self, entries: Sequence[DLedgerEntry]) -> None:
        """Records the membership entries among those that were written."""
        changed = self.membership.add_entries(entries)
        if changed:
            self._save_memberships()
        self._report_members(changed)

    @contextmanager
    def _appending(self) -> Iterator[None]:
        if self.is_erasing:
            raise LogFullError("the log does not take entries before its dropped entries are erased")
        try:
            yield
        except LogFullError:
            self._begin_erasure()
            raise

    def replace_last(self, entry: DLedgerEntry) -> None:
        """Writes the last entry again, as the leader has it. RemoteProtocolError: that one is damaged, and
        the log has not changed. LogFullError: the log may hold any part of either."""
        if self.body_log is not None:
            self.body_log.check_entry(entry)
        before = self.membership.addresses_at(entry.index - 1)
        if entry.channel == MEMBERS_CHANNEL:
            check_succession(entry.index, before, self.decode_members(entry))
        self.log.replace_last(entry)
        self.synced_index = min(self.synced_index, entry.index - 1)
        changed = self.membership.truncate(entry.index - 1)
        changed = self.membership.add_entries([entry]) or changed
        if changed:
            self._save_memberships()
        self._report_members(changed)

    def truncate(self, end_index: int) -> None:
        """Truncates the log after `end_index`."""
        self.log.truncate(end_index)
        self.synced_index = min(self.synced_index, end_index)
        changed = self.membership.truncate(end_index)
        self._report_members(changed)
        self._begin_erasure()
        if changed:  # not before the erasure: the entry could come back, and would be looked for in vain
            self._save_memberships(after_erasure=True)

    def reset(self, entry: DLedgerEntry, members: dict[str, str] | None = None) -> None:
        """Replaces the log by this entry. `members`: the voters that the entries before it named.
        RemoteProtocolError: the entry's body is damaged, and the log has not changed."""
        if self.body_log is not None:
            self.body_log.check_entry(entry)
        self.log.reset(entry)
        self.synced_index = entry.index - 1
        before = self.membership.to_save
        if self.body_log is None:
            self.membership.reset(entry.index, members)
        else:
            self.membership.reset_to_entry(entry, members)
        changed = self.membership.add_entries([entry]) or members is not None
        if self.membership.to_save != before:  # before the erasure: the new log does not name the voters
            self._save_memberships()
        self._begin_erasure()
        self._is_resetting = self.is_erasing
        self._report_members(changed)

    def _save_memberships(self, *, after_erasure: bool = False) -> None:
        if self.body_log is None:
            return
        self.membership.forget_before(self.log.begin_index)
        effect = SaveMemberships(self.membership.to_save)
        if after_erasure:
            self.emit_after_erasure(effect)
        else:
            self.emit(effect)

    def encode_members(self, peers: dict[str, str]) -> bytes:
        """The body of an entry that names the voters."""
        if self.body_log is None:
            return encode_members(peers)
        return self.body_log.members_body(self.term, dict(sorted(peers.items())))

    def decode_members(self, entry: DLedgerEntry) -> dict[str, str]:
        """The voters that a membership entry names. RemoteProtocolError: malformed."""
        if self.body_log is None:
            return decode_members(entry)
        try:
            return self.body_log.members_of(entry.body)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"membership entry {entry.index}: {error}") from error

    def _begin_erasure(self) -> None:
        if not self.log.is_writable and not self.is_erasing:
            self.is_erasing = True
            self.emit(EraseDroppedEntries())

    def emit_after_erasure(self, effect: RaftEffect) -> None:
        """Adds an effect that reports entries as not in the log. It is emitted once that is durably true."""
        if self.is_erasing:
            self._after_erasure.append(effect)
        else:
            self.emit(effect)

    def on_erasure_completed(self) -> None:
        """The log is writable again: emits the effects that waited for it."""
        self.is_erasing = self._is_resetting = False
        held, self._after_erasure = self._after_erasure, []
        for effect in held:
            self.emit(effect)

    def _report_members(self, changed: bool) -> None:
        if changed and self.membership.addresses is not None:
            self.emit(MembersChanged(self.membership.addresses))

    # Term and role ------------------------------------------------------------------------------------------

    def save_vote(self, term: int, voted_for: str | None) -> None:
        """Moves to a newer term, or votes in this one. A vote that was cast in a term never changes."""
        if not (term > self.term or (term == self.term and self.voted_for in (None, voted_for))):
            raise InvariantError(
                "MemberState",
                "terms rise, and a peer votes once in a term",
                term=self.term,
                voted_for=self.voted_for,
                new_term=term,
                new_vote=voted_for,
            )
        self.term = term
        self.voted_for = voted_for
        self.emit(SaveVote(term, voted_for))

    def adopt_term(self, term: int) -> None:
        """Moves to a newer term of the group, in which this peer has not voted yet."""
        if term > self.term:
            self.save_vote(term, None)

    def become(self, role: RaftRole, leader: str | None) -> None:
        """Changes role within the current term."""
        if (role, leader) != (self.role, self.leader):
            self.role = role
            self.leader = leader
            self.emit(RoleChanged(role, self.term, leader))

    def commit(self, index: int) -> None:
        """Advances the committed index. It never decreases."""
        index = min(index, self.log.end_index)
        if index > self.committed_index:
            self.committed_index = index
            if self._is_resetting:  # the entry is in memory only, and its file may still be the former one
                self.emit_after_erasure(ApplyCommitted(index))
            else:
                self.emit(ApplyCommitted(index))

    # Invariants ---------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raises InvariantError if the state contradicts the rules at its fields. O(voters)."""
        log, committed_index = self.log, self.committed_index
        begin, end, end_term = log.begin_index, log.end_index, log.end_term
        if not -1 <= begin <= end or (begin < 0 <= end):
            raise InvariantError(
                "MemberState", "-1 <= log.begin_index <= log.end_index", begin_index=begin, end_index=end
            )
        if end_term > self.term:
            raise InvariantError("MemberState", "log.end_term <= term", end_term=end_term, term=self.term)
        if not -1 <= committed_index <= end:
            raise InvariantError(
                "MemberState",
                "-1 <= committed_index <= log.end_index",
                committed_index=committed_index,
                end_index=end,
            )
        if not -1 <= self.synced_index <= end:
            raise InvariantError(
                "MemberState",
                "-1 <= synced_index <= log.end_index",
                synced_index=self.synced_index,
                end_index=end,
            )
        if self.snapshot is not None and not begin <= self.snapshot.index <= committed_index:
            raise InvariantError(
                "MemberState",
                "log.begin_index <= snapshot.index <= committed_index",
                begin_index=begin,
                snapshot_index=self.snapshot.index,
                committed_index=committed_index,
            )
        self._check_role()
        membership = self.membership
        membership.check_invariants()
        if membership.index > end and not membership.begins_log:
            raise InvariantError(
                "MemberState",
                "the entry that names the voters is in the log",
                membership_index=membership.index,
                end_index=end,
            )

    def _check_role(self) -> None:
        role, leader, self_id = self.role, self.leader, self.settings.self_id
        if role is RaftRole.LEADER:
            is_consistent = leader == self_id
        elif role is RaftRole.FOLLOWER:
            is_consistent = leader is not None and leader != self_id
        else:
            is_consistent = leader is None
        if not is_consistent:
            raise InvariantError(
                "MemberState",
                "the known leader fits the role",
                role=role.value,
                leader=leader,
                self_id=self_id,
            )
        if self.rejoin is not None and role is RaftRole.LEADER:
            raise InvariantError(
                "MemberState", "a peer that recovers lost data does not lead", role=role.value, term=self.term
            )
        if self.learner is not None and self.learner in self.voters:
            raise InvariantError(
                "MemberState", "a learner is no voter", learner=self.learner, voters=self.voters
            )
