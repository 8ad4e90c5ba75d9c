"""Sends a few messages to a group and receives them, by the command in one of its pods."""

from __future__ import annotations

import json
import time

from tests.kubernetes.operator_process import Groups

TOPIC = "kept"


def send(groups: Groups, group: str, bodies: list[str]) -> None:
    """Sends messages from inside the cluster; fails unless all are acknowledged."""
    way = nameserver(groups, group)
    for body in bodies:
        groups.cluster.execute(
            groups.namespace,
            f"{group}-broker-0",
            *("epochmq", "produce", TOPIC, body, "--nameserver", way, "--timeout", "30"),
            container="broker",
        )


def received(groups: Groups, group: str, count: int) -> list[str]:
    """The bodies of this number of messages, from the beginning."""
    text = groups.cluster.execute(
        groups.namespace,
        f"{group}-broker-0",
        *("epochmq", "consume", TOPIC, "--group", f"g{time.monotonic_ns()}", "--count", str(count)),
        *("--nameserver", nameserver(groups, group), "--timeout", "60", "--output", "json"),
        container="broker",
    )
    return _bodies(text)


def everything(groups: Groups, group: str) -> list[str]:
    """The bodies of all messages."""
    consume = f"epochmq consume {TOPIC} --group g{time.monotonic_ns()} --timeout 15 --output json"
    command = f"{consume} --nameserver {nameserver(groups, group)}; test $? -le 1"
    pod = f"{group}-broker-0"
    return _bodies(groups.cluster.execute(groups.namespace, pod, "sh", "-c", command, container="broker"))


def nameserver(groups: Groups, group: str) -> str:
    """The nameserver's address for pods of the namespace: the group's controllers are nameservers, too."""
    controllers = groups.get("BrokerGroup", group)["spec"].get("controllerGroup") or group
    return f"{controllers}-nameserver:9876"


def _bodies(text: str) -> list[str]:
    return sorted(json.loads(line)["body"] for line in text.splitlines() if line.startswith("{"))
