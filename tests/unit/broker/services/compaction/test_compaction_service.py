"""A broker with compaction topics: its queues follow the log, pulls are served from them, and slaves complete
theirs from the master."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_broker.services.compaction import compaction_service
from epochmq_broker.services.compaction.compacted_queue import CompactedQueue
from epochmq_broker.services.compaction.keyed_records import KeyedRecord
from epochmq_broker.services.compaction.master_messages import fetch_messages, split_records
from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_admin import DeleteTopicRequestHeader
from epochmq_protocol.headers_client import PullMessageResponseHeader
from epochmq_protocol.topics import TopicConfig
from tests.support.compaction_bench import SETTINGS, TOPIC, create, queue_of, send
from tests.unit.broker.kit import Bench, Peer, command, pull_command, running, send_command, until

SUSPEND, SUBSCRIPTION = 2, 4


async def pull(bench: Bench, offset: int, **fields: int) -> tuple[Command, list[tuple[int, bytes]]]:
    peer = bench.peer()
    answer = await peer.answer(peer.send(pull_command(TOPIC, offset, **fields)))
    found = records.decode_records(answer.body)
    return answer, [(one.queue_offset, one.body) for one in found]


async def pull_all(bench: Bench) -> list[int]:
    """The queue offsets of everything that pulls return."""
    found: list[int] = []
    offset = 0
    while True:
        answer, messages = await pull(bench, offset)
        if answer.code != ResponseCode.SUCCESS:
            return found
        found += [at for at, _ in messages]
        offset = PullMessageResponseHeader.decode(answer.ext).next_begin_offset


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path / "store", SETTINGS) as made:
        await create(made)
        yield made


async def test_messages_that_become_visible_without_notice_are_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store drops arrivals when it holds too many."""
    monkeypatch.setattr(compaction_service, "CHECK_S", 0.02)
    async with running(tmp_path / "store", SETTINGS) as bench:
        await create(bench)
        await send(bench, 0, 1)
        store = bench.broker.store
        store.visibility.set_confirm_offset(store.max_phy_offset)
        message = send_command(TOPIC, b"body", {"KEYS": "key", "UNIQ_KEY": "u"})
        bench.peer().call(message)
        store.on_arrival.discard_held()
        assert queue_of(bench).max_offset == 1
        store.visibility.set_confirm_offset(None)
        await until(lambda: queue_of(bench).max_offset == 2)


async def test_the_queues_of_a_new_topic_are_open_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blocked(queue: CompactedQueue, *, trusted: bool) -> None:
        pytest.fail(f"{queue} is opened, and gets are rejected meanwhile")

    monkeypatch.setattr(CompactedQueue, "load", blocked)
    async with running(tmp_path / "store", SETTINGS) as bench:
        await create(bench)
        answer, messages = await pull(bench, 0)
        assert (answer.code, messages) == (ResponseCode.PULL_NOT_FOUND, [])


async def test_a_message_without_key_is_rejected(bench: Bench) -> None:
    peer = bench.peer()
    answer = await peer.answer(peer.send(send_command(TOPIC)))
    assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")


async def test_a_pull_after_a_compaction_returns_the_newest_message_of_each_key(bench: Bench) -> None:
    await send(bench, 0, 30)
    assert await pull_all(bench) == list(range(30))
    outcome = await bench.broker.compaction.compact(queue_of(bench))
    assert outcome == (27, 4)
    answer, messages = await pull(bench, 0)
    assert messages == [(at, b"body%d" % at) for at in (23, 24, 25, 26)]
    assert PullMessageResponseHeader.decode(answer.ext) == PullMessageResponseHeader(
        suggest_which_broker_id=0,
        next_begin_offset=27,
        min_offset=23,
        max_offset=30,
        topic_sys_flag=0,
        group_sys_flag=0,
    )
    assert await pull_all(bench) == [*range(23, 30)]


async def test_a_held_pull_returns_when_its_message_is_in_the_compacted_queue(bench: Bench) -> None:
    await send(bench, 0, 3)
    peer = bench.peer()
    opaque = peer.send(
        pull_command(TOPIC, 3, sys_flag=SUSPEND | SUBSCRIPTION, suspend_timeout_millis=600_000)
    )
    await until(lambda: bench.broker.processors.pull.hold.held == 1)
    await send(bench, 3, 1)
    answer = await peer.answer(opaque)
    assert [one.queue_offset for one in records.decode_records(answer.body)] == [3]


async def test_a_queue_is_compacted_when_it_is_due(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS | {"compactionScheduleInternal": "1"}) as bench:
        await create(bench)
        await send(bench, 0, 30)
        await until(lambda: queue_of(bench).min_offset == 23)


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as bench:
        await create(bench)
        await send(bench, 0, 30)
        await bench.broker.compaction.compact(queue_of(bench))
    async with running(tmp_path, SETTINGS) as bench:
        assert await pull_all(bench) == list(range(23, 30))
        await send(bench, 30, 5)
        assert await pull_all(bench) == list(range(23, 35))


