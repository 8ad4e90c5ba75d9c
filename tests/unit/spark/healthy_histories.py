"""Thirty histories that a reader drew who had not seen the other tests of the audit: what users do to topics,
groups and replicas, and what brokers leave. Each creates the directories of a group in which nothing is
damaged."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from epochmq_broker.config.clock import now_ms
from epochmq_protocol.bodies import to_json
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.headers_admin import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
)
from epochmq_protocol.headers_client import UpdateConsumerOffsetRequestHeader
from epochmq_protocol.subscription_groups import SubscriptionGroupConfig
from epochmq_protocol.topics import LogicQueueMappingItem, TopicQueueMappingDetail
from epochmq_store.backups import restoring, taking
from epochmq_store.backups.manifest import BackedUpGroup
from epochmq_store.backups.object_storage import DirectoryObjects
from epochmq_store.backups.taking import BackupCut
from tests.spark.damage_kit import epochs_with_bytes, segments, write_epochs
from tests.spark.dledger_groups import DLedgerNode, SeededDLedgerGroup
from tests.spark.pairs_without_epochs import create_pair
from tests.spark.seeded_groups import NAME, SeededGroup, write_consumer_offsets
from tests.support import compaction_bench
from tests.unit.broker.kit import Bench, command, running, send_command, until
from tests.unit.broker.replication.ha.broker_node import BrokerNode
from tests.unit.broker.requests import test_batch_topics as batches
from tests.unit.broker.services.pop import support as pop
from tests.unit.broker.services.transactions import support as transactions
from tests.unit.spark import drawn_groups, feature_store
from tests.unit.store.support import Message, copy_after_crash, open_store, put_all

History = Callable[[Path], Awaitable[None]]
"""Creates one directory for each replica below a root."""

HISTORIES: dict[str, History] = {}
ALLOWED: dict[str, frozenset[str]] = {}
"""Warnings of a history that say what is true: messages of which there is one copy only."""


def history(*allowed: str) -> Callable[[History], History]:
    """Registers a history."""

    def register(one: History) -> History:
        HISTORIES[one.__name__] = one
        ALLOWED[one.__name__] = frozenset(allowed)
        return one

    return register


# One broker, and slaves that have copied everything


def as_slaves(root: Path, count: int = 2) -> None:
    """Copies of the master's store `a`."""
    for name in drawn_groups.NAMES[1:count]:
        drawn_groups.copy(root / "a", root / name)


def ask(bench: Bench, code: int, header: Any = None, body: bytes = b"") -> None:
    answer = bench.peer().call(command(code, header, body))
    assert answer.code == 0, answer.remark


async def create_topic(bench: Bench, topic: str, queues: int = 4) -> None:
    header = CreateTopicRequestHeader(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=6,
        topic_filter_type="SINGLE_TAG",
    )
    peer = bench.peer()
    answer = await peer.answer(peer.send(command(RequestCode.UPDATE_AND_CREATE_TOPIC, header)))
    assert answer.code == 0, answer.remark


def create_group(bench: Bench, group: str = "readers") -> None:
    body = to_json(SubscriptionGroupConfig(group_name=group))
    ask(bench, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


async def delete_topic(bench: Bench, topic: str) -> None:
    peer = bench.peer()
    header = DeleteTopicRequestHeader(topic=topic)
    answer = await peer.answer(peer.send(command(RequestCode.DELETE_TOPIC_IN_BROKER, header)))
    assert answer.code == 0, answer.remark


def send(bench: Bench, topic: str, count: int, queues: int = 4, **properties: str) -> None:
    for number in range(count):
        words = {"UNIQ_KEY": f"{topic}-{now_ms()}-{number}", "KEYS": f"k{number % 5}", **properties}
        done = bench.peer().call(send_command(topic, b"%d" % number, words, queue_id=number % queues))
        assert done.code == 0, done.remark


def commit(bench: Bench, topic: str, offset: int, group: str = "readers") -> None:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=topic, queue_id=0, commit_offset=offset
    )
    ask(bench, RequestCode.UPDATE_CONSUMER_OFFSET, header)


@history()
async def topic_deleted(root: Path) -> None:
    async with running(root / "a") as bench:
        create_group(bench)
        for topic in ("kept", "gone"):
            await create_topic(bench, topic)
            send(bench, topic, 20)
            commit(bench, topic, 4)
        await delete_topic(bench, "gone")
        send(bench, "kept", 5)
    as_slaves(root, 3)


@history("topic.without-queues", "message.not-copied")
async def topic_deleted_and_made_again(root: Path) -> None:
    """The slave was stopped between: it has the former queues."""
    async with running(root / "a") as bench:
        for topic in ("again", "silent"):
            await create_topic(bench, topic)
            send(bench, topic, 20)
    as_slaves(root)
    async with running(root / "a") as bench:
        for topic in ("again", "silent"):
            await delete_topic(bench, topic)
            await create_topic(bench, topic, queues=2)
        send(bench, "again", 7, queues=2)


