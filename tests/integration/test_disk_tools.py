"""The tools of power cuts and disk faults: clones that hold what had reached the device, a file system that
fails on command, the removal of what killed runs left, and checks that notice a loss."""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochmq_protocol.message import MessageExt
from tests.integration.ack_checks import Ack
from tests.integration.disks import images, run_directory
from tests.integration.disks.ack_ledger import LossReport, is_stored
from tests.integration.disks.disk_faults import MASTER, FaultObservation
from tests.integration.disks.disk_results import DiskResults
from tests.integration.disks.faulty_volume import FaultyCall, FaultyVolume
from tests.integration.disks.power_cuts import ALL, ONE, PowerCut
from tests.integration.disks.run_directory import RunDirectory
from tests.support.freeze import freeze
from tests.support.process import ManagedProcess, wait_until

PAGE = 4096


def test_several_runs_add_their_results_to_one_pair_of_files(tmp_path: Path) -> None:
    fault = FaultObservation("EIO", MASTER, felt=3).plain()
    lost = PowerCut("power of all six", 7, LossReport(10))
    first = DiskResults(tmp_path, None)
    first.add_run("first", 1)
    first.faults = [fault]
    first.cuts[ALL] = [lost.plain()]
    _, old = first.save()
    assert first.are_good()
    old = old.rename(tmp_path / "disk-faults-2020-01-01.json")
    second = DiskResults(tmp_path, old)
    second.add_run("second", 2)
    lost.loss_report.acknowledged, lost.findings = 5, ["damaged"]
    second.cuts[ALL].append(lost.plain())
    second.cuts[ONE] = [lost.plain()]
    as_markdown, as_json = second.save()
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".md"]
    assert not second.are_good()
    data = json.loads(as_json.read_text())
    assert [run["command"] for run in data["runs"]] == ["first", "second"]
    assert data["faults"] == [fault]
    assert {scope: len(rounds) for scope, rounds in data["cuts"].items()} == {ALL: 2, ONE: 1}
    text = as_markdown.read_text()
    assert "| SYNC_FLUSH | 2 | 15 | 0 | 0 | 0 | 1 | 0 |" in text
    assert "| EIO, master | 3 calls |" in text


# Power cuts -------------------------------------------------------------------------------------------------


