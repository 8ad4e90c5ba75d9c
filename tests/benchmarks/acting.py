"""Measures how soon a slave acts for its dead master: from kill -9 of the master until RocketMQ's Java
consumer has the first message from the slave, and until it has the first delayed message that came through
another group.

Two groups: a master with a slave, and a master alone. The first topic has a long backlog that the consumer
reads, one message at a time; the second one gets delayed messages, of which one is due every 50 ms.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.benchmarks import disk_runs, result_files
from tests.benchmarks.disk_runs import Plan, fresh_folder
from tests.interop.java_cluster import java_broker, java_nameserver
from tests.interop.java_env import JavaProcess, compile_java
from tests.interop.test_slave_sync import java_slave
from tests.support.cluster import Settings
from tests.support.pair import SEND_MESSAGE_V2, Pair
from tests.support.process import wait_until
from tests.support.remoting import call
from tests.support.replica_group import Factory, our_broker, our_nameserver

OCTET = 72
OTHER_NAME = "broker-b"
BACKLOG, DELAYED = "bench-backlog", "bench-delayed"
UPDATE_AND_CREATE_TOPIC, PULL_MESSAGE = 17, 11
QUEUES = 3
BACKLOG_MESSAGES = 6000
PAUSE_MS = 5
DELAY_LEVEL, DELAY_S = 1, 3
DUE_EVERY_S = 0.05
HELD_MESSAGES = 3
"""Of a queue, that the consumer may have before it asks the slave: two in its cache and one on the way."""
CONSUMER = Path(__file__).resolve().parent / "java" / "ActingConsumer.java"
TIMEOUT_S = 60.0

FULL: Plan = {"rounds": 5}
QUICK: Plan = {"rounds": 1}

MAKERS: dict[str, tuple[Factory, Factory, Factory]] = {
    "ours": (our_nameserver, our_broker, our_broker),
    "java": (java_nameserver, java_broker, java_slave),
}
BROKER: Settings = {
    "enableSlaveActingMaster": True,
    "enableRemoteEscape": True,
    "slaveReadEnable": True,
    "inSyncReplicas": 1,
    "messageDelayLevel": f"{DELAY_S}s",
    "totalReplicas": 1,
}
PLANS: dict[str, Settings] = {
    # RocketMQ's defaults, but for the feature itself.
    "RocketMQ's settings": {"supportActingMaster": True},
    # What `epochmq up` and the operator give to nameservers.
    "our defaults": {"supportActingMaster": True, "notifyMinBrokerIdChanged": True},
}


def _create_topic(address: str, topic: str) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "perm": "6",
        "writeQueueNums": str(QUEUES), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    wait_until(lambda: call(address, UPDATE_AND_CREATE_TOPIC, fields).code == 0, what=f"the topic {topic}")


def _send(address: str, name: str, topic: str, queue: int, body: str, properties: str = "") -> bool:
    ext = {
        "a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0",
        "g": str(time.time_ns() // 1_000_000), "h": "0", "i": f"WAIT\x01false\x02{properties}", "j": "0",
        "k": "false", "m": "false", "n": name,
    }  # fmt: skip
    return call(address, SEND_MESSAGE_V2, ext, body.encode(), timeout_s=10).code == 0


def _knows_topic(address: str, topic: str) -> bool:
    ext = {
        "consumerGroup": "probes", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
        "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    return call(address, PULL_MESSAGE, ext).code in (0, 19)


class _Groups:
    """The two groups, of one program."""

    def __init__(self, kind: str, folder: Path, nameserver_settings: Settings) -> None:
        nameserver, master, slave = MAKERS[kind]
        self.pair = Pair(
            folder,
            [master, slave],
            broker=BROKER,
            octet=OCTET,
            nameserver=nameserver,
            nameserver_settings=nameserver_settings,
        )
        settings = {**BROKER, "brokerName": OTHER_NAME, "brokerId": 0, "brokerRole": "ASYNC_MASTER"}
        self.other = self.pair._broker(2, master, settings, OCTET)
        self.pair.brokers.append(self.other)

    def prepare(self) -> None:
        """Creates the topics and fills the backlog; returns when the slave has all of it."""
        for topic in (BACKLOG, DELAYED):
            _create_topic(self.pair.master.address, topic)
        _create_topic(self.other.address, DELAYED)
        for number in range(BACKLOG_MESSAGES):
            assert _send(self.pair.master.address, Pair.NAME, BACKLOG, number % QUEUES, f"backlog-{number}")
        self.pair.wait_followed()
        slave = self.pair.brokers[1].address
        for topic in (BACKLOG, DELAYED):
            wait_until(
                lambda topic=topic: _knows_topic(slave, topic),  # type: ignore[misc]
                timeout_s=120,
                what=f"the slave knows {topic}",
            )


class _DelayedSends:
    """Sends a delayed message to the master every 50 ms, until a send fails."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._end.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._end.wait(DUE_EVERY_S):
            try:
                done = _send(
                    self._address, Pair.NAME, DELAYED, self.sent % QUEUES, f"delayed-{self.sent}",
                    f"DELAY\x01{DELAY_LEVEL}\x02",
                )  # fmt: skip
            except OSError:
                return
            self.sent += done


