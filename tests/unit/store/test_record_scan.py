"""The scan of the commit log finds every broken record, names its range, and finds the records behind it."""

from __future__ import annotations

import itertools
import os
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from epochmq_protocol import record_layout
from epochmq_protocol.message_const import BLANK_MAGIC
from epochmq_store.files.mapped_file import PAGE_BYTES, MappedFile
from epochmq_store.files.page_residency import resident_pages
from epochmq_store.log.damaged_ranges import RANGES_MAX, DamagedRange, DamagedRanges
from epochmq_store.log.record_checks import check_records
from epochmq_store.log.record_scan import READ_BYTES, RecordScan
from epochmq_store.log.scanned_unit import ScannedUnit
from epochmq_store.message_store import MessageStore
from tests.unit.store.support import Message, open_store, put_all, random_messages

FILE_BYTES = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """A log with a full file of small, large and IPv6 records, and a second one."""
    opened = open_store(tmp_path, mapped_file_size_commit_log=FILE_BYTES, max_message_size=400_000)
    messages = random_messages(7, 1200)
    messages.insert(100, Message(body=random.Random(1).randbytes(300_000)))
    messages.insert(900, Message(body=b"\0" * 300_000))
    put_all(opened, messages)
    assert len(opened.log.files.files) == 2
    yield opened
    opened.stop()


def starts_of(file: MappedFile) -> list[int]:
    """The positions of the records of a file."""
    found, at = [], 0
    while True:
        size, magic = record_layout.SIZE_AND_MAGIC.unpack_from(file.map, at)
        found.append(at)
        if magic == BLANK_MAGIC:
            return found
        at += size