async def test_a_lost_compacted_log_is_built_again_from_the_commit_log(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as bench:
        await create(bench)
        await send(bench, 0, 30)
    shutil.rmtree(tmp_path / "compaction")
    async with running(tmp_path, SETTINGS) as bench:
        await until(lambda: queue_of(bench).max_offset == 30)
        assert await pull_all(bench) == list(range(30))


async def test_messages_from_before_the_settings_of_their_topic_are_compacted(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as bench:
        peer = bench.peer()
        for number in range(5):
            message = send_command(TOPIC, b"body", {"KEYS": f"key{number}"})
            assert (await peer.answer(peer.send(message))).code == ResponseCode.SUCCESS
        settings = TopicConfig(topic_name=TOPIC, attributes={"cleanup.policy": "COMPACTION"})
        bench.broker.topics.put(settings)
        await until(lambda: queue_of(bench).max_offset == 5)
        assert await pull_all(bench) == list(range(5))


async def test_a_truncation_of_the_log_truncates_the_compacted_queue(bench: Bench) -> None:
    await send(bench, 0, 30)
    store = bench.broker.store
    unit = store.queue(TOPIC, 0).unit(20)
    assert unit is not None
    store.truncate(unit[0])
    await until(lambda: queue_of(bench).max_offset == 20)
    await send(bench, 100, 3)
    assert (await pull(bench, 18))[1] == [
        (18, b"body18"), (19, b"body19"), (20, b"body100"), (21, b"body101"), (22, b"body102"),
    ]  # fmt: skip


async def test_a_topic_that_is_created_again_begins_anew(bench: Bench, tmp_path: Path) -> None:
    await send(bench, 0, 30)
    peer = bench.peer()
    deletion = command(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=TOPIC))
    assert (await peer.answer(peer.send(deletion))).code == ResponseCode.SUCCESS
    assert bench.broker.compaction.queue_of(TOPIC, 0) is None
    await create(bench)
    await send(bench, 50, 2)
    assert (await pull(bench, 0))[1] == [(0, b"body50"), (1, b"body51")]


async def test_without_compaction_pulls_are_served_from_the_log(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS | {"enableCompaction": "false"}) as bench:
        await create(bench)
        peer = bench.peer()
        message = send_command(TOPIC, b"body", {"KEYS": "key"})
        assert (await peer.answer(peer.send(message))).code == ResponseCode.SUCCESS
        assert (await pull(bench, 0))[1] == [(0, b"body")]
        assert not (tmp_path / "compaction" / "compactionLog").exists()


class MasterClient:
    """Sends the requests of a slave to a master in the same process."""

    def __init__(self, master: Bench) -> None:
        self._peer = Peer(master.ordinary)
        self.codes: list[int] = []

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        """RequestClient.call."""
        self.codes.append(command.code)
        return await self._peer.answer(self._peer.send(command))


async def test_a_slave_fetches_what_its_log_does_not_have(bench: Bench) -> None:
    await send(bench, 0, 80)
    await bench.broker.compaction.compact(queue_of(bench))
    whole = await pull_all(bench)
    client = MasterClient(bench)
    for first, end in ((0, None), (0, 74), (70, None), (79, 80)):
        found: list[int] = []

        async def deliver(delivered: list[KeyedRecord], found: list[int] = found) -> None:
            found += [one.queue_offset for one in delivered]

        count = await fetch_messages(client, "master", "127.0.0.1", TOPIC, 0, first, end, deliver)
        assert found == [at for at in whole if at >= first and (end is None or at < end)]
        assert count == len(found)
    assert client.codes[0] == RequestCode.HEART_BEAT
    assert client.codes[-1] == RequestCode.UNREGISTER_CLIENT
    assert bench.broker.tables.clients.group(f"{TOPIC}-0-pull-group") is None


async def test_a_master_that_rejects_the_pulls_is_an_error(bench: Bench) -> None:
    async def deliver(_: list[KeyedRecord]) -> None:
        raise AssertionError

    with pytest.raises(EpochMQError, match="rejected a pull with code 17"):
        await fetch_messages(MasterClient(bench), "m", "127.0.0.1", "unknown", 0, 0, None, deliver)


async def test_a_new_slave_gets_the_compacted_messages_of_its_master(bench: Bench, tmp_path: Path) -> None:
    await send(bench, 0, 30)
    await bench.broker.compaction.compact(queue_of(bench))
    settings = SETTINGS | {"brokerRole": "SLAVE", "brokerId": "1"}
    async with running(tmp_path / "slave", settings) as slave:
        slave.broker.compaction._client = MasterClient(bench)
        slave.broker.compaction._master = lambda: "master"
        topic = bench.broker.topics.get(TOPIC)
        assert topic is not None
        slave.broker.topics.put(topic)
        await until(lambda: queue_of(slave).max_offset == 30)
        queue = queue_of(slave)
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        assert slave.broker.compaction.get(queue, 0, 32, done.set_result) is None
        result = await done
        assert [one.queue_offset for one in records.decode_records(result.body)] == list(range(23, 30))  # type: ignore[attr-defined]


def test_a_damaged_response_gives_the_records_before_the_damage() -> None:
    assert split_records(b"\0\0\0\x05abc") == []
    assert split_records(bytes(100)) == []
