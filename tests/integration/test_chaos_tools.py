"""The tools of the chaos rounds: links that drop packets, disks that are full and slow, and checks that
notice lost messages."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from epochmq_protocol.message import MessageExt
from tests.integration.ack_checks import Ack, check_masters, check_seen, check_stored
from tests.integration.chaos import disks, network
from tests.integration.chaos.faults import ChaosFault
from tests.integration.chaos.journals import ConsumerJournal, ProducerJournal, java_body, number_of
from tests.integration.chaos.rounds import ChaosRounds
from tests.support.cluster import Value
from tests.support.process import wait_until

PORT = 7000
SOON_S = 0.5
LATE_S = 60.0


# Links ------------------------------------------------------------------------------------------------------


@pytest.fixture
def joined() -> Iterator[network.Network]:
    if (lacks := network.missing()) is not None:
        pytest.skip(f"missing: {lacks}")
    with network.Network(["here", "there"]) as made:
        yield made


@pytest.fixture
def pair(joined: network.Network) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a connection between two namespaces."""
    there = joined.address["there"]
    with joined.within("there"):
        listening = socket.create_server((there, PORT))
    with listening:
        with joined.within("here"):
            mine = socket.create_connection((there, PORT), timeout=LATE_S)
        theirs, peer = listening.accept()
        theirs.settimeout(LATE_S)
        with mine, theirs:
            assert peer[0] == joined.address["here"]
            yield mine, theirs


def arrives(sender: socket.socket, receiver: socket.socket, timeout_s: float) -> bool:
    """Whether a byte arrives in time."""
    receiver.settimeout(timeout_s)
    sender.sendall(b"x")
    try:
        return receiver.recv(1) == b"x"
    except TimeoutError:
        return False


def test_a_cut_drops_packets_one_way_until_it_is_repaired(
    joined: network.Network, pair: tuple[socket.socket, socket.socket]
) -> None:
    here, there = pair
    assert arrives(here, there, LATE_S)
    assert arrives(there, here, LATE_S)
    joined.cut("there", "here")
    joined.cut("there", "here")
    assert arrives(here, there, LATE_S), "the other direction is not cut"
    assert not arrives(there, here, SOON_S)
    joined.mend("there", "here")
    assert not arrives(there, here, SOON_S), "two cuts need two repairs"
    joined.mend("there", "here")
    here.settimeout(LATE_S)
    assert here.recv(1) + here.recv(1) == b"xx"


def test_a_slow_link_limits_the_rate(
    joined: network.Network, pair: tuple[socket.socket, socket.socket]
) -> None:
    here, there = pair
    joined.slow("here", 200)
    began = time.monotonic()
    here.sendall(bytes(25_000))  # a second's worth
    left = 25_000
    while left:
        left -= len(there.recv(left))
    assert time.monotonic() - began > 0.5
    joined.fast("here")
    assert arrives(here, there, LATE_S)


def test_a_namespace_reaches_nothing_outside(joined: network.Network) -> None:
    with joined.within("here"), pytest.raises(OSError, match="unreachable"):
        socket.create_connection(("192.0.2.77", PORT), timeout=LATE_S)