def scan(file: MappedFile, start: int = 0, until: int | None = None) -> ScannedUnit:
    run = RecordScan(
        file.path,
        file.start,
        file.size,
        file.start + start,
        file.start + (file.size if until is None else until),
    )
    for _ in range(3 * file.size // READ_BYTES + 10):
        found = run.step()
        if found is not None:
            return found
    raise AssertionError("the scan does not end")


def flip(file: MappedFile, position: int, bit: int = 0) -> None:
    """Flips a bit of the file on the disk."""
    file.write(position, memoryview(bytes([file.map[position] ^ 1 << bit])))


def test_a_healthy_file_has_no_damage_and_its_pieces_have_its_checksums(store: MessageStore) -> None:
    file = store.log.files.files[0]
    found = scan(file)
    assert (found.start, found.end, found.damaged) == (0, file.size, ())
    starts = starts_of(file)
    assert found.pieces[0].start == 0
    assert found.pieces[-1].end == starts[-1] + record_layout.BLANK_BYTES
    for before, after in zip(found.pieces, found.pieces[1:], strict=False):
        assert before.end == after.start
        assert before.end in starts
    for piece in found.pieces:
        data = file.map[piece.start : piece.end]
        assert piece.crc == zlib.crc32(data)
        assert check_records(data, piece.start, file.size) == ""


def test_units_join_at_record_boundaries(store: MessageStore) -> None:
    file = store.log.files.files[0]
    whole, at, pieces = scan(file), 0, []
    while at < file.size:
        unit = scan(file, at, min(at + 100_000, file.size))
        assert unit.start == at
        assert unit.end > at
        assert not unit.damaged
        at = unit.end
        pieces += list(unit.pieces)
    assert pieces[0].start == 0
    assert pieces[-1].end == whole.pieces[-1].end


FIELDS: dict[str, Callable[[int], int]] = {
    "size": lambda at: at + 3,
    "size, a high byte": lambda at: at,
    "magic": lambda at: at + record_layout.MAGIC_AT + 1,
    "body checksum": lambda at: at + record_layout.BODY_CRC_AT,
    "physical offset": lambda at: at + record_layout.PHYSICAL_OFFSET_AT + 7,
    "body": lambda at: at + record_layout.HEAD_BYTES + 20,
}


@pytest.mark.long
@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("number", [0, 50, 100, 500])
def test_a_flipped_bit_damages_its_record_alone(store: MessageStore, name: str, number: int) -> None:
    file = store.log.files.files[0]
    starts = starts_of(file)
    while starts[number + 1] - starts[number] < 300:  # with a body
        number += 1
    flip(file, FIELDS[name](starts[number]))
    found = scan(file)
    assert [(one.start, one.end) for one in found.damaged] == [(starts[number], starts[number + 1])]
    assert found.end == file.size
    covered = sorted([(p.start, p.end) for p in found.pieces] + [(d.start, d.end) for d in found.damaged])
    assert covered[0][0] == 0
    assert all(a[1] == b[0] for a, b in itertools.pairwise(covered))
    data = file.map[starts[number] : starts[number + 1]]
    assert check_records(data, starts[number], file.size) != ""


def test_the_last_record_before_a_blank_one_and_the_blank_record_are_checked(store: MessageStore) -> None:
    file = store.log.files.files[0]
    *_, last, blank = starts_of(file)
    flip(file, last + record_layout.PHYSICAL_OFFSET_AT)
    assert [(one.start, one.end) for one in scan(file).damaged] == [(last, blank)]
    flip(file, blank)
    assert [(one.start, one.end) for one in scan(file).damaged] == [(last, file.size)]


def test_a_zeroed_region_is_one_damaged_range_up_to_the_next_record(store: MessageStore) -> None:
    file = store.log.files.files[0]
    starts = starts_of(file)
    file.write(starts[40] + 10, memoryview(bytes(starts[60] - starts[40])))
    (found,) = scan(file).damaged
    assert (found.start, found.end) == (starts[40], starts[61])


def test_damage_at_the_end_of_a_unit_extends_the_unit_to_the_next_record(store: MessageStore) -> None:
    file = store.log.files.files[0]
    starts = starts_of(file)
    flip(file, starts[50] + record_layout.MAGIC_AT)
    unit = scan(file, 0, starts[50] + 1)
    assert unit.end == starts[51]
    assert unit.damaged[0].end == starts[51]


def test_unreadable_pages_are_damage(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    file = store.log.files.files[0]
    starts = starts_of(file)
    bad_page = starts[300] // PAGE_BYTES * PAGE_BYTES
    real = os.pread

    def pread(fd: int, size: int, at: int) -> bytes:
        if at < bad_page + PAGE_BYTES and bad_page < at + size:
            raise OSError(5, "Input/output error")
        return real(fd, size, at)

    def preadv(fd: int, buffers: object, at: int, flags: int = 0) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(os, "preadv", preadv)
    (found,) = scan(file).damaged
    assert "cannot be read" in found.fault
    first = max(one for one in starts if one <= bad_page)
    last = min(one for one in starts if one >= bad_page + PAGE_BYTES)
    assert (found.start, found.end) == (first, last)


@pytest.mark.long
def test_random_damage_is_found_and_never_more_than_the_records_that_it_touches(store: MessageStore) -> None:
    file = store.log.files.files[0]
    starts = starts_of(file)
    rng = random.Random(3)
    original = bytes(file.map)
    for _ in range(60):
        at = rng.randrange(starts[-1])
        size = rng.choice([1, 1, 1, 40, 5000, 140_000])
        noise = rng.randbytes(min(size, file.size - at))
        file.write(at, memoryview(noise))
        damaged = scan(file).damaged
        first = max(one for one in starts if one <= at)
        last = min([one for one in [*starts, file.size] if one >= at + len(noise)], default=file.size)
        for one in damaged:
            assert first <= one.start < one.end <= last
        file.write(0, memoryview(original))
    assert scan(file).damaged == ()


SCANS = 5


@pytest.mark.fsync
def test_a_scan_leaves_the_page_cache_as_it_was(store: MessageStore) -> None:
    file = store.log.files.files[0]
    copy = file.path.with_name("copy")
    copy.write_bytes(bytes(file.map))
    mapped = MappedFile(copy, 0, file.size, keep_fd=True)
    try:
        os.fsync(mapped.fd)
        os.posix_fadvise(mapped.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if any(resident_pages(mapped)):
            pytest.skip("this file system keeps all pages in memory")
        os.posix_fadvise(mapped.fd, 0, 0, os.POSIX_FADV_RANDOM)  # without read-ahead
        left = []
        for _ in range(SCANS):
            os.posix_fadvise(mapped.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.pread(mapped.fd, READ_BYTES, 0)
            scan(mapped)
            pages = resident_pages(mapped)
            assert all(pages[: READ_BYTES // PAGE_BYTES]), "pages that were in memory were dropped"
            left.append(sum(pages) * PAGE_BYTES)
        # POSIX_FADV_DONTNEED is advice: the kernel keeps pages that wait in another core's batch.
        assert min(left) <= 3 * READ_BYTES, "each scan filled the page cache"
    finally:
        mapped.close()
        copy.unlink()


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RecordScan(tmp_path / "none", 0, 100, 0, 100).step()


# The ranges that are known to be damaged


def damage(start: int, end: int, *, repairable: bool = True) -> DamagedRange:
    return DamagedRange(start, end, "a fault", repairable)


def test_a_second_check_replaces_what_is_known_of_its_range() -> None:
    ranges = DamagedRanges()
    assert not ranges
    assert ranges.replace_within(0, 100, [damage(10, 20), damage(50, 60)]) == [damage(10, 20), damage(50, 60)]
    assert ranges.replace_within(0, 40, [damage(10, 20)]) == [], "it was known before"
    assert ranges.total_bytes == 20
    assert ranges.replace_within(100, 200, [damage(150, 151)]) == [damage(150, 151)]
    assert ranges.replace_within(0, 100, []) == []
    assert list(ranges.ranges) == [damage(150, 151)]


def test_the_first_damage_of_a_range_is_found() -> None:
    ranges = DamagedRanges()
    ranges.replace_within(0, 100, [damage(10, 20), damage(50, 60, repairable=False), damage(80, 90)])
    assert ranges.first_within(0, 10) is None
    assert ranges.first_within(19, 100) == damage(10, 20)
    assert ranges.first_within(20, 100) == damage(50, 60, repairable=False)
    assert ranges.first_broken_within(20, 100) == damage(80, 90)
    assert ranges.first_broken_within(20, 80) is None
    assert ranges.first_within(90, 200) is None


def test_damage_of_expired_and_truncated_bytes_is_forgotten() -> None:
    ranges = DamagedRanges()
    ranges.replace_within(0, 100, [damage(10, 20), damage(50, 60), damage(80, 90)])
    ranges.forget_before(50)
    ranges.forget_from(80)
    assert list(ranges.ranges) == [damage(50, 60)]


def test_very_many_ranges_are_merged() -> None:
    ranges = DamagedRanges()
    found = [damage(10 * n, 10 * n + 1) for n in range(RANGES_MAX + 5)]
    ranges.replace_within(0, 10 * len(found), found)
    assert len(ranges.ranges) == RANGES_MAX
    assert ranges.ranges[-1].end == found[-1].end


def scan_before(file: MappedFile, end: int) -> ScannedUnit:
    """A scan that reads nothing from the position `end` of the file on."""
    run = RecordScan(file.path, file.start, file.size, file.start, file.start + end, end=file.start + end)
    for _ in range(file.size // READ_BYTES + 10):
        unit = run.step()
        if unit is not None:
            return unit
    raise AssertionError("the scan has no end")


@pytest.mark.long
def test_a_scan_ends_before_the_record_that_its_end_cuts(store: MessageStore) -> None:
    file = store.log.files.files[0]
    starts = starts_of(file)
    for first, following in itertools.pairwise([*starts[-40:], file.size]):
        for end in {first, first + 1, first + 7, first + 30, (first + following) // 2, following}:
            unit = scan_before(file, end)
            assert unit.damaged == ()
            assert unit.end - file.start == (following if end == following else first)


def test_a_record_that_claims_to_reach_past_the_end_is_broken_if_others_follow_it(
    store: MessageStore,
) -> None:
    file = store.log.files.files[0]
    starts = starts_of(file)
    first, following, end = starts[10], starts[11], starts[40]
    file.write(first, memoryview((end - first + 100).to_bytes(4, "big")))
    unit = scan_before(file, end)
    assert [(one.start, one.end) for one in unit.damaged] == [(file.start + first, file.start + following)]
    assert unit.end == file.start + end
