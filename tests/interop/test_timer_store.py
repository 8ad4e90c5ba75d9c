"""Timer messages wait in one store directory while RocketMQ's broker and EpochMQ's take turns in it: each
message comes once, not early, whichever broker took it and whichever runs when it is due."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from epochmq_protocol.message import MessageExt
from tests.interop.java_cluster import JavaCluster
from tests.support.cluster import Cluster, OurCluster
from tests.support.group_processes import Member, our_broker
from tests.support.group_traffic import read_queue, send_header
from tests.support.process import wait_until
from tests.support.remoting import call

pytestmark = [pytest.mark.java, pytest.mark.soak, pytest.mark.timeout(900)]

SEND_MESSAGE_V2 = 310
_keys = itertools.count(1)


class Turns:
    """Brokers that open one store directory one after another."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._turn = 0
        self.due: dict[bytes, int] = {}

    def next(self, kind: type[Cluster]) -> Cluster:
        """Starts a broker of this kind in the directory."""
        self._turn += 1
        store = self._directory / "store"
        settings = {
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
            "timerRollWindowSlot": 20,
        }
        cluster = kind(self._directory / f"turn-{self._turn}", broker=settings)
        cluster.start()
        return cluster

    def send(self, cluster: Cluster, body: bytes, due: int, *, deletes: str | None = None) -> str:
        """Sends a message that is due then; returns its key."""
        key = f"{next(_keys):032X}"
        header = send_header(0, key)
        header["i"] += f"TIMER_DELIVER_MS\x01{due}\x02"
        if deletes is None:
            self.due[body] = due
        else:
            header["i"] += f"TIMER_DEL_UNIQKEY\x01orders+{deletes}\x02"
        wait_until(
            lambda: call(cluster.broker_address, SEND_MESSAGE_V2, header, body).code == 0, what="it is stored"
        )
        return key

    def fill(self, cluster: Cluster, name: bytes, present: int) -> None:
        """Sends messages that are due soon, later, and so late that they roll; and deletes some."""
        for number in range(10):
            self.send(cluster, b"%b soon %d" % (name, number), present + 2000)
            self.send(cluster, b"%b late %d" % (name, number), present + 45_000 + number % 3 * 1000)
        for number in range(5):
            body = b"%b deleted %d" % (name, number)
            key = self.send(cluster, body, present + 18_000)
            self.send(cluster, b"delete", present + 18_000, deletes=key)
            del self.due[body]

    def wait(self, cluster: Cluster, until: int) -> None:
        """Waits until everything that is due until then has come."""
        expected = {body for body, due in self.due.items() if due <= until}
        wait_until(
            lambda: expected <= {record.body for record in self.read(cluster)},
            timeout_s=180,
            what=f"{len(expected)} messages come",
        )

    def read(self, cluster: Cluster) -> list[MessageExt]:
        """The messages that have come."""
        return read_queue(
            Member("broker", cluster.broker_address, Path(), our_broker, cluster.broker_process)
        )


def present() -> int:
    return int(time.time() * 1000)


def take_turns(turns: Turns, end: Callable[[Cluster], None]) -> list[MessageExt]:
    """Both brokers take turns, each with new messages; `end` ends a turn.

    Returns the messages that came, none of them early."""
    for name, kind in ((b"ours", OurCluster), (b"java", JavaCluster), (b"ours again", OurCluster)):
        cluster = turns.next(kind)
        now = present()
        turns.fill(cluster, name, now)
        turns.wait(cluster, now + 2000)
        end(cluster)
    cluster = turns.next(JavaCluster)
    turns.wait(cluster, max(turns.due.values()))
    came = turns.read(cluster)
    cluster.abandon()
    for record in came:
        assert record.store_timestamp >= turns.due[record.body], record.body
    return came


def test_timer_messages_move_between_both_brokers(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    came = take_turns(turns, lambda cluster: cluster.stop())
    assert sorted(record.body for record in came) == sorted(turns.due)


def test_timer_messages_survive_kills_of_both_brokers(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    came = take_turns(turns, lambda cluster: cluster.abandon())
    assert {record.body for record in came} == turns.due.keys()