class _Consumption:
    """A Java consumer of one topic, and when it has consumed what."""

    def __init__(self, nameserver: str, topic: str, home: Path, pause_ms: int) -> None:
        self.process = JavaProcess(
            "ActingConsumer",
            [nameserver, topic, f"of-{topic}", str(pause_ms)],
            home=home,
            classes=compile_java(CONSUMER),
            heap_mb=128,
        )

    def start(self) -> None:
        self.process.start()
        self.process.wait_until(lambda: "started" in self.process.output(10_000_000), what="started")

    def messages(self) -> list[tuple[int, str, int]]:
        """(time in ns, name of the broker, queue) of every consumed message, by CLOCK_MONOTONIC."""
        found = []
        for line in self.process.output(10_000_000).splitlines():
            words = line.split(" ")
            if len(words) == 4 and words[0].isdecimal():
                found.append((int(words[0]), words[1], int(words[2])))
        return sorted(found)

    def first_from_the_slave_ns(self, since_ns: int) -> int | None:
        """When a queue's message was consumed that the consumer cannot have had at `since_ns`."""
        counts: Counter[int] = Counter()
        for at, _, queue in self.messages():
            if at > since_ns:
                counts[queue] += 1
                if counts[queue] > HELD_MESSAGES:
                    return at
        return None

    def first_from_the_other_group_ns(self) -> int | None:
        """When the first message was consumed that the other group had."""
        return next((at for at, name, _ in self.messages() if name == OTHER_NAME), None)


def _one_round(kind: str, folder: Path, nameserver_settings: Settings) -> dict[str, float]:
    groups = _Groups(kind, folder, nameserver_settings)
    started: list[_Consumption] = []
    try:
        with groups.pair as pair:
            groups.prepare()
            sends = _DelayedSends(pair.master.address)
            backlog = _Consumption(pair.nameserver.address, BACKLOG, folder / "backlog", PAUSE_MS)
            delayed = _Consumption(pair.nameserver.address, DELAYED, folder / "delayed", 0)
            for one in (backlog, delayed):
                started.append(one)
                one.start()
            sends.start()
            wait_until(lambda: len(delayed.messages()) > 1 / DUE_EVERY_S, what="delayed messages come")
            wait_until(lambda: len(backlog.messages()) > 50, what="the backlog is read")
            killed_ns = time.monotonic_ns()
            pair.master.process.kill()
            wait_until(
                lambda: (
                    backlog.first_from_the_slave_ns(killed_ns) is not None
                    and delayed.first_from_the_other_group_ns() is not None
                ),
                timeout_s=TIMEOUT_S,
                what="messages come after the master's end",
            )
            sends.end()
            consumed = backlog.first_from_the_slave_ns(killed_ns)
            escaped = delayed.first_from_the_other_group_ns()
            assert consumed is not None
            assert escaped is not None
            assert escaped > killed_ns, "a message left before the master's end"
            return {
                "consumed_s": round((consumed - killed_ns) / 1e9, 3),
                "escaped_s": round((escaped - killed_ns) / 1e9, 3),
            }
    finally:
        for one in started:
            one.process.stop()