@history()
async def offsets_reset(root: Path) -> None:
    async with running(root / "a") as bench:
        await create_topic(bench, "T")
        send(bench, "T", 20)
        create_group(bench)
        commit(bench, "T", 5)
    as_slaves(root)
    async with running(root / "a") as bench:
        commit(bench, "T", 0)


@history()
async def pop_in_progress_and_killed(root: Path) -> None:
    async with pop.popping(root / "running") as bench:
        pop.send(bench, 8)
        found, header = await pop.pop(bench, invisible_time=2000)
        start = found[0].queue_offset
        info = [pop.extra_info(header, one, start) for one in found]
        for one, name in list(zip(found, info, strict=True))[:3]:
            assert bench.peer().call(pop.ack_command(name, one)).code == 0
        peer = bench.peer()
        answer = await peer.answer(peer.send(pop.change_command(info[4], found[4], 60_000)))
        assert answer.code == 0, answer.remark
        await until(lambda: sum(bench.count(pop.REVIVE, one) for one in range(8)) >= 2)
        bench.broker.store.queues.pending.write_all()
        drawn_groups.copy(root / "running", root / "a")
        drawn_groups.copy(root / "running", root / "b")
    shutil.rmtree(root / "running")


@history()
async def timers_pending_and_delivered(root: Path) -> None:
    async with running(root / "a", feature_store.SETTINGS) as bench:
        for number, delay in enumerate([200, 300, 7_200_000, 7_200_000, 86_400_000]):
            properties = {"UNIQ_KEY": f"t{number}", "TIMER_DELIVER_MS": str(now_ms() + delay)}
            assert bench.peer().call(send_command("later", b"x", properties)).code == 0
        await until(lambda: bench.count("later") == 2)
        deletion = {"UNIQ_KEY": "d", "TIMER_DELIVER_MS": str(now_ms() + 7_200_000), "TIMER_DEL_UNIQKEY": "t2"}
        assert bench.peer().call(send_command("later", b"0", deletion)).code == 0
    as_slaves(root, 3)


@history()
async def transactions_pending_and_ended(root: Path) -> None:
    async with running(root / "a", {"transactionOpBatchInterval": "20"}) as bench:
        halves = [
            transactions.send_half(
                bench, properties=transactions.half_properties() | {"UNIQ_KEY": f"tx-{number}"}
            )
            for number in range(6)
        ]
        for half, kind in zip(halves, (transactions.COMMIT, transactions.ROLLBACK) * 2, strict=False):
            assert bench.peer().call(transactions.end_command(half, kind)).code == 0
        await until(lambda: b"".join(transactions.ops(bench)).count(b",") == 4)
    as_slaves(root)


@history()
async def compacted_on_one_replica(root: Path) -> None:
    settings = compaction_bench.SETTINGS
    async with running(root / "a", settings) as bench:
        await compaction_bench.create(bench)
        await compaction_bench.send(bench, 0, 30)
    as_slaves(root)
    async with running(root / "a", settings) as bench:
        await compaction_bench.send(bench, 30, 5)
        await bench.broker.compaction.compact(compaction_bench.queue_of(bench))
    async with running(root / "b", settings) as bench:
        await compaction_bench.send(bench, 30, 5)
    shutil.rmtree(root / "b" / "commitlog")
    shutil.copytree(root / "a" / "commitlog", root / "b" / "commitlog")
    for folder in ("consumequeue", "index"):
        shutil.rmtree(root / "b" / folder)
        shutil.copytree(root / "a" / folder, root / "b" / folder)


@history("message.not-copied")
async def topic_altered_while_the_slave_was_down(root: Path) -> None:
    async with running(root / "a") as bench:
        await create_topic(bench, "T")
        send(bench, "T", 20)
    as_slaves(root)
    async with running(root / "a") as bench:
        await create_topic(bench, "T", queues=8)
        send(bench, "T", 16, queues=8)


