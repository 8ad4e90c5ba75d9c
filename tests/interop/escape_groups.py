"""Two groups, of which one sends the special messages of the other."""

from __future__ import annotations

import json

from tests.support.pair import Pair
from tests.support.process import wait_until
from tests.support.remoting import call

UPDATE_AND_CREATE_TOPIC, GET_ROUTE, PULL, GET_MAX_OFFSET = 17, 105, 11, 30
QUEUES = 3
INVISIBLE_MS = 10_000
OTHER_NAME = "broker-b"
REJECTED = "rejected-0"
"""The consumer rejects it once."""


def create_topic(address: str, topic: str) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "perm": "6",
        "writeQueueNums": str(QUEUES), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    wait_until(lambda: call(address, UPDATE_AND_CREATE_TOPIC, fields).code == 0, what=f"the topic {topic}")


def masters(pair: Pair, topic: str) -> list[str]:
    """The addresses under id 0 in the route of a topic, by the names of their groups."""
    response = call(pair.nameserver.address, GET_ROUTE, {"topic": topic, "acceptStandardJsonOnly": "true"})
    if response.code != 0:
        return []
    brokers = sorted(json.loads(response.body)["brokerDatas"], key=lambda broker: broker["brokerName"])
    return [broker["brokerAddrs"]["0"] for broker in brokers if "0" in broker["brokerAddrs"]]


def knows_topic(address: str) -> bool:
    """Whether a slave has copied the topic."""
    ext = {
        "consumerGroup": "probes", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
        "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    return call(address, PULL, ext).code == 0
