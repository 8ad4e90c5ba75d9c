"""Tests that a slave copies its master's tables, and can serve with them when it becomes the master."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from epochmq_broker.replication import offset_table_bodies, slave_sync, table_state
from epochmq_broker.replication.slave_sync import SlaveSync
from epochmq_broker.requests.processors import table_sync
from epochmq_broker.tables.consumer_offsets import ConsumerOffsetTable
from epochmq_broker.tables.topics import topic_config
from epochmq_protocol import fastjson
from epochmq_protocol.bodies import (
    AclInfo,
    MessageRequestMode,
    SetMessageRequestModeRequestBody,
    TopicConfigSerializeWrapper,
    UserInfo,
    from_json,
    to_json,
)
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConnectError, EpochMQError
from epochmq_protocol.frame import Command, request, response
from epochmq_protocol.message_const import TRANSACTION_PREPARED_TYPE
from epochmq_protocol.topics import (
    DataVersion,
    LogicQueueMappingItem,
    TopicConfig,
    TopicQueueMappingDetail,
)
from tests.unit.broker.auth.kit import acl_body
from tests.unit.broker.kit import UNIQ_KEY, Bench, running, send_command, until

MASTER = "127.53.7.9:10911"


class FakeMaster:
    """The slave's connection to its master; counts requests and bytes. `alter` may change the responses."""

    def __init__(self, master: Bench) -> None:
        self._peer = master.peer()
        self.bodies: list[int] = []
        self.alter: Callable[[Command, Command], Command] = lambda command, answer: answer

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        """Sends a request as `RemotingClient` does."""
        assert address == MASTER
        answer = self.alter(command, await self._peer.answer(self._peer.send(command)))
        if answer.body:
            self.bodies.append(command.code)
        return answer


def as_java(command: Command, answer: Command) -> Command:
    """Makes a response as that of a RocketMQ master, which knows no table states."""
    if answer.ext is not None:
        answer.ext.pop(table_state.STATE, None)
    return answer


def sync_of(slave: Bench, line: FakeMaster) -> SlaveSync:
    broker = slave.broker
    return SlaveSync(
        client=line,
        store=broker.store,
        tables=broker.tables,
        delays=broker.delays,
        timer=broker.timer,
    )


def fill(master: Bench) -> None:
    """Puts an entry into every table."""
    broker = master.broker
    broker.topics.put(
        TopicConfig(topic_name="orders", read_queue_nums=3, attributes={"message.type": "FIFO"}, order=True)
    )
    broker.topics.delete("BenchmarkTest")
    broker.groups.find("readers")
    broker.groups.forbid("readers", "orders", forbidden=True)
    for queue_id in range(3):
        broker.offsets.commit("readers", "orders", queue_id, 10 + queue_id)
    broker.offsets.commit('odd "group", {1:', "orders", 0, 7)
    broker.delays.offsets.update({1: 4, 18: 2})
    item = LogicQueueMappingItem(bname="broker-a")
    mapping = TopicQueueMappingDetail(topic="orders", bname="broker-a", hosted_queues={0: [item]})
    broker.tables.static_topics.update(mapping, force=False)
    body = SetMessageRequestModeRequestBody("orders", "readers", MessageRequestMode.PULL)
    peer = master.peer()
    assert peer.call(request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=to_json(body))).code == 0
    broker.tables.auth.create_user(UserInfo("alice", "secret"))
    broker.tables.auth.merge_acl(from_json(AclInfo, acl_body("alice", ["Topic:orders"], ["Pub"])), None)


def assert_equal(slave: Bench, master: Bench) -> None:
    ours, theirs = slave.broker, master.broker
    assert dict(ours.topics.table) == dict(theirs.topics.table)
    assert ours.topics.data_version == theirs.topics.data_version
    assert dict(ours.groups.table) == dict(theirs.groups.table)
    assert ours.groups.forbidden_table == theirs.groups.forbidden_table
    assert ours.groups.data_version == theirs.groups.data_version
    assert ours.offsets.table == theirs.offsets.table
    assert ours.offsets.data_version == theirs.offsets.data_version
    assert ours.delays.offsets == theirs.delays.offsets
    assert ours.delays.data_version == theirs.delays.data_version
    assert ours.tables.request_modes.encode() == theirs.tables.request_modes.encode()
    assert ours.tables.static_topics.encode() == theirs.tables.static_topics.encode()
    assert ours.tables.auth.content() == theirs.tables.auth.content()


SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}


