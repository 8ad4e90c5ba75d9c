"""Groups with changing members keep Raft's promises. Tests without faults show how they change. The simulator
finds mistakes in the changes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from epochmq_dledger.core.leader_state import LeaderState
from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.membership_change import MembershipChange
from epochmq_dledger.core.node import RaftNode
from epochmq_dledger.core.snapshot_receiver import SnapshotReceiver
from epochmq_dledger.core.types import ChangeMembers, TransferLeadership
from epochmq_protocol.dledger import DLedgerResponseCode
from tests.simulation.clockwork import Network
from tests.simulation.fault_plan import Plan
from tests.simulation.membership_world import (
    FIRST_VOTERS,
    SEEDS,
    SOAK_FACTOR,
    MembershipPeer,
    MembershipWorld,
    hold,
    plan,
)
from tests.simulation.mutation import Mutation


@pytest.mark.timeout(2700)
def test_groups_with_changing_members_keep_raft_s_promises() -> None:
    """Election safety, log matching, leader completeness, state machine safety, durability at a quorum
    of the voters, one change at a time; and after the faults a leader and equal states."""
    total = hold(range(SEEDS))
    assert total["acknowledged"] > 50 * SEEDS
    assert total["changes"] > 3 * SEEDS
    assert total["snapshots"] > 10 * SEEDS
    assert total["installed"] > SEEDS / 2
    assert total["leaderships"] > 3 * SEEDS


# Without troubles -------------------------------------------------------------------------------------------

CALM = Network(delay_max_ms=5)


def calm_world(**options: Any) -> MembershipWorld:
    """A world without faults, with a leader."""
    world = MembershipWorld(Plan(7, CALM, drift=0.0, options=options))
    world.run(3000)
    assert world.leader() is not None
    return world


def leader_of(world: MembershipWorld) -> MembershipPeer:
    """The leader."""
    found = world.leader()
    assert isinstance(found, MembershipPeer)
    return found


def voters_of(peer: MembershipPeer) -> tuple[str, ...]:
    """The voters that the peer's log names."""
    assert peer.node is not None
    return peer.node.member.voters


def test_a_group_grows_from_three_to_five_and_back_while_it_serves() -> None:
    """One leader in one term acknowledges a proposal every 10 ms, each within 300 ms. Removed peers know of
    their removal, and stay quiet."""
    world = calm_world()
    leader = leader_of(world)
    first = next(name for name in FIRST_VOTERS if name != leader.name)
    for number in range(1200):
        world.at(number * 10, world.do_propose, 0.0, 0.5)
    begun = world.now
    steps = ["n3", "n4", first, "n3"]
    for number, who in enumerate(steps):
        world.at(1000 + number * 2500, world.change, leader, who)
    world.run(begun + 14_000)
    assert world.counted["changes"] == len(steps)
    assert len(world.leaders) == 1
    assert set(voters_of(leader)) == {*FIRST_VOTERS, "n4"} - {first}
    asked = sorted(world.bodies)
    assert sorted(world.acknowledged) == asked
    moments = sorted(world.acknowledged_at.values())
    assert max(after - before for before, after in pairwise(moments)) < 300
    for name in (first, "n3"):
        assert name not in voters_of(world.peers[name]), "it does not know that it was removed"
    world.check_end()


def test_a_leader_transfers_its_leadership_before_it_leaves() -> None:
    """A leader does not remove itself."""
    world = calm_world()
    leader = leader_of(world)
    change = world.change(leader, leader.name)
    world.run(world.now + 100)
    assert world.rejected[change] is DLedgerResponseCode.UNEXPECTED_MEMBER
    other = next(name for name in FIRST_VOTERS if name != leader.name)
    leader.feed(TransferLeadership(other, world.token()))
    world.run(world.now + 3000)
    assert leader_of(world).name == other
    world.change(leader_of(world), leader.name)
    world.run(world.now + 3000)
    assert set(voters_of(leader_of(world))) == set(FIRST_VOTERS) - {leader.name}
    world.check_end()


def test_one_change_runs_at_a_time_and_one_in_effect_succeeds_at_once() -> None:
    """A second change is rejected during the first one."""
    world = calm_world()
    leader = leader_of(world)
    world.change(leader, "n3")
    second = world.change(leader, "n4")
    world.run(world.now + 3000)
    assert world.rejected[second] is DLedgerResponseCode.REPEATED_REQUEST
    assert world.counted["changes"] == 1
    token = world.token()
    world.changes[token] = "n3, which is there"
    leader.feed(ChangeMembers(token, "n3", "n3", {name: name for name in voters_of(leader)}))
    assert world.counted["changes"] == 2


def test_a_learner_that_does_not_start_is_dropped_and_the_group_stays_the_same() -> None:
    """The learner never counted."""
    world = calm_world()
    leader = leader_of(world)
    world.peers["n3"].die()
    token = world.change(leader, "n3")
    world.run(world.now + 7000)
    assert world.rejected[token] is DLedgerResponseCode.NETWORK_ERROR
    assert set(voters_of(leader)) == set(FIRST_VOTERS)
    assert len(world.leaders) == 1
    world.check_end()


