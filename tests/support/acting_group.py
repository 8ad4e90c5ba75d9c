"""A group without controllers whose slaves act for the master (RIP-32), as real processes: each broker and
the nameserver of ours or of RocketMQ's. All have the address 127.0.0.1, because a returning master knows its
slaves by the host of their HA connections, and RocketMQ's slaves connect from there."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.cluster import GET_BROKER_CLUSTER_INFO, Settings
from tests.support.group_processes import Factory, Member, our_nameserver
from tests.support.pair import Pair
from tests.support.process import wait_until
from tests.support.remoting import Response, call

HOST = "127.0.0.1"
QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET, UPDATE_AND_CREATE_GROUP = 14, 15, 200
LOCK_BATCH_MQ, UNLOCK_BATCH_MQ = 41, 42
GET_ALL_TOPIC_CONFIG, GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 21, 201
TOPIC, GROUP = "orders", "readers"
SERVICE_NOT_AVAILABLE = 14


class ActingGroup(Pair):
    """`brokers[0]` is the master, the others are slaves by their number."""

    def __init__(
        self,
        directory: Path,
        brokers: Sequence[Factory],
        *,
        broker: Settings | None = None,
        nameserver: Factory = our_nameserver,
    ) -> None:
        super().__init__(
            directory,
            brokers,
            broker={
                "enableSlaveActingMaster": True,
                "slaveReadEnable": True,
                "totalReplicas": len(brokers),
                **(broker or {}),
            },
            host=HOST,
            nameserver=nameserver,
            nameserver_settings={"supportActingMaster": True, "notifyMinBrokerIdChanged": True},
        )

    def listed(self) -> dict[int, str]:
        """Broker id → address of the brokers that the nameserver lists."""
        response = call(self.nameserver.address, GET_BROKER_CLUSTER_INFO)
        assert response.code == 0, response
        table = _json(response.body)["brokerAddrTable"]
        addresses = table.get(self.NAME, {"brokerAddrs": {}})["brokerAddrs"]
        return {int(number): address for number, address in addresses.items()}

    def wait_listed(self, *numbers: int) -> None:
        """Waits until the nameserver lists exactly these brokers."""
        wait_until(lambda: sorted(self.listed()) == sorted(numbers), what=f"brokers {numbers} are listed")

    def create_group(self) -> None:
        """Creates the topic and the consumer group at the master, and waits until every slave has both and
        the group's offset."""
        self.deliver()
        config = {"groupName": GROUP, "retryMaxTimes": 3}
        assert call(self.master.address, UPDATE_AND_CREATE_GROUP, {}, json.dumps(config).encode()).code == 0
        self.commit(self.master, 0, 0)
        slaves = self.brokers[1:]
        for slave in slaves:
            # A slave may copy the offsets before the topics or the groups.
            for code, name in ((GET_ALL_TOPIC_CONFIG, TOPIC), (GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GROUP)):
                wait_until(partial(_knows, slave, code, name), what=f"{slave.name} has {name}")
            wait_until(partial(self._is_at_start, slave), what=f"{slave.name} has the offset")

    def commit(self, broker: Member, queue_id: int, offset: int) -> None:
        """Commits an offset of the group at a broker. RocketMQ's slave has no groups while it copies
        them."""
        fields = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id), "commitOffset": str(offset),
        }  # fmt: skip
        wait_until(
            lambda: call(broker.address, UPDATE_CONSUMER_OFFSET, fields).code == 0,
            what=f"{broker.name} takes an offset",
        )

    def ask_offset(self, broker: Member, queue_id: int) -> Response:
        """A broker's response to the question for the group's offset."""
        fields = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id), "setZeroIfNotFound": "false",
        }  # fmt: skip
        return call(broker.address, QUERY_CONSUMER_OFFSET, fields)

    def offset(self, broker: Member, queue_id: int) -> int | None:
        """The group's offset at a broker; None if it has none."""
        response = self.ask_offset(broker, queue_id)
        return int(response.ext["offset"]) if response.code == 0 else None

    def _is_at_start(self, broker: Member) -> bool:
        return self.offset(broker, 0) == 0

    def lock(
        self, broker: Member, client_id: str, *, only_this_broker: bool = False, unlock: bool = False
    ) -> bool:
        """Locks or unlocks queue 0 of the topic; returns whether the client got it."""
        queue = {"topic": TOPIC, "brokerName": self.NAME, "queueId": 0}
        body = {
            "consumerGroup": GROUP,
            "clientId": client_id,
            "onlyThisBroker": only_this_broker,
            "mqSet": [queue],
        }
        code = UNLOCK_BATCH_MQ if unlock else LOCK_BATCH_MQ
        response = call(broker.address, code, {}, json.dumps(body).encode(), timeout_s=30)
        assert response.code == 0, response
        return not unlock and bool(_json(response.body)["lockOKMQSet"])

    def lock_everywhere(self, client_id: str) -> None:
        """Locks the queue at the master, and waits until every broker has the lock: a master that has just
        started learns of the others one after another, and asks only those that it knows."""
        wait_until(
            lambda: self.lock(self.master, client_id) and all(map(self._is_locked, self.brokers)),
            what=f"every broker has the lock of {client_id}",
        )

    def _is_locked(self, broker: Member) -> bool:
        """Whether another client has the lock there."""
        if not self.lock(broker, "nobody", only_this_broker=True):
            return True
        self.lock(broker, "nobody", only_this_broker=True, unlock=True)
        return False


def _knows(broker: Member, code: int, name: str) -> bool:
    """Whether the broker's table of topics or groups has an entry of this name."""
    response = call(broker.address, code)
    return response.code == 0 and f'"{name}"'.encode() in response.body


def _json(body: bytes) -> Any:
    """A body with integers as keys, as RocketMQ writes it."""
    return json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', body))