@pytest.mark.parametrize("answers", [pytest.param(None, id="ours"), pytest.param(as_java, id="rocketmqs")])
async def test_a_slave_becomes_a_copy_and_keeps_it_over_a_restart(
    tmp_path: Path, answers: Callable[[Command, Command], Command] | None
) -> None:
    async with running(tmp_path / "master") as master:
        fill(master)
        async with running(tmp_path / "slave", SLAVE) as slave:
            slave.broker.groups.find("stray")
            slave.broker.offsets.commit("stray", "orders", 0, 1)
            line = FakeMaster(master)
            line.alter = answers or line.alter
            sync = sync_of(slave, line)
            sync.follow(MASTER)
            await until(lambda: sync.rounds > 0)
            await sync.stop()
            assert_equal(slave, master)
        async with running(tmp_path / "slave", SLAVE) as slave:
            assert slave.broker.topics.get("orders") == master.broker.topics.get("orders")
            assert dict(slave.broker.groups.table) == dict(master.broker.groups.table)
            assert slave.broker.offsets.table == master.broker.offsets.table
            assert slave.broker.tables.request_modes.encode() == master.broker.tables.request_modes.encode()
            static = slave.broker.tables.static_topics
            assert static.encode() == master.broker.tables.static_topics.encode()
            assert set(static.table) == {"orders"}
            assert slave.broker.tables.auth.content() == master.broker.tables.auth.content()


async def test_only_changed_tables_are_sent_again(tmp_path: Path) -> None:
    async with running(tmp_path / "master") as master, running(tmp_path / "slave", SLAVE) as slave:
        fill(master)
        line = FakeMaster(master)
        sync = sync_of(slave, line)
        sync.follow(MASTER)
        await sync.refresh()
        line.bodies.clear()
        await sync.refresh()
        assert line.bodies == []
        master.broker.offsets.commit("readers", "orders", 1, 99)
        await sync.refresh()
        assert line.bodies == [RequestCode.GET_ALL_CONSUMER_OFFSET]
        # What happened here alone is undone, though nothing has changed there.
        slave.broker.topics.put(topic_config("mine", 1))
        slave.broker.offsets.commit("readers", "orders", 1, 98)
        await sync.refresh()
        assert line.bodies[1:] == [RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_CONSUMER_OFFSET]
        assert_equal(slave, master)
        await sync.stop()
        with pytest.raises(EpochMQError, match="no master"):
            await sync.refresh()


async def test_a_master_that_was_restarted_is_not_mistaken_for_what_it_was(tmp_path: Path) -> None:
    async with running(tmp_path / "slave", SLAVE) as slave:
        async with running(tmp_path / "master") as master:
            sync = sync_of(slave, FakeMaster(master))
            sync.follow(MASTER)
            await sync.refresh()
        async with running(tmp_path / "other") as master:
            sync._client = FakeMaster(master)
            master.broker.topics.put(topic_config("other", 1))
            await sync.refresh()
            assert_equal(slave, master)
        await sync.stop()


async def test_tables_of_any_size_are_copied_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_sync, "SLICE", 7)
    monkeypatch.setattr(offset_table_bodies, "SLICE", 3)
    async with running(tmp_path / "master") as master, running(tmp_path / "slave", SLAVE) as slave:
        fill(master)
        for number in range(40):
            for queue_id in range(number % 4):
                master.broker.offsets.commit(f"g{number}", "orders", queue_id, number)
        sync = sync_of(slave, FakeMaster(master))
        sync.follow(MASTER)
        await sync.refresh()
        await sync.stop()
        assert_equal(slave, master)


async def test_an_unreadable_entry_is_logged_and_the_rest_is_copied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(command: Command, answer: Command) -> Command:
        if command.code == RequestCode.GET_ALL_TOPIC_CONFIG:
            table = fastjson.loads(answer.body)
            table["topicConfigTable"]["orders"]["perm"] = "often"
            answer.body = fastjson.dumps(table)
        return answer

    async with running(tmp_path / "master") as master, running(tmp_path / "slave", SLAVE) as slave:
        fill(master)
        master.broker.topics.put(topic_config("zebras", 1))
        line = FakeMaster(master)
        line.alter = spoil
        sync = sync_of(slave, line)
        sync.follow(MASTER)
        await sync.refresh()
        await sync.stop()
        assert "orders" not in slave.broker.topics
        assert slave.broker.topics.get("zebras") == master.broker.topics.get("zebras")
        assert set(slave.broker.tables.static_topics.table) == {"orders"}
    assert "entry orders could not be copied" in caplog.text


