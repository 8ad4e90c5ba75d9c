"""What went wrong in DLedger and in RocketMQ's DLedger brokers, by the numbers of the reports, for the commit
log of EpochMQ's brokers: `dledger` is openmessaging/dledger, `rocketmq` apache/rocketmq."""

from __future__ import annotations

from typing import Any, cast

from epochmq_dledger.core.types import CallCompleted
from epochmq_protocol.dledger import PushEntryRequest, PushEntryResponse
from tests.simulation.block_world import BlockWorld, BrokerPeer
from tests.simulation.clockwork import Network
from tests.simulation.fault_plan import Plan
from tests.simulation.simulated_block_logs import StoredBlockLog

NAMES = ("n0", "n1", "n2")


def calm_world(**options: Any) -> BlockWorld:
    """Three brokers without faults, one of which leads."""
    world = BlockWorld(Plan(5, Network(delay_max_ms=2), drift=0.0, options={"stored": True, **options}))
    run(world, 2000)
    assert world.leader() is not None
    return world


def run(world: BlockWorld, duration_ms: float) -> None:
    with world.machine.installed():
        world.run(world.now + duration_ms)


def peer(world: BlockWorld, name: str) -> BrokerPeer:
    return cast(BrokerPeer, world.peers[name])


def log_of(world: BlockWorld, name: str) -> StoredBlockLog:
    return cast(StoredBlockLog, world.peers[name].log)


def other_than(*names: str) -> str:
    return next(name for name in NAMES if name not in names)


def send(world: BlockWorld, count: int, *, to: str | None = None) -> int:
    """Sends messages, and waits. Returns how many were acknowledged."""
    before = len(world.acknowledged)
    leader = world.peers[to] if to is not None else world.leader()
    assert leader is not None
    for number in range(count):
        world.at(number * 5.0, world.propose_to, leader, 0.5)
    run(world, count * 5.0 + 300)
    return len(world.acknowledged) - before


def kill(world: BlockWorld, name: str, down_ms: float) -> None:
    with world.machine.installed():
        world.stop_peer(peer(world, name), down_ms)


def leader_name(world: BlockWorld) -> str:
    leader = world.leader()
    assert leader is not None
    return leader.name


def check(world: BlockWorld) -> None:
    """All logs are equal, and committed when the leader has reported it."""
    run(world, 1500)
    with world.machine.installed():
        world.check_logs()


def test_no_transfer_to_a_dead_preferred_leader_stops_the_group() -> None:
    """dledger 39, found by Jepsen: a leader transferred to a preferred leader behind a partition, and
    rejected all appends until the partition ended."""
    world = calm_world(preferred=("n2",))
    assert leader_name(world) == "n2"
    with world.machine.installed():
        world.do_isolate("n2", "both", 60_000)
    run(world, 3000)
    assert leader_name(world) != "n2"
    assert send(world, 200) == 200


def test_a_preferred_leader_with_an_old_log_catches_up_first() -> None:
    """dledger 85: a preferred leader whose log was behind stood for election, could not win, and stayed a
    candidate with a term greater than the leader's for good."""
    world = calm_world(preferred=("n2",))
    kill(world, "n2", 6000)
    run(world, 2000)
    assert send(world, 600) == 600
    run(world, 6000)
    assert leader_name(world) == "n2"
    assert log_of(world, "n2").end_index >= 600
    check(world)


def test_a_transferee_that_stops_is_not_lost_for_the_group() -> None:
    """dledger 247: a transferee paused after the leader's request, and came back as a candidate of a newer
    term, which no longer received entries."""
    world = calm_world()
    leader = leader_name(world)
    transferee = other_than(leader)
    with world.machine.installed():
        world.do_transfer(leader, transferee)
        world.do_pause(transferee, 4000)
    run(world, 3000)
    assert send(world, 100) == 100
    run(world, 4000)
    assert send(world, 100) == 100
    check(world)


def test_a_truncated_follower_that_is_elected_becomes_ready() -> None:
    """dledger 316: after a truncation the committed index stayed beyond the end of the log, and the broker
    waited for it for good when it was elected."""
    world = calm_world()
    first = leader_name(world)
    with world.machine.installed():
        world.do_isolate(first, "out", 700)
    world.at(0, world.do_burst, 20)
    run(world, 2500)
    assert leader_name(world) != first
    assert send(world, 20) == 20
    with world.machine.installed():
        for name in NAMES:
            if name != first:
                world.stop_peer(world.peers[name], 1500 if name == leader_name(world) else 200)
    run(world, 4000)
    for name in NAMES:
        if name != leader_name(world):
            continue
        node = world.peers[name].node
        assert node is not None
        assert node.member.committed_index == log_of(world, name).end_index
    assert send(world, 20) == 20
    check(world)


