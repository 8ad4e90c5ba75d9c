"""The flow control of cold data: which groups it slows down, how, and what mqadmin shows and sets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from epochmq_broker.services.cold_control import pull_control
from epochmq_broker.services.cold_control.flow_control import ADAPTIVE, ColdDataFlowControl
from epochmq_protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command
from tests.unit.broker.kit import Bench, Peer, command, pull_command, running, send_command

TOPIC = "BenchmarkTest"
COLD = {
    "coldDataFlowControlEnable": "true",
    "accessMessageInMemoryHotRatio": "0",
    "cgColdReadThreshold": "10",
}
"""Every message but the last counts as cold, and one exceeds the threshold."""


class Settings(msgspec.Struct):
    cold_data_flow_control_enable: bool = True
    cold_ctr_strategy_enable: bool = False
    cg_cold_read_threshold: int = 100
    global_cold_read_threshold: int = 1000


def test_a_group_is_controlled_from_its_threshold_to_the_end_of_the_period() -> None:
    flow = ColdDataFlowControl(Settings(), adapts_by_pid=False)
    flow.count("g", 99, 0)
    assert flow.active
    assert not flow.is_controlled("g")
    flow.count("g", 1, 1)
    assert flow.is_controlled("g")
    assert not flow.is_controlled("other")
    flow.start_period(5000)
    assert not flow.is_controlled("g")


def test_an_administrators_threshold_replaces_the_general_one() -> None:
    flow = ColdDataFlowControl(Settings(), adapts_by_pid=False)
    flow.set_threshold("g", 500)
    flow.count("g", 499, 0)
    assert not flow.is_controlled("g")
    flow.remove_threshold("g")
    assert flow.is_controlled("g")


def test_all_groups_that_read_cold_data_are_controlled_at_the_global_threshold() -> None:
    flow = ColdDataFlowControl(Settings(cg_cold_read_threshold=5000), adapts_by_pid=False)
    flow.count("g", 1, 0)
    flow.count("h", 999, 0)
    assert flow.is_controlled("g")
    assert not flow.is_controlled("reads no cold data")


@pytest.mark.parametrize("group", ["TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS"])
def test_system_groups_are_never_controlled(group: str) -> None:
    flow = ColdDataFlowControl(Settings(), adapts_by_pid=False)
    flow.count(group, 10_000, 0)
    assert not flow.is_controlled(group)


def test_a_group_that_reads_no_cold_data_for_a_minute_is_forgotten() -> None:
    flow = ColdDataFlowControl(Settings(), adapts_by_pid=False)
    flow.count("g", 100, 0)
    flow.start_period(59_999)
    assert "g" in flow.groups
    flow.start_period(60_000)
    assert not flow.groups
    assert not flow.active


def test_the_simple_strategy_raises_a_busy_groups_threshold_and_lowers_it_under_global_pressure() -> None:
    flow = ColdDataFlowControl(Settings(cold_ctr_strategy_enable=True), adapts_by_pid=False)
    flow.count("g", 100, 0)
    flow.start_period(1)
    assert flow.thresholds == {"g" + ADAPTIVE: 150}
    flow.count("g", 150, 2)
    flow.start_period(3)
    assert flow.thresholds == {"g" + ADAPTIVE: 225}
    flow.count("g", 1001, 4)
    flow.start_period(5)
    assert flow.thresholds == {"g" + ADAPTIVE: 180}
    flow.settings.cold_ctr_strategy_enable = False
    flow.start_period(6)
    assert not flow.thresholds


def test_the_pid_strategy_needs_ten_periods_before_it_changes_a_threshold() -> None:
    flow = ColdDataFlowControl(Settings(cold_ctr_strategy_enable=True), adapts_by_pid=True)
    for period in range(9):
        flow.count("g", 100, period)
        flow.start_period(period)
        assert not flow.thresholds
    flow.count("g", 100, 9)
    flow.start_period(9)
    assert flow.thresholds == {"g" + ADAPTIVE: 150}


def consume(peer: Peer, kind: str) -> None:
    """Registers `group` as a push (CONSUME_PASSIVELY) or pull (CONSUME_ACTIVELY) consumer."""
    subscription = SubscriptionData(topic=TOPIC, sub_string="*", sub_version=1, expression_type="TAG")
    data = ConsumerData(
        group_name="group",
        consume_type=kind,
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[subscription],
    )
    heartbeat = HeartbeatData(client_id="client", consumer_data_set=[data])
    assert peer.call(command(RequestCode.HEART_BEAT, body=to_json(heartbeat))).code == 0


def pull(offset: int) -> Command:
    return pull_command(TOPIC, offset, sys_flag=0, sub_version=1, max_msg_nums=4)


def controlled(bench: Bench, kind: str) -> Peer:
    """A consumer that has read as much as it may."""
    peer = bench.peer()
    for number in range(10):
        assert peer.call(send_command(TOPIC, b"message %d" % number)).code == 0
    consume(peer, kind)
    assert peer.call(pull(0)).code == 0
    return peer


async def test_a_push_consumer_that_read_too_much_cold_data_is_told_to_wait(tmp_path: Path) -> None:
    async with running(tmp_path, COLD) as bench:
        peer = controlled(bench, "CONSUME_PASSIVELY")
        answer = peer.call(pull(4))
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert answer.remark == "This consumer group is reading cold data. It has been flow control"
        bench.broker.cold_control.check()
        assert peer.call(pull(4)).code == 0


async def test_nothing_is_controlled_unless_the_key_is_on(tmp_path: Path) -> None:
    async with running(tmp_path, COLD | {"coldDataFlowControlEnable": "false"}) as bench:
        peer = controlled(bench, "CONSUME_PASSIVELY")
        assert peer.call(pull(4)).code == 0
        assert not bench.broker.cold_control.flow.groups


async def test_a_pull_consumer_is_held_and_then_gets_what_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_control, "HOLD_S", 0.0)
    async with running(tmp_path, COLD) as bench:
        peer = controlled(bench, "CONSUME_ACTIVELY")
        opaque = peer.send(pull(4))
        await asyncio.sleep(0)
        peer.collect()
        assert opaque not in peer.answers
        control = bench.broker.cold_control
        control._run_held(float("inf"))  # the group is still over its threshold
        answer = await peer.answer(opaque)
        assert answer.code == 0
        assert answer.ext is not None
        assert answer.ext["nextBeginOffset"] == "5"


async def test_a_stopping_broker_answers_the_pulls_that_the_control_holds(tmp_path: Path) -> None:
    async with running(tmp_path, COLD) as bench:
        peer = controlled(bench, "CONSUME_ACTIVELY")
        opaque = peer.send(pull(4))
        bench.broker.cold_control.release()
        assert (await peer.answer(opaque)).code == 0


async def test_pages_in_memory_are_not_cold_when_they_are_scanned(tmp_path: Path) -> None:
    async with running(tmp_path, COLD | {"coldDataScanEnable": "true"}) as bench:
        control = bench.broker.cold_control
        control.pages.start_scan()
        assert control.pages._running is not None
        await control.pages._running
        peer = controlled(bench, "CONSUME_PASSIVELY")
        assert peer.call(pull(4)).code == 0
        assert not control.flow.groups


async def test_mqadmin_sets_removes_and_shows_thresholds(tmp_path: Path) -> None:
    async with running(tmp_path, COLD) as bench:
        peer = controlled(bench, "CONSUME_PASSIVELY")
        update = command(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=b"g1=12\ng2=x\n")
        assert peer.call(update).code == 0
        info = json.loads(peer.call(command(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)).body)
        assert info["configTable"] == {"g1": 12}
        assert info["globalColdReadThreshold"] == 100 << 20
        assert info["cgColdReadThreshold"] == 10
        assert info["globalAcc"] == info["runtimeTable"]["group"]["coldAcc"] > 10
        assert peer.call(command(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, body=b"g1")).code == 0
        info = json.loads(peer.call(command(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)).body)
        assert info["configTable"] == {}


@pytest.mark.parametrize(
    ("mode", "code", "remark"),
    [
        ("0", 0, "set commitlog readahead mode success, mode: 0"),
        ("1", 0, "set commitlog readahead mode success, mode: 1"),
        ("2", ResponseCode.INVALID_PARAMETER, "set commitlog readahead mode param value error"),
        ("x", ResponseCode.SYSTEM_ERROR, "set commitlog readahead mode failed"),
        ("2147483648", ResponseCode.SYSTEM_ERROR, "set commitlog readahead mode failed"),
    ],
)
async def test_the_read_ahead_of_the_log_is_switched(
    tmp_path: Path, mode: str, code: int, remark: str
) -> None:
    async with running(tmp_path) as bench:
        peer = bench.peer()
        peer.call(send_command(TOPIC))
        answer = peer.call(command(RequestCode.SET_COMMITLOG_READ_MODE, READ_AHEAD_MODE=mode))
        assert (answer.code, answer.remark) == (code, remark)
        assert bench.broker.store.log.files.files[0].read_ahead == (mode != "1")
        assert bench.broker.live.current.data_read_ahead_enable == (mode != "1")