def test_a_command_runs_in_its_namespace(joined: network.Network) -> None:
    done = subprocess.run(
        joined.command("there", ["ip", "-br", "address", "show", "dev", "eth0"]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert joined.address["there"] in done.stdout


# Disks ------------------------------------------------------------------------------------------------------


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    if (lacks := network.missing() or disks.missing()) is not None:
        pytest.skip(f"missing: {lacks}")
    return tmp_path


def test_a_full_disk_accepts_no_writes_until_it_is_freed(tools: Path) -> None:
    disk = disks.SmallDisk(tools / "disk")
    try:
        (disk.path / "before").write_bytes(bytes(100_000))
        disk.fill()
        with pytest.raises(OSError, match="No space") as full:
            (disk.path / "more").write_bytes(bytes(10_000))
        assert full.value.errno == errno.ENOSPC
        disk.free()
        (disk.path / "more").write_bytes(bytes(1 << 20))
        assert (disk.path / "before").read_bytes() == bytes(100_000)
    finally:
        disk.unmount()


_TIMED = """
import mmap, os, sys, time
path = sys.argv[1]
file = open(path, "w+b")
file.truncate(8192)
mapped = mmap.mmap(file.fileno(), 8192)
fd = file.fileno()
for act in (
    lambda: os.fsync(fd), lambda: os.fdatasync(fd), mapped.flush, lambda: os.write(fd, b"x"),
    lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 8192), lambda: os.posix_fallocate(fd, 0, 8192),
):
    began = time.monotonic()
    act()
    print(time.monotonic() - began)
"""


def test_a_slow_disk_delays_every_change_and_every_sync(tools: Path) -> None:
    disk = disks.SlowDisk(disks.compile_shim(tools), tools / "switch")

    def times() -> list[float]:
        command = [sys.executable, "-c", _TIMED, str(tools / "file")]
        done = subprocess.run(
            command, env={**os.environ, **disk.env}, capture_output=True, text=True, check=True
        )
        return [float(line) for line in done.stdout.split()]

    disk.delay(150)
    slow = times()
    assert len(slow) == 7
    assert min(slow) >= 0.15
    disk.delay(0)
    wait_until(lambda: min(times()) < 0.05, what="the disk is fast again")


# The checks -------------------------------------------------------------------------------------------------

CARELESS: dict[str, Value] = {
    "allAckInSyncStateSet": False,
    "minInSyncReplicas": 1,
    "inSyncReplicas": 1,
    "haMaxTimeSlaveNotCatchup": 60_000,  # the others stay electable while the master acknowledges alone
}


def test_a_round_reports_messages_that_a_master_acknowledged_alone(tools: Path) -> None:
    """With settings that do not wait for replicas, a master that is cut off from them and then dies loses
    acknowledged messages. The round must report that."""
    with ChaosRounds(tools, 1, settings=CARELESS, java=False) as rounds:
        group = rounds.group
        first = group.wait_master()
        others = [member.name for member in group.brokers if member is not first]

        def begin() -> None:
            for other in others:
                group.network.cut(first.name, other)
            rounds.wait_direct_acks(rounds.direct_acks() + 5)
            first.process.kill()
            group.wait_master(other_than=first)

        def end() -> None:
            for other in others:
                group.network.mend(first.name, other)
            first.start()

        rounds.begin()
        rounds.apply_faults([ChaosFault("the master alone, then dead", begin, end)])
        with pytest.raises(AssertionError, match="lost"):
            rounds.end()


def stored(*bodies: bytes) -> list[MessageExt]:
    """The stored messages of a queue with these bodies."""
    return [
        MessageExt(topic="orders", body=body, queue_offset=offset, physical_offset=offset * 100)
        for offset, body in enumerate(bodies)
    ]


def ack(body: bytes, offset: int, *, at_s: float = 1.0, address: str = "a") -> Ack:
    """An acknowledgement of the message at that offset."""
    return Ack(body, 0, offset, offset * 100, at_s, at_s + 0.1, address)


def test_the_checks_notice_a_message_that_is_not_at_its_place() -> None:
    queue = stored(b"one", b"two")
    good = [ack(b"one", 0), ack(b"two", 1)]
    check_stored([queue], good, lambda body: 1)
    for wrong in (ack(b"three", 2), ack(b"one", 1), replace(good[1], position=101)):
        with pytest.raises(AssertionError, match="lost"):
            check_stored([queue], [*good, wrong], lambda body: 1)
    with pytest.raises(AssertionError, match="0 at most"):
        check_stored([queue], good, lambda body: int(body != b"two"))
    with pytest.raises(AssertionError, match="2 times"):
        check_stored([stored(b"one", b"one")], [], lambda body: 1)
    with pytest.raises(AssertionError):
        check_stored([queue[1:]], [], lambda body: 1)


def test_the_checks_notice_two_masters() -> None:
    starts = [(0, 1), (200, 2)]
    good = [
        ack(b"a", 0, at_s=1.0),
        ack(b"b", 1, at_s=2.0),
        ack(b"c", 2, at_s=3.0, address="b"),
        ack(b"d", 3, at_s=4.0, address="b"),
    ]
    check_masters(starts, good)
    with pytest.raises(AssertionError, match="epoch 1 was sent after"):
        check_masters(starts, [replace(good[0], sent_s=3.2, acked_s=3.3), *good[1:]])
    with pytest.raises(AssertionError, match="two masters"):
        check_masters(starts, [*good[:3], replace(good[3], address="c")])


def test_the_checks_notice_messages_that_consumers_should_not_have_seen(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    one, two = 0xFE2E0F23, 0
    consumer_journal = ConsumerJournal(journal)
    journal.write_text(f"push 0 0 {one}\npull 0 1 {two}\npull 0")
    consumer_journal.read()
    assert consumer_journal.seen == {"push": {(0, 0): one}, "pull": {(0, 1): two}}
    with pytest.raises(AssertionError, match="saw another body"):
        check_seen([stored(b"changed")], consumer_journal.seen["push"], "push")
    with pytest.raises(AssertionError, match="not stored"):
        check_seen([stored(b"one")], consumer_journal.seen["pull"], "pull")
    journal.write_text(f"push 0 0 {one}\npull 0 1 {two}\npull 0 1 {two + 1}\n")
    with pytest.raises(AssertionError, match="two messages"):
        consumer_journal.read()


def test_the_producers_journal_is_read_while_it_grows(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    producer_journal = ProducerJournal(journal)
    producer_journal.read()
    where = "0A4905020000" + "2A9F" + "0000000000000FFF"
    journal.write_text(f"send 1\nsend 2\nsent 1 5 2000000005 SEND_OK 3 17 {where} UNIQUE\nsent 2 9 1")
    producer_journal.read()
    assert producer_journal.acks == [Ack(java_body(1), 3, 17, 4095, 5e-9, 2.000000005, "10.73.5.2:10911")]
    with journal.open("a") as file:
        file.write("0 FLUSH_SLAVE_TIMEOUT 3 18 x y\nsend 7\n")
    producer_journal.read()
    assert producer_journal.outcomes == {"SEND_OK": 1, "FLUSH_SLAVE_TIMEOUT": 1}
    assert producer_journal.last == 7
    assert number_of(java_body(12)) == 12
    assert number_of(b"0-1-xx") is None
    with pytest.raises(AssertionError, match="changed"):
        number_of(java_body(12) + b"x")
