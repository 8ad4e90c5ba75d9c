"""Popped messages wait in one store directory while RocketMQ's broker and EpochMQ's take turns in it: what is
not acknowledged comes again, whichever broker handed it out and whichever runs when its time is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.java_cluster import JavaCluster
from tests.support.cluster import Cluster, OurCluster
from tests.support.group_traffic import send_header
from tests.support.pop_client import acknowledge, pop, pop_orderly
from tests.support.process import wait_until
from tests.support.remoting import call

pytestmark = [pytest.mark.java, pytest.mark.soak, pytest.mark.timeout(900)]

SEND_MESSAGE_V2 = 310
MESSAGES = 12
INVISIBLE_MS = 8000


class Turns:
    """Brokers that open one store directory one after another."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._turn = 0

    def next(self, kind: type[Cluster]) -> Cluster:
        """Starts a broker of this kind in the directory."""
        self._turn += 1
        store = self._directory / "store"
        settings = {"storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog")}
        cluster = kind(self._directory / f"turn-{self._turn}", broker=settings)
        cluster.start()
        return cluster


def send(cluster: Cluster, bodies: list[bytes]) -> None:
    """Sends messages to queue 0."""
    for number, body in enumerate(bodies):
        header = send_header(0, f"{hash(body) & 0xFFFFFFFF:028X}{number:04X}")
        wait_until(
            lambda header=header, body=body: (
                call(  # type: ignore[misc]  # bound to this message
                    cluster.broker_address, SEND_MESSAGE_V2, header, body
                ).code
                == 0
            ),
            what="a message is stored",
        )


def receive(
    cluster: Cluster, wanted: set[bytes], acknowledged: set[bytes], invisible_ms: int, *, every: int
) -> set[bytes]:
    """Pops until everything wanted has come, and acknowledges every second message, or all. Returns what
    came."""
    received: set[bytes] = set()
    address = cluster.broker_address

    def receive_some() -> bool:
        for number, (message, info) in enumerate(pop(address, "broker-a", 4, invisible_ms), start=1):
            received.add(message.body)
            if number % every == 0 and acknowledge(address, message, info):
                acknowledged.add(message.body)
        return received >= wanted

    wait_until(receive_some, timeout_s=120, what=f"{len(wanted)} messages come")
    return received


@pytest.mark.parametrize("stops", [True, False], ids=["stopped", "killed"])
def test_popped_messages_move_between_both_brokers(tmp_path: Path, *, stops: bool) -> None:
    turns = Turns(tmp_path)
    acknowledged: set[bytes] = set()
    waiting: set[bytes] = set()
    for name, kind in ((b"ours", OurCluster), (b"java", JavaCluster), (b"ours again", OurCluster)):
        cluster = turns.next(kind)
        before = set(acknowledged)
        # What the broker before this one handed out comes again here.
        again = receive(cluster, waiting, acknowledged, 60_000, every=1)
        if stops:
            assert not again & before
        bodies = {b"%b %d" % (name, number) for number in range(MESSAGES)}
        send(cluster, sorted(bodies))
        receive(cluster, bodies, acknowledged, INVISIBLE_MS, every=2)
        waiting = bodies - acknowledged
        assert waiting
        if stops:
            cluster.stop()
        else:
            cluster.abandon()


def test_the_state_of_orderly_pops_moves_between_both_brokers(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    cluster = turns.next(OurCluster)
    send(cluster, [b"0", b"1", b"2"])
    for offset, kind in enumerate((JavaCluster, OurCluster, JavaCluster)):
        address = cluster.broker_address
        first = f"attempt {offset}"
        assert len(pop_orderly(address, "broker-a", 600_000, attempt=first)) == 1
        cluster.stop()
        cluster = turns.next(kind)
        address = cluster.broker_address
        assert pop_orderly(address, "broker-a", 600_000, attempt="another") == []
        ((message, info),) = pop_orderly(address, "broker-a", 600_000, attempt=first)
        assert message.queue_offset == offset
        assert acknowledge(address, message, info)
    cluster.abandon()