def test_an_emptied_follower_gets_the_log_without_new_messages() -> None:
    """dledger 61, rocketmq 1778: a follower whose directory was emptied received no entries while no client
    sent."""
    world = calm_world()
    assert send(world, 50) == 50
    emptied = peer(world, other_than(leader_name(world)))
    with world.machine.installed():
        emptied.die()
        emptied.log = world.make_log(emptied.name, emptied.settings.file_size)
        emptied.checkpoint = emptied.committed = -1
        emptied.start()
    run(world, 3000)
    check(world)


def test_an_emptied_follower_begins_with_the_leader_s_first_entry() -> None:
    """rocketmq 1778: the same, after the leader's first files have expired."""
    world = calm_world()
    assert send(world, 800) == 800
    leader = peer(world, leader_name(world))
    emptied = peer(world, other_than(leader.name))
    with world.machine.installed():
        leader.expire(0.7)
        emptied.die()
        emptied.log = world.make_log(emptied.name, emptied.settings.file_size)
        emptied.checkpoint = emptied.committed = -1
        emptied.start()
    run(world, 3000)
    assert emptied.log.begin_index == leader.log.begin_index > 0
    check(world)


def test_a_follower_that_missed_expired_entries_begins_anew() -> None:
    """Its log has committed entries, and ends before the leader's first one."""
    world = calm_world()
    assert send(world, 50) == 50
    leader = peer(world, leader_name(world))
    late = peer(world, other_than(leader.name))
    kill(world, late.name, 10_000)
    assert send(world, 800) == 800
    with world.machine.installed():
        leader.expire(0.7)
    run(world, 9000)
    assert late.log.begin_index == leader.log.begin_index > 50
    check(world)


def test_a_peer_whose_log_is_behind_is_not_elected() -> None:
    """dledger 52, rocketmq 2178: a peer that had fallen behind was elected, and messages were lost."""
    world = calm_world()
    behind = other_than(leader_name(world))
    with world.machine.installed():
        world.do_isolate(behind, "both", 5000)
    assert send(world, 100) == 100
    kill(world, leader_name(world), 6000)
    run(world, 5000)
    assert leader_name(world) != behind
    assert send(world, 20) == 20
    run(world, 5000)
    check(world)


def test_an_acknowledgement_beyond_the_log_commits_nothing() -> None:
    """rocketmq 1155, 3015: a garbled offset of a slave counted as an acknowledgement."""
    world = calm_world()
    leader = peer(world, leader_name(world))
    node = leader.node
    assert node is not None
    with world.machine.installed():
        for name in NAMES:
            if name != leader.name:
                world.do_isolate(name, "both", 1500)
    assert send(world, 5, to=leader.name) == 0
    committed = node.member.committed_index
    for name in NAMES:
        if name != leader.name:
            answer = PushEntryResponse(index=1 << 40, count=1, end_index=1 << 40, begin_index=0)
            request = PushEntryRequest(term=node.member.term)
            with world.machine.installed():
                leader.feed(CallCompleted(name, 1, request, answer))
    assert node.member.committed_index == committed


def test_a_truncated_tail_does_not_return_after_a_power_failure() -> None:
    """rocketmq 10666: a truncation moved only positions in memory; the tail was back after a crash."""
    world = calm_world()
    first = leader_name(world)
    with world.machine.installed():
        world.do_isolate(first, "out", 700)
    for _ in range(3):
        world.at(0, world.do_burst, 20)
    run(world, 2500)
    assert send(world, 5) == 5
    assert world.event_counts["truncations of a stored log"] > 0
    with world.machine.installed():
        world.do_blackout(300)
    run(world, 4000)
    assert send(world, 20) == 20
    check(world)


def test_a_killed_broker_continues_with_what_its_log_holds() -> None:
    """rocketmq 6703, 9942: after kill -9 the confirmed offset lay beyond the last record; and an empty log
    is a case, too."""
    world = calm_world()
    for name in NAMES:
        kill(world, name, 200)
    run(world, 4000)
    assert send(world, 100) == 100
    for _ in range(3):
        kill(world, leader_name(world), 300)
        run(world, 3000)
        assert send(world, 30) == 30
    check(world)


def test_a_leader_whose_disk_was_full_begins_its_term_before_it_takes_messages() -> None:
    """RocketMQ's parser and the rule of committing both need the first record of a term."""
    world = calm_world()
    first = leader_name(world)
    with world.machine.installed():
        for name in NAMES:
            if name != first:
                world.do_full_disk(name, 2500)
    kill(world, first, 5000)
    for number in range(300):
        world.at(number * 10.0, world.do_propose, 0.0, 0.1)
    run(world, 4000)
    assert leader_name(world) != first
    assert send(world, 20) == 20
    run(world, 3000)
    check(world)
