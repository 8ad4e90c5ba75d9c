"""The tables of a master and its slave, one RocketMQ's and one EpochMQ's, become equal: topics, groups,
consumer offsets, delay offsets and timers."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.interop.java_cluster import java_broker
from tests.interop.java_env import NEWEST, made_by
from tests.support.group_processes import Factory, our_broker
from tests.support.java_slaves import java_slave
from tests.support.pair import SEND_MESSAGE_V2, Pair
from tests.support.process import wait_until
from tests.support.remoting import call

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

UPDATE_CONSUMER_OFFSET, UPDATE_AND_CREATE_TOPIC, UPDATE_AND_CREATE_GROUP = 15, 17, 200
DELETE_TOPIC, GET_BROKER_RUNTIME_INFO = 215, 28
TABLES = {
    21: "topicConfigTable",
    43: "offsetTable",
    45: "offsetTable",
    201: "subscriptionGroupTable",
    402: "messageRequestModeMap",
    61: "timingCount",
}


def table(pair: Pair, number: int, code: int) -> dict[str, Any]:
    """One of a broker's tables, as it sends it to a slave."""
    response = call(pair.brokers[number].address, code)
    assert response.code == 0, (code, response.remark)
    found: dict[str, Any] = json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', response.body))[TABLES[code]]
    return found


def ask(pair: Pair, code: int, ext: dict[str, str], body: bytes = b"") -> None:
    response = call(pair.master.address, code, ext, body)
    assert response.code == 0, (code, response.remark)


def create_topic(pair: Pair, topic: str, *, queues: int, attributes: str = "") -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    ask(pair, UPDATE_AND_CREATE_TOPIC, fields | ({"attributes": attributes} if attributes else {}))


def commit(pair: Pair, group: str, queue_id: int, offset: int) -> None:
    fields = {
        "consumerGroup": group,
        "topic": "orders",
        "queueId": str(queue_id),
        "commitOffset": str(offset),
    }
    ask(pair, UPDATE_CONSUMER_OFFSET, fields)


def delay(pair: Pair, *, level: int = 0, seconds: int = 0) -> None:
    name, value = ("DELAY", level) if level else ("TIMER_DELAY_SEC", seconds)
    ext = {
        "a": "producers", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000",
        "h": "0", "i": f"{name}\x01{value}\x02WAIT\x01true\x02", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    assert call(pair.master.address, SEND_MESSAGE_V2, ext, b"later", timeout_s=60).code == 0


def pending(pair: Pair, number: int) -> int:
    """How many timer messages are in a broker's wheel."""
    table = json.loads(call(pair.brokers[number].address, GET_BROKER_RUNTIME_INFO).body)["table"]
    return int(table["timerCongestNum"])


def timer_checkpoint(pair: Pair, number: int) -> tuple[int, int]:
    """The time up to which timer messages are delivered, and the master's offset in the timer's queue."""
    read_time, _, _, offset, *_ = struct.unpack(">7q", call(pair.brokers[number].address, 60).body)
    return read_time, offset


def wait_equal(pair: Pair) -> None:
    differing: list[int] = []

    def equal() -> bool:
        differing[:] = [code for code in TABLES if table(pair, 0, code) != table(pair, 1, code)]
        return not differing

    try:
        wait_until(equal, what="the slave's tables equal the master's")
    except AssertionError as error:
        for code in differing:
            error.add_note(f"{code}: master {table(pair, 0, code)}\nslave {table(pair, 1, code)}")
        raise


@pytest.mark.parametrize(
    ("master", "slave"),
    [pytest.param(our_broker, java_slave, id="java-copies-ours"),
     pytest.param(java_broker, our_broker, id="ours-copies-java"),
     pytest.param(our_broker, made_by(NEWEST, java_slave), id="newest-copies-ours", marks=pytest.mark.soak),
     pytest.param(made_by(NEWEST, java_broker), our_broker, id="ours-copies-newest", marks=pytest.mark.soak)],
)  # fmt: skip
def test_a_slave_copies_all_tables_of_its_master(tmp_path: Path, master: Factory, slave: Factory) -> None:
    """RocketMQ 5.5.0 asks for topics and groups in pages, and sends pages of three to those that ask so. Each
    side also accepts a whole table, which is what EpochMQ sends and asks for."""
    with Pair(tmp_path, [master, slave], octet=66, broker={"splitMetadataSize": 3}) as pair:
        # One topic with an attribute keeps the slave of RocketMQ 5.3.3 from copying any topic, for ever.
        attributes = "" if slave is java_slave else "+message.type=FIFO"
        create_topic(pair, "orders", queues=5, attributes=attributes)
        create_topic(pair, "doomed", queues=1)
        config = {"groupName": "readers", "retryMaxTimes": 3, "consumeBroadcastEnable": False}
        ask(pair, UPDATE_AND_CREATE_GROUP, {}, json.dumps(config).encode())
        for number in range(3):
            assert pair.send(queue_id=number).code == 0
            commit(pair, "readers", number, 1)
        delay(pair, level=1)
        for seconds in (2, 3600, 7200):
            delay(pair, seconds=seconds)
        wait_until(lambda: table(pair, 0, 45) == {"1": 1}, what="the delayed message is delivered")
        wait_equal(pair)
        assert table(pair, 1, 21)["orders"]["readQueueNums"] == 5
        assert table(pair, 1, 201)["readers"]["retryMaxTimes"] == 3
        assert table(pair, 1, 43)["orders@readers"] == {"0": 1, "1": 1, "2": 1}
        assert table(pair, 1, 45) == {"1": 1}
        # The slave's wheel has what is pending, and its checkpoint follows the master's.
        wait_until(lambda: pending(pair, 0) == pending(pair, 1) == 2, what="two messages are in both wheels")
        # RocketMQ's slave counts what it adds to its wheel, too, until the next copy.
        wait_until(lambda: table(pair, 1, 61)["orders"]["count"] == 2, what="the numbers are the master's")
        wait_until(lambda: timer_checkpoint(pair, 0)[1] == 3, what="the master's checkpoint has all three")
        master_time, _ = timer_checkpoint(pair, 0)
        wait_until(lambda: timer_checkpoint(pair, 1)[0] >= master_time, what="the slave has its time")
        wait_until(lambda: timer_checkpoint(pair, 1)[1] == 3, what="the slave's checkpoint has all three")
        # Changes and deletions.
        ask(pair, DELETE_TOPIC, {"topic": "doomed"})
        commit(pair, "readers", 0, 0)
        commit(pair, "readers", 3, 0)
        wait_equal(pair)
        assert "doomed" not in table(pair, 1, 21)
        assert table(pair, 1, 43)["orders@readers"] == {"0": 0, "1": 1, "2": 1, "3": 0}
        # They are on the slave's disk, too, for the time when it is master.
        path = pair.store(1) / "config" / "delayOffset.json"
        wait_until(
            lambda: bool(re.search(r'"offsetTable":\{\s*1:1\s*\}', path.read_text())), what="it is on disk"
        )
