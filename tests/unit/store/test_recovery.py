"""Opening what a stop, a kill or a damaged disk left: the longest sound prefix of the log, and queues that
agree with it."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from epochmq_broker.store import MessageStore, PutStatus
from epochmq_broker.store.consume_queue import UNIT
from tests.unit.store.support import (
    LOG_FILE,
    QUEUE_FILE,
    Message,
    crash,
    index_contents,
    opened,
    put,
    put_all,
    read_log,
    small,
    some_messages,
    tree,
)


def rebuilt(directory: Path, to: Path) -> Path:
    """The same log with everything else built anew from it, by a store that was stopped."""
    (to / "commitlog").parent.mkdir(parents=True)
    shutil.copytree(directory / "commitlog", to / "commitlog")
    (to / "abort").write_text("1")
    store = opened(to)
    store.stop()
    return to


def check(store: MessageStore, work: Path) -> int:
    """The promises about a store just loaded; how many records it has. Stops it."""
    root = store.config.root
    kept = list(read_log(root))
    end = kept[-1].physical_offset + kept[-1].store_size if kept else max(store.min_phy_offset, 0)
    assert store.max_phy_offset in (end, end - end % LOG_FILE + LOG_FILE)
    seen: dict[tuple[str, int], int] = {}
    for found in kept:
        if found.sys_flag & 4:
            continue
        key = found.topic, found.queue_id
        assert found.queue_offset == seen.get(key, 0), "queue offsets are dense"
        seen[key] = found.queue_offset + 1
        unit = store.queue(*key).unit(found.queue_offset)
        assert unit is not None
        assert unit[:2] == (found.physical_offset, found.store_size)
    assert {key: queue.max_offset for key, queue in store.queues.items() if queue.max_offset} == seen
    # It goes on where it ended, also after the next start.
    before = {key: queue.max_offset for key, queue in store.queues.items()}
    put_all(store, [Message(topic="orders", body=bytes(50))])
    assert store.queue("orders", 0).max_offset == before.get(("orders", 0), 0) + 1
    store.stop()
    again = rebuilt(root, work / "rebuilt")
    ours, theirs = tree(root, "consumequeue"), tree(again, "consumequeue")
    assert {name: data for name, data in ours.items() if data} == theirs
    return len(kept)


def test_a_clean_stop_is_followed_by_a_start_that_reads_one_record(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put_all(store, some_messages(1, 60))
    end = store.max_phy_offset
    assert (tmp_path / "abort").exists()
    store.stop()
    assert not (tmp_path / "abort").exists()
    store = MessageStore(store.config)
    found = store.load()
    assert (found.clean, found.end) == (True, end)
    assert found.records <= 10  # the last queued record, and the half messages behind it
    assert check(store, tmp_path / "w") == 60


def test_files_of_a_stopped_store_do_not_change_by_opening_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put_all(store, some_messages(2, 60))
    store.stop()
    before = {folder: tree(tmp_path, folder) for folder in ("commitlog", "consumequeue", "index")}
    opened(tmp_path).stop()
    assert {folder: tree(tmp_path, folder) for folder in ("commitlog", "consumequeue", "index")} == before


def test_what_a_kill_leaves_is_all_there(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    put_all(store, some_messages(3, 60))
    left = crash(store, tmp_path / "b")
    store.stop()
    assert check(opened(left), tmp_path / "w") == 60


def test_index_files_are_built_again_after_a_kill(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    put_all(store, some_messages(4, 60))
    left = crash(store, tmp_path / "b")
    store.stop()
    again = opened(left)
    again.stop()
    assert index_contents(left) == index_contents(tmp_path / "a")


@pytest.mark.parametrize(
    ("lost", "clean"),
    [
        *((lost, clean) for lost in ("consumequeue", "checkpoint", "index") for clean in (True, False)),
        # After a clean stop single queues are believed, as in Java.
        ("consumequeue/orders", False),
        ("consumequeue/payments/2", False),
    ],
)
def test_what_is_lost_beside_the_log_is_built_again(tmp_path: Path, lost: str, clean: bool) -> None:
    store = opened(tmp_path / "a")
    put_all(store, some_messages(5, 60))
    left = crash(store, tmp_path / "b")
    store.stop()
    if clean:
        left = tmp_path / "a"
    path = left / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert check(opened(left), tmp_path / "w") == 60


@pytest.mark.parametrize("clean", [True, False])
def test_without_a_log_the_queues_are_emptied(tmp_path: Path, clean: bool) -> None:
    store = opened(tmp_path)
    put_all(store, some_messages(6, 20))
    store.stop()
    shutil.rmtree(tmp_path / "commitlog")
    if not clean:
        (tmp_path / "abort").write_text("1")
    store = opened(tmp_path)
    assert store.max_phy_offset == 0
    assert all(queue.max_offset == 0 for queue in store.queues.values())
    assert put(store, Message())[1:3] == (0, 0)
    store.stop()


def test_empty_last_files_are_removed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put_all(store, some_messages(7, 30))
    store.stop()
    files = sorted((tmp_path / "commitlog").iterdir())
    (tmp_path / "commitlog" / f"{int(files[-1].name) + LOG_FILE:020d}").touch()
    queue_file = max((tmp_path / "consumequeue").glob("*/*/*"))
    (queue_file.parent / f"{int(queue_file.name) + QUEUE_FILE:020d}").touch()
    (tmp_path / "index" / "99990101000000000").touch()
    (tmp_path / "abort").write_text("1")
    assert check(opened(tmp_path), tmp_path / "w") == 30


def test_a_prepared_empty_file_behind_the_end_does_no_harm(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put_all(store, some_messages(8, 30))
    store.stop()
    last = max((tmp_path / "commitlog").iterdir())
    (last.parent / f"{int(last.name) + LOG_FILE:020d}").write_bytes(bytes(LOG_FILE))
    assert check(opened(tmp_path), tmp_path / "w") == 30


def test_the_checkpoint_spares_reading_what_is_old_and_safe(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    clock = iter(range(1_000_000, 2_000_000, 10))
    store.appender._clock = lambda: next(clock)
    put_all(store, some_messages(9, 80))
    store.checkpoint.physic_msg_timestamp = store.checkpoint.logics_msg_timestamp = (
        1_000_000_000 + 40 * 10_000
    )
    store.checkpoint.store()
    left = crash(store, tmp_path / "b")
    store.stop()
    again = MessageStore(small(left))
    found = again.load()
    assert 0 < found.start < found.end
    assert found.start % LOG_FILE == 0
    assert 40 <= found.records < 60
    assert check(again, tmp_path / "w") == 80


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_cut_or_garbled_the_longest_sound_prefix_stays(tmp_path: Path, seed: int) -> None:
    """A kill, then damage to the files: the log cut or overwritten anywhere from a record's start on,
    queues and index cut, garbled or removed. What is in front of the damage stays, what is behind is gone
    for good."""
    rng = random.Random(seed)
    store = opened(tmp_path / "a")
    done = put_all(store, some_messages(seed, rng.randrange(1, 60)))
    left = crash(store, tmp_path / "b")
    store.stop()
    place = rng.randrange(store_end := done[-1][1] + done[-1][3])
    victim = next(at for at in reversed(done) if at[1] <= place)
    kind = rng.choice(["zero", "garbage", "cut", "flip"])
    if kind == "flip":
        # A bit of size, magic or physical offset; others in front of the body nothing vouches for.
        place = victim[1] + rng.choice([*range(8), *range(28, 36)])
    _damage_log(left, place, kind, rng, store_end)
    _damage_others(left, rng)
    again = opened(left)
    kept = check(again, tmp_path / "w")
    assert kept >= done.index(victim), "nothing in front of the damage is lost"


def _damage_log(root: Path, place: int, kind: str, rng: random.Random, end: int) -> None:
    """Spoils the log from this physical offset on."""
    start = place - place % LOG_FILE
    path = root / "commitlog" / f"{start:020d}"
    data = bytearray(path.read_bytes())
    at = place - start
    if kind == "zero":
        data[at:] = bytes(LOG_FILE - at)
    elif kind == "garbage":
        data[at:] = rng.randbytes(LOG_FILE - at)
    elif kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    if kind == "cut":
        path.write_bytes(data[:at].ljust(LOG_FILE, b"\0"))
    if kind != "flip":
        for later in range(start + LOG_FILE, end, LOG_FILE):
            (root / "commitlog" / f"{later:020d}").unlink()


def _damage_others(root: Path, rng: random.Random) -> None:
    """Spoils some of what is built from the log, as lost pages would: zeros from some page on."""
    for path in sorted((root / "consumequeue").rglob("*")):
        if path.is_file() and rng.random() < 0.3:
            data = path.read_bytes()
            at = rng.randrange(len(data) + 1)
            path.write_bytes(data[:at].ljust(len(data), b"\0"))
    for path in sorted((root / "index").iterdir()):
        if rng.random() < 0.3:
            path.write_bytes(rng.randbytes(path.stat().st_size))


def test_a_flipped_bit_in_a_body_ends_the_log_there(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    done = put_all(store, [Message(body=bytes(100))] * 10)
    left = crash(store, tmp_path / "b")
    store.stop()
    path = left / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[done[6][1] + 100] ^= 4
    path.write_bytes(data)
    again = opened(left)
    assert again.max_phy_offset == done[6][1]
    assert again.queue("orders", 0).max_offset == 6
    again.stop()
    # Nothing of the tail is left to come back when new records end where an old one began.
    assert path.read_bytes()[done[6][1] :].strip(b"\0") == b""


def test_a_stale_tail_never_comes_back(tmp_path: Path) -> None:
    """The same sizes again after a cut: new records end exactly where old ones began, in log and queue."""
    store = opened(tmp_path / "a")
    done = put_all(store, [Message(body=b"old" * 10)] * 20)
    store.truncate(done[5][1])
    put_all(store, [Message(body=b"new" * 10)] * 3)
    left = crash(store, tmp_path / "b")
    store.stop()
    again = opened(left)
    assert again.queue("orders", 0).max_offset == 8
    assert [found.body[:3] for found in read_log(left)] == [b"old"] * 5 + [b"new"] * 3
    again.stop()


def test_a_second_kill_during_recovery_changes_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    put_all(store, some_messages(11, 50))
    left = crash(store, tmp_path / "b")
    store.stop()
    first = opened(left)
    second = crash(first, tmp_path / "c")
    first.stop()
    assert check(opened(second), tmp_path / "w") == 50


def test_queues_of_topics_no_folder_can_have_are_left_out(tmp_path: Path) -> None:
    """A damaged record may carry any topic; it must not make a folder outside of the store."""
    store = opened(tmp_path / "a")
    put_all(store, [Message(topic="xxxxxx")] * 2)
    left = crash(store, tmp_path / "b")
    store.stop()
    path = left / "commitlog" / ("0" * 20)
    path.write_bytes(path.read_bytes().replace(b"xxxxxx", b"../../"))
    shutil.rmtree(left / "consumequeue")
    again = opened(left)
    assert again.lookup.topics() == set()
    assert put(again, Message())[0] is PutStatus.PUT_OK
    again.stop()


def test_a_start_after_a_clean_stop_reads_little_of_each_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many units it has, and however large its files are."""
    sizes: dict[str, Any] = {
        "mapped_file_size_consume_queue": 20 * 300_000,
        "mapped_file_size_commit_log": 8 << 20,
        "message_index_enable": False,
    }
    store = opened(tmp_path, **sizes)
    counts = [1, 203, 204, 205, 20_000]
    for queue_id, count in enumerate(counts):
        put_all(store, [Message(queue_id=queue_id, body=b"", properties={})] * count)
    store.stop()
    read: list[int] = []
    pread = os.pread

    def counted(fd: int, size: int, at: int) -> bytes:
        data = pread(fd, size, at)
        if "consumequeue" in Path(f"/proc/self/fd/{fd}").readlink().parts:
            read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counted)
    store = opened(tmp_path, **sizes)
    assert [store.queue("orders", queue_id).max_offset for queue_id in range(5)] == counts
    assert sum(read) <= 5 * (4096 + 40 * 20)
    unit = store.queue("orders", 4).unit(19_999)
    assert unit is not None
    assert store.queue("orders", 4).max_physical == unit[0] + unit[1] == store.max_phy_offset
    store.stop()


