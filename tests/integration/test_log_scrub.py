"""Bits flip in old log files of a running group. Each broker repairs its own log from the others, bit for
bit, the master too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from epochmq_protocol import record_layout
from tests.integration.admin_pods import Pods
from tests.support.group_processes import Member, our_broker, our_controller
from tests.support.group_traffic import deliver_to, read_queue, wait_confirmed
from tests.support.process import wait_until
from tests.support.replica_group import ReplicaGroup
from tests.support.sidecar import Sidecar

OCTET = 94
FILE_BYTES = 1 << 20
MESSAGES = 50
SETTINGS = {
    "allAckInSyncStateSet": True,
    "minInSyncReplicas": 2,
    "mappedFileSizeCommitLog": FILE_BYTES,
    "maxMessageSize": 128 * 1024,
    "registerNameServerPeriod": 10_000,
    "scrubFirstDelayMs": 1000,
    "scrubPassIntervalMs": 500,
    "scrubBytesPerSecond": 64 << 20,
}


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    directory = tmp_path_factory.mktemp("s")
    group = ReplicaGroup(directory, [our_controller] * 3, [our_broker] * 3, broker=SETTINGS, octet=OCTET)
    made = Pods(group, {member.name: Sidecar.beside(member, octet=OCTET) for member in group.brokers})
    try:
        for sidecar in made.sidecars.values():
            sidecar.start()
        group.start()
        for number in range(MESSAGES):
            deliver_to(group, bytes([65 + number % 26]) * 60_000)
        wait_confirmed(group)
        yield made
        print(group.logs(6000))  # shown when a test failed
    finally:
        group.kill()
        for sidecar in made.sidecars.values():
            sidecar.kill()


def log_files(member: Member) -> list[Path]:
    """The files of its log, the oldest first."""
    return sorted((member.config.parent / "store" / "commitlog").iterdir())


def metric(pods: Pods, member: Member, name: str) -> float:
    """The value of one of its broker's metrics; -1 while it has none."""
    text = pods.of(member).ask("GET", "/metrics").text
    values = [line for line in text.splitlines() if line.startswith(f"epochmq_broker_{name}{{")]
    return float(values[0].rpartition(" ")[2]) if values else -1


def repaired(pods: Pods, member: Member) -> float:
    return metric(pods, member, "damaged_ranges_repaired_total")


def flip(path: Path, position: int) -> None:
    """Flips a bit of a file that a broker has open."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 4]))


@pytest.mark.parametrize("whose", ["a replica", "the master"])
@pytest.mark.parametrize(
    "position",
    [record_layout.PHYSICAL_OFFSET_AT + 3, record_layout.HEAD_BYTES + 30_000],
    ids=["head", "body"],
)
def test_a_flipped_bit_is_repaired_bit_for_bit(pods: Pods, whose: str, position: int) -> None:
    wait_confirmed(pods.group)
    master = pods.master()
    member = master if whose == "the master" else pods.others(master)[0]
    path = log_files(member)[1]
    original = path.read_bytes()
    wait_until(lambda: repaired(pods, member) >= 0, what="the broker has metrics")
    before = repaired(pods, member)
    flip(path, position)
    wait_until(lambda: repaired(pods, member) == before + 1, what="the broker has repaired its log")
    assert path.read_bytes() == original
    wait_until(lambda: metric(pods, member, "damaged_bytes") == 0, what="no damage is reported")
    wait_until(lambda: pods.of(member).state().get("damage") == [], what="its state has no damage")
    for other in pods.brokers:
        if other is not member:
            assert log_files(other)[1].read_bytes() == original
    bodies = [record.body for record in read_queue(wait_confirmed(pods.group))]
    assert len(bodies) >= MESSAGES
