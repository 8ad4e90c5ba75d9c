"""A group of brokers with a DLedger log grows and shrinks by one peer at a time, and loses nothing."""

from __future__ import annotations

from typing import Any, cast

import pytest

from epochmq_dledger.core.types import TransferLeadership
from epochmq_protocol.dledger import MEMBERS_CHANNEL, DLedgerResponseCode
from tests.simulation.campaign import hold
from tests.simulation.changing_block_world import ChangingBlockWorld, ChangingPeer
from tests.simulation.clockwork import Network
from tests.simulation.fault_plan import Plan
from tests.simulation.simulated_block_logs import StoredBlockLog

SEEDS = 24
SOAK_SEEDS = 3000


def check_counts(seeds: range) -> None:
    counts = hold("changing_blocks", seeds).counts
    assert counts is not None
    assert counts["changes"] > 3 * len(seeds)
    assert counts["acknowledged"] > 40 * len(seeds)
    assert counts["leaderships"] > 3 * len(seeds)
    assert counts.get("majorities without a vote", 0) <= len(seeds) / 40
    for often in ("files expired", "voters of expired entries"):
        assert counts[often] > len(seeds) / 2, often
    for sometimes in (
        "logs begun anew",
        "directories cleared",
        "sectors lost",
        "truncations of a stored log",
    ):
        assert counts[sometimes] > len(seeds) / 10, sometimes


@pytest.mark.timeout(2700)
def test_groups_that_change_keep_raft_s_promises() -> None:
    """Under all faults of networks, clocks and disks, while files expire: the promises of a group that does
    not change, one peer at a time joins or leaves, and each peer counts the voters that the log names, also
    after the entries that name them have expired."""
    check_counts(range(SEEDS))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_thousands_of_groups_that_change() -> None:
    """The same, for thousands of seeds."""
    check_counts(range(SEEDS, SEEDS + SOAK_SEEDS))


# Scenarios --------------------------------------------------------------------------------------------------


def calm_world(first_voters: int = 3, **options: Any) -> ChangingBlockWorld:
    """A group without faults, which has a leader; the other peers wait to be added."""
    options |= {"stored": True, "first_voters": first_voters}
    world = ChangingBlockWorld(Plan(5, Network(delay_max_ms=2), peers=6, drift=0.0, options=options))
    run(world, 2000)
    assert world.leader() is not None
    return world


def run(world: ChangingBlockWorld, duration_ms: float) -> None:
    with world.machine.installed():
        world.run(world.now + duration_ms)


def leader(world: ChangingBlockWorld) -> ChangingPeer:
    found = world.leader()
    assert found is not None
    return cast(ChangingPeer, found)


def voters(world: ChangingBlockWorld, name: str) -> set[str]:
    """The voters that a running peer counts."""
    return world.voters_of(world.peers[name])


def log_of(world: ChangingBlockWorld, name: str) -> StoredBlockLog:
    return cast(StoredBlockLog, world.peers[name].log)


def ask(world: ChangingBlockWorld, who: str, *, add: bool) -> DLedgerResponseCode | None:
    """Asks the leader to add or remove a peer. Returns the code of a failure."""
    with world.machine.installed():
        token = world.change(leader(world), who, removes=not add)
    for _ in range(100):
        run(world, 100)
        if token in world.done or token in world.failed:
            break
    assert token in world.done or token in world.failed
    return world.failed.get(token)


def add(world: ChangingBlockWorld, *names: str) -> None:
    for name in names:
        assert ask(world, name, add=True) is None


def remove(world: ChangingBlockWorld, *names: str) -> None:
    for name in names:
        assert ask(world, name, add=False) is None


def send(world: ChangingBlockWorld, count: int) -> int:
    """Sends messages. Returns how many were acknowledged."""
    before = len(world.acknowledged)
    for number in range(count):
        world.at(number * 5.0, world.propose_to, leader(world), 0.9)
    run(world, count * 5.0 + 300)
    return len(world.acknowledged) - before


