"""Pulls messages of a compacted queue from the master that the log of this slave does not have any more
(MessageFetcher).

The requests are those of RocketMQ's slaves: a heartbeat that makes the slave a consumer of the topic, lite
pulls, and the end of the consumer. So each broker can be the other's master.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.compaction.keyed_records import KeyedRecord, keyed_record
from epochmq_protocol.bodies import to_json
from epochmq_protocol.bodies_client import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_client import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    UnregisterClientRequestHeader,
)
from epochmq_protocol.record_layout import LONG, PHYSICAL_OFFSET_AT, SIZE_AND_MAGIC
from epochmq_protocol.transport.request_client import RequestClient

TIMEOUT_MS: Final = 30_000
PULL_COUNT: Final = 32
LITE_PULL_FLAG: Final = 1 << 4
INT_MAX: Final = (1 << 31) - 1
IDLE_PULLS_MAX: Final = 16
"""After so many pulls in succession without a message the fetch fails."""

Deliver = Callable[[list[KeyedRecord]], Awaitable[None]]


async def fetch_messages(
    client: RequestClient,
    master: str,
    client_host: str,
    topic: str,
    queue_id: int,
    first: int,
    end: int | None,
    deliver: Deliver,
) -> int:
    """Delivers the messages with queue offsets in [first, end), None for up to the last one of the master.
    Returns their number. Raises EpochMQError."""
    group = f"{topic}-{queue_id}-pull-group"
    client_id = f"{client_host}@compactionIns@compactionUnit"
    version = now_ms()
    _expect_success(
        await client.call(master, _heartbeat(client_id, group, topic, version), TIMEOUT_MS), "heartbeat"
    )
    try:
        return await _pull_all(client, master, group, topic, queue_id, first, end, version, deliver)
    finally:
        header = UnregisterClientRequestHeader(client_id=client_id, producer_group="", consumer_group=group)
        await client.call(master, request(RequestCode.UNREGISTER_CLIENT, header), TIMEOUT_MS)


async def _pull_all(
    client: RequestClient,
    master: str,
    group: str,
    topic: str,
    queue_id: int,
    first: int,
    end: int | None,
    version: int,
    deliver: Deliver,
) -> int:
    offset, count, idle = first, 0, 0
    while end is None or offset < end:
        header = PullMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=PULL_COUNT,
            sys_flag=LITE_PULL_FLAG,
            commit_offset=0,
            suspend_timeout_millis=20_000,
            sub_version=version,
            max_msg_bytes=INT_MAX,
        )
        answer = await client.call(master, request(RequestCode.LITE_PULL_MESSAGE, header), TIMEOUT_MS)
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return count
        moved = answer.code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
        if not moved:
            _expect_success(answer, "pull")
        idle = 0 if answer.body else idle + 1
        if idle > IDLE_PULLS_MAX:
            raise EpochMQError(f"the master {master} returns no messages of {topic}-{queue_id} at {offset}")
        offset = PullMessageResponseHeader.decode(answer.ext).next_begin_offset
        if moved:
            continue
        records = [one for one in split_records(answer.body) if end is None or one.queue_offset < end]
        await deliver(records)
        count += len(records)
    return count


def split_records(body: bytes) -> list[KeyedRecord]:
    """The records with keys in the body of a pull response, up to the first damage."""
    split = []
    at = 0
    while at + SIZE_AND_MAGIC.size <= len(body):
        size = SIZE_AND_MAGIC.unpack_from(body, at)[0]
        if not SIZE_AND_MAGIC.size < size <= len(body) - at:
            break
        data = body[at : at + size]
        record = keyed_record(data, LONG.unpack_from(data, PHYSICAL_OFFSET_AT)[0])
        if record is not None:
            split.append(record)
        at += size
    return split


def _heartbeat(client_id: str, group: str, topic: str, version: int) -> Command:
    subscription = SubscriptionData(topic=topic, sub_string="*", sub_version=version)
    consumer = ConsumerData(
        group_name=group,
        consume_type=ConsumeType.CONSUME_ACTIVELY,
        message_model=MessageModel.CLUSTERING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        subscription_data_set=[subscription],
    )
    beat = HeartbeatData(client_id=client_id, consumer_data_set=[consumer])
    return request(RequestCode.HEART_BEAT, body=to_json(beat))


def _expect_success(answer: Command, what: str) -> None:
    if answer.code != ResponseCode.SUCCESS:
        raise EpochMQError(
            f"the master rejected a {what} with code {answer.code}: {answer.remark or 'no remark'}"
        )
