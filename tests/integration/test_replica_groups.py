"""Replica groups of ours, as real processes: three brokers under three controllers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from epochmq_protocol.message import MessageExt, decode_records
from tests.support.process import wait_until
from tests.support.remoting import Answer, call
from tests.support.replica_group import Member, ReplicaGroup, our_broker, our_controller

PULL_MESSAGE = 11
SEND_MESSAGE_V2 = 310
GET_BROKER_EPOCH_CACHE = 1007
PULL_NOT_FOUND = 19
SAFE = {"allAckInSyncStateSet": True, "minInSyncReplicas": 2, "registerNameServerPeriod": 10_000}
_numbers = itertools.count()


def send(member: Member, body: bytes = b"hello", *, timeout_s: float = 5) -> Answer:
    """One message to queue 0 of `orders`."""
    ext = {
        "a": "producers", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0",
        "g": "1700000000000", "h": "0", "i": f"UNIQ_KEY\x01{next(_numbers):032x}\x02WAIT\x01true\x02",
        "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return call(member.address, SEND_MESSAGE_V2, ext, body, timeout_s=timeout_s)


def acknowledged(member: Member, body: bytes = b"hello") -> bool:
    """Whether a message sent there is acknowledged."""
    try:
        return send(member, body).code == 0
    except OSError:
        return False


def records_of(member: Member, queue_id: int = 0) -> list[MessageExt]:
    """Every message of the queue, as consumers get them."""
    found: list[MessageExt] = []
    while True:
        ext = {
            "consumerGroup": "readers", "topic": "orders", "queueId": str(queue_id),
            "queueOffset": str(len(found)), "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
            "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        }  # fmt: skip
        answer = call(member.address, PULL_MESSAGE, ext)
        if answer.code == PULL_NOT_FOUND:
            return found
        assert answer.code == 0, answer
        found += decode_records(answer.body)


def log_of(member: Member) -> bytes:
    """The log's bytes."""
    end = max_offset(member)
    data = bytearray()
    for path in sorted((member.config.parent / "store" / "commitlog").iterdir()):
        data += path.read_bytes()[: max(end - int(path.name), 0)]
    return bytes(data)


def max_offset(member: Member) -> int:
    """The end of its log, as GET_BROKER_EPOCH_CACHE says it."""
    return int(json.loads(call(member.address, GET_BROKER_EPOCH_CACHE).body)["maxOffset"])


def epochs_of(member: Member) -> str:
    """The epoch file."""
    return (member.config.parent / "store" / "epochFileCheckpoint").read_text()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ReplicaGroup]:
    made = ReplicaGroup(tmp_path, [our_controller] * 3, [our_broker] * 3, broker=SAFE, octet=71)
    made.start()
    yield made
    print(made.logs(6000))  # shown when the test failed
    made.kill()


def test_a_killed_master_is_replaced_and_nothing_acknowledged_is_lost(group: ReplicaGroup) -> None:
    """kill -9 of one master after the other; each comes back as a replica, and its log is the others'."""
    kept: list[bytes] = []
    for kill in range(3):
        master = group.master()
        assert master is not None
        for number in range(20):
            body = b"%d-%d" % (kill, number)
            assert send(master, body).code == 0
            kept.append(body)
        master.process.kill()
        successor = group.wait_master(other_than=master)
        wait_until(partial(acknowledged, successor, b"after"), what="the successor takes messages")
        master.start()
        group.wait_in_sync(3)
    master = group.wait_master()
    stored = [record.body for record in records_of(master)]
    assert [body for body in stored if body != b"after"] == kept
    wait_until(lambda: len({log_of(one) for one in group.brokers}) == 1, what="all logs are equal")
    assert len({epochs_of(one) for one in group.brokers}) == 1
