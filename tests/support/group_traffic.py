"""Messages to and from the brokers of a replica group, and their logs."""

from __future__ import annotations

import contextlib
import itertools
import json

from epochmq_protocol.message import MessageExt, decode_records
from tests.support.process import wait_until
from tests.support.remoting import Answer, call
from tests.support.replica_group import Member, ReplicaGroup

SEND_MESSAGE_V2, PULL_MESSAGE, GET_BROKER_EPOCH_CACHE = 310, 11, 1007
SUCCESS, PULL_NOT_FOUND = 0, 19
TOPIC = "orders"
QUEUES = 4
_keys = itertools.count()


def send_header(queue_id: int, key: str) -> dict[str, str]:
    """The header of SEND_MESSAGE_V2; the topic is made with the first message."""
    return {
        "a": "producers", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(queue_id), "f": "0",
        "g": "1700000000000", "h": "0", "i": f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02",
        "j": "0", "k": "false", "m": "false",
    }  # fmt: skip


def send(member: Member, body: bytes = b"hello", *, queue_id: int = 0, timeout_s: float = 5) -> Answer:
    """One message."""
    header = send_header(queue_id, f"{next(_keys):032X}")
    return call(member.address, SEND_MESSAGE_V2, header, body, timeout_s=timeout_s)


def acknowledged(member: Member, body: bytes = b"hello") -> bool:
    """Whether a message sent there is acknowledged."""
    try:
        return send(member, body).code == SUCCESS
    except OSError:
        return False


def read_queue(member: Member, queue_id: int = 0) -> list[MessageExt]:
    """Every message of a queue, as consumers get them."""
    found: list[MessageExt] = []
    while True:
        ext = {
            "consumerGroup": "readers", "topic": TOPIC, "queueId": str(queue_id),
            "queueOffset": str(len(found)), "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
            "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        }  # fmt: skip
        answer = call(member.address, PULL_MESSAGE, ext)
        if answer.code == PULL_NOT_FOUND:
            return found
        assert answer.code == SUCCESS, answer
        found += decode_records(answer.body)


def epoch_cache(member: Member) -> dict[str, object]:
    """What GET_BROKER_EPOCH_CACHE says; empty while it says nothing."""
    with contextlib.suppress(OSError):
        answer = call(member.address, GET_BROKER_EPOCH_CACHE)
        if answer.code == SUCCESS:
            found: dict[str, object] = json.loads(answer.body)
            return found
    return {}


def max_offset(member: Member) -> int:
    """The end of its log; -1 while it does not say."""
    return int(str(epoch_cache(member).get("maxOffset", -1)))


def log_of(member: Member) -> bytes:
    """The log's bytes."""
    end = max_offset(member)
    data = bytearray()
    for path in sorted((member.config.parent / "store" / "commitlog").iterdir()):
        data += path.read_bytes()[: max(end - int(path.name), 0)]
    return bytes(data)


def epochs_of(member: Member) -> str:
    """The epoch file."""
    return (member.config.parent / "store" / "epochFileCheckpoint").read_text()


def check_equal(group: ReplicaGroup, *, timeout_s: float = 30) -> None:
    """All logs and epoch files are the same bytes; nobody sends meanwhile."""
    wait_until(
        lambda: len({max_offset(one) for one in group.brokers}) == 1,
        timeout_s=timeout_s,
        what="all logs end equally",
    )
    logs = {member.name: log_of(member) for member in group.brokers}
    assert len(set(logs.values())) == 1, {name: len(data) for name, data in logs.items()}
    assert len({epochs_of(member) for member in group.brokers}) == 1
