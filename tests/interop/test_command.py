"""`epochmq` administers RocketMQ's own nameserver and broker, and RocketMQ's `mqadmin` sees what it made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.java_cluster import JavaCluster
from tests.interop.mqadmin import MqAdmin, Step
from tests.support.command import EpochmqCommand
from tests.support.process import wait_holds

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]

OCTET = 99
PATIENT = ("--timeout", "60")
"""For every command: RocketMQ's processes may take long on a busy machine."""


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaCluster]:
    with JavaCluster(
        tmp_path_factory.mktemp("java"), octet=OCTET, nameserver={"orderMessageEnable": True}
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def command(java: JavaCluster, tmp_path_factory: pytest.TempPathFactory) -> EpochmqCommand:
    return EpochmqCommand(java.nameserver_address, tmp_path_factory.mktemp("home"))


@pytest.fixture
def mqadmin(java: JavaCluster, tmp_path: Path) -> Iterator[MqAdmin]:
    made = MqAdmin(java, tmp_path)
    yield made
    made.close()


def test_mqadmin_sees_the_topics_that_the_command_makes(command: EpochmqCommand, mqadmin: MqAdmin) -> None:
    command.run("topic", "create", "orders", "--queues", "3", "--type", "FIFO", "--order", *PATIENT)
    command.run("topic", "alter", "orders", "--read-queues", "5", *PATIENT)
    command.run("topic", "create", "gone", *PATIENT)
    command.run("topic", "delete", "gone", "--yes", *PATIENT)
    topics, route = mqadmin.run(
        [Step("topicList", until=r"\borders\b"), Step("topicRoute -t orders", until='"readQueueNums":\\s*5')]
    )
    assert "orders" in topics.out.split()
    assert "gone" not in topics.out.split()
    plain = re.sub(r"\s", "", route.out)
    assert '"readQueueNums":5' in plain
    assert '"writeQueueNums":3' in plain
    assert "broker-a:3" in plain
    (settings,) = command.json("topic", "describe", "orders")["brokers"]
    assert (settings["attributes"], settings["order"]) == ({"message.type": "FIFO"}, True)
    assert "orders" in [row["topic"] for row in command.json("topic", "list")]


def test_a_group_of_rocketmq_is_shown_reset_and_deleted(command: EpochmqCommand, mqadmin: MqAdmin) -> None:
    command.run("topic", "create", "read", "--queues", "1", *PATIENT)
    command.run("produce", "read", *PATIENT, stdin=b"".join(b"%d\n" % n for n in range(10)))
    mqadmin.run([Step("updateSubGroup -c {cluster} -g readers")])
    command.run("consume", "read", "--group", "readers", "--count", "4", *PATIENT)
    wait_holds(lambda: lags(command, consumed=4, lag=6))  # RocketMQ fills queues behind the send
    command.run("group", "reset", "readers", "--topic", "read", "--delta", "-3", "--yes", *PATIENT)
    (row,) = command.json("group", "lag", "readers", "--topic", "read")
    assert row["consumed"] == 1
    first = command.json("consume", "read", "--group", "readers", "--count", "1")
    assert first["queueOffset"] == 1
    assert "readers" in command.text("group", "list", "-o", "name").splitlines()
    command.run("group", "delete", "readers", "--yes", "--force", *PATIENT)
    assert "readers" not in command.text("group", "list", "--all", "-o", "name").splitlines()


@pytest.mark.soak
def test_messages_of_rocketmq_are_found_and_sent_again(command: EpochmqCommand) -> None:
    command.run("topic", "create", "stored", "--queues", "1", *PATIENT)
    lines = b"".join(b"%d\n" % n for n in range(5))
    command.run("produce", "stored", "--tags", "red", "--keys", "key", *PATIENT, stdin=lines)
    wait_holds(lambda: shows(command, ["0", "1", "2", "3", "4"]))  # several are sent at a time
    stored = bodies(command, "--offset", "0", "-c", "5")
    found = command.json("message", "peek", "stored", "--offset", "1", "-c", "2")
    assert [one["body"] for one in found] == stored[1:3]
    wait_holds(lambda: keyed(command, "stored", 5))  # RocketMQ indexes behind the send
    assert command.json("message", "get", found[0]["offsetMsgId"])["body"] == stored[1]
    assert command.json("message", "get", found[0]["msgId"], "--topic", "stored")["body"] == stored[1]
    command.run("message", "resend", found[0]["msgId"], "--topic", "stored", "--yes", *PATIENT)
    wait_holds(lambda: shows(command, [*stored, stored[1]]))
    assert bodies(command, "-c", "1") == [stored[1]]


def bodies(command: EpochmqCommand, *which: str) -> list[str]:
    """The bodies of messages of the topic `stored`."""
    return [one["body"] for one in command.json("message", "peek", "stored", *which)]


def shows(command: EpochmqCommand, expected: list[str]) -> None:
    """The topic `stored` has these bodies, in any order."""
    assert sorted(bodies(command, "--offset", "0", "-c", "100")) == sorted(expected)


def lags(command: EpochmqCommand, *, consumed: int, lag: int) -> None:
    """The group has consumed so many messages of `read`, and lags behind by so many."""
    (row,) = command.json("group", "lag", "readers", "--topic", "read")
    assert (row["consumed"], row["lag"]) == (consumed, lag)


def keyed(command: EpochmqCommand, topic: str, count: int) -> None:
    """All messages are found by their key."""
    assert len(command.json("message", "peek", topic, "--key", "key", "-c", "100")) == count