@pytest.fixture
def pool() -> Iterator[images.ImagePool]:
    if (lacks := images.missing()) is not None:
        pytest.skip(f"missing: {lacks}")
    with RunDirectory() as directory:
        yield images.ImagePool(directory)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_power_cut_keeps_synced_bytes_and_loses_others(
    pool: images.ImagePool, tmp_path: Path, kind: str
) -> None:
    volume = pool.volume("one", tmp_path / "disk", kind)
    path = volume.mount_point / "file"
    path.write_bytes(bytes(4 * PAGE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4 * PAGE) as mapped:
        os.fsync(file.fileno())
        mapped[:3] = b"old"
        mapped.flush()
        mapped[:3] = b"new"
        mapped[PAGE : PAGE + 3] = b"new"
        (volume.mount_point / "unsynced name").touch()
        clone = volume.clone()
        mapped.flush()
    volume.replace_by_clone(clone)
    assert path.read_bytes() == b"old" + bytes(4 * PAGE - 3)
    assert [entry.name for entry in volume.mount_point.iterdir() if "name" in entry.name] == []
    volume.close()


def test_a_power_cut_changes_only_the_boot_id_in_the_abort_file(
    pool: images.ImagePool, tmp_path: Path
) -> None:
    volume = pool.volume("one", tmp_path / "disk")
    abort = volume.mount_point / "abort"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    abort.write_text(f"77\n{boot}\nmore")
    with abort.open("rb") as file:
        os.fsync(file.fileno())
    inode = abort.stat().st_ino
    volume.replace_by_clone(volume.clone())
    lines = abort.read_text().splitlines()
    assert (lines[0], lines[2:], abort.stat().st_ino) == ("77", ["more"], inode)
    assert lines[1] != boot
    assert len(lines[1]) == len(boot)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_power_cut_succeeds_while_another_program_has_a_copy_of_the_mounts(
    pool: images.ImagePool, tmp_path: Path, kind: str
) -> None:
    volume = pool.volume("one", tmp_path / "disk", kind)
    device = volume.mount_point.stat().st_dev
    command = ["unshare", "--mount", "--propagation", "private", "sleep", "600"]
    other = ManagedProcess(command, name="other", directory=tmp_path / "other")
    other.start()
    try:
        mounts = Path("/proc", str(other.pid), "ns/mnt")
        wait_until(lambda: mounts.readlink() != Path("/proc/self/ns/mnt").readlink(), what="it has its own")
        volume.replace_by_clone(volume.clone())
        assert volume.mount_point.stat().st_dev == device
        volume.close()
    finally:
        other.kill()


_COUNT = "import sys\nwhile True: sys.stdout.write('x'); sys.stdout.flush()"


def test_frozen_processes_write_nothing(tmp_path: Path) -> None:
    process = ManagedProcess([sys.executable, "-c", _COUNT], name="writer", directory=tmp_path)
    process.start()
    try:
        wait_until(lambda: process.output_path.stat().st_size > 100, what="it writes")
        freeze([process])
        size = process.output_path.stat().st_size
        time.sleep(0.1)  # asserts that nothing happens, so there is no condition to wait for
        assert process.output_path.stat().st_size == size
        process.signal(signal.SIGCONT)
        wait_until(lambda: process.output_path.stat().st_size > size, what="it writes again")
    finally:
        process.kill()


_LEAVE = """
import os, signal, sys
from pathlib import Path
from tests.integration.disks.images import ImagePool
from tests.integration.disks.run_directory import RunDirectory, command
import subprocess
run = RunDirectory()
volume = ImagePool(run).volume("one", Path(sys.argv[1]))
user = ["sh", "-c", "echo ready; exec sleep 1000"]
subprocess.Popen(command(user), cwd=volume.mount_point, stdout=subprocess.PIPE).stdout.readline()
print(run.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_mounts_of_a_killed_run_are_removed_by_the_next_one(
    pool: images.ImagePool, tmp_path: Path
) -> None:
    mount_point = tmp_path / "left"
    done = subprocess.run(
        [sys.executable, "-c", _LEAVE, str(mount_point)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
        check=False,
    )
    assert done.returncode == -9
    left = Path(done.stdout.strip())
    run_directory.remove_ended_runs()
    assert not left.exists()
    assert not mount_point.is_mount()
    assert str(left) not in Path("/proc/self/mountinfo").read_text()
    assert pool.path.is_mount(), "a running run keeps its mounts"


# A file system that fails -----------------------------------------------------------------------------------


def fails(number: int) -> pytest.RaisesExc[OSError]:
    """Expects a call to raise this error."""
    return pytest.raises(OSError, check=lambda error: error.errno == number)


def test_writes_reach_the_directory_behind_the_file_system(volume: FaultyVolume) -> None:
    path = volume.mount_point / "folder" / "file"
    path.parent.mkdir()
    with path.open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, 3 * PAGE)
        file.write(b"written")
        file.flush()
        with mmap.mmap(file.fileno(), 3 * PAGE) as mapped:
            mapped[PAGE : PAGE + 6] = b"mapped"
            os.fsync(file.fileno())
    path.rename(path.with_name("renamed"))
    found = (volume.directory / "folder" / "renamed").read_bytes()
    assert (len(found), found[:7], found[PAGE : PAGE + 6]) == (3 * PAGE, b"written", b"mapped")
    assert list(volume.mount_point.iterdir()) == [path.parent]
    assert list(path.parent.iterdir()) == [path.with_name("renamed")]
    assert volume.affected_calls == 0


def test_calls_fail_on_command_and_only_for_the_named_files(volume: FaultyVolume) -> None:
    with (volume.mount_point / "some").open("w+b", buffering=0) as some, (
        volume.mount_point / "other"
    ).open("w+b", buffering=0) as other:  # fmt: skip
        volume.fail(FaultyCall.WRITE | FaultyCall.SYNC | FaultyCall.ALLOCATE, match="some")
        for call in (
            lambda: some.write(b"x"),
            lambda: os.fsync(some.fileno()),
            lambda: os.posix_fallocate(some.fileno(), 0, PAGE),
            lambda: some.truncate(PAGE),
        ):
            with fails(errno.EIO):
                call()
        assert volume.affected_calls == 4
        other.write(b"x")
        os.fsync(other.fileno())
        volume.fail(FaultyCall.OPEN | FaultyCall.NAMES, error=errno.EROFS)
        with fails(errno.EROFS):
            (volume.mount_point / "new").open("wb")
        with fails(errno.EROFS):
            (volume.mount_point / "some").rename(volume.mount_point / "else")
        volume.heal()
        some.write(b"x")
        os.fsync(some.fileno())


def test_a_mapped_page_that_cannot_be_written_back_fails_the_sync(volume: FaultyVolume) -> None:
    with (volume.mount_point / "file").open("w+b", buffering=0) as file:
        file.truncate(PAGE)
        with mmap.mmap(file.fileno(), PAGE) as mapped:
            volume.fail(FaultyCall.WRITE)
            mapped[0] = 1
            with fails(errno.EIO):
                os.fsync(file.fileno())
            volume.heal()


def test_space_is_limited_until_files_are_deleted(volume: FaultyVolume) -> None:
    volume.fail(room=16 * PAGE)
    with (volume.mount_point / "first").open("w+b", buffering=0) as first:
        os.posix_fallocate(first.fileno(), 0, 12 * PAGE)
        first.write(bytes(12 * PAGE))
    with (volume.mount_point / "second").open("w+b", buffering=0) as second:
        with fails(errno.ENOSPC):
            os.posix_fallocate(second.fileno(), 0, 8 * PAGE)
        with fails(errno.ENOSPC):
            second.write(bytes(8 * PAGE))
        second.write(bytes(PAGE))
        (volume.mount_point / "first").unlink()
        os.posix_fallocate(second.fileno(), 0, 8 * PAGE)


def test_writes_are_short_and_syncs_are_slow_on_command(volume: FaultyVolume) -> None:
    with (volume.mount_point / "file").open("w+b", buffering=0) as file:
        volume.fail(write_max=1000)
        assert file.write(bytes(PAGE)) == 1000
        volume.fail(sync_s=0.2)
        began = time.monotonic()
        os.fsync(file.fileno())
        assert time.monotonic() - began >= 0.2


_TOUCH = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[int(sys.argv[2])]
"""


def test_a_read_fails_at_the_given_offset_also_through_a_mapping(volume: FaultyVolume) -> None:
    path = volume.mount_point / "file"
    path.write_bytes(bytes(64 * PAGE))
    volume.fail(FaultyCall.READ, read=(40 * PAGE, 41 * PAGE))
    volume.forget(Path("file"))
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # without read-ahead
        assert os.pread(file.fileno(), PAGE, 0) == bytes(PAGE)
        with fails(errno.EIO):
            os.pread(file.fileno(), PAGE, 40 * PAGE)
    touched = subprocess.run([sys.executable, "-c", _TOUCH, str(path), str(40 * PAGE)], check=False)
    assert touched.returncode == -signal.SIGBUS
    volume.heal()
    assert path.read_bytes() == bytes(64 * PAGE)


# The checks -------------------------------------------------------------------------------------------------


def test_a_message_counts_as_stored_only_where_and_as_it_was_acknowledged() -> None:
    queue = [MessageExt(topic="orders", body=b"one", queue_offset=0, physical_offset=100)]
    good = Ack(b"one", 0, 0, 100, 1.0, 2.0, "a")
    assert is_stored([queue], good)
    for body, offset, position in ((b"two", 0, 100), (b"one", 1, 100), (b"one", 0, 101)):
        assert not is_stored([queue], Ack(body, 0, offset, position, 1.0, 2.0, "a"))
