"""Messages to and from the brokers of a replica group, and their logs."""

from __future__ import annotations

import contextlib
import itertools
import json

from epochmq_protocol.message import MessageExt, decode_records
from tests.support.group_processes import Member
from tests.support.process import wait_until
from tests.support.remoting import Response, call
from tests.support.replica_group import ReplicaGroup

SEND_MESSAGE_V2, PULL_MESSAGE, GET_BROKER_RUNTIME_INFO, GET_BROKER_EPOCH_CACHE = 310, 11, 28, 1007
SUCCESS, SYSTEM_BUSY, PULL_NOT_FOUND = 0, 2, 19
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


def send(member: Member, body: bytes = b"hello", *, queue_id: int = 0) -> Response:
    """One message, once."""
    return call(member.address, SEND_MESSAGE_V2, send_header(queue_id, f"{next(_keys):032X}"), body)


def acknowledged(member: Member, body: bytes = b"hello") -> bool:
    """Whether a message sent there is acknowledged."""
    try:
        return send(member, body).code == SUCCESS
    except OSError:
        return False


def deliver(member: Member, body: bytes = b"hello") -> None:
    """One message, sent until it is acknowledged there, as a client does it: a master that was starved for a
    moment is without its lease for another. It may be stored more than once."""
    wait_until(lambda: acknowledged(member, body), what=f"{member.name} acknowledges {body[:40]!r}")


def deliver_to(group: ReplicaGroup, body: bytes = b"hello", *, properties: str = "") -> Member:
    """Sends one message to the present master until it is acknowledged, and returns that master. The message
    may be stored more than once."""
    header = send_header(0, f"{next(_keys):032X}")
    header["i"] += properties
    by: list[Member] = []

    def taken() -> bool:
        master = group.master()
        by[:] = [] if master is None else [master]
        return master is not None and call(master.address, SEND_MESSAGE_V2, header, body).code == SUCCESS

    wait_until(taken, what=f"the group acknowledges {body[:40]!r}")
    return by[0]


def read_queue(member: Member, queue_id: int = 0, *, start: int = 0) -> list[MessageExt]:
    """Every message of a queue from this offset on, as consumers get them."""
    found: list[MessageExt] = []
    while True:
        ext = {
            "consumerGroup": "readers", "topic": TOPIC, "queueId": str(queue_id),
            "queueOffset": str(start + len(found)), "maxMsgNums": "256", "sysFlag": "4", "commitOffset": "0",
            "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        }  # fmt: skip
        response = _pull(member, ext)
        if response.code == PULL_NOT_FOUND:
            return found
        assert response.code == SUCCESS, response
        found += decode_records(response.body)


def _pull(member: Member, ext: dict[str, str]) -> Response:
    """The response to a pull. A broker of a busy machine rejects requests that waited for too long; they are
    repeated, as clients repeat them."""
    found: list[Response] = []

    def served() -> bool:
        found[:] = [call(member.address, PULL_MESSAGE, ext)]
        return found[0].code != SYSTEM_BUSY

    wait_until(served, what=f"{member.name} serves a pull")
    return found[0]


def epoch_cache(member: Member) -> dict[str, object]:
    """What GET_BROKER_EPOCH_CACHE says; empty while it says nothing."""
    with contextlib.suppress(OSError):
        response = call(member.address, GET_BROKER_EPOCH_CACHE)
        if response.code == SUCCESS:
            found: dict[str, object] = json.loads(response.body)
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


def end_of_all(group: ReplicaGroup) -> int | None:
    """Where all logs end; None while they end differently, or a broker does not respond."""
    ends = {max_offset(member) for member in group.brokers}
    return ends.pop() if len(ends) == 1 and -1 not in ends else None


def wait_confirmed(group: ReplicaGroup) -> Member:
    """Waits until all replicas have the whole log and the master shows all of it to consumers. Returns the
    master. No client sends meanwhile. (RocketMQ's master does not report its confirm offset.)"""
    found: list[Member] = []

    def reached() -> bool:
        master, end = group.master(), end_of_all(group)
        if master is None or end is None:
            return False
        response = call(master.address, GET_BROKER_RUNTIME_INFO)
        confirmed = json.loads(response.body)["table"].get("confirmOffset", end)
        found[:] = [master]
        return int(confirmed) == end

    wait_until(reached, what="the master has confirmed what all have")
    return found[0]


def check_equal(group: ReplicaGroup) -> None:
    """Checks that all logs and epoch files have the same bytes; no client sends meanwhile. A replica learns
    of an epoch without a byte a moment after its master began it."""

    def settled() -> bool:
        return end_of_all(group) is not None and len({epochs_of(member) for member in group.brokers}) == 1

    try:
        wait_until(settled, what="all logs end equally, and all epoch files are equal")
    except AssertionError as error:
        for member in group.brokers:
            error.add_note(f"{member.name} ends at {max_offset(member)}, epochs:\n{epochs_of(member)}")
        raise
    logs = {member.name: log_of(member) for member in group.brokers}
    assert len(set(logs.values())) == 1, {name: len(data) for name, data in logs.items()}
