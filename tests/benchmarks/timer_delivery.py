"""Measures the delivery of many messages whose delivery times lie in the same second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from epochmq_protocol import message as records
from tests.benchmarks.peers import QUEUES, Peer
from tests.support.process import wait_until
from tests.support.remoting import call

TOPIC = "bench-delivery"
COUNT = 100_000
LEAD_S = 30
"""How long before the first delivery time the messages are sent."""
DELIVERY_TIMEOUT_S = 300
PULL_MESSAGE, FOUND, PULL_BATCH = 11, 0, 32


class LateSendError(Exception):
    """Not all messages were sent before the first of them fell due. The machine is too slow."""


def measure_delivery(peer: Peer, send: Callable[..., None]) -> dict[str, Any]:
    """`send(topic, options…)` sends messages by the load program. The throughput is that from the first
    delivery time until the last message is in its queue. The latencies tell how long after its delivery time
    a message was stored; RocketMQ delivers some up to a second early."""
    peer.create_topic(TOPIC)
    starts = [peer.max_offset(TOPIC, queue) for queue in range(QUEUES)]
    due_ms = int((time.time() + LEAD_S) * 1000)
    send(TOPIC, f"count={COUNT}", f"due={due_ms}")
    if time.time() * 1000 >= due_ms - 1000:
        raise LateSendError(f"{peer.name}: {COUNT:,} messages were not sent within {LEAD_S - 1} s")
    time.sleep(max(0.0, due_ms / 1000 - 1 - time.time()))
    cpu_before = peer.cpu_s()
    wait_until(
        lambda: peer.messages(TOPIC) - sum(starts) >= COUNT,
        timeout_s=DELIVERY_TIMEOUT_S,
        what=f"{peer.name} delivered {COUNT:,} messages",
    )
    cpu_s = peer.cpu_s() - cpu_before
    late_ms: list[int] = []
    stored_ms = 0
    numbers: set[int] = set()
    for message in _messages(peer, starts):
        number = int(records.parse_properties(message.properties)["UNIQ_KEY"][-20:])
        numbers.add(number)
        late_ms.append(message.store_timestamp - due_ms - number % 1000)
        stored_ms = max(stored_ms, message.store_timestamp)
    assert len(numbers) == len(late_ms) == COUNT, f"{len(late_ms)} messages, {len(numbers)} of them different"
    late_ms.sort()
    took_s = (stored_ms - due_ms) / 1000
    return {
        "seconds": took_s,
        "messages": COUNT,
        "per_second": round(COUNT / took_s, 1),
        "bytes_per_second": 0.0,
        "p50_ms": float(late_ms[COUNT // 2]),
        "p99_ms": float(late_ms[COUNT * 99 // 100]),
        "max_ms": float(late_ms[-1]),
        "earliest_ms": float(late_ms[0]),
        "broker_cpu_us": round(cpu_s / COUNT * 1e6, 3),
        "broker_cpu_share": round(cpu_s / (took_s + 1), 3),
        "load_cpu_share": 0.0,
    }


def _messages(peer: Peer, starts: list[int]) -> Iterator[records.MessageExt]:
    """All messages of the topic from these offsets on."""
    for queue, offset in enumerate(starts):
        while True:
            header = {
                "consumerGroup": "delivery",
                "topic": TOPIC,
                "queueId": str(queue),
                "queueOffset": str(offset),
                "maxMsgNums": str(PULL_BATCH),
                "sysFlag": "4",
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subscription": "*",
                "subVersion": "0",
                "expressionType": "TAG",
            }
            response = call(peer.cluster.broker_address, PULL_MESSAGE, header)
            if response.code != FOUND:
                break
            found = records.decode_records(response.body)
            yield from found
            offset = found[-1].queue_offset + 1
