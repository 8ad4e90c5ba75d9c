"""A broker with a compacted topic."""

from __future__ import annotations

from epochmq_broker.services.compaction.compacted_queue import CompactedQueue
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.headers_admin import CreateTopicRequestHeader
from tests.unit.broker.kit import Bench, command, send_command, until

TOPIC = "compacted"
SETTINGS = {"compactionMappedFileSize": "23000", "compactionCqMappedFileSize": "460"}


async def create(bench: Bench, topic: str = TOPIC) -> None:
    header = CreateTopicRequestHeader(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=2,
        write_queue_nums=2,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        attributes="+cleanup.policy=COMPACTION",
    )
    peer = bench.peer()
    answer = await peer.answer(peer.send(command(RequestCode.UPDATE_AND_CREATE_TOPIC, header)))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def queue_of(bench: Bench) -> CompactedQueue:
    queue = bench.broker.compaction.queue_of(TOPIC, 0)
    assert queue is not None
    return queue


async def send(bench: Bench, first: int, count: int, keys: int = 4) -> None:
    """Sends messages with keys, and waits until they are in the compacted queue."""
    peer = bench.peer()
    for number in range(first, first + count):
        message = send_command(TOPIC, b"body%d" % number, {"KEYS": f"key{number % keys}", "UNIQ_KEY": "u"})
        assert (await peer.answer(peer.send(message))).code == ResponseCode.SUCCESS
    end = bench.broker.store.queue(TOPIC, 0).max_offset
    await until(lambda: queue_of(bench).max_offset == end)
