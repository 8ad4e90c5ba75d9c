"""Measures how long a broker's event loop stands for one request of each code, as CPU time of the process.

    python -m tests.benchmarks.loop_time > loop-time.md

The broker has many topics, queues and groups, and the requests are large: every field, and long lists. Only
the first step of a handler counts: an `await` lets other work run.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from epochmq_broker.requests.fast_handler import Port
from epochmq_protocol.bodies import (
    ConsumerData,
    CreateTopicListRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    to_json,
)
from epochmq_protocol.bodies_base import MessageQueue
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.frame import Command
from epochmq_protocol.topics import TopicConfig
from tests.support.header_classes import request_header
from tests.unit.broker.kit import Bench, command, pull_command, running, send_command

TOPICS, GROUPS, MESSAGES = 1000, 1000, 2000
ROUNDS = 3
STANDS_S = 0.002
SETTINGS = {
    "longPollingEnable": "false",
    "maxMessageSize": str(4 << 20),
    "mappedFileSizeCommitLog": str(64 << 20),
}
VALUES = {
    "topic": "t0", "b": "t0", "group": "g0", "consumerGroup": "g0", "groupName": "new", "queueId": "0",
    "e": "0", "queueOffset": "0", "offset": "0", "maxNum": "64", "key": "k", "beginTimestamp": "0",
    "maxMsgNums": "32",
    "endTimestamp": str(2**60), "srcGroup": "g0", "destGroup": "g1", "topicFilterType": "SINGLE_TAG",
    "perm": "6", "readQueueNums": "8", "writeQueueNums": "8", "defaultTopic": "TBW102", "topicSysFlag": "0",
    "order": "false", "timestamp": "1", "count": "64", "index": "0", "isForce": "true", "clientID": "c",
}  # fmt: skip


def requests(bench: Bench) -> Iterator[Command]:
    """The largest request of each code that the main port serves."""
    subscriptions = [SubscriptionData(topic=f"t{n}", sub_string="*") for n in range(10)]
    consumers = [
        ConsumerData(group_name=f"h{n}", subscription_data_set=list(subscriptions)) for n in range(GROUPS)
    ]
    producers = [ProducerData(group_name=f"p{n}") for n in range(GROUPS)]
    beat = HeartbeatData(client_id="c", consumer_data_set=consumers, producer_data_set=producers)
    queues = {MessageQueue(f"t{n % TOPICS}", "broker-a", n // TOPICS) for n in range(8 * TOPICS)}
    lock = to_json(LockBatchRequestBody(consumer_group="g0", client_id="c", mq_set=queues))
    bodies = {
        RequestCode.HEART_BEAT: to_json(beat),
        RequestCode.LOCK_BATCH_MQ: lock,
        RequestCode.UNLOCK_BATCH_MQ: lock,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: to_json(
            CreateTopicListRequestBody(
                topic_config_list=[TopicConfig(topic_name=f"n{n}") for n in range(TOPICS)]
            )
        ),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: to_json(SubscriptionGroupConfig(group_name="one")),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: to_json(
            SubscriptionGroupList(
                group_config_list=[SubscriptionGroupConfig(group_name=f"m{n}") for n in range(GROUPS)]
            )
        ),
    }
    yield send_command("t0", bytes((4 << 20) - 1000))
    yield pull_command("t0", group="g0")
    for code in sorted(map(int, bench.broker.pipeline.served[Port.MAIN])):
        known = request_header(code)
        names = known.__struct_encode_fields__ if known else ()
        if code not in (RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE):
            ext = {name: VALUES[name] for name in names if name in VALUES}
            yield command(code, None, bodies.get(code, b""), **(ext or {"any": "field"}))  # type: ignore[call-overload]


async def measure() -> list[tuple[float, float, int, int]]:
    """(longest time, median, code, response code) of each request, in seconds of CPU time."""
    found: list[tuple[float, float, int, int]] = []
    with tempfile.TemporaryDirectory() as directory:
        async with running(Path(directory), SETTINGS) as bench:
            topics = {f"t{n}": TopicConfig(topic_name=f"t{n}") for n in range(TOPICS)}
            for topic in topics.values():
                bench.broker.topics.put(topic)
            bench.broker.groups.update([SubscriptionGroupConfig(group_name=f"g{n}") for n in range(GROUPS)])
            peer = bench.peer()
            for number in range(MESSAGES):
                peer.send(send_command(f"t{number % TOPICS}", bytes(1000), {"KEYS": "k", "WAIT": "true"}))
            peer.collect()
            peer.answers.clear()
            gc.collect()
            for asked in requests(bench):
                took = []
                code = -1
                for _ in range(ROUNDS):
                    await asyncio.sleep(0)
                    began = time.process_time()
                    opaque = peer.send(asked)
                    took.append(time.process_time() - began)
                    try:
                        code = (await peer.answer(opaque, timeout_s=5)).code
                    except TimeoutError:
                        code = -1
                found.append((max(took), statistics.median(took), int(asked.code), code))
    return found


def table(found: list[tuple[float, float, int, int]]) -> str:
    """The codes that take longest, as a table."""
    rows = [
        f"| {code} | `{RequestCode(code).name}` | {longest * 1000:.1f} | {median * 1000:.1f} | {answer} |"
        for longest, median, code, answer in sorted(found, reverse=True)
        if longest >= STANDS_S and code in set(map(int, RequestCode))
    ]
    return "\n".join(
        ["| code | name | longest, ms | median, ms | response |", "|---|---|---|---|---|", *rows]
    )


if __name__ == "__main__":
    print(table(asyncio.run(measure())))
