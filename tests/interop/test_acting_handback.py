"""A master returns while delayed and timer messages of its group are due, a transaction is open, a message is
rejected, another is popped, and consumers read a backlog. Nothing is lost, and what comes twice stays within
what comes twice with RocketMQ's brokers, which run the same test."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from epochmq_protocol.message import MessageExt
from tests.interop.acting_pairs import Consumer, is_active
from tests.interop.escape_groups import INVISIBLE_MS, OTHER_NAME, REJECTED, create_topic, knows_topic, masters
from tests.interop.java_cluster import java_broker, java_nameserver
from tests.interop.java_env import JavaProcess, compile_java
from tests.support.acting_group import HOST, ActingGroup
from tests.support.cluster import Settings
from tests.support.group_processes import Factory, Member, our_broker, our_nameserver
from tests.support.java_slaves import java_slave
from tests.support.pair import SEND_MESSAGE_V2, Pair
from tests.support.pop_client import acknowledge, pop
from tests.support.process import wait_until
from tests.support.remoting import call

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

STREAM, BACKLOG, POPPED, PAYMENTS = "stream", "backlog", "orders", "payments"
DELAYED_A_SECOND, TIMED_A_SECOND = 20, 10
CONSUME_MS = 100
BACKLOG_A_SECOND = 36
"""What the consumer of the backlog, with four threads, can consume."""
ATTEMPTS_MAX = 3
"""Each takes twice as long as the one before."""
REPEATED_S_MAX = 3.0
"""How many seconds' worth of due messages may come twice if EpochMQ's slave acts. RocketMQ's tells its
progress in the timer once a second, on a busy machine much later, and so much more comes twice."""


def settings(lead_s: int) -> Settings:
    """Those of both groups. A delayed message is due after `lead_s`."""
    return {
        "enableRemoteEscape": True,
        "inSyncReplicas": 1,
        "messageDelayLevel": f"{lead_s}s",
        "transactionCheckInterval": 1000,
        "transactionTimeOut": 1000,
        "transactionCheckMax": 1000,
    }


@contextmanager
def two_groups(
    directory: Path, nameserver: Factory, brokers: tuple[Factory, Factory], other: Factory, lead_s: int
) -> Iterator[tuple[ActingGroup, Member]]:
    """A master and its slave, with pre-online; the master of the other group. All topics are in both."""
    wanted = settings(lead_s)
    group = ActingGroup(directory, brokers, broker=wanted, nameserver=nameserver)
    alone: Settings = {
        **wanted,
        "enableSlaveActingMaster": True,
        "slaveReadEnable": True,
        "totalReplicas": 1,
        "brokerName": OTHER_NAME,
        "brokerId": 0,
        "brokerRole": "ASYNC_MASTER",
    }
    member = group.make_broker(2, other, alone)
    assert member.address.startswith(HOST)
    group.brokers.append(member)
    with group:
        group.wait_listed(0, 1)
        for topic in (STREAM, BACKLOG, POPPED):
            for address in (group.master.address, member.address):
                create_topic(address, topic)
            wait_until(
                lambda topic=topic: masters(group, topic) == [group.master.address, member.address],  # type: ignore[misc]
                what=f"the route of {topic}",
            )
        yield group, member


def send(address: str, topic: str, queue_id: int, body: str, properties: str = "") -> None:
    """One message, once: a repetition could be stored twice."""
    ext = {
        "a": "producers", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
        "g": str(time.time_ns() // 1_000_000), "h": "0", "i": f"WAIT\x01true\x02{properties}", "j": "0",
        "k": "false", "m": "false",
    }  # fmt: skip
    response = call(address, SEND_MESSAGE_V2, ext, body.encode(), timeout_s=60)
    assert response.code == 0, response


def send_stream(address: str, lead_s: int, spread_s: int) -> tuple[list[str], list[str]]:
    """Sends delayed and timer messages that become due evenly, over `spread_s` seconds, from `lead_s` seconds
    after the beginning. Returns their bodies."""
    delayed, timed = [], []
    began_s = time.time()
    for number in range(spread_s * TIMED_A_SECOND):
        timed.append(f"timed-{number}")
        due_ms = int((began_s + lead_s + number / TIMED_A_SECOND) * 1000)
        send(address, STREAM, number % 3, timed[-1], f"TIMER_DELIVER_MS\x01{due_ms}\x02")
        for _ in range(DELAYED_A_SECOND // TIMED_A_SECOND):
            delayed.append(f"delayed-{len(delayed)}")
            send(address, STREAM, len(delayed) % 3, delayed[-1], "DELAY\x011\x02")
        time.sleep(max(0.0, began_s + (number + 1) / TIMED_A_SECOND - time.time()))
    return delayed, timed


def redelivered(group: ActingGroup, member: Member, found: Counter[str]) -> list[tuple[MessageExt, str]]:
    """Pops once from both groups, and counts by body the messages that come again. Returns all, with their
    handles."""
    both = [
        *pop(group.master.address, Pair.NAME, 8, INVISIBLE_MS),
        *pop(member.address, OTHER_NAME, 8, INVISIBLE_MS),
    ]
    found.update(message.body.decode() for message, _ in both if message.reconsume_times)
    return both


OURS = (our_nameserver, (our_broker, our_broker), our_broker)
JAVAS = (java_nameserver, (java_broker, java_slave), java_broker)


@pytest.mark.parametrize(
    ("nameserver", "brokers", "other", "spread_s"),
    [
        pytest.param(*OURS, 12, id="all-ours"),
        pytest.param(
            java_nameserver, (our_broker, our_broker), our_broker, 12,
            id="ours-with-javas-nameserver", marks=pytest.mark.soak,
        ),
        # A returning master of RocketMQ's needs up to 20 s.
        pytest.param(*JAVAS, 45, id="all-java", marks=pytest.mark.soak),
        pytest.param(
            our_nameserver, (java_broker, java_slave), java_broker, 45,
            id="javas-with-our-nameserver", marks=pytest.mark.soak,
        ),
        pytest.param(
            our_nameserver, (java_broker, our_broker), our_broker, 45,
            id="javas-master-returns-to-ours", marks=pytest.mark.soak,
        ),
        pytest.param(
            our_nameserver, (our_broker, java_slave), our_broker, 30,
            id="our-master-returns-to-javas", marks=pytest.mark.soak,
        ),
    ],
)  # fmt: skip
def test_little_comes_twice_when_the_master_returns(
    tmp_path: Path, nameserver: Factory, brokers: tuple[Factory, Factory], other: Factory, spread_s: int
) -> None:
    for number in range(ATTEMPTS_MAX):
        found = handback(tmp_path / str(number), nameserver, brokers, other, spread_s << number)
        if found is not None:
            break
    assert found is not None, "the master was never back before the last message was due"
    found.check(brokers)


@dataclass
class Repetitions:
    """How often messages came again, by their kinds and bodies, and how many delayed ones each group
    delivered."""

    by_kind: dict[str, int]
    popped: Counter[str]
    names: Counter[str]

    def check(self, brokers: tuple[Factory, Factory]) -> None:
        """Asserts that no more came twice than with RocketMQ's brokers, and almost nothing with ours."""
        print(f"came twice: {self.by_kind}; popped again: {dict(self.popped)}; by group: {dict(self.names)}")
        assert min(self.names[Pair.NAME], self.names[OTHER_NAME]) > 0, "both groups delivered a part"
        assert self.by_kind["plain"] == 0
        assert self.by_kind["rejected"] <= 1
        if brokers[1] is our_broker:
            assert self.by_kind["delayed"] <= REPEATED_S_MAX * DELAYED_A_SECOND
            assert self.by_kind["timed"] <= REPEATED_S_MAX * TIMED_A_SECOND
        assert self.popped["popped-1"] == 1
        # Its checkpoint is in this group, and its acknowledgement has left for the other one.
        assert self.popped["popped-0"] <= 1
        if brokers == (our_broker, our_broker):
            assert self.by_kind["transaction"] == 0


