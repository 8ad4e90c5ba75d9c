"""A returning master takes the tables of its slaves back, by data version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_broker.broker import Broker
from epochmq_broker.membership.acting.table_return import TableReturn
from epochmq_broker.replication.offset_table_bodies import DelayOffsetTableBody
from epochmq_broker.services.timer.timer_service import TimerService
from epochmq_formats.timer_checkpoint import TimerCheckpoint
from epochmq_protocol.bodies import from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.topics import DataVersion
from tests.unit.broker.kit import UNIQ_KEY, Bench, running, send_command

GROUP = {"enableSlaveActingMaster": "true", "totalReplicas": "2"}
SLAVE = {**GROUP, "brokerRole": "SLAVE", "brokerId": "1"}
ADDRESS = "127.53.7.9:10911"
OLDER, SAME, NEWER = DataVersion(3, 0, 50), DataVersion(5, 0, 100), DataVersion(6, 0, 40)


class SlaveLine:
    """The master's connection to its slave. `failing`: a request that is rejected."""

    def __init__(self, slave: Bench) -> None:
        self._peer = slave.peer()
        self.failing: RequestCode | None = None

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        """RemotingClient.call."""
        assert address == ADDRESS
        if command.code == self.failing:
            return response(command, ResponseCode.SYSTEM_ERROR, "no")
        return await self._peer.answer(self._peer.send(command))


class ReturningMaster:
    """An isolated master and its slave; both know one version of the tables."""

    def __init__(self, master: Bench, slave: Bench) -> None:
        self.master, self.slave = master.broker, slave.broker
        self.line = SlaveLine(slave)
        self.written = 0
        broker = master.broker
        self.tables = TableReturn(
            self.line, broker.store, broker.offsets, broker.delays, broker.timer, self._write_offsets
        )
        peer = master.peer()
        for queue_id in range(3):
            for _ in range(10):
                assert peer.call(send_command("orders", queue_id=queue_id)).code == 0
        for one in (self.master, self.slave):
            one.offsets.data_version = one.delays.data_version = SAME
            self.timer(one).timers.checkpoint.data_version = SAME

    def _write_offsets(self) -> None:
        self.written += 1

    @staticmethod
    def timer(broker: Broker) -> TimerService:
        assert broker.timer is not None
        return broker.timer

    async def take_back(self) -> None:
        await self.tables.take_back(ADDRESS)


@pytest.fixture
async def returning(tmp_path: Path) -> AsyncIterator[ReturningMaster]:
    async with running(tmp_path / "master", GROUP) as master, running(tmp_path / "slave", SLAVE) as slave:
        yield ReturningMaster(master, slave)


@pytest.mark.parametrize("version", [SAME, NEWER])
async def test_offsets_that_are_not_older_win(returning: ReturningMaster, version: DataVersion) -> None:
    own, theirs = returning.master.offsets, returning.slave.offsets
    own.restore({"orders@g": {0: 9, 1: 2, 2: 1}, "orders@only-here": {0: 4}}, SAME)
    theirs.restore({"orders@g": {0: 5, 1: 7}, "orders@new": {2: 3}}, version)
    await returning.take_back()
    assert own.table == {"orders@g": {0: 5, 1: 7}, "orders@only-here": {0: 4}, "orders@new": {2: 3}}
    assert own.data_version == version
    assert returning.written == 1


async def test_of_older_offsets_only_those_ahead_are_taken(returning: ReturningMaster) -> None:
    own, theirs = returning.master.offsets, returning.slave.offsets
    own.restore({"orders@g": {0: 9, 1: 2}, "orders@h": {0: 6}}, SAME)
    theirs.restore({"orders@g": {0: 5, 1: 7, 2: 1}, "orders@h": {0: 6}, "orders@new": {2: 3}}, OLDER)
    await returning.take_back()
    assert own.table == {"orders@g": {0: 9, 1: 7, 2: 1}, "orders@h": {0: 6}, "orders@new": {2: 3}}
    assert own.data_version == SAME


async def test_a_master_with_a_new_disk_takes_everything(returning: ReturningMaster) -> None:
    own, theirs = returning.master, returning.slave
    own.offsets.restore({}, NEWER)
    own.delays.offsets, own.delays.data_version = {}, NEWER
    theirs.offsets.restore({"orders@g": {0: 5}}, OLDER)
    theirs.delays.replace_all({3: 8}, OLDER)
    await returning.take_back()
    assert (own.offsets.table, own.offsets.data_version) == ({"orders@g": {0: 5}}, OLDER)
    assert (own.delays.offsets, own.delays.data_version) == ({3: 8}, OLDER)


