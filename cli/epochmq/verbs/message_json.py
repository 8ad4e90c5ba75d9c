"""Shows a message as a JSON object, as `consume -o json` and the verbs of `epochmq message` print it."""

from __future__ import annotations

import base64
from typing import Any

from epochmq.client import ReceivedMessage
from epochmq_protocol import message


def message_object(received: ReceivedMessage) -> dict[str, Any]:
    """The message as a JSON object. A body that is not UTF-8 text becomes `bodyBase64`."""
    record, properties = received.record, received.properties
    try:
        body = {"body": received.body.decode()}
    except UnicodeDecodeError:
        body = {"bodyBase64": base64.b64encode(received.body).decode()}
    return {
        "topic": record.topic,
        "brokerName": received.queue.broker_name,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "msgId": received.msg_id,
        "offsetMsgId": record.msg_id,
        "tags": properties.get(message.PROPERTY_TAGS),
        "keys": properties.get(message.PROPERTY_KEYS),
        "bornTimestamp": record.born_timestamp,
        "storeTimestamp": record.store_timestamp,
        "reconsumeTimes": record.reconsume_times,
        "properties": properties,
        **body,
    }
