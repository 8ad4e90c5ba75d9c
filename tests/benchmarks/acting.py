"""Measures how soon a slave acts for its dead master: from kill -9 of the master until RocketMQ's Java
consumer has the first message from the slave, and until it has the first delayed message that came through
another group.

Two groups: a master with a slave, and a master alone. The first topic has a long backlog that the consumer
reads, one message at a time; the second one gets delayed messages, of which one is due every 50 ms. The
client's own intervals are short, so that the time is that of the brokers and of the nameserver.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks import disk_runs, result_files
from tests.benchmarks.disk_runs import Plan, fresh_folder
from tests.interop.java_cluster import java_broker, java_nameserver
from tests.interop.java_env import FULL_SPEED, JavaProcess, compile_java
from tests.support.cluster import START_TIMEOUT_S, Settings
from tests.support.group_processes import Factory, our_broker, our_nameserver
from tests.support.java_slaves import java_slave
from tests.support.pair import SEND_MESSAGE_V2, Pair
from tests.support.process import ProcessFailedError, wait_until
from tests.support.remoting import Response, call, frame, read_frame, split_address

OCTET = 72
OTHER_NAME = "broker-b"
BACKLOG, DELAYED = "bench-backlog", "bench-delayed"
UPDATE_AND_CREATE_TOPIC, PULL_MESSAGE, GET_BROKER_RUNTIME_INFO, GET_ROUTEINFO_BY_TOPIC = 17, 11, 28, 105
QUEUES = 3
BACKLOG_MESSAGES = 6000
SENT_TOGETHER = 50
DELAY_LEVEL, DELAY_S = 1, 3
DUE_EVERY_S = 0.05
CLIENT_MS = 10
"""Between the client's questions for routes, between its pulls, and before it repeats one that failed."""
LOST_REQUESTS = ("remove timeout request", "wait response timeout exception")
"""How the client logs that a request had no answer within its time limit."""
CONSUMER = Path(__file__).resolve().parent / "java" / "ActingConsumer.java"
TIMEOUT_S = 60.0
CHECK_EVERY_S = 0.005
STARTS_MAX = 5

FULL: Plan = {"rounds": 5}
QUICK: Plan = {"rounds": 1}