def lead(world: ChangingBlockWorld, name: str) -> None:
    """Transfers the leadership."""
    if leader(world).name != name:
        with world.machine.installed():
            leader(world).feed(TransferLeadership(name, 0))
        run(world, 1000)
    assert leader(world).name == name


def expire(world: ChangingBlockWorld, *names: str) -> None:
    """Drops all files but the last one."""
    with world.machine.installed():
        for name in names:
            cast(ChangingPeer, world.peers[name]).expire(0.99)
    run(world, 100)


def restart(world: ChangingBlockWorld, *names: str, power: bool = False) -> None:
    """Kills peers, or cuts their power, and starts them again."""
    with world.machine.installed():
        for name in names:
            peer = world.peers[name]
            world.stop_peer(peer, 100, world.power_cut(peer) if power else None)
    run(world, 3000)


def check(world: ChangingBlockWorld) -> None:
    """All members have all entries, and have committed them."""
    run(world, 1500)
    with world.machine.installed():
        world.check_logs()


def test_three_become_five_and_three_again() -> None:
    """No message is lost while two peers join, take part, and the two eldest that do not lead leave."""
    world = calm_world()
    assert send(world, 50) == 50
    add(world, "n3", "n4")
    assert send(world, 50) == 50
    lead(world, "n4")
    remove(world, "n0", "n1")
    assert voters(world, "n4") == {"n2", "n3", "n4"}
    restart(world, "n2")
    assert send(world, 50) == 50
    check(world)


def test_one_becomes_three_and_one_again() -> None:
    """A group of one grows over two peers, both of which must then be there, to three."""
    world = calm_world(first_voters=1)
    assert send(world, 20) == 20
    add(world, "n1", "n2")
    restart(world, "n0")
    assert send(world, 20) == 20
    lead(world, "n2")
    remove(world, "n0", "n1")
    assert send(world, 20) == 20
    check(world)


def test_a_leader_leaves_after_a_transfer() -> None:
    """A leader does not remove itself. The next one removes it, and it stands for election no more."""
    world = calm_world()
    first = leader(world).name
    assert ask(world, first, add=False) is DLedgerResponseCode.UNEXPECTED_MEMBER
    other = next(name for name in world.first_voters if name != first)
    lead(world, other)
    remove(world, first)
    term = leader(world).term
    run(world, 5000)
    assert leader(world).term == term
    assert first not in voters(world, first)
    assert send(world, 20) == 20
    check(world)


@pytest.mark.parametrize("survives", [False, True])
def test_a_change_that_a_power_failure_interrupts_is_whole_or_did_not_happen(survives: bool) -> None:
    """All machines lose power just after the leader has appended a membership entry. If it was durable on a
    quorum, it counts. If not, chance decides whether it is left. The same request then succeeds, and all
    peers count the same voters."""
    world = calm_world()
    removed = next(name for name in world.first_voters if name != leader(world).name)
    for peer in world.peers.values():
        peer.stuck_disk_until = world.now + (5 if survives else 1000)
    with world.machine.installed():
        world.change(leader(world), removed, removes=True)
        log = log_of(world, leader(world).name)
        assert [entry.channel for entry in log.entries].count(MEMBERS_CHANNEL) == 1
        world.run(world.now + (40 if survives else 4))
        for name in world.first_voters:
            peer = world.peers[name]
            peer.stuck_disk_until = 0
            world.stop_peer(peer, 100, peer.log.durable_end)
    run(world, 4000)
    remaining = set(world.first_voters) - {removed}
    if survives:
        assert voters(world, leader(world).name) == remaining
    remove(world, removed)
    assert all(voters(world, name) == remaining for name in remaining)
    assert send(world, 20) == 20
    check(world)