def test_a_removed_peer_that_does_not_know_it_disturbs_no_other() -> None:
    """The peer was isolated during its removal. Later it starts elections as long as it runs."""
    world = calm_world()
    leader = leader_of(world)
    away = next(name for name in FIRST_VOTERS if name != leader.name)
    world.do_isolate(away, "both", 6000)
    world.change(leader, away)
    world.run(world.now + 12_000)
    assert world.counted["changes"] == 1
    assert away in voters_of(world.peers[away])
    assert world.peers[away].node is not None
    assert len(world.leaders) == 1
    assert leader_of(world) is leader
    world.check_end()


def test_a_peer_that_lags_far_behind_receives_the_snapshot() -> None:
    """It receives the snapshot in chunks while the group serves. So does a new peer."""
    world = calm_world()
    leader = leader_of(world)
    away = world.peers[next(name for name in FIRST_VOTERS if name != leader.name)]
    away.die()
    for number in range(200):
        world.at(number * 10, world.do_propose, 0.0, 0.5)
    world.run(world.now + 3000)
    assert leader.log.begin_index > 150
    world.at(0, away.start)
    world.change(leader, "n5")
    world.run(world.now + 3000)
    assert world.counted["installed"] == 2
    assert away.log.begin_index > 150
    world.check_end()
    for peer in world.peers.values():
        peer.die()
    for peer in world.peers.values():
        peer.start()
    world.run(world.now + 3000)
    world.check_end()
    assert set(voters_of(leader_of(world))) == {*FIRST_VOTERS, "n5"}


def test_beside_a_java_peer_no_entry_is_dropped_and_no_peer_joins() -> None:
    """A peer that reports no extensions is DLedger's."""
    world = calm_world(beside_java=True)
    leader = leader_of(world)
    for number in range(100):
        world.at(number * 10, world.do_propose, 0.0, 0.5)
    token = world.change(leader, "n3")
    world.run(world.now + 3000)
    assert world.rejected[token] is DLedgerResponseCode.UNSUPPORTED
    assert world.counted["snapshots"] == 0
    assert leader.log.begin_index == 0
    world.check_end()


@pytest.mark.parametrize("odd", FIRST_VOTERS)
def test_a_peer_with_other_shared_settings_is_ignored(odd: str) -> None:
    """The others continue without it, and it logs the reason."""
    world = calm_world(
        shared_settings={name: "lease=1" if name == odd else "lease=2" for name in FIRST_VOTERS}
    )
    world.run(world.now + 5000)
    leader = leader_of(world)
    assert leader.name != odd
    assert world.peers[odd].committed == -1
    assert any(
        line.endswith(
            f"{odd} has lease=1, expected lease=2 as here; its messages are ignored until both are equal"
        )
        for line in world.history
    )


# Mistakes that the worlds find ------------------------------------------------------------------------------

MISTAKES = [
    Mutation(
        "a leader changes the group before it has committed an entry of its term",
        "",
        MembershipChange,
        "_rejection_code",
        "member.log.term(member.committed_index) != self.leader.term",
        "False",
    ),
    Mutation(
        "a leader does not wait for the change before",
        "",
        MembershipChange,
        "_rejection_code",
        "self.catching_up is not None or member.membership.index > member.committed_index",
        "self.catching_up is not None",
    ),
    Mutation(
        "a cut does not take a membership back",
        "",
        MemberState,
        "truncate",
        "self._report_members(self.membership.truncate(end_index))",
        "pass",
    ),
    Mutation(
        "a new peer counts at once",
        "",
        LeaderState,
        "voters",
        "if peer.is_voter",
        "if True",
    ),
    Mutation(
        "the log is dropped beyond the snapshot",
        "",
        RaftNode,
        "step",
        "self.member.log.drop_before(snapshot.index)",
        "self.member.log.drop_before(self.member.committed_index)",
    ),
    Mutation(
        "a snapshot is installed over what is committed",
        "",
        SnapshotReceiver,
        "on_installed",
        "if snapshot.index > member.committed_index:",
        "if True:",
    ),
    Mutation(
        "a snapshot forgets who votes",
        "",
        SnapshotReceiver,
        "on_installed",
        "member.reset(snapshot.entry, snapshot.members)",
        "member.reset(snapshot.entry)",
    ),
]


@pytest.mark.soak
@pytest.mark.timeout(2700)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.mistake.replace(" ", "-"))
def test_a_mistake_is_found(mistake: Mutation) -> None:
    """Each of these breaks a promise sooner or later."""
    with mistake.made():
        for seed in range(SOAK_FACTOR * SEEDS):
            try:
                MembershipWorld(plan(seed)).live()
            except AssertionError:
                return
    pytest.fail(f"nobody noticed in {SOAK_FACTOR * SEEDS} worlds")


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_more_seeds() -> None:
    """The same, for ten times as many seeds."""
    hold(range(SEEDS, SOAK_FACTOR * SEEDS))
