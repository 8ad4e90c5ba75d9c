"""A full disk: sends are rejected with RocketMQ's code for it, the broker keeps running, acknowledged
messages stay readable, and sends are accepted again when there is space."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, OurCluster, Value
from tests.support.process import wait_until
from tests.support.records import parse_records
from tests.support.remoting import Response, call

OCTET = 57
SUCCESS, SYSTEM_ERROR, SERVICE_NOT_AVAILABLE, PULL_NOT_FOUND = 0, 1, 14, 19
DISK_BYTES = 48 * 1024 * 1024
BALLAST_BYTES = 16 * 1024 * 1024
BODY = 60_000
TOPIC = "full"
SENDS_MAX = 2 * DISK_BYTES // BODY

SETTINGS: dict[str, Value] = {
    "mappedFileSizeCommitLog": 4 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxMessageSize": 1024 * 1024,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "flushDiskType": "SYNC_FLUSH",
    "cleanFileForciblyEnable": False,  # otherwise old messages would be removed to free space
    "cleanResourceInterval": 500,
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own of 48 MB with 16 MB of ballast on it, which can be removed."""
    if os.geteuid() != 0:
        pytest.skip("missing: root, to mount a small file system")
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    options = f"size={DISK_BYTES}"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(mount_point)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"missing: the right to mount a small file system ({done.stderr.strip()})")
    try:
        (mount_point / "ballast").write_bytes(bytes(BALLAST_BYTES))
        yield mount_point
    finally:
        subprocess.run(["umount", str(mount_point)], check=True)


@pytest.fixture
def cluster(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A broker whose store, and nothing else, is on the small disk."""
    store = {"storePathRootDir": str(disk / "store"), "storePathCommitLog": str(disk / "store" / "commitlog")}
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")  # a SIGBUS leaves its traceback in the log
    running = OurCluster(tmp_path / "cluster", broker={**SETTINGS, **store}, octet=OCTET)
    try:
        running.start()
        yield running
        assert (running.broker_process.status or 0) >= 0, f"a signal ended the broker\n{running.logs()}"
    finally:
        running.stop()


def body_of(number: int) -> bytes:
    """A body that differs from every other one."""
    return f"{number:08d}".encode() * (BODY // 8)


def send(cluster: Cluster, number: int) -> Response:
    """Sends message `number` to the one queue used."""
    header = {
        "a": "full",
        "b": TOPIC,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
    }
    header["i"] = f"UNIQ_KEY\x01{number:032X}\x02"
    return call(cluster.broker_address, 310, header, body_of(number), timeout_s=120)


def send_until_refused(cluster: Cluster, acked: dict[int, int], first: int) -> Response:
    """Sends until the broker rejects, and records offset -> number of every acknowledged message; returns the
    rejection."""
    for number in range(first, first + SENDS_MAX):
        response = send(cluster, number)
        if response.code != SUCCESS:
            return response
        acked[int(response.ext["queueOffset"])] = number
    raise AssertionError(f"{SENDS_MAX} messages of {BODY} bytes found room on {DISK_BYTES} bytes")


def assert_refused_for_space(response: Response) -> None:
    """RocketMQ has two responses: no new file could be created, or the store is not writable."""
    assert response.code in (SYSTEM_ERROR, SERVICE_NOT_AVAILABLE), response
    remark = response.remark or ""
    assert "create mapped file failed" in remark if response.code == SYSTEM_ERROR else "disk" in remark, (
        response
    )


def assert_readable(cluster: Cluster, acked: dict[int, int]) -> None:
    """Asserts that every acknowledged message is read back intact at its offset, and that offsets are
    dense."""
    assert sorted(acked) == list(range(len(acked)))
    offset = 0
    while offset < len(acked):
        header = {
            "consumerGroup": "full-group",
            "topic": TOPIC,
            "queueId": "0",
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        response = call(cluster.broker_address, 11, header)
        assert response.code == SUCCESS, f"offset {offset} of {len(acked)}: {response.code} {response.remark}"
        for record in parse_records(response.body):
            assert (record.queue_offset, record.body) == (offset, body_of(acked[offset]))
            offset += 1


def writable_again(cluster: Cluster, acked: dict[int, int], number: int) -> bool:
    """Tries one send."""
    response = send(cluster, number)
    if response.code == SUCCESS:
        acked[int(response.ext["queueOffset"])] = number
    return response.code == SUCCESS


@contextlib.contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Fills the rest of the disk with another program's file, to the last block."""
    filler = disk / "filler"
    block = bytes(1 << 16)
    with filler.open("wb", buffering=0) as handle, contextlib.suppress(OSError):
        while True:
            handle.write(block)
    try:
        yield
    finally:
        filler.unlink()


def test_sends_are_rejected_on_a_full_disk_and_accepted_when_there_is_space(
    cluster: Cluster, disk: Path
) -> None:
    acked: dict[int, int] = {}
    assert_refused_for_space(send_until_refused(cluster, acked, 0))
    assert len(acked) * BODY > (DISK_BYTES - BALLAST_BYTES) // 2, (
        "it rejected sends long before the disk was full"
    )
    for number in range(5000, 5020):
        assert_refused_for_space(send(cluster, number))
    assert cluster.broker_process.alive
    assert_readable(cluster, acked)

    (disk / "ballast").unlink()
    wait_until(lambda: writable_again(cluster, acked, 9000), what="the broker writes again")
    for number in range(9001, 9051):
        assert writable_again(cluster, acked, number), "it accepted one message and rejected the next"
    assert_readable(cluster, acked)
    assert cluster.stop_broker() == 0
    cluster.start_broker()
    assert_readable(cluster, acked)