MAKERS: dict[str, tuple[Factory, Factory, Factory]] = {
    "ours": (our_nameserver, our_broker, our_broker),
    "java": (
        partial(java_nameserver, jvm=FULL_SPEED),
        partial(java_broker, jvm=FULL_SPEED),
        partial(java_slave, jvm=FULL_SPEED),
    ),
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


def _fields(name: str, topic: str, queue: int, properties: str = "") -> dict[str, str]:
    return {
        "a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0",
        "g": str(time.time_ns() // 1_000_000), "h": "0", "i": f"WAIT\x01false\x02{properties}", "j": "0",
        "k": "false", "m": "false", "n": name,
    }  # fmt: skip


def _send_delayed(address: str, number: int) -> bool:
    fields = _fields(Pair.NAME, DELAYED, number % QUEUES, f"DELAY\x01{DELAY_LEVEL}\x02")
    return call(address, SEND_MESSAGE_V2, fields, f"delayed-{number}".encode(), timeout_s=10).code == 0


def _send_backlog(address: str) -> None:
    """Sends the backlog over one connection, some messages at a time."""
    with socket.create_connection(split_address(address), timeout=30) as connection:
        for first in range(0, BACKLOG_MESSAGES, SENT_TOGETHER):
            numbers = range(first, first + SENT_TOGETHER)
            for number in numbers:
                fields = _fields(Pair.NAME, BACKLOG, number % QUEUES)
                body = f"backlog-{number}".encode()
                connection.sendall(frame(SEND_MESSAGE_V2, fields, body, opaque=number))
            for _ in numbers:
                header, _ = read_frame(connection)
                assert header["code"] == 0, header


def _addresses(nameserver: str, topic: str) -> list[dict[str, str]]:
    """Broker id → address, as clients find them, of each group with the topic."""
    fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
    response = call(nameserver, GET_ROUTEINFO_BY_TOPIC, fields)
    brokers = json.loads(response.body)["brokerDatas"] if response.code == 0 else []
    return [broker["brokerAddrs"] for broker in brokers]


def _acts(slave: str) -> bool:
    """Whether a broker says that it runs the special services."""
    response = call(slave, GET_BROKER_RUNTIME_INFO)
    return response.code == 0 and json.loads(response.body)["table"]["brokerActive"] == "true"


def _pull(address: str, topic: str) -> Response:
    """A broker's response to a pull of the first message; 0 and 19 (no message) if it knows the topic."""
    ext = {
        "consumerGroup": "probes", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
        "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    return call(address, PULL_MESSAGE, ext)


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
        self.other = self.pair.make_broker(2, master, settings)
        self.pair.brokers.append(self.other)

    def prepare(self) -> None:
        """Creates the topics and fills the backlog; returns when the slave has all of it."""
        for topic in (BACKLOG, DELAYED):
            _create_topic(self.pair.master.address, topic)
        _create_topic(self.other.address, DELAYED)
        slave = self.pair.brokers[1].address
        both = {"0": self.pair.master.address, "1": slave}
        # RocketMQ's slave learns its master's address from a registration after the master's.
        wait_until(
            lambda: _addresses(self.pair.nameserver.address, BACKLOG) == [both],
            timeout_s=START_TIMEOUT_S,
            what="the master and its slave are listed",
        )
        # A slave without a log gets the master's from its last file on.
        wait_until(
            lambda: bool(self.pair.ha()["haConnectionInfo"]),
            timeout_s=START_TIMEOUT_S,
            what="the slave is connected",
        )
        _send_backlog(self.pair.master.address)
        self.pair.wait_followed()
        for topic in (BACKLOG, DELAYED):
            try:
                wait_until(
                    lambda topic=topic: _pull(slave, topic).code in (0, 19),  # type: ignore[misc]
                    timeout_s=START_TIMEOUT_S,
                    what=f"the slave knows {topic}",
                )
            except AssertionError as error:
                error.add_note(f"it responds with {_pull(slave, topic)}")
                raise


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
                done = _send_delayed(self._address, self.sent)
            except OSError:
                return
            self.sent += done


class _Moment:
    """Finds out when a condition becomes true, by a thread that checks it every few milliseconds."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition = condition
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.at_ns: int | None = None
        """CLOCK_MONOTONIC; None until then."""
        self._thread.start()

    def end(self) -> None:
        self._end.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._end.wait(CHECK_EVERY_S):
            with contextlib.suppress(OSError):
                if self._condition():
                    self.at_ns = time.monotonic_ns()
                    return


class _Consumption:
    """A Java consumer of one topic, and when it has consumed what."""

    def __init__(self, nameserver: str, topic: str, home: Path) -> None:
        self._home = home
        self.process = JavaProcess(
            "ActingConsumer",
            [nameserver, topic, f"of-{topic}", str(CLIENT_MS)],
            home=home,
            classes=compile_java(CONSUMER),
            heap_mb=128,
            jvm=FULL_SPEED,
        )

    def start(self) -> None:
        """Starts it; again if the client's first requests to the nameserver fail, which ends its start."""
        for attempt in range(1, STARTS_MAX + 1):
            self.process.start()
            try:
                self.process.wait_until(lambda: "started" in self.process.output(10_000_000), what="started")
                return
            except ProcessFailedError:
                if attempt == STARTS_MAX:
                    raise

    def messages(self) -> list[tuple[int, str, str]]:
        """(time in ns, name of the broker, address that it was pulled from) of every consumed message, by
        CLOCK_MONOTONIC."""
        found = []
        for line in self.process.output(10_000_000).splitlines():
            words = line.split(" ")
            if len(words) == 4 and words[0].isdecimal():
                found.append((int(words[0]), words[1], words[2]))
        return sorted(found)

    def lost_requests(self) -> int:
        """Requests that the client gave up after their time limit, without an answer and without an error."""
        logs = [
            log.read_text(errors="replace") for log in (self._home / "logs" / "rocketmqlogs").glob("*.log")
        ]
        return sum(log.count(text) for log in logs for text in LOST_REQUESTS)

    def first_from_ns(self, address: str) -> int | None:
        """When the first message was consumed that was pulled from this address."""
        return next((at for at, _, pulled_from in self.messages() if pulled_from == address), None)

    def first_from_the_other_group_ns(self) -> int | None:
        """When the first message was consumed that the other group had."""
        return next((at for at, name, _ in self.messages() if name == OTHER_NAME), None)


def _one_round(kind: str, folder: Path, nameserver_settings: Settings) -> dict[str, float]:
    groups = _Groups(kind, folder, nameserver_settings)
    started: list[_Consumption] = []
    watches: list[_Moment] = []
    try:
        with groups.pair as pair:
            groups.prepare()
            sends = _DelayedSends(pair.master.address)
            sends.start()
            backlog = _Consumption(pair.nameserver.address, BACKLOG, folder / "backlog")
            delayed = _Consumption(pair.nameserver.address, DELAYED, folder / "delayed")
            for one in (delayed, backlog):
                started.append(one)
                one.start()
            wait_until(lambda: len(delayed.messages()) > 1 / DUE_EVERY_S, what="delayed messages come")
            wait_until(lambda: len(backlog.messages()) > 50, what="the backlog is read")
            slave = pair.brokers[1].address
            assert backlog.first_from_ns(slave) is None, "the slave serves before its master's end"
            lost_before = sum(one.lost_requests() for one in started)
            watches.append(_Moment(lambda: _addresses(pair.nameserver.address, BACKLOG) == [{"0": slave}]))
            watches.append(_Moment(lambda: _acts(slave)))
            killed_ns = time.monotonic_ns()
            pair.master.process.kill()
            wait_until(
                lambda: (
                    backlog.first_from_ns(slave) is not None
                    and delayed.first_from_the_other_group_ns() is not None
                    and all(watch.at_ns is not None for watch in watches)
                ),
                timeout_s=TIMEOUT_S,
                what="messages come after the master's end",
            )
            sends.end()
            route, acts = (watch.at_ns for watch in watches)
            moments = {
                "route": route,
                "acts": acts,
                "consumed": backlog.first_from_ns(slave),
                "escaped": delayed.first_from_the_other_group_ns(),
            }
            lost = sum(one.lost_requests() for one in started) - lost_before
            found: dict[str, float] = {"lost_requests": lost}
            for what, at_ns in moments.items():
                assert at_ns is not None
                assert at_ns > killed_ns, f"{what} before the master's end"
                found[f"{what}_s"] = round((at_ns - killed_ns) / 1e9, 3)
            return found
    finally:
        for watch in watches:
            watch.end()
        for one in started:
            one.process.stop()


MOMENTS = {
    "route": "the nameserver shows the slave",
    "acts": "the slave runs the special services",
    "consumed": "a message from the slave",
    "escaped": "an escaped delayed message",
}
GOALS = ("consumed", "escaped")
GOAL_RATIO = 0.5
"""Of RocketMQ's time, with its settings."""
GOAL_S = 1.5
"""With our defaults."""


def measure(program: Path, names: list[str], folder: Path, plan: Plan) -> dict[str, Any]:
    """The rounds by settings and program, in turn."""
    found: dict[str, dict[str, list[Any]]] = {}
    for number in range(plan["rounds"]):
        for title, settings in PLANS.items():
            for name in names if number % 2 == 0 else names[::-1]:
                directory = fresh_folder(folder)
                took = _one_round(name, directory, settings) | {"load": os.getloadavg()[0]}
                shutil.rmtree(directory, ignore_errors=True)
                found.setdefault(title, {}).setdefault(name, []).append(took)
                times = "  ".join(f"{moment} {took[f'{moment}_s']:6.3f} s" for moment in MOMENTS)
                print(
                    f"round {number + 1}/{plan['rounds']}  {title:20} {name:5} {times}"
                    f"  lost requests {took['lost_requests']}  load {took['load']:.1f}",
                    flush=True,
                )
    return found


def _summary(rounds: list[dict[str, float]]) -> dict[str, float]:
    found = {
        f"{moment}_{kind}_s": choose(one[f"{moment}_s"] for one in rounds)
        for moment in MOMENTS
        for kind, choose in (("median", statistics.median), ("worst", max))
    }
    found["client_median_s"] = statistics.median(one["consumed_s"] - one["route_s"] for one in rounds)
    found["lost_rounds"] = sum(one["lost_requests"] > 0 for one in rounds)
    found["load"] = statistics.median(one["load"] for one in rounds)
    return found


def summarise(measured: dict[str, Any]) -> dict[str, Any]:
    """The median and the worst of each."""
    return {
        title: {name: _summary(rounds) for name, rounds in peers.items()} for title, peers in measured.items()
    }


def describe(summary: dict[str, Any], plan: Plan) -> tuple[str, str]:
    """The introduction and the tables."""
    load = statistics.median(one["load"] for peers in summary.values() for one in peers.values())
    about = (
        "A slave acts for its master\n"
        "From kill -9 of the master until RocketMQ's Java consumer has a message from the slave, and the"
        " first delayed message that left for another group. The consumer asks for routes every"
        f" {CLIENT_MS} ms (by default every 30 s), pulls every {CLIENT_MS} ms, and repeats a failed pull"
        f" after {CLIENT_MS} ms (by default 1 s), with both programs: so its own waits hide little of theirs."
        f" {plan['rounds']} rounds of each; load average {load:.1f}."
    )
    head = ["settings", "time to", "ours: median, s", "worst", "RocketMQ: median, s", "worst", "ratio"]
    lines, notes = [], []
    for title, peers in summary.items():
        ours, java = peers.get("ours"), peers.get("java")
        for moment, text in MOMENTS.items():
            row = [title, text]
            for one in (ours, java):
                row += [f"{one[f'{moment}_{kind}_s']:.3f}" if one else "–" for kind in ("median", "worst")]
            ratio = ours[f"{moment}_median_s"] / java[f"{moment}_median_s"] if ours and java else None
            row.append("–" if ratio is None else f"{ratio:.2f}")
            lines.append(row)
            if moment not in GOALS:
                continue
            if title == "our defaults" and ours:
                took = ours[f"{moment}_median_s"]
                reached = "reached" if took < GOAL_S else "missed"
                notes.append(f"- {title}, {text}: under {GOAL_S} s: {reached} ({took:.2f} s)")
            elif ratio is not None:
                reached = "reached" if ratio <= GOAL_RATIO else "missed"
                notes.append(f"- {title}, {text}: half of RocketMQ's time: {reached} ({ratio:.2f} of it)")
        for name, one in peers.items():
            program = "ours" if name == "ours" else "RocketMQ"
            notes.append(
                f"- {title}, {program}: of the time to a message from the slave,"
                f" {one['client_median_s']:.3f} s (median) follow the moment when the nameserver shows the"
                " slave. In them the client asks for the route, and pulls."
            )
            if one["lost_rounds"]:
                notes.append(
                    f"- {title}, {program}: in {one['lost_rounds']:.0f} rounds the client gave a request up"
                    " after its time limit: its connection to the killed broker ended without an error for"
                    " that request (NettyRemotingClient.closeChannel)."
                )
    return about, "\n\n".join([result_files.table(head, lines), "\n".join(notes)])


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
