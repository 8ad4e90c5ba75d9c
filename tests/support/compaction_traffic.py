"""Messages to and from a compaction topic of one queue."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from epochmq_protocol.message import decode_records
from tests.support.cluster import Settings
from tests.support.group_processes import Member
from tests.support.process import wait_until
from tests.support.remoting import call

UPDATE_AND_CREATE_TOPIC, SEND_MESSAGE_V2, PULL_MESSAGE = 17, 310, 11
SUCCESS = 0
TOPIC = "compacted"
KEYS = 40
ROUND = 200
"""Messages that fill a file of the compacted queue."""
OFTEN: Settings = {
    "compactionScheduleInternal": 1000,
    "compactionMappedFileSize": 230_000,
    "compactionCqMappedFileSize": 4600,
}
"""A queue is compacted every second or two, in small files."""
SENT_MAX = 20 * ROUND
COMPACTED_TIMEOUT_S = 300


def create(master: Member) -> None:
    """Creates the topic."""
    header = {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false", "attributes": "+cleanup.policy=COMPACTION",
    }  # fmt: skip
    assert call(master.address, UPDATE_AND_CREATE_TOPIC, header).code == SUCCESS


def send(master: Member, number: int, *, stored: frozenset[int] = frozenset({SUCCESS})) -> bool:
    """Sends the message with this number, once. Whether the response is one of `stored`."""
    header = {
        "a": "producers", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000",
        "h": "0", "i": f"KEYS\x01key{number % KEYS}\x02WAIT\x01false\x02", "j": "0", "k": "false",
        "m": "false",
    }  # fmt: skip
    with contextlib.suppress(OSError):
        return call(master.address, SEND_MESSAGE_V2, header, b"%d " % number + bytes(1000)).code in stored
    return False


def pull_all(member: Member) -> list[tuple[int, int]]:
    """(queue offset, number) of every message that pulls return; empty while the broker does not serve
    them."""
    found: list[tuple[int, int]] = []
    offset = 0
    while True:
        header = {
            "consumerGroup": "group", "topic": TOPIC, "queueId": "0", "queueOffset": str(offset),
            "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        answer = call(member.address, PULL_MESSAGE, header)
        following = int(answer.ext.get("nextBeginOffset", 0))
        if answer.code != SUCCESS or following <= offset:
            # At the end a slave does not respond as a master does.
            return found if offset >= int(answer.ext.get("maxOffset", offset + 1)) else []
        found += [(one.queue_offset, int(one.body.split()[0])) for one in decode_records(answer.body)]
        offset = following


def by_key(messages: list[tuple[int, int]]) -> dict[int, int]:
    """The number of the last message of each key."""
    return {number % KEYS: number for _, number in messages}


def newest(sent: int) -> dict[int, int]:
    """What `by_key` returns once the messages 0 to `sent` - 1 are served."""
    return {number % KEYS: number for number in range(sent)}


def wait_serves(member: Member, sent: int) -> list[tuple[int, int]]:
    """Waits until pulls return the newest message of each key, and returns all messages that they return."""
    served: list[tuple[int, int]] = []

    def serves_all() -> bool:
        with contextlib.suppress(OSError):
            served[:] = pull_all(member)
        return by_key(served) == newest(sent)

    what = f"{member.name} has the newest message of each key"
    try:
        wait_until(serves_all, timeout_s=COMPACTED_TIMEOUT_S, what=what)
    except AssertionError as error:
        error.add_note(f"{member.name} serves {served[-2 * KEYS :]}, and {sent} messages were sent")
        raise
    return list(served)


def check_offsets(served: Mapping[str, list[tuple[int, int]]]) -> None:
    """Checks, of what each broker serves, that offsets ascend, and that two brokers with a message at the
    same offset have the same one."""
    numbers: dict[int, int] = {}
    for name, messages in served.items():
        offsets = [offset for offset, _ in messages]
        assert offsets == sorted(set(offsets)), name
        for offset, number in messages:
            assert numbers.setdefault(offset, number) == number, (name, offset)