def measure(program: Path, names: list[str], folder: Path, plan: Plan) -> dict[str, Any]:
    """The rounds by settings and program, in turn."""
    found: dict[str, dict[str, list[Any]]] = {}
    for number in range(plan["rounds"]):
        for title, settings in PLANS.items():
            for name in names:
                directory = fresh_folder(folder)
                took = _one_round(name, directory, settings)
                shutil.rmtree(directory, ignore_errors=True)
                found.setdefault(title, {}).setdefault(name, []).append(took)
                print(
                    f"round {number + 1}/{plan['rounds']}  {title:20} {name:5}"
                    f" consumed {took['consumed_s']:6.2f} s  escaped {took['escaped_s']:6.2f} s",
                    flush=True,
                )
    return found


def summarise(measured: dict[str, Any]) -> dict[str, Any]:
    """The median and the worst of each."""
    return {
        title: {
            name: {
                f"{what}_{kind}_s": choose(one[f"{what}_s"] for one in rounds)
                for what in ("consumed", "escaped")
                for kind, choose in (("median", statistics.median), ("worst", max))
            }
            for name, rounds in peers.items()
        }
        for title, peers in measured.items()
    }


def describe(summary: dict[str, Any], plan: Plan) -> tuple[str, str]:
    """The introduction and the tables."""
    about = (
        "A slave acts for its master\n"
        "From kill -9 of the master until RocketMQ's Java consumer has a message from the slave, and the"
        " first delayed message that left for another group. The consumer asks for routes every 100 ms, and"
        f" tries again 100 ms after an error. {plan['rounds']} rounds of each."
    )
    head = ["settings", "time to", "ours: median, s", "worst", "RocketMQ: median, s", "worst", "ratio"]
    texts = {"consumed": "a message from the slave", "escaped": "an escaped delayed message"}
    lines, verdicts = [], []
    for title, peers in summary.items():
        ours, java = peers.get("ours"), peers.get("java")
        for what, text in texts.items():
            row = [title, text]
            for one in (ours, java):
                row += [f"{one[f'{what}_{kind}_s']:.2f}" if one else "–" for kind in ("median", "worst")]
            ratio = ours[f"{what}_median_s"] / java[f"{what}_median_s"] if ours and java else None
            row.append("–" if ratio is None else f"{ratio:.2f}")
            lines.append(row)
            if title == "our defaults" and ours:
                reached = "reached" if ours[f"{what}_median_s"] < 1.5 else "missed"
                verdicts.append(
                    f"- {title}, {text}: under 1.5 s: {reached} ({ours[f'{what}_median_s']:.2f} s)"
                )
            elif ratio is not None:
                reached = "reached" if ratio <= 0.5 else "missed"
                verdicts.append(f"- {title}, {text}: half of RocketMQ's time: {reached} ({ratio:.2f} of it)")
    return about, "\n\n".join([result_files.table(head, lines), "\n".join(verdicts)])


def main() -> int:
    parser = disk_runs.parser("acting", __doc__)
    parser.add_argument("--rounds", type=int, help=f"default {FULL['rounds']}")
    options = parser.parse_args()
    plan = {**(QUICK if options.quick else FULL)}
    plan["rounds"] = options.rounds or plan["rounds"]
    return disk_runs.main(
        "acting",
        options,
        plan,
        needed_bytes=0,
        whole=plan["rounds"] >= FULL["rounds"],
        measure=measure,
        summarise=summarise,
        describe=describe,
    )


if __name__ == "__main__":
    sys.exit(main())