async def test_a_response_without_entries_changes_no_table(tmp_path: Path) -> None:
    def erase(command: Command, answer: Command) -> Command:
        if command.code == RequestCode.GET_ALL_TOPIC_CONFIG:
            answer.body = to_json(TopicConfigSerializeWrapper(data_version=DataVersion(9, 9, 9)))
        if command.code == RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
            answer.body = b"{}"
        if command.code == RequestCode.GET_ALL_DELAY_OFFSET:
            return response(command, ResponseCode.SYSTEM_ERROR, "No delay offset in this broker")
        return answer

    async with running(tmp_path / "master") as master, running(tmp_path / "slave", SLAVE) as slave:
        fill(master)
        topics, groups = dict(slave.broker.topics.table), dict(slave.broker.groups.table)
        line = FakeMaster(master)
        line.alter = erase
        sync = sync_of(slave, line)
        sync.follow(MASTER)
        with pytest.raises(EpochMQError, match="topics: the response has no topic"):
            await sync.refresh()
        await sync.stop()
        assert dict(slave.broker.topics.table) == topics
        assert dict(slave.broker.groups.table) == groups
        assert slave.broker.offsets.table == master.broker.offsets.table


async def test_a_table_that_an_older_master_lacks_stays_unchanged(tmp_path: Path) -> None:
    def older(command: Command, answer: Command) -> Command:
        if command.code == RequestCode.GET_ALL_MESSAGE_REQUEST_MODE:
            return response(
                command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 402 not supported"
            )
        return answer

    async with running(tmp_path / "master") as master, running(tmp_path / "slave", SLAVE) as slave:
        fill(master)
        request_modes = slave.broker.tables.request_modes.encode()
        line = FakeMaster(master)
        line.alter = older
        sync = sync_of(slave, line)
        sync.follow(MASTER)
        await sync.refresh()
        await sync.stop()
        assert slave.broker.offsets.table == master.broker.offsets.table
        assert slave.broker.tables.request_modes.encode() == request_modes


async def test_a_failing_master_is_retried_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(slave_sync, "RETRY_MIN_S", 0.001)
    monkeypatch.setattr(slave_sync, "RETRY_MAX_S", 0.002)
    calls = 0

    def fail(command: Command, answer: Command) -> Command:
        nonlocal calls
        calls += 1
        if calls > 40:
            return answer
        if calls < 30:
            raise ConnectError("no master listens")
        raise KeyError("not foreseen")

    async with running(tmp_path / "master") as master, running(tmp_path / "slave", SLAVE) as slave:
        fill(master)
        line = FakeMaster(master)
        line.alter = fail
        sync = sync_of(slave, line)
        sync.follow(MASTER)
        await until(lambda: sync.rounds > 0)
        assert_equal(slave, master)
        await sync.stop()
    messages = [record.message for record in caplog.records if MASTER in record.message]
    assert "could not be copied (1 failures in 0 s): no master listens" in messages[0]
    assert messages[1:] == [f"the tables of {MASTER} are copied again"]


async def test_the_response_of_a_former_master_is_ignored(tmp_path: Path) -> None:
    asked, let_go = asyncio.Event(), asyncio.Event()

    class Slow(FakeMaster):
        async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
            answer = await super().call(address, command)
            asked.set()
            await let_go.wait()
            return answer

    async with running(tmp_path / "master") as master, running(tmp_path / "slave", SLAVE) as slave:
        fill(master)
        sync = sync_of(slave, Slow(master))
        sync.follow(MASTER)
        await asked.wait()
        sync.follow(None)
        let_go.set()
        await sync.stop()
        assert "orders" not in slave.broker.topics


async def test_copied_offsets_ahead_of_the_log_are_lowered_at_a_promotion(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "master") as master, running(tmp_path / "slave") as slave:
        master.broker.topics.put(topic_config("orders", 4))
        for offset, queue_id in ((9, 0), (2, 1), (5, 3)):
            master.broker.offsets.commit("readers", "orders", queue_id, offset)
        peer = slave.peer()
        for queue_id in (0, 0, 0, 1, 1, 1):
            assert peer.call(send_command("orders", queue_id=queue_id)).code == 0
        sync = sync_of(slave, FakeMaster(master))
        sync.follow(MASTER)
        await sync.refresh()
        sync.follow(None)
        assert slave.broker.offsets.table == master.broker.offsets.table
        sync.align_with_log()
        assert slave.broker.offsets.table == {"orders@readers": {0: 3, 1: 2, 3: 0}}


async def test_a_topic_whose_messages_came_before_its_settings_is_made_and_a_deleted_one_is_not(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "master") as master, running(tmp_path / "slave") as slave:
        master.broker.slave_sync.align_with_log()
        peer = slave.peer()
        assert peer.call(send_command("deleted")).code == 0
        sync = sync_of(slave, FakeMaster(master))
        sync.follow(MASTER)
        await sync.refresh()
        assert "deleted" not in slave.broker.topics
        for topic, queue_id in (("new", 2), ("wide", 6)):
            assert peer.call(send_command(topic, queue_id=queue_id, default_topic_queue_nums=8)).code == 0
            slave.broker.topics.delete(topic)
        sync.follow(None)
        sync.align_with_log()
        assert "deleted" not in slave.broker.topics
        assert slave.broker.topics.table["new"] == topic_config("new", 4)
        assert slave.broker.topics.table["wide"] == topic_config("wide", 7)