def test_units_that_rocketmq_left_behind_a_cut_are_not_taken_for_the_queue(tmp_path: Path) -> None:
    """RocketMQ cuts by moving positions. After it has had the directory, the end is looked for unit by
    unit."""
    store = opened(tmp_path, mapped_file_size_consume_queue=20 * 100)
    done = put_all(store, [Message(body=b"")] * 20)
    store.stop()
    path = tmp_path / "consumequeue" / "orders" / "0" / ("0" * 20)
    data = bytearray(path.read_bytes())
    stale = b"".join(UNIT.pack(at, size, 0) for _, at, _, size in done[:10])
    data[20 * 20 : 20 * 20 + len(stale)] = stale
    path.write_bytes(data)
    (tmp_path / "lock").write_bytes(b"lock")  # as RocketMQ does when it opens the directory
    store = opened(tmp_path, mapped_file_size_consume_queue=20 * 100)
    assert store.queue("orders", 0).max_offset == 20
    store.stop()


@pytest.mark.parametrize("clean", [True, False])
def test_an_unreadable_sector_stops_the_start_with_its_place_and_leaves_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: bool
) -> None:
    """Read through a mapping it would end the process; taken for the end of the log it would cut the log."""
    store = opened(tmp_path / "a")
    done = put_all(store, [Message(body=bytes(100))] * 20)
    left = crash(store, tmp_path / "b")
    store.stop()
    left = tmp_path / "a" if clean else left
    path = left / "commitlog" / ("0" * 20)
    before = path.read_bytes()
    bad = done[-1][1] + 10
    pread = os.pread

    def unreadable(fd: int, size: int, at: int) -> bytes:
        if Path(f"/proc/self/fd/{fd}").readlink() == path and at <= bad < at + size:
            raise OSError(errno.EIO, "Input/output error")
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", unreadable)
    for _ in range(2):
        with pytest.raises(OSError, match="cannot be read between"):
            opened(left)
        assert path.read_bytes() == before
    monkeypatch.setattr(os, "pread", pread)
    assert check(opened(left), tmp_path / "w") == 20
