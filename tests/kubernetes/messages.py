"""Sends a few messages to a group and receives them, by the command in one of its pods. The command sends
again when it gets no response within three seconds, so a busy machine may store a message twice; the copies
have the same id."""

from __future__ import annotations

import json
import time
from collections.abc import Collection

from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups

TOPIC = "kept"
COPIES_MAX = 40
"""More than the sends of one message within its time limit."""


def send(groups: Groups, group: str, bodies: list[str]) -> None:
    """Sends messages from inside the cluster; fails unless all are acknowledged."""
    way = nameserver(groups, group)
    for body in bodies:
        groups.cluster.execute(
            groups.namespace,
            f"{group}-broker-0",
            *("epochmq", "produce", TOPIC, body, "--nameserver", way, "--timeout", "120"),
            container="broker",
        )


def received(groups: Groups, group: str, count: int, *, pod: str = "") -> list[str]:
    """The bodies of this number of different messages, from the beginning, read in this pod."""
    consume = ("epochmq", "consume", TOPIC, "--timeout", "120", "--output", "json")
    for copies in range(COPIES_MAX):
        text = groups.cluster.execute(
            groups.namespace,
            pod or f"{group}-broker-0",
            *(*consume, "--group", f"g{time.monotonic_ns()}", "--count", str(count + copies)),
            *("--nameserver", nameserver(groups, group)),
            container="broker",
        )
        found = _bodies(text)
        if len(found) >= count:
            break
    return found


def everything(groups: Groups, group: str, wanted: Collection[str]) -> list[str]:
    """The bodies of all messages, once the wanted ones are among them."""
    consume = f"epochmq consume {TOPIC} --timeout 15 --output json --nameserver {nameserver(groups, group)}"

    def found() -> list[str] | None:
        command = f"{consume} --group g{time.monotonic_ns()}; test $? -le 1"
        pod = f"{group}-broker-0"
        text = groups.cluster.execute(groups.namespace, pod, "sh", "-c", command, container="broker")
        bodies = _bodies(text)
        return bodies if set(wanted) <= set(bodies) else None

    bodies: list[str] = groups.cluster.wait(found, READY_TIMEOUT_S, f"{TOPIC} has all of {sorted(wanted)}")
    return bodies


def nameserver(groups: Groups, group: str) -> str:
    """The nameserver's address for pods of the namespace: the group's controllers are nameservers, too."""
    controllers = groups.get("BrokerGroup", group)["spec"].get("controllerGroup") or group
    return f"{controllers}-nameserver:9876"


def _bodies(text: str) -> list[str]:
    """One body for each message id."""
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return sorted({one["msgId"]: one["body"] for one in found}.values())
