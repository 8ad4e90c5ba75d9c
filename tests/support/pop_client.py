"""A bare POP consumer of the group `poppers` on the topic `orders`, request by request."""

from __future__ import annotations

from epochmq_protocol.message import MessageExt, decode_records, parse_properties
from tests.support.remoting import call

POP_MESSAGE, ACK_MESSAGE = 200050, 200051
SUCCESS = 0
GROUP, TOPIC = "poppers", "orders"


def pop(
    address: str, broker: str, count: int, invisible_ms: int, **fields: str
) -> list[tuple[MessageExt, str]]:
    """Messages and their `extraInfo`; nothing if the broker at `address` gives none. `broker` is its name."""
    header = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "maxMsgNums": str(count),
        "invisibleTime": str(invisible_ms), "pollTime": "0", "bornTime": "0", "initMode": "0",
        "expType": "TAG", "exp": "*", "order": "false", **fields,
    }  # fmt: skip
    try:
        response = call(address, POP_MESSAGE, header)
    except OSError:
        return []
    if response.code != SUCCESS:
        return []
    starts = {}
    for entry in response.ext["startOffsetInfo"].split(";"):
        retry, queue_id, start = entry.split(" ")
        starts[retry, int(queue_id)] = start
    found = []
    for message in decode_records(response.body):
        info = parse_properties(message.properties).get("POP_CK")
        if info is None:
            times = " ".join(response.ext[name] for name in ("popTime", "invisibleTime", "reviveQid"))
            start = starts["0", message.queue_id]
            info = f"{start} {times} 0 {broker} {message.queue_id} {message.queue_offset}"
        found.append((message, info))
    return found


def pop_orderly(
    address: str, broker: str, invisible_ms: int, *, attempt: str = "first"
) -> list[tuple[MessageExt, str]]:
    """The next message of an orderly POP."""
    return pop(address, broker, 1, invisible_ms, order="true", attemptId=attempt)


def acknowledge(address: str, message: MessageExt, info: str) -> bool:
    """Whether the broker took the acknowledgement of one message."""
    words = info.split(" ")
    header = {
        "consumerGroup": GROUP, "topic": TOPIC if words[4] == "0" else f"%RETRY%{GROUP}_{TOPIC}",
        "queueId": words[6], "offset": words[7], "extraInfo": info,
    }  # fmt: skip
    try:
        return call(address, ACK_MESSAGE, header).code == SUCCESS
    except OSError:
        return False
