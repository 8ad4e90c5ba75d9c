"""Slaves of masters with a compaction topic: a slave whose log begins after the oldest messages fetches them
from its master, EpochMQ's or RocketMQ's, and then serves the newest message of each key.

A slave of RocketMQ 5.3.3 does not take over topics with attributes, so it serves no compaction topic."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from epochmq_protocol.message import decode_records
from tests.interop.java_cluster import java_broker
from tests.support.pair import LOG_FILE, Pair
from tests.support.process import wait_until
from tests.support.remoting import call
from tests.support.replica_group import Factory, Member, our_broker

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

UPDATE_AND_CREATE_TOPIC, SEND_MESSAGE_V2, PULL_MESSAGE = 17, 310, 11
TOPIC = "compacted"
KEYS = 40
ROUND = 200
SETTINGS = {
    "compactionScheduleInternal": 1000,
    "compactionMappedFileSize": 230_000,
    "compactionCqMappedFileSize": 4600,
    "slaveReadEnable": True,
    "slaveTimeout": 10,
}
STORED = {0, 10, 11, 12}
"""Also when no slave acknowledges in time."""


def create(master: Member) -> None:
    header = {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false", "attributes": "+cleanup.policy=COMPACTION",
    }  # fmt: skip
    assert call(master.address, UPDATE_AND_CREATE_TOPIC, header).code == 0


def send(master: Member, first: int, count: int) -> None:
    for number in range(first, first + count):
        header = {
            "a": "producers", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000",
            "h": "0", "i": f"KEYS\x01key{number % KEYS}\x02WAIT\x01false\x02", "j": "0", "k": "false",
            "m": "false",
        }  # fmt: skip
        assert call(master.address, SEND_MESSAGE_V2, header, b"%d " % number + bytes(1000)).code in STORED


def pull_all(member: Member, end: int) -> list[tuple[int, bytes]]:
    """(queue offset, number) of every message that pulls return; empty while the broker does not serve
    them."""
    found: list[tuple[int, bytes]] = []
    offset = 0
    while offset < end:
        header = {
            "consumerGroup": "group", "topic": TOPIC, "queueId": "0", "queueOffset": str(offset),
            "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        answer = call(member.address, PULL_MESSAGE, header)
        following = int(answer.ext.get("nextBeginOffset", 0))
        if answer.code != 0 or following <= offset:
            return []
        found += [(one.queue_offset, one.body.split()[0]) for one in decode_records(answer.body)]
        offset = following
    return found


@pytest.mark.parametrize(
    ("master", "slave"),
    [
        pytest.param(our_broker, our_broker, id="ours"),
        pytest.param(java_broker, our_broker, id="ours-follows-java"),
    ],
)
def test_a_new_slave_serves_the_newest_message_of_each_key(
    tmp_path: Path, master: Factory, slave: Factory
) -> None:
    with Pair(tmp_path, [master, slave], broker=SETTINGS, octet=66) as pair:
        leader, follower = pair.brokers
        follower.process.kill()
        create(leader)
        sent = 0

        def compacted() -> bool:
            nonlocal sent
            if sent >= 20 * ROUND:
                return True
            send(leader, sent, ROUND)
            sent += ROUND
            found = pull_all(leader, sent)
            return sent * 1000 > 2 * LOG_FILE and bool(found) and found[0][0] > 0

        wait_until(compacted, timeout_s=300, what="the master has compacted")
        whole = pull_all(leader, sent)
        newest = {number % KEYS: number for number in range(sent)}
        assert {int(number) % KEYS: int(number) for _, number in whole} == newest
        shutil.rmtree(pair.store(1))
        follower.start()
        log_files = pair.store(1) / "commitlog"
        served: list[tuple[int, bytes]] = []

        def serves_all() -> bool:
            served[:] = pull_all(follower, sent)
            return {int(number) % KEYS: int(number) for _, number in served} == newest

        wait_until(serves_all, timeout_s=240, what="the slave has the newest message of each key")
        assert min(int(path.name) for path in log_files.iterdir()) > 0, "the slave's log lacks no message"
        offsets = [offset for offset, _ in served]
        assert offsets == sorted(set(offsets))
        assert dict(served).items() <= {offset: b"%d" % offset for offset in range(sent)}.items()