async def test_topics_of_a_broker_that_may_lack_some_itself_are_not_taken_as_complete(tmp_path: Path) -> None:
    async with running(tmp_path / "master") as master, running(tmp_path / "slave") as slave:
        assert slave.peer().call(send_command("new")).code == 0
        sync = sync_of(slave, FakeMaster(master))
        sync.follow(MASTER)
        await sync.refresh()  # the other broker has started, and is not the master yet
        assert (slave.broker.topics.known_until, "new" in slave.broker.topics) == (0, False)
        master.broker.slave_sync.align_with_log()
        await sync.refresh()
        assert slave.broker.topics.known_until == slave.broker.store.max_phy_offset > 0
        await sync.stop()


async def test_a_former_master_knows_the_topics_of_what_it_has_stored(tmp_path: Path) -> None:
    async with running(tmp_path) as slave:
        assert slave.peer().call(send_command("new")).code == 0
        sync = slave.broker.slave_sync
        sync.align_with_log()
        assert slave.broker.topics.known_until is None
        slave.broker.topics.delete("new")
        sync.align_with_log()
        assert "new" not in slave.broker.topics
        sync.follow(MASTER)
        assert slave.broker.topics.known_until == slave.broker.store.max_phy_offset > 0
        await sync.stop()


@pytest.mark.parametrize(
    ("sent_as", "flags"),
    [
        ({"TRAN_MSG": "true", "PGROUP": "payers"}, TRANSACTION_PREPARED_TYPE),
        ({"DELAY": "3"}, 0),
        ({"TIMER_DELAY_SEC": "60"}, 0),
    ],
)
async def test_a_topic_whose_messages_still_wait_is_made_with_a_retry_topic_and_a_deleted_one_is_not(
    tmp_path: Path, sent_as: dict[str, str], flags: int
) -> None:
    async with running(tmp_path / "master") as master, running(tmp_path / "slave") as slave:
        master.broker.slave_sync.align_with_log()
        peer = slave.peer()

        def send(topic: str, queue_id: int) -> None:
            properties = {"UNIQ_KEY": UNIQ_KEY, "WAIT": "true"} | sent_as
            command = send_command(topic, properties=properties, queue_id=queue_id, sys_flag=flags)
            assert peer.call(command).code == 0

        send("deleted", 0)
        sync = sync_of(slave, FakeMaster(master))
        sync.follow(MASTER)
        await sync.refresh()
        assert "deleted" not in slave.broker.topics
        slave.broker.topics.put(topic_config("payments", 8))
        slave.broker.topics.put(topic_config("%RETRY%payers", 1))
        send("payments", 6)
        send("%RETRY%payers", 0)
        slave.broker.topics.delete("payments")
        slave.broker.topics.delete("%RETRY%payers")
        sync.follow(None)
        sync.align_with_log()
        assert "deleted" not in slave.broker.topics
        assert slave.broker.topics.table["payments"] == topic_config("payments", 7)
        assert slave.broker.topics.table["%RETRY%payers"] == topic_config("%RETRY%payers", 1)


async def test_a_promoted_slave_goes_on_delivering_where_the_master_was(tmp_path: Path) -> None:
    async with running(tmp_path / "master") as master, running(tmp_path / "slave", SLAVE) as slave:
        master.broker.delays.offsets.update({3: 5, 4: 1})
        sync = sync_of(slave, FakeMaster(master))
        sync.follow(MASTER)
        await sync.refresh()
        await sync.stop()
        slave.broker.tables.file_writer.flush()
        on_disk = fastjson.loads((tmp_path / "slave" / "config" / "delayOffset.json").read_bytes())
        assert on_disk["offsetTable"] == {"3": 5, "4": 1}
        # The log that was copied ends before what was delivered of level 3.
        queue = slave.broker.store.queue("SCHEDULE_TOPIC_XXXX", 2)
        for number in range(2):
            assert queue.put(number, number * 100, 100, 0)
        slave.broker.delays.start()
        assert slave.broker.delays.offsets == {3: 2, 4: 0}


def test_an_offset_table_is_what_fastjson_makes_of_it() -> None:
    offsets = ConsumerOffsetTable(lambda: 5)
    for queue_id in (10, 9, 0):
        offsets.commit("g", 'odd "name"', queue_id, queue_id * 7)
    offsets.commit("g2", "T", 0, 1)
    rows = sorted(offsets.table.items())
    body = table_sync._offsets_body(
        to_json(offsets.data_version), [table_sync._offsets_entry(*row) for row in rows]
    )
    whole = {
        "dataVersion": offsets.data_version,
        "offsetTable": {key: dict(queues) for key, queues in offsets.table.items()},
    }
    assert body == fastjson.dumps(whole)