def test_a_disk_filled_by_another_program_damages_nothing(cluster: Cluster, disk: Path) -> None:
    acked: dict[int, int] = {}
    for number in range(20):
        assert writable_again(cluster, acked, number)
    with filled(disk):
        assert_refused_for_space(send_until_refused(cluster, acked, 100))
        # State that cannot be written now must not end the broker either.
        offset = {"consumerGroup": "full-group", "topic": TOPIC, "queueId": "0", "commitOffset": "3"}
        call(cluster.broker_address, 15, offset)
        call(
            cluster.broker_address,
            17,
            {
                "topic": "new",
                "defaultTopic": "TBW102",
                "readQueueNums": "1",
                "writeQueueNums": "1",
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            },
        )
        assert_readable(cluster, acked)
        assert cluster.broker_process.alive
    wait_until(lambda: writable_again(cluster, acked, 9000), what="the broker writes again")
    assert_readable(cluster, acked)


def test_a_broker_killed_on_a_full_disk_serves_reads_and_accepts_sends_when_there_is_space(
    cluster: Cluster, disk: Path
) -> None:
    acked: dict[int, int] = {}
    for number in range(20):
        assert writable_again(cluster, acked, number)
    with filled(disk):
        send_until_refused(cluster, acked, 100)
        cluster.kill_broker()
        cluster.start_broker()
        assert_readable(cluster, acked)
        assert_refused_for_space(send(cluster, 8000))
    wait_until(lambda: writable_again(cluster, acked, 9000), what="the broker writes again")
    assert_readable(cluster, acked)


def test_a_broker_stops_on_a_full_disk_and_keeps_what_it_acknowledged(cluster: Cluster, disk: Path) -> None:
    """The tables cannot be written then, but the store is closed cleanly."""
    acked: dict[int, int] = {}
    for number in range(20):
        assert writable_again(cluster, acked, number)
    with filled(disk):
        send_until_refused(cluster, acked, 100)
        assert_readable(cluster, acked)  # creates the consumer group
        offset = {"consumerGroup": "full-group", "topic": TOPIC, "queueId": "0", "commitOffset": "3"}
        assert call(cluster.broker_address, 15, offset).code == SUCCESS
        assert cluster.stop_broker() == 0
        assert " stopped" in cluster.broker_process.output()
        assert "is closed" in cluster.broker_process.output(), "the store"
    cluster.start_broker()
    wait_until(lambda: writable_again(cluster, acked, 9000), what="the broker writes again")
    assert_readable(cluster, acked)


def test_a_start_on_a_full_disk_frees_space_as_a_running_broker_does(cluster: Cluster, disk: Path) -> None:
    """It serves what it has. Old messages are removed if `cleanFileForciblyEnable` says so, and no others."""
    acked: dict[int, int] = {}
    for number in range(150):  # two whole log files and a part of the third
        assert writable_again(cluster, acked, number)
    assert cluster.stop_broker() == 0
    log_files = sorted((disk / "store" / "commitlog").iterdir())
    with filled(disk):
        cluster.start_broker()
        assert_readable(cluster, acked)
        assert log_files[0].exists()
        assert cluster.stop_broker() == 0
        cluster.broker_settings["cleanFileForciblyEnable"] = True
        cluster.start_broker()
        wait_until(lambda: send(cluster, 9000).code == SUCCESS, what="the broker accepts messages")
    assert not log_files[0].exists()
