"""Brokers whose commit log is a DLedger log, in groups that change: peers join and leave one at a time, and
removed ones return, with their log or with an empty directory. Files expire, and membership entries with
them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import msgspec

from epochmq_dledger.core.types import (
    ApplyCommitted,
    ChangeMembers,
    OperationFailed,
    ProposalCommitted,
    RaftEffect,
    RaftSettings,
    RoleChanged,
)
from epochmq_protocol.dledger import MEMBERS_CHANNEL, DLedgerEntry, DLedgerResponseCode
from tests.simulation import fault_plan
from tests.simulation.block_world import AFTERWARDS_MS, FAULTS_MS, BlockWorld, BrokerPeer
from tests.simulation.client_world import with_events
from tests.simulation.fault_plan import Plan
from tests.simulation.peer_host import PeerHost, UndetectableLossError
from tests.simulation.simulated_block_logs import members_of

PEERS = 6
NAMES = tuple(f"n{number}" for number in range(PEERS))
CHANGE_TOKENS = 1_000_000
"""Tokens of membership changes begin here; those of proposals are lower."""


def plan(seed: int) -> Plan:
    """Plans a seed's world."""
    rng = random.Random(f"changing blocks {seed}")
    found = Plan(
        seed,
        fault_plan.network(rng),
        peers=PEERS,
        options={
            "beside_java": False,  # the members of its group cannot change
            "wire": rng.random() < 0.1,
            "stored": True,
            "first_voters": rng.choice((1, 3, 3, 3)),
        },
        faults_ms=FAULTS_MS,
        quiet_ms=AFTERWARDS_MS,
    )
    rates = {
        kind: rng.choice((1, 2)) * rate
        for kind, rate in fault_plan.mixture(rng, fault_plan.PEER_RATES, 0.5).items()
    }
    rates["figure_8"] = rng.choice((0, 0, 0, 8))
    rates["lost_tail"] = rng.choice((0, 0, 0, 8))
    found = with_events(rng, found, rates, per_minute=60 * rng.choice((1, 3, 8)))
    until_ms = found.faults_ms
    streams = [iter(found.events)]
    change_rate, wipe_rate = rng.choice((20, 60, 120)), rng.choice((0, 10, 40))
    streams.append(
        fault_plan.stream(rng, "change", change_rate, until_ms, lambda r: (r.random(), r.choice(NAMES)))
    )
    streams.append(fault_plan.stream(rng, "wipe", wipe_rate, until_ms, lambda r: (r.choice(NAMES),)))
    if rng.random() < 0.8:
        expiry = rng.choice((30, 90, 180))
        streams.append(
            fault_plan.stream(rng, "expire", expiry, until_ms, lambda r: (r.choice(("leader", *NAMES)), 0.99))
        )
    found.events = fault_plan.sequence(streams)
    return found


class ChangingPeer(BrokerPeer):
    """A peer that may join or leave."""

    world: ChangingBlockWorld

    def recovered(self) -> None:
        super().recovered()
        self.world.check_membership(self)

    def carry_out(self, effect: RaftEffect) -> None:
        super().carry_out(effect)
        if isinstance(effect, RoleChanged | ApplyCommitted):
            self.world.check_membership(self)

    def on_committed(self, effect: ProposalCommitted) -> None:
        if effect.token < CHANGE_TOKENS:
            super().on_committed(effect)
        else:
            self.world.count_event("changes")
            self.world.done.add(effect.token)
            self.world.note(f"change {self.world.changes[effect.token]} is committed")

    def on_failed(self, effect: OperationFailed) -> None:
        if effect.token < CHANGE_TOKENS:
            super().on_failed(effect)
        else:
            self.world.failed[effect.token] = effect.code
            self.world.note(f"change {self.world.changes[effect.token]} fails: {effect.code.name}")