@history()
async def group_deleted(root: Path) -> None:
    async with running(root / "a") as bench:
        await create_topic(bench, "T")
        send(bench, "T", 20)
        for group in ("readers", "others"):
            create_group(bench, group)
            commit(bench, "T", 3, group)
        header = DeleteSubscriptionGroupRequestHeader(group_name="others", clean_offset=False)
        ask(bench, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
    as_slaves(root)


@history()
async def static_topic_remapped(root: Path) -> None:
    async with running(root / "a") as bench:
        await create_topic(bench, "T")
        send(bench, "T", 9)
        for epoch in (1, 2):
            items = [LogicQueueMappingItem(gen=0, queue_id=0, bname="broker-a", logic_offset=0)]
            if epoch == 2:
                items = [
                    LogicQueueMappingItem(gen=0, queue_id=0, bname="broker-a", logic_offset=0, end_offset=5),
                    LogicQueueMappingItem(gen=1, queue_id=0, bname="broker-b", logic_offset=1000),
                ]
            mapping = TopicQueueMappingDetail(
                topic="static",
                total_queues=1,
                bname="broker-a",
                epoch=epoch,
                hosted_queues={0: items} if epoch == 1 else {},
                curr_id_map={},
            )
            header = CreateTopicRequestHeader(
                topic="static",
                default_topic="TBW102",
                read_queue_nums=1,
                write_queue_nums=1,
                perm=6,
                topic_filter_type="SINGLE_TAG",
                force=True,
            )
            peer = bench.peer()
            create = command(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, header, to_json(mapping))
            answer = await peer.answer(peer.send(create))
            assert answer.code == 0, answer.remark
    as_slaves(root)


@history("message.not-copied")
async def batches_and_killed(root: Path) -> None:
    async with running(root / "running") as bench:
        assert (await batches.create(bench)).code == 0
        for count in (2, 3, 1, 5):
            assert bench.peer().call(batches.batch(count)).code == 0
        for name in ("a", "b"):
            drawn_groups.copy(root / "running", root / name)
            assert bench.peer().call(batches.batch(4)).code == 0
    shutil.rmtree(root / "running")


@history()
async def extensions_switched_on_later(root: Path) -> None:
    async with running(root / "a") as bench:
        send(bench, "T", 10, TAGS="blue")
    async with running(root / "a", feature_store.SETTINGS) as bench:
        feature_store._register_filter(bench)
        send(bench, "T", 10, TAGS="blue", a="2")
    as_slaves(root, 3)


@history()
async def order_in_progress(root: Path) -> None:
    async with pop.popping(root / "a") as bench:
        pop.send(bench, 6, topic="ordered")
        for _ in range(2):
            await pop.pop(bench, "ordered", order=True, invisible_time=60_000, max_msg_nums=2)
    as_slaves(root)


@history()
async def strange_names(root: Path) -> None:
    async with running(root / "a") as bench:
        for topic in ("%RETRY%readers", "a|b%c", "empty"):
            await create_topic(bench, topic)
        send(bench, "%RETRY%readers", 6)
        send(bench, "a|b%c", 6)
        create_group(bench)
        commit(bench, "a|b%c", 2)
    as_slaves(root)


# Groups under controllers


async def opened(root: Path, seed: int, count: int = 3, **settings: str) -> SeededGroup:
    group = SeededGroup(root, seed, count, settings=settings)
    for node in group.nodes:
        await node.open()
    await group.elect(group.nodes[0])
    group.write(group.master, 60)
    await group.wait_in_sync()
    return group


async def closed(group: SeededGroup, *stopped: BrokerNode) -> None:
    for node in group.nodes:
        if node not in stopped:
            await node.close()
    write_consumer_offsets(group.nodes[0].directory.parent, group)


@history()
async def all_killed(root: Path) -> None:
    group = await opened(root / "running", 11)
    group.write(group.master, 30)
    for node in group.nodes:
        copy_after_crash(node.store, root / f"r{node.id}")
    await closed(group)
    shutil.rmtree(root / "running")


@history()
async def one_killed_the_others_stopped(root: Path) -> None:
    group = await opened(root / "running", 12)
    killed = copy_after_crash(group.nodes[1].store, root / "killed")
    group.write(group.master, 30)
    await group.wait_in_sync()
    await closed(group)
    for node in group.nodes:
        node.directory.rename(root / f"r{node.id}")
    add_tables(killed, root / "r2")
    shutil.rmtree(root / "r2")
    killed.rename(root / "r2")
    (root / "running").rmdir()


def add_tables(store: Path, other: Path) -> None:
    """Gives a store without a broker its tables and its identity."""
    shutil.copytree(other / "config", store / "config", dirs_exist_ok=True)
    shutil.copyfile(other / "brokerIdentity", store / "brokerIdentity")


@history()
async def three_switchovers(root: Path) -> None:
    group = await opened(root, 13)
    for node in (*group.nodes[1:], group.nodes[0]):
        await group.elect(node)
        group.write(node, 70)
        await group.wait_in_sync()
    await closed(group)


@history()
async def one_stopped_early(root: Path) -> None:
    group = await opened(root, 14)
    last = group.nodes.pop()
    await last.close()
    group.write(group.master, 250)
    await group.wait_in_sync()
    await closed(group)
    (last.directory / "brokerIdentity").write_text(f"DefaultCluster#{NAME}#{last.id}")
    shutil.copytree(group.nodes[0].directory / "config", last.directory / "config", dirs_exist_ok=True)


@history()
async def new_replica_without_a_record(root: Path) -> None:
    group = await opened(root, 15)
    await closed(group)
    node = BrokerNode(root / "r4", 4)
    await node.open()
    await node.close()


@history()
async def first_segments_expired_on_one(root: Path) -> None:
    group = await opened(root, 16)
    for node in group.nodes[1:]:
        await group.elect(node)
        group.write(node, 200)
        await group.wait_in_sync()
    await closed(group)
    for path in segments(root / "r1")[:2]:
        path.unlink()


@history()
async def master_killed_and_never_back(root: Path) -> None:
    group = await opened(root / "running", 17)
    former, *others = group.nodes
    for node in others:
        await node.follow(None, group.epoch)
    group.write(former, 9)
    killed = copy_after_crash(former.store, root / "killed")
    await former.close()
    group.nodes = others
    await group.elect(others[0])
    group.write(others[0], 40)
    await group.wait_in_sync()
    await closed(group)
    for node in others:
        node.directory.rename(root / f"r{node.id}")
    add_tables(killed, root / "r2")
    (killed / "brokerIdentity").write_text(f"DefaultCluster#{NAME}#1")
    killed.rename(root / "r1")
    shutil.rmtree(root / "running")


@history()
async def controllers_added_later(root: Path) -> None:
    """The first epoch begins where the log of the former masters and slaves ended."""
    group = await opened(root, 18)
    await group.elect(group.nodes[1])
    group.write(group.master, 40)
    await group.wait_in_sync()
    await closed(group)
    for node in group.nodes:
        (epoch, start), *_ = epochs_with_bytes(node.directory)[1:]
        write_epochs(node.directory, [(epoch, start)])


@history()
async def restored_from_a_backup(root: Path) -> None:
    group = await opened(root / "before", 19)
    await closed(group)
    store = group.nodes[0].directory
    storage = DirectoryObjects(root / "backups", str(root / "backups"))
    cut = BackupCut(BackedUpGroup(NAME, "DefaultCluster", "Controller"), "r1", store, store, None)
    taking.take(storage, store, lambda: cut, product="1", full=True)
    restoring.restore(storage, [root / "r1", root / "r2"])
    shutil.rmtree(root / "before")
    shutil.rmtree(root / "backups")


@history()
async def several_index_files(root: Path) -> None:
    group = await opened(root, 20, maxIndexNum="60", maxHashSlotNum="15")
    group.write(group.master, 150)
    await group.wait_in_sync()
    await closed(group)


# A master and its slave without controllers


@history("message.not-copied")
async def slave_stopped_early(root: Path) -> None:
    create_pair(root, [f"LATER{number:04}" for number in range(12)], [])


@history("group.one-replica", "message.not-copied")
async def slave_without_a_record(root: Path) -> None:
    create_pair(root, [], [])
    shutil.rmtree(root / "slave")
    open_store(root / "slave", max_hash_slot_num=100, max_index_num=400).stop()


@history("message.not-copied")
async def master_killed_before_the_slave_had_all(root: Path) -> None:
    create_pair(root / "running", [], [])
    shutil.copytree(root / "running" / "slave", root / "slave")
    store = open_store(root / "running" / "master", max_hash_slot_num=100, max_index_num=400)
    put_all(store, [Message(properties={"UNIQ_KEY": f"L{number}"}) for number in range(9)])
    copy_after_crash(store, root / "master")
    store.stop()
    shutil.rmtree(root / "running")


# DLedger logs


def started(root: Path, seed: int) -> SeededDLedgerGroup:
    group = SeededDLedgerGroup(root, seed)
    for node in group.nodes:
        node.open()
    group.elect(group.nodes[0])
    group.write(80)
    group.replicate()
    return group


def stopped(group: SeededDLedgerGroup) -> None:
    for node in group.nodes:
        node.close()


@history()
async def leader_lost_its_tail(root: Path) -> None:
    group = started(root, 21)
    for _ in range(3):
        group.lose_leader()
    stopped(group)
    write_consumer_offsets(root, group)


@history()
async def data_files_expired_on_one_peer(root: Path) -> None:
    group = started(root, 22)
    group.write(400)
    group.replicate()
    stopped(group)
    segments(root / "r3")[0].unlink()


@history()
async def empty_peer_catches_up(root: Path) -> None:
    group = started(root, 23)
    group.write(100)
    group.replicate()
    late = DLedgerNode(
        root / "r4", 4, dLegerPeers="n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3;n3-127.0.0.1:4"
    )
    late.open()
    late.follow(group.master, until=60)
    late.commit(55)
    group.nodes.append(late)
    stopped(group)