def handback(
    directory: Path, nameserver: Factory, brokers: tuple[Factory, Factory], other: Factory, spread_s: int
) -> Repetitions | None:
    """Kills the master while messages become due, and starts it again before the last one is. None: on a busy
    machine the slave acted, or the master was back, only when nothing was left for it."""
    lead_s = spread_s + 6
    with two_groups(directory, nameserver, brokers, other, lead_s) as (group, member):
        slave, decision = group.brokers[1], directory / "decision"
        producer = JavaProcess(
            "UndecidedProducer",
            [group.nameserver.address, PAYMENTS, "paid", str(decision)],
            home=directory / "producer",
            classes=compile_java("UndecidedProducer.java"),
            heap_mb=128,
        )
        create_topic(group.master.address, PAYMENTS)  # the half message must be in this group
        stream = Consumer(group, directory / "stream", topic=f"{STREAM},{PAYMENTS}")
        backlog = Consumer(group, directory / "backlog", group="slow", topic=BACKLOG, pause_ms=CONSUME_MS)
        try:
            for number in range(2):
                send(group.master.address, POPPED, 0, f"popped-{number}")
            wait_until(lambda: knows_topic(slave.address), what="the slave knows the topics")
            with stream, backlog:
                producer.start()
                producer.wait_until(lambda: "sent" in producer.output(100_000), what="a half message")
                sent = [f"plain-{number}" for number in range((spread_s + lead_s) * BACKLOG_A_SECOND)]
                for number, body in enumerate(sent):
                    send(group.master.address, BACKLOG, number % 3, body)
                send(group.master.address, STREAM, 0, REJECTED)
                began_s = time.time()
                delayed, timed = send_stream(group.master.address, lead_s, spread_s)
                popped: dict[str, tuple[MessageExt, str]] = {}
                invisible_s = spread_s + 5
                over_s = min(began_s + lead_s + spread_s, time.time() + invisible_s) - 1
                """Shortly before the last message is due and the popped ones come again."""

                def pop_both() -> bool:
                    for message, info in pop(group.master.address, Pair.NAME, 2, invisible_s * 1000):
                        popped[message.body.decode()] = message, info
                    return len(popped) == 2

                wait_until(pop_both, what="messages are popped")
                group.wait_followed()
                # The master ends.
                group.master.process.kill()
                wait_until(lambda: is_active(slave.address), what="the slave acts")
                assert acknowledge(slave.address, *popped["popped-0"])
                create_topic(member.address, PAYMENTS)
                decision.touch()
                due = set(delayed)

                def some_escaped() -> bool:
                    found = {body for *_, body, name in stream.sightings if name == OTHER_NAME}
                    return len(due & found) > len(due) / 5 or time.time() > over_s

                wait_until(some_escaped, what="messages escape")
                # The master returns.
                group.master.start()
                group.wait_listed(0, 1)
                wait_until(lambda: is_active(group.master.address), what="the master is back")
                wait_until(lambda: not is_active(slave.address), what="the slave acts no longer")
                if time.time() > over_s:
                    print(f"the master was back {time.time() - over_s:.1f} s too late")
                    return None
                due |= {*timed, "paid"}
                wait_until(lambda: due <= set(stream.bodies), what="all messages of the stream")
                wait_until(lambda: stream.bodies.count(REJECTED) > 1, what="the rejected message")
                wait_until(lambda: set(sent) <= set(backlog.bodies), what="the whole backlog")
                # What was not acknowledged comes again; so does, later, a message that is popped now.
                again: Counter[str] = Counter()
                handles: dict[str, tuple[MessageExt, str]] = {}

                def came_again(body: str) -> bool:
                    for message, info in redelivered(group, member, again):
                        handles[message.body.decode()] = message, info
                        if message.reconsume_times:
                            address = group.master.address if f" {Pair.NAME} " in info else member.address
                            acknowledge(address, message, info)
                    return body in again

                wait_until(lambda: came_again("popped-1"), what="the popped message comes again")
                sightings = stream.sightings
                plain = Counter(backlog.bodies)
        finally:
            producer.stop()
        counts = Counter(body for *_, body, _ in sightings)
        last = {body: name for *_, body, name in sightings}
        repeated = {
            kind: sum(counts[body] - 1 for body in bodies)
            for kind, bodies in (("delayed", delayed), ("timed", timed), ("transaction", ["paid"]))
        }
        repeated["rejected"] = counts[REJECTED] - 2
        repeated["plain"] = plain.total() - len(plain)
        return Repetitions(repeated, again, Counter(last[body] for body in delayed))