async def test_offsets_beyond_the_log_of_the_master_are_lowered_to_its_end(
    returning: ReturningMaster,
) -> None:
    """The master has lost messages that its slave has: the next ones must not be skipped (#4771)."""
    returning.slave.offsets.restore({"orders@g": {0: 11, 1: 10, 2: 3}}, NEWER)
    await returning.take_back()
    assert returning.master.offsets.table == {"orders@g": {0: 10, 1: 10, 2: 3}}


async def test_9711_offsets_of_light_groups_that_are_ahead_are_taken_back(tmp_path: Path) -> None:
    """RocketMQ's master did not take them back. Their commits do not change the data version."""
    light = {"enableLmq": "true", "enableMultiDispatch": "true"}
    async with (
        running(tmp_path / "master", GROUP | light) as master,
        running(tmp_path / "slave", SLAVE | light) as slave,
    ):
        returning = ReturningMaster(master, slave)
        names = {"UNIQ_KEY": UNIQ_KEY, "INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}
        for _ in range(8):
            assert master.peer().call(send_command("orders", b"light", names)).code == 0
        for queue, here, there in (("%LMQ%a", 3, 7), ("%LMQ%b", 5, 4)):
            master.broker.offsets.commit("%LMQ%g", queue, 0, here)
            slave.broker.offsets.commit("%LMQ%g", queue, 0, there)
        await returning.take_back()
        assert [master.broker.offsets.query("%LMQ%g", queue, 0) for queue in ("%LMQ%a", "%LMQ%b")] == [7, 5]


@pytest.mark.parametrize(
    ("version", "expected"),
    [(OLDER, {1: 9, 2: 5, 4: 3, 5: 1}), (SAME, {1: 4, 2: 5, 4: 3, 5: 1}), (NEWER, {1: 4, 2: 5, 4: 3, 5: 1})],
)
async def test_delay_offsets_are_taken_back_and_written(
    returning: ReturningMaster, version: DataVersion, expected: dict[int, int]
) -> None:
    own = returning.master.delays
    own.replace_all({1: 9, 2: 2, 5: 1}, SAME)
    returning.slave.delays.replace_all({1: 4, 2: 5, 4: 3}, version)
    await returning.take_back()
    assert own.offsets == expected
    assert own.data_version == max(version, SAME, key=lambda one: one.counter)
    returning.master.tables.file_writer.flush()
    path = returning.master.live.current.config_dir / "delayOffset.json"
    written = from_json(DelayOffsetTableBody, path.read_bytes())
    assert (written.offset_table, written.data_version) == (expected, own.data_version)


@pytest.mark.parametrize(
    ("version", "read_time_ms", "expected"),
    [
        pytest.param(NEWER, 1000, (1000, 7, NEWER), id="newer"),
        pytest.param(SAME, 1000, (1000, 7, SAME), id="same"),
        pytest.param(OLDER, 1000, (2000, 20, SAME), id="older"),
        pytest.param(OLDER, 3000, (3000, 20, SAME), id="older, but it has delivered more"),
    ],
)
async def test_the_timers_checkpoint_is_taken_back(
    returning: ReturningMaster,
    version: DataVersion,
    read_time_ms: int,
    expected: tuple[int, int, DataVersion],
) -> None:
    timer = returning.timer(returning.master)
    assert not timer.is_master
    timer.follow(TimerCheckpoint(read_time_ms=2000, master_queue_offset=20, data_version=SAME))
    slave = returning.timer(returning.slave)
    slave.follow(TimerCheckpoint(read_time_ms=read_time_ms, master_queue_offset=7, data_version=version))
    await returning.take_back()
    own = timer.timers.checkpoint
    assert (own.read_time_ms, own.master_queue_offset, own.data_version) == expected


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_TIMER_CHECK_POINT,
    ],
)
async def test_a_slave_that_rejects_a_request_changes_nothing(
    returning: ReturningMaster, code: RequestCode
) -> None:
    own, theirs = returning.master, returning.slave
    theirs.offsets.restore({"orders@g": {0: 5}}, NEWER)
    theirs.delays.replace_all({3: 8}, NEWER)
    returning.line.failing = code
    with pytest.raises(EpochMQError, match=f"{ADDRESS} responded with code 1: no"):
        await returning.take_back()
    assert own.offsets.table == {}
    assert own.delays.offsets == {}


async def test_a_slave_without_a_timer_has_no_checkpoint(tmp_path: Path) -> None:
    without = {**SLAVE, "timerWheelEnable": "false"}
    async with running(tmp_path / "master", GROUP) as master, running(tmp_path / "slave", without) as slave:
        slave.broker.offsets.restore({"orders@g": {0: 0}}, NEWER)
        broker = master.broker
        tables = TableReturn(
            SlaveLine(slave), broker.store, broker.offsets, broker.delays, broker.timer, lambda: None
        )
        await tables.take_back(ADDRESS)
        assert broker.offsets.table == {"orders@g": {0: 0}}