class ChangingBlockWorld(BlockWorld):
    """The world of a plan."""

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        options = dict(plan.options)
        self.first_voters = NAMES[: options.pop("first_voters", 3)]
        self.changes: dict[int, str] = {}
        self.done: set[int] = set()
        """The changes that are committed."""
        self.failed: dict[int, DLedgerResponseCode] = {}
        super().__init__(dataclasses.replace(plan, options=options), verbose=verbose)
        self.wanted = plan

    def make_peer(self, name: str, settings: RaftSettings) -> BrokerPeer:
        made = super().make_peer(name, self.settings_of(settings, is_new=name not in self.first_voters))
        return ChangingPeer(self, name, made.settings)

    def is_founder(self, peer: PeerHost) -> bool:
        return len(self.first_voters) > 1 and not peer.settings.joining

    def settings_of(self, settings: RaftSettings, *, is_new: bool) -> RaftSettings:
        """The settings of a first voter, or of a peer that is to be added."""
        peers = tuple(dict.fromkeys((*self.first_voters, settings.self_id)))
        return msgspec.structs.replace(settings, peers=peers, joining=is_new, catch_up_wait_max_ms=5000)

    # Promises -----------------------------------------------------------------------------------------------

    def voters_at(self, entries: Sequence[DLedgerEntry]) -> set[str]:
        """The voters that these entries name, which begin with the first of all."""
        named = next((one for one in reversed(entries) if one.channel == MEMBERS_CHANNEL), None)
        return set(members_of(named.body)) if named is not None else set(self.first_voters)

    def voters_of(self, peer: PeerHost) -> set[str]:
        assert peer.node is not None
        return set(peer.node.member.voters)

    def members(self) -> list[PeerHost]:
        leader = self.leader()
        names = self.voters_of(leader) if leader is not None else self.voters_at(self.committed)
        return [peer for peer in self.peers.values() if peer.name in names]

    def on_commit(self, peer: PeerHost, index: int) -> None:
        before = len(self.committed)
        super().on_commit(peer, index)
        for at in range(before, len(self.committed)):
            if self.committed[at].channel == MEMBERS_CHANNEL:
                voters = [self.voters_at(self.committed[: end + 1]) for end in (at - 1, at)]
                if len(voters[0] ^ voters[1]) != 1:
                    self.fail(f"from {sorted(voters[0])} to {sorted(voters[1])} in one step")

    def check_membership(self, peer: PeerHost) -> None:
        """The voters that a peer counts are those that the entries before and in its log name. Only a log
        that was about to begin anew may know those of a later entry, which is committed."""
        assert peer.node is not None
        if peer.log.end_index < 0 or peer.rejoins:
            return
        membership, begin = peer.node.member.membership, max(peer.log.begin_index, 0)
        entries = peer.log.entries
        expected = self.voters_at([*self.committed[:begin], *entries])
        if membership.index > peer.log.end_index:
            self.count_event("voters of a later entry")
            expected = self.voters_at(self.committed[: membership.index + 1])
        if set(peer.node.member.voters) != expected and not self._excludes_itself(peer, expected):
            self.fail(
                f"{peer.name} counts {peer.node.member.voters} as voters, but its log from {begin} to "
                f"{peer.log.end_index} says {sorted(expected)}"
            )
        if begin and not any(one.channel == MEMBERS_CHANNEL for one in entries) and self.done:
            self.count_event("voters of expired entries")

    def _excludes_itself(self, peer: PeerHost, expected: set[str]) -> bool:
        """A first voter whose directory was cleared does not count itself before the log names it."""
        assert peer.node is not None
        own = {peer.name}
        return peer.settings.joining and set(peer.node.member.voters) == expected - own

    def check_leader(self) -> None:
        """Ends the world if the remaining voters include too many that recover lost data: a group of two
        needs both."""
        for peer in self.peers.values():
            voters = self.voters_of(peer)
            if sum(self.peers[name].rejoins for name in voters) > (len(voters) - 1) // 2:
                self.count_event("majorities without a vote")
                raise UndetectableLossError(f"too few of {sorted(voters)} may vote")
        super().check_leader()

    def may_damage(self) -> bool:
        names = [len(self.voters_of(peer)) for peer in self.peers.values() if peer.node is not None]
        return super().may_damage() and min([len(self.voters_at(self.committed)), *names]) >= 3

    def end_faults(self) -> None:
        """Also cancels deaths that wait for effects: a group of one has few."""
        for peer in self.peers.values():
            peer.effects_left = None
        super().end_faults()

    # Operators ----------------------------------------------------------------------------------------------

    def do_change(self, luck: float, who: str) -> None:
        """An operator adds a peer, or removes it if it is a member."""
        peer = self.someone(luck)
        if peer.up and peer.node is not None:
            voters = peer.node.member.voters
            self.change(peer, who, removes=who in voters and len(voters) > 1)

    def change(self, peer: PeerHost, who: str, *, removes: bool) -> int:
        """Asks a peer for a change. Returns its token."""
        assert peer.node is not None
        token = CHANGE_TOKENS + len(self.changes)
        self.changes[token] = f"{'-' if removes else '+'}{who}"
        addresses = {name: name for name in peer.node.member.voters}
        peer.receive(peer.feed, ChangeMembers(token, who, None if removes else who, addresses))
        return token

    def do_wipe(self, who: str) -> None:
        """An operator clears the directory of a peer that no other peer takes for a member, and starts it as
        a new one."""
        peer = self.peers[who]
        for other in self.peers.values():
            saved = other.memberships[-1].peers if other.memberships else None
            node = other.node
            if other is not peer and (
                who in (saved or (self.first_voters if not other.memberships else ()))
                or (node is not None and (who in node.member.voters or who == node.member.learner))
            ):
                return
        if not peer.up or peer.log.end_index < 0:
            return
        self.count_event("directories cleared")
        peer.die()
        peer.log = self.make_log(who, peer.settings.file_size)
        peer.settings = self.settings_of(peer.settings, is_new=True)
        peer.term, peer.voted_for, peer.vote_before = 0, None, (0, None)
        peer.rejoins = peer.vote_lost = peer.is_new_directory = False
        peer.checkpoint, peer.memberships = -1, ()
        peer.start()