def test_a_truncated_membership_entry_does_not_count() -> None:
    """A leader appends a membership entry that reaches no peer, and another leader truncates it. The entry
    counts neither then nor after restarts, when its index has expired."""
    world = calm_world()
    first = leader(world).name
    with world.machine.installed():
        world.do_isolate(first, "both", 2500)
        victim = next(name for name in world.first_voters if name != first)
        world.change(world.peers[first], victim, removes=True)
    run(world, 100)
    assert voters(world, first) == set(world.first_voters) - {victim}
    run(world, 5000)
    assert voters(world, first) == set(world.first_voters)
    send(world, 200)
    expire(world, *world.first_voters)
    restart(world, *world.first_voters)
    assert all(voters(world, name) == set(world.first_voters) for name in world.first_voters)
    check(world)


def test_voters_are_known_after_the_entries_that_name_them_have_expired() -> None:
    """All peers lose power when the files with the membership entries have expired. They know the voters from
    the file beside the log."""
    world = calm_world()
    add(world, "n3", "n4")
    lead(world, "n3")
    remove(world, "n0", "n1")
    send(world, 200)
    expire(world, "n2", "n3", "n4")
    assert log_of(world, "n3").begin_index > 20
    restart(world, "n2", "n3", "n4", power=True)
    assert all(voters(world, name) == {"n2", "n3", "n4"} for name in ("n2", "n3", "n4"))
    assert send(world, 20) == 20
    check(world)


def test_a_peer_whose_log_begins_anew_knows_the_voters_as_of_its_first_entry() -> None:
    """A new peer gets a log whose membership entries have all expired. It counts the voters that they named,
    also after a restart: with those of its settings it could be elected by former members."""
    world = calm_world()
    add(world, "n3")
    lead(world, "n3")
    remove(world, "n0")
    send(world, 200)
    expire(world, "n1", "n2", "n3")
    with world.machine.installed():
        world.change(leader(world), "n4", removes=False)
    begun = log_of(world, "n4")
    while begun.end_index < 0:
        run(world, 1)
    assert begun.begin_index > 20
    assert voters(world, "n4") == {"n1", "n2", "n3"}
    restart(world, "n4")
    assert voters(world, "n4") == {"n1", "n2", "n3", "n4"}
    check(world)


def test_a_removed_peer_that_returns_disturbs_nothing() -> None:
    """A peer is removed while it is dead, and comes back with its log and its former voters. It wins no
    election. With an empty directory it can be added again."""
    world = calm_world()
    add(world, "n3")
    removed = next(name for name in world.first_voters if name != leader(world).name)
    with world.machine.installed():
        world.stop_peer(world.peers[removed], 8000)
    remove(world, removed)
    term = leader(world).term
    run(world, 12_000)
    assert removed in voters(world, removed)
    assert leader(world).term == term
    with world.machine.installed():
        world.do_wipe(removed)
    run(world, 3000)
    assert leader(world).term == term
    add(world, removed)
    assert send(world, 20) == 20
    check(world)


def test_the_group_of_a_peer_without_the_extension_does_not_change() -> None:
    """DLedger takes its members from its settings alone, so a change is rejected next to one of its peers."""
    world = calm_world(beside_java=True)
    assert ask(world, "n3", add=True) is DLedgerResponseCode.UNSUPPORTED
    removed = next(name for name in world.first_voters if name != leader(world).name)
    assert ask(world, removed, add=False) is DLedgerResponseCode.UNSUPPORTED
    assert log_of(world, leader(world).name).end_term == leader(world).term
    assert send(world, 20) == 20


def test_a_second_change_waits_for_the_first() -> None:
    """A change is rejected while the former one is not committed."""
    world = calm_world()
    others = [name for name in world.first_voters if name != leader(world).name]
    with world.machine.installed():
        tokens = [world.change(leader(world), name, removes=True) for name in others]
    assert world.failed[tokens[1]] is DLedgerResponseCode.REPEATED_REQUEST
    run(world, 500)
    assert tokens[0] in world.done
