"""The few administrative requests tests need to set a scene, over bare sockets."""

from __future__ import annotations

import json
import re

from tests.support.process import wait_until
from tests.support.remoting import call

UPDATE_AND_CREATE_TOPIC, GET_ROUTEINFO_BY_TOPIC = 17, 105


def create_topic(nameserver: str, broker: str, topic: str, queues: int) -> str:
    """Creates a topic on the broker and waits until the nameserver routes it; returns its name."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    response = call(broker, UPDATE_AND_CREATE_TOPIC, fields)
    assert response.code == 0, f"topic {topic}: {response.code} {response.remark}"
    wait_until(lambda: route_queues(nameserver, topic) == queues, what=f"route of {topic}")
    return topic


def route_queues(nameserver: str, topic: str) -> int:
    """Write queues the nameserver routes for a topic, over all brokers; 0 when it is unknown."""
    response = call(nameserver, GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"})
    if response.code != 0:
        return 0
    # Map keys may come unquoted.
    route = json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', response.body))
    return sum(q["writeQueueNums"] for q in route["queueDatas"])
