"""A hundred damages that a reader drew who had not seen the other tests of the audit. Each is done to one of
the groups of `drawn_groups`, mostly to the replica b, and says where the audit must find it.

Some leave no trace: bytes that no checksum covers and that are equal in all replicas, or a state that a
broker may leave, too. They have no kinds, and no finding is expected.

The module is longer than 600 lines because the damages are one list, as they were drawn."""

from __future__ import annotations

import json
import random
import re
import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE
from epochmq_formats.dledger_peer_files import decode_properties, encode_properties
from epochmq_protocol import fastjson
from tests.spark.damage_kit import (
    Record,
    epochs,
    epochs_with_bytes,
    messages,
    overwrite,
    records,
    replace_record,
    segments,
    write_epochs,
)

HOUR_MS = 3_600_000
MARGIN = 4096
"""How far before a damaged place the finding may begin: at the start of a record, or of a page."""


@dataclass(frozen=True)
class Place:
    """Where a damage is: the replica, and what a finding must name. `at` and `end` are offsets of the log."""

    replica: Path
    at: int | None = None
    end: int | None = None
    file: str = ""
    topic: str | None = None
    queue_id: int | None = None
    kinds: frozenset[str] = frozenset()
    """The kinds of which one must name it, if not those of the damage."""

    def is_named(self, row: dict[str, Any]) -> bool:
        """Whether a finding names this place."""
        if self.at is not None:
            start = row["start_offset"]
            stop = start if row["end_offset"] is None else row["end_offset"]
            if start is None or not self.at - MARGIN <= start < (self.end or self.at + 1):
                return False
            if start < self.at and stop <= self.at:
                return False
        if self.file and self.file not in f"{row['file']} {row['detail']}":
            return False
        if self.topic is not None and row["topic"] != self.topic:
            return False
        return self.queue_id is None or row["queue_id"] == self.queue_id


Injector = Callable[[Sequence[Path]], "Place | list[Place]"]


@dataclass(frozen=True)
class DrawnDamage:
    """A damage: the kind of group, what is done, and the kinds of which one must be found at each place."""

    group: str
    inject: Injector
    kinds: frozenset[str]
    any_replica: bool = False
    """The files do not tell which replica is wrong, so any of them may be named."""
    as_note: bool = False
    """What a broker may leave behind, too, so that a note is enough."""


DAMAGES: dict[str, DrawnDamage] = {}


def drawn(
    group: str, *kinds: str, any_replica: bool = False, as_note: bool = False
) -> Callable[[Injector], Injector]:
    """Registers a damage. Without kinds it is undecidable."""

    def register(inject: Injector) -> Injector:
        DAMAGES[inject.__name__] = DrawnDamage(group, inject, frozenset(kinds), any_replica, as_note)
        return inject

    return register


BROKEN = ("log.broken-record", "log.hole")
LOST_END = ("log.cut-below-confirmed", "message.missing", "queue.no-record")
OF_QUEUE = ("queue.missing-unit", "queue.wrong-unit", "queue.no-record")
OF_INDEX = (
    "index.broken-header",
    "index.missing-entry",
    "index.broken-chain",
    "index.missing-range",
    "index.wrong-time",
    "file.unreadable",
)


def middle(store: Path, share: float = 0.5) -> Record:
    """A message of `orders` in the log."""
    every = [one for one in messages(store) if one.message.topic == "orders" and len(one.message.body) > 30]
    return every[int(len(every) * share)]


def of(store: Path, record: Record) -> Place:
    return Place(store, record.start, record.start + record.header + record.size)


def set_in(record: Record, at: int, code: str, value: int) -> None:
    overwrite(record.path, record.at + at, struct.pack(f">{code}", value))


def add_in(path: Path, at: int, code: str, value: int) -> None:
    size = struct.calcsize(code)
    (before,) = struct.unpack(f">{code}", path.read_bytes()[at : at + size])
    overwrite(path, at, struct.pack(f">{code}", before + value))


def flip(path: Path, at: int, bit: int = 4) -> None:
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 1 << bit]))


# Records of the log


def field_of_record(name: str, at: int, code: str, value: int, *kinds: str) -> None:
    """A damage that sets a field of the head."""

    def inject(group: Sequence[Path]) -> Place:
        record = middle(group[1])
        set_in(record, at, code, value)
        return of(group[1], record)

    inject.__name__ = name
    drawn("controlled", *kinds)(inject)


field_of_record("born_time_is_zero", 40, "q", 0, "log.diverged")
field_of_record("another_reconsume_count", 72, "i", 1, "log.diverged")
field_of_record("a_plain_message_of_a_transaction", 76, "q", 77, "log.diverged")
field_of_record("store_time_of_2100_in_one_replica", 56, "q", 4_102_444_800_000, "log.diverged")


@drawn("controlled", *BROKEN)
def bit_of_a_magic(group: Sequence[Path]) -> Place:
    record = middle(group[1])
    flip(record.path, record.at + 6)
    return of(group[1], record)


@drawn("controlled", *BROKEN)
def size_one_more(group: Sequence[Path]) -> Place:
    record = middle(group[1])
    set_in(record, 0, "i", record.size + 1)
    return of(group[1], record)


@drawn("controlled", *BROKEN)
def physical_offset_8_more(group: Sequence[Path]) -> Place:
    record = middle(group[1])
    set_in(record, 28, "q", record.offset + 8)
    return of(group[1], record)


@drawn("controlled", "log.diverged")
def another_queue_id(group: Sequence[Path]) -> Place:
    record = middle(group[1])
    set_in(record, 12, "i", 1 - record.message.queue_id)
    return of(group[1], record)


@drawn("controlled", "log.diverged")
def letter_of_the_topic(group: Sequence[Path]) -> Place:
    record = middle(group[1])
    overwrite(record.path, record.at + 88 + len(record.message.body) + 1 + 5, b"t")
    return of(group[1], record)


@drawn("controlled", *BROKEN)
def length_of_the_topic(group: Sequence[Path]) -> Place:
    record = middle(group[1])
    overwrite(record.path, record.at + 88 + len(record.message.body), bytes([len("orders") + 3]))
    return of(group[1], record)


@drawn("controlled", *BROKEN)
def length_of_the_properties(group: Sequence[Path]) -> Place:
    record = middle(group[1])
    at = 88 + len(record.message.body) + 1 + len("orders")
    set_in(record, at, "h", 0x7FFF)
    return of(group[1], record)


@drawn("controlled", "record.checksum")
def bit_of_the_body_checksum(group: Sequence[Path]) -> Place:
    record = middle(group[1])
    flip(record.path, record.at + 9)
    return of(group[1], record)


def bytes_of(record: Record) -> bytearray:
    return bytearray(record.path.read_bytes()[record.at : record.at + record.size])


@drawn("controlled", "log.diverged")
def neighbours_swapped(group: Sequence[Path]) -> list[Place]:
    """Two records of one size, each with the physical offset of its new place."""
    every = messages(group[1])[100:]
    one, other = next(
        (one, other)
        for one, other in pairwise(every)
        if one.size == other.size and one.path == other.path and one.message.body != other.message.body
    )
    for record, content in ((one, bytes_of(other)), (other, bytes_of(one))):
        content[28:36] = struct.pack(">q", record.offset)
        overwrite(record.path, record.at, bytes(content))
    return [of(group[1], one), of(group[1], other)]


@drawn("controlled", "log.diverged")
def record_copied_over_another(group: Sequence[Path]) -> Place:
    every = messages(group[1])
    source = middle(group[1], 0.3)
    target = next(one for one in reversed(every[:-5]) if one.size == source.size)
    content = bytes_of(source)
    content[28:36] = struct.pack(">q", target.offset)
    overwrite(target.path, target.at, bytes(content))
    return of(group[1], target)


def blank_of(store: Path) -> tuple[Path, int, int]:
    """The blank record of the first segment: file, position, size."""
    first = segments(store)[0]
    last = [one for one in records(store) if one.path == first][-1]
    at = last.at + last.size
    return first, at, first.stat().st_size - at


@drawn("controlled", *BROKEN)
def magic_of_a_blank_record(group: Sequence[Path]) -> Place:
    path, at, size = blank_of(group[1])
    overwrite(path, at + 4, bytes(4))
    return Place(group[1], at, at + size)


@drawn("controlled", *BROKEN)
def size_of_a_blank_record(group: Sequence[Path]) -> Place:
    path, at, size = blank_of(group[1])
    overwrite(path, at, struct.pack(">i", size - 4))
    return Place(group[1], at, at + size)


@drawn("controlled", *BROKEN)
def page_of_zeros(group: Sequence[Path]) -> Place:
    path = segments(group[1])[1]
    overwrite(path, 3 * 4096, bytes(4096))
    return Place(group[1], int(path.name) + 3 * 4096, int(path.name) + 4 * 4096)


@drawn("controlled", *BROKEN, "record.checksum", "log.diverged")
def sector_of_random_bytes(group: Sequence[Path]) -> Place:
    path = segments(group[1])[1]
    overwrite(path, 40 * 512, random.Random(17).randbytes(512))
    return Place(group[1], int(path.name) + 40 * 512, int(path.name) + 41 * 512)


@drawn("controlled", *BROKEN, "message.missing")
def first_record_of_zeros(group: Sequence[Path]) -> Place:
    records(group[1])[0].erase()
    return Place(group[1], 0)


# Segments


@drawn("controlled", "file.short", *LOST_END)
def last_segment_cut_to_half_of_its_records(group: Sequence[Path]) -> Place:
    every = records(group[1])
    here = [one for one in every if one.path == every[-1].path]
    with here[0].path.open("r+b") as file:
        file.truncate(here[len(here) // 2].at)
    return Place(group[1], file=here[0].path.name)


@drawn("controlled", "file.short")
def middle_segment_without_a_byte(group: Sequence[Path]) -> Place:
    path = segments(group[1])[1]
    path.write_bytes(b"")
    return Place(group[1], file=path.name)


@drawn("controlled", "log.missing-segment", "file.foreign")
def middle_segment_renamed(group: Sequence[Path]) -> Place:
    path = segments(group[1])[1]
    path.rename(path.with_name(f"{int(path.name) + 1:020d}"))
    return Place(group[1], file=f"{int(path.name) + 1:020d}")


@drawn("controlled", "log.remains", *BROKEN, as_note=True)
def first_segment_once_more_behind_the_last(group: Sequence[Path]) -> Place:
    every = segments(group[1])
    size = every[0].stat().st_size
    start = int(records(group[1])[-1].path.name) + size
    shutil.copyfile(every[0], every[0].with_name(f"{start:020d}"))
    return Place(group[1], start, start + size)


@drawn("controlled", "log.missing-segment")
def middle_segment_missing_in_two(group: Sequence[Path]) -> list[Place]:
    for store in group[1:]:
        segments(store)[1].unlink()
    return [Place(store) for store in group[1:]]


@drawn("controlled", *LOST_END)
def last_three_records_of_zeros(group: Sequence[Path]) -> Place:
    last = records(group[1])[-3:]
    for record in last:
        record.erase()
    return Place(group[1], last[0].offset, last[-1].offset + last[-1].size)


@drawn("controlled", *LOST_END)
def half_of_the_last_record(group: Sequence[Path]) -> Place:
    last = records(group[1])[-1]
    overwrite(last.path, last.at + last.size // 2, bytes(last.size - last.size // 2))
    return of(group[1], last)


@drawn("controlled", "record.checksum")
def bit_of_a_body_in_all(group: Sequence[Path]) -> list[Place]:
    for store in group:
        record = middle(store)
        flip(record.path, record.at + 90)
    return [of(store, record) for store in group]


@drawn("features")
def property_altered_in_all(group: Sequence[Path]) -> Place:
    """No checksum covers a property, and the copies agree."""
    for store in group:
        record = next(one for one in messages(store) if b"a\x012" in one.message.properties)
        data = bytes(bytes_of(record))
        overwrite(record.path, record.at + data.index(b"a\x012") + 2, b"3")
    return of(group[1], record)


def replace_body(store: Path, fill: int) -> Place:
    record = middle(store)
    changed = record.message
    changed.body = bytes([fill]) * len(changed.body)
    replace_record(record, changed)
    return of(store, record)


@drawn("controlled", "log.diverged")
def three_bodies_with_right_checksums(group: Sequence[Path]) -> list[Place]:
    return [replace_body(store, number) for number, store in enumerate(group)]


@drawn("controlled", "log.diverged", any_replica=True)
def one_other_body_in_two(group: Sequence[Path]) -> Place:
    places = [replace_body(store, 7) for store in group[1:]]
    return places[0]


@drawn("controlled", "log.remains", *BROKEN, as_note=True)
def random_bytes_behind_the_end(group: Sequence[Path]) -> Place:
    last = records(group[1])[-1]
    overwrite(last.path, last.at + last.size, random.Random(5).randbytes(300))
    return Place(group[1], last.offset, last.offset + last.size + 300)


@drawn("controlled", "file.unreadable", "file.foreign", "log.missing-segment")
def segment_is_a_directory(group: Sequence[Path]) -> Place:
    path = segments(group[1])[1]
    path.unlink()
    path.mkdir()
    return Place(group[1], file=path.name)


@drawn("controlled", "file.foreign")
def backup_of_a_segment(group: Sequence[Path]) -> Place:
    path = segments(group[1])[0]
    shutil.copyfile(path, path.with_name(path.name + ".bak"))
    return Place(group[1], file=path.name + ".bak")


@drawn("controlled", *BROKEN)
def page_of_zeros_in_a_killed_replica(group: Sequence[Path]) -> Place:
    (group[1] / "abort").write_text("17\n")
    return page_of_zeros(group)


# Consume queues


def queue_file(store: Path, topic: str = "orders", queue_id: int = 1) -> Path:
    return min((store / "consumequeue" / topic / str(queue_id)).iterdir())


def last_unit(store: Path) -> tuple[Path, int]:
    """The last used unit of orders/1: its file and position."""
    for path in sorted(queue_file(store).parent.iterdir(), reverse=True):
        used = [at for at, unit in enumerate(struct.iter_unpack(">qiq", path.read_bytes())) if unit[1] > 0]
        if used:
            return path, used[-1] * 20
    raise AssertionError("no unit")


def queue(store: Path, queue_id: int = 1) -> Place:
    return Place(store, topic="orders", queue_id=queue_id)


@drawn("controlled", "queue.no-record", "queue.wrong-unit")
def unit_of_another_queue(group: Sequence[Path]) -> Place:
    other = queue_file(group[1], "payments").read_bytes()
    overwrite(queue_file(group[1]), 20 * 7, other[20 * 7 : 20 * 7 + 12])
    return queue(group[1])


@drawn("controlled", "queue.wrong-unit")
def size_in_a_unit(group: Sequence[Path]) -> Place:
    add_in(queue_file(group[1]), 20 * 9 + 8, "i", 1)
    return queue(group[1])


@drawn("controlled", "queue.wrong-unit")
def tag_in_a_unit(group: Sequence[Path]) -> Place:
    add_in(queue_file(group[1]), 20 * 9 + 12, "q", 4096)
    return queue(group[1])


@drawn("controlled", "queue.wrong-unit")
def units_exchanged(group: Sequence[Path]) -> Place:
    path = queue_file(group[1])
    data = path.read_bytes()
    overwrite(path, 20 * 5, data[20 * 30 : 20 * 31])
    overwrite(path, 20 * 30, data[20 * 5 : 20 * 6])
    return queue(group[1])


@drawn("controlled", "queue.missing-unit")
def last_unit_of_zeros(group: Sequence[Path]) -> Place:
    path, at = last_unit(group[1])
    overwrite(path, at, bytes(20))
    return queue(group[1])


@drawn("controlled", "queue.missing-unit")
def first_unit_of_zeros(group: Sequence[Path]) -> Place:
    overwrite(queue_file(group[1]), 0, bytes(20))
    return queue(group[1])


@drawn("controlled", "queue.missing-unit")
def queue_cut_to_half(group: Sequence[Path]) -> Place:
    path, at = last_unit(group[1])
    with path.open("r+b") as file:
        file.truncate(at // 40 * 20)
    return queue(group[1])


@drawn("controlled", "queue.missing-unit")
def queue_missing(group: Sequence[Path]) -> Place:
    shutil.rmtree(queue_file(group[1]).parent)
    return queue(group[1])


@drawn("controlled", "queue.missing-unit")
def queue_renamed(group: Sequence[Path]) -> Place:
    folder = queue_file(group[1]).parent
    folder.rename(folder.with_name("9"))
    return queue(group[1])


@drawn("controlled", *OF_QUEUE)
def queues_of_two_topics_exchanged(group: Sequence[Path]) -> list[Place]:
    folder = group[1] / "consumequeue"
    (folder / "orders").rename(folder / "kept")
    (folder / "payments").rename(folder / "orders")
    (folder / "kept").rename(folder / "payments")
    return [Place(group[1], topic="orders"), Place(group[1], topic="payments")]


@drawn("controlled", *OF_QUEUE)
def unit_inserted_at_the_start(group: Sequence[Path]) -> Place:
    path = queue_file(group[1])
    data = path.read_bytes()
    path.write_bytes(data[:20] + data[:-20])
    return queue(group[1])


@drawn("controlled", "directory.incomplete", "queue.missing-unit")
def consume_queues_missing(group: Sequence[Path]) -> Place:
    shutil.rmtree(group[1] / "consumequeue")
    return Place(group[1])


@drawn("controlled", "queue.missing-unit")
def one_unit_of_zeros_in_all(group: Sequence[Path]) -> list[Place]:
    for store in group:
        overwrite(queue_file(store), 20 * 11, bytes(20))
    return [queue(store) for store in group]


@drawn("controlled", "queue.no-record", "queue.wrong-unit")
def last_unit_twice(group: Sequence[Path]) -> Place:
    path, at = last_unit(group[1])
    unit = path.read_bytes()[at : at + 20]
    assert at + 40 <= path.stat().st_size
    overwrite(path, at + 20, unit)
    return queue(group[1])


@drawn("controlled", *OF_QUEUE)
def queue_file_renamed_by_a_unit(group: Sequence[Path]) -> Place:
    path = queue_file(group[1])
    path.rename(path.with_name(f"{20:020d}"))
    return queue(group[1])


# Batch queues and extensions


def batch_file(store: Path) -> Path:
    return next((store / "batchconsumequeue" / "batches" / "0").iterdir())


def batch_queue(store: Path) -> Place:
    return Place(store, topic="batches", queue_id=0)


@drawn("features", "batch-queue.wrong-unit")
def base_of_a_batch_unit(group: Sequence[Path]) -> Place:
    add_in(batch_file(group[1]), 2 * 46 + 28, "q", 1)
    return batch_queue(group[1])


@drawn("features", "batch-queue.wrong-unit", "batch-queue.no-record")
def physical_offset_of_a_batch_unit(group: Sequence[Path]) -> Place:
    add_in(batch_file(group[1]), 2 * 46, "q", 10)
    return batch_queue(group[1])


@drawn("features", "batch-queue.wrong-unit")
def number_of_messages_of_a_batch_unit(group: Sequence[Path]) -> Place:
    add_in(batch_file(group[1]), 1 * 46 + 36, "h", -1)
    return batch_queue(group[1])


@drawn("features", "batch-queue.missing-unit", "topic.without-queues")
def batch_queue_of_zeros(group: Sequence[Path]) -> Place:
    path = batch_file(group[1])
    path.write_bytes(bytes(path.stat().st_size))
    return batch_queue(group[1])


@drawn("features", "batch-queue.missing-unit")
def last_batch_unit_of_zeros(group: Sequence[Path]) -> Place:
    overwrite(batch_file(group[1]), 3 * 46, bytes(46))
    return batch_queue(group[1])


def extension(store: Path) -> tuple[Path, int, str, int]:
    """A unit of an extension: its file and position, topic and queue id."""
    for path in sorted((store / "consumequeue_ext").glob("*/*/*")):
        if path.read_bytes()[:2] not in (b"\0\0", b"\xff\xff"):
            return path, 0, path.parts[-3], int(path.parts[-2])
    raise AssertionError("no unit")


@drawn("features", "directory.incomplete")
def extensions_missing(group: Sequence[Path]) -> Place:
    shutil.rmtree(group[1] / "consumequeue_ext")
    return Place(group[1], file="consumequeue_ext")


@drawn("features", "extension.broken-unit")
def size_of_an_extension_unit(group: Sequence[Path]) -> Place:
    path, at, topic, queue_id = extension(group[1])
    add_in(path, at, "h", 3)
    return Place(group[1], topic=topic, queue_id=queue_id)


@drawn("features", "extension.wrong-unit")
def tag_of_an_extension_unit(group: Sequence[Path]) -> Place:
    path, at, topic, queue_id = extension(group[1])
    add_in(path, at + 2, "q", 5)
    return Place(group[1], topic=topic, queue_id=queue_id)


# Index


def index_file(store: Path) -> Path:
    return min((store / "index").iterdir())


ENTRIES_AT = 40 + 100 * 4  # of an index file of the controlled group


def of_index(store: Path) -> Place:
    return Place(store, file=index_file(store).name)


@drawn("controlled", *OF_INDEX)
def count_of_index_entries(group: Sequence[Path]) -> Place:
    add_in(index_file(group[1]), 36, "i", -5)
    return Place(group[1])


@drawn("controlled", *OF_INDEX)
def key_of_an_index_entry(group: Sequence[Path]) -> Place:
    add_in(index_file(group[1]), ENTRIES_AT + 20 * 50, "i", 7)
    return Place(group[1])


@drawn("controlled", *OF_INDEX)
def physical_offset_of_an_index_entry(group: Sequence[Path]) -> Place:
    at = ENTRIES_AT + 20 * 50 + 4
    (offset,) = struct.unpack_from(">q", index_file(group[1]).read_bytes(), at)
    add_in(index_file(group[1]), at, "q", 3)
    return Place(group[1], offset)


@drawn("controlled", "index.broken-chain")
def index_entry_before_itself(group: Sequence[Path]) -> Place:
    overwrite(index_file(group[1]), ENTRIES_AT + 20 * 50 + 16, struct.pack(">i", 50))
    return of_index(group[1])


@drawn("controlled", *OF_INDEX)
def seconds_of_an_index_entry(group: Sequence[Path]) -> Place:
    """A search in an interval of time does not find the entry."""
    add_in(index_file(group[1]), ENTRIES_AT + 20 * 50 + 12, "i", 31_000_000)
    return of_index(group[1])


@drawn("controlled", *OF_INDEX, "file.short", "file.wrong-size")
def index_file_cut_to_half(group: Sequence[Path]) -> Place:
    path = index_file(group[1])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return of_index(group[1])


@drawn("controlled", *OF_INDEX)
def index_begins_an_hour_later(group: Sequence[Path]) -> Place:
    add_in(index_file(group[1]), 0, "q", HOUR_MS)
    return of_index(group[1])


@drawn("controlled", *OF_INDEX)
def end_of_an_index_too_low(group: Sequence[Path]) -> Place:
    add_in(index_file(group[1]), 24, "q", -20_000)
    return Place(group[1])


@drawn("controlled", "directory.incomplete")
def all_indexes_missing_in_all(group: Sequence[Path]) -> list[Place]:
    for store in group:
        for path in (store / "index").iterdir():
            path.unlink()
    return [Place(store, file="index") for store in group]


# Epoch files


@drawn("controlled", "epoch.inside-record", "epoch.two-masters")
def epoch_starts_inside_a_record(group: Sequence[Path]) -> Place:
    entries = epochs_with_bytes(group[1])
    write_epochs(group[1], [entries[0], (entries[1][0], entries[1][1] + 10), *entries[2:]])
    return Place(group[1], entries[1][1], entries[1][1] + 11)


@drawn("controlled", "epoch.missing")
def last_epoch_missing(group: Sequence[Path]) -> Place:
    entries = epochs_with_bytes(group[1])
    write_epochs(group[1], entries[:-1])
    return Place(group[1], entries[-1][1])


@drawn("controlled", "epoch.file-broken", "epoch.file-missing")
def epoch_file_empty(group: Sequence[Path]) -> Place:
    (group[1] / "epochFileCheckpoint").write_bytes(b"")
    (group[1] / "epochFileCheckpoint.bak").unlink(missing_ok=True)
    return Place(group[1])


@drawn("controlled", "epoch.two-masters")
def epoch_file_without_checksum(group: Sequence[Path]) -> Place:
    """Another start in a file whose checksum of 0 says that it has none."""
    entries = epochs(group[1])
    start = entries[1].start_offset
    later = next(one for one in records(group[1]) if one.offset > start).offset
    lines = [f"{one.epoch}-{later if one is entries[1] else one.start_offset}" for one in entries]
    text = "\n".join([str(len(lines)), "0", *lines, ""])
    (group[1] / "epochFileCheckpoint").write_text(text)
    return Place(group[1], start, later + 1)


@drawn("controlled", "epoch.unknown", "epoch.missing", "epoch.two-masters")
def all_epochs_one_more(group: Sequence[Path]) -> Place:
    write_epochs(group[1], [(epoch + 1, start) for epoch, start in epochs_with_bytes(group[1])])
    return Place(group[1])


# Checkpoint, identity, abort


@drawn("controlled", "state.unreadable")
def checkpoint_of_zeros(group: Sequence[Path]) -> Place:
    (group[1] / "checkpoint").write_bytes(bytes(4096))
    return Place(group[1], file="checkpoint")


@drawn("controlled", "log.cut-below-confirmed")
def confirm_offset_beyond_the_log(group: Sequence[Path]) -> Place:
    last = records(group[1])[-1]
    end = last.offset + last.size
    overwrite(group[1] / "checkpoint", 32, struct.pack(">q", end + 1000))
    return Place(group[1], end)


@drawn("controlled")
def checkpoint_of_an_hour_ago(group: Sequence[Path]) -> Place:
    """A broker writes its checkpoint when it likes, and reads on from there."""
    for at in (0, 8):
        add_in(group[1] / "checkpoint", at, "q", -HOUR_MS)
    return Place(group[1])


@drawn("controlled", "state.missing")
def identity_missing(group: Sequence[Path]) -> Place:
    (group[1] / "brokerIdentity").unlink()
    return Place(group[1], file="brokerIdentity")


@drawn("controlled", "state.unreadable")
def identity_cut(group: Sequence[Path]) -> Place:
    (group[1] / "brokerIdentity").write_text("DefaultCluster#gro")
    return Place(group[1], file="brokerIdentity")


@drawn("controlled", "state.unreadable")
def identity_below_zero(group: Sequence[Path]) -> Place:
    (group[1] / "brokerIdentity").write_text("DefaultCluster#group-a#-5")
    return Place(group[1], file="brokerIdentity")


@drawn("controlled")
def abort_beside_a_clean_store(group: Sequence[Path]) -> Place:
    """As a killed broker leaves it."""
    (group[1] / "abort").write_bytes(b"\xff\x00garbage")
    return Place(group[1])


# State files


def edit_json(path: Path, edit: Callable[[Any], object]) -> None:
    document: Any = fastjson.loads(path.read_bytes())
    edit(document)
    path.write_text(json.dumps(document))


@drawn("features", "state.unreadable")
def topic_under_another_name(group: Sequence[Path]) -> Place:
    path = group[1] / "config" / "topics.json"
    edit_json(path, lambda one: one["topicConfigTable"]["T"].update(topicName="t"))
    return Place(group[1], file="topics.json")


@drawn("features", "state.unreadable")
def topics_are_a_list(group: Sequence[Path]) -> Place:
    (group[1] / "config" / "topics.json").write_text("[]")
    return Place(group[1], file="topics.json")


@drawn("features", "state.differs")
def group_missing_under_one_version(group: Sequence[Path]) -> Place:
    for store in group:
        path = store / "config" / "subscriptionGroup.json"
        edit_json(path, lambda one: one["subscriptionGroupTable"].update(late={"groupName": "late"}))
        edit_json(path, lambda one: one["dataVersion"].update(counter=9, timestamp=1_700_000_000_000))
    edit_json(path.parents[2] / "b" / "config" / path.name, _without_late)
    return Place(group[1], file="subscriptionGroup.json")


def _without_late(document: Any) -> None:
    del document["subscriptionGroupTable"]["late"]


@drawn("features", "state.unreadable")
def consumer_offsets_of_zero_bytes(group: Sequence[Path]) -> Place:
    path = group[1] / "config" / "consumerOffset.json"
    path.write_bytes(bytes(path.stat().st_size))
    return Place(group[1], file="consumerOffset.json")


@drawn("features", "state.unreadable")
def delay_level_that_is_a_word(group: Sequence[Path]) -> Place:
    path = group[1] / "config" / "delayOffset.json"
    edit_json(path, lambda one: one["offsetTable"].update(abc=1))
    return Place(group[1], file="delayOffset.json")


@drawn("features", "state.unreadable")
def timer_checkpoint_of_8_bytes(group: Sequence[Path]) -> Place:
    path = group[1] / "config" / "timercheck"
    path.write_bytes(path.read_bytes()[:8])
    return Place(group[1], file="timercheck")


# Timer and compaction


def timer_file(store: Path) -> Path:
    return min((store / "timerlog").iterdir())


@drawn("features", "timer.broken-unit")
def magic_of_a_timer_unit(group: Sequence[Path]) -> Place:
    overwrite(timer_file(group[1]), 40 * 52, struct.pack(">i", 7))
    return Place(group[1], file="timerlog")


@drawn("features", "timer.broken-chain")
def previous_of_a_timer_unit(group: Sequence[Path]) -> Place:
    path = timer_file(group[1])
    units = list(struct.iter_unpack(">iqiqiqiiq", path.read_bytes()[: 78 * 52]))
    number = next(number for number, unit in enumerate(units) if unit[1] > 0)
    overwrite(path, number * 52 + 4, struct.pack(">q", units[number][1] - 52))
    return Place(group[1], units[number][5])


@drawn("features", "timer.wrong-slot", "timer.broken-wheel")
def timer_wheel_of_zeros(group: Sequence[Path]) -> Place:
    with (group[1] / "timerwheel").open("r+b") as file:
        size = file.seek(0, 2)
        file.truncate(0)
        file.truncate(size)
    return Place(group[1], file="timerwheel")


COMPACTED = Path("compaction/compactionLog/compacted/0")


@drawn("features", "compaction.no-record")
def bit_of_a_compacted_body(group: Sequence[Path]) -> Place:
    path = min(path for path in (group[1] / COMPACTED).iterdir() if path.is_file())
    flip(path, path.read_bytes().index(b"body"))
    return Place(group[1], topic="compacted", queue_id=0)


@drawn("features", "compaction.no-record", "compaction.wrong-unit")
def physical_offset_of_a_compacted_unit(group: Sequence[Path]) -> Place:
    folder = group[1] / "compaction/compactionCq/compacted/0"
    add_in(min(path for path in folder.iterdir() if path.is_file()), 46, "q", 9)
    return Place(group[1], topic="compacted", queue_id=0)


# DLedger logs


@drawn("dledger", "record.checksum")
def bit_of_a_body_of_an_entry(group: Sequence[Path]) -> Place:
    record = middle(group[1])
    flip(record.path, record.at + 90)
    return Place(group[1], record.start, record.offset + record.size)


@drawn("dledger", "dledger.gap", *BROKEN)
def index_of_an_entry(group: Sequence[Path]) -> Place:
    record = middle(group[1])
    add_in(record.path, record.at - ENTRY_HEADER_SIZE + 8, "q", 1)
    return Place(group[1], record.start, record.offset + record.size + 1)


@drawn("dledger", "log.diverged")
def channel_of_an_entry(group: Sequence[Path]) -> Place:
    record = middle(group[1])
    overwrite(record.path, record.at - ENTRY_HEADER_SIZE + 32, struct.pack(">i", 3))
    return Place(group[1], record.start, record.offset + record.size)


@drawn("dledger", "dledger.missing-unit")
def index_unit_of_zeros(group: Sequence[Path]) -> Place:
    folder = next(group[1].glob("dledger-*/index"))
    overwrite(min(folder.iterdir()), 20 * INDEX_UNIT_SIZE, bytes(INDEX_UNIT_SIZE))
    return Place(group[1])


@drawn("dledger", "log.cut-below-confirmed")
def committed_index_beyond_the_log(group: Sequence[Path]) -> Place:
    path = next(group[1].glob("dledger-*/checkpoint"))
    values = decode_properties(path.read_bytes())
    for key in values:
        if re.fullmatch("(?i)committed.*index", key):
            values[key] = str(int(values[key]) + 50)
    values.pop("epochmqCrc32", None)
    path.write_bytes(encode_properties(values))
    last = records(group[1])[-1]
    return Place(group[1], last.offset, last.offset + last.size + 1)


@drawn("dledger", "log.cut-below-confirmed")
def last_five_entries_of_zeros(group: Sequence[Path]) -> Place:
    last = records(group[1])[-5:]
    for record in last:
        record.erase()
    return Place(group[1], last[0].start, last[0].start + 1)


# A master and its slave


@drawn("pair", "record.checksum")
def bit_of_a_body_at_the_master(group: Sequence[Path]) -> Place:
    record = next(one for one in records(group[0]) if one.message.topic == "compacted")
    flip(record.path, record.at + 89)
    return of(group[0], record)


@drawn("pair", "log.diverged")
def flag_at_the_slave(group: Sequence[Path]) -> list[Place]:
    record = next(one for one in records(group[1]) if one.message.topic == "compacted")
    set_in(record, 16, "i", 5)
    return [of(store, record) for store in group]


@drawn("pair", "state.differs")
def permission_at_the_slave(group: Sequence[Path]) -> list[Place]:
    path = group[1] / "config" / "topics.json"
    edit_json(path, lambda one: one["topicConfigTable"]["T"].update(perm=4))
    return [Place(store, file="topics.json") for store in group]


# Two at once


@drawn("controlled", "record.checksum")
def bits_in_two_replicas(group: Sequence[Path]) -> list[Place]:
    found = []
    for store, share in zip(group, (0.3, 0.6), strict=False):
        record = middle(store, share)
        flip(record.path, record.at + 91)
        found.append(of(store, record))
    return found


@drawn("controlled", "log.missing-segment", "epoch.file-broken")
def segment_missing_and_epoch_file_cut(group: Sequence[Path]) -> list[Place]:
    segments(group[1])[1].unlink()
    path = group[1] / "epochFileCheckpoint"
    path.write_bytes(path.read_bytes()[:-4])
    (group[1] / "epochFileCheckpoint.bak").unlink(missing_ok=True)
    return [Place(group[1], kinds=frozenset({kind})) for kind in ("log.missing-segment", "epoch.file-broken")]


def judge(damage: DrawnDamage, places: Sequence[Place], rows: Sequence[dict[str, Any]]) -> str:
    """`exact`, or what is wrong with the findings: a crash, a false word, a missed or misplaced damage."""
    if crashed := [row for row in rows if row["kind"] == "check.failed"]:
        return f"crash: {crashed[0]['detail']}"
    serious = [row for row in rows if row["severity"] != "note"]
    if not damage.kinds:
        return f"false: {_shown(serious)}" if serious else "exact"
    found = [row for row in (rows if damage.as_note else serious) if row["kind"] in damage.kinds]
    if damage.any_replica:
        at = [row for row in found if places[0].is_named(row)]
        return "exact" if at else f"missed: {_shown(serious)}"
    hit = {place.replica.name for place in places}
    if false := [row for row in serious if row["replica"] not in hit]:
        return f"false: {_shown(false)}"
    if not any(row["replica"] in hit for row in (rows if damage.as_note else serious)):
        return "missed"
    for place in places:
        of_place = [row for row in found if row["kind"] in (place.kinds or damage.kinds)]
        if not any(row["replica"] == place.replica.name and place.is_named(row) for row in of_place):
            return f"misplaced: expected {place}, found {_shown(serious or rows)}"
    return "exact"


def _shown(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    keys = ("replica", "kind", "start_offset", "end_offset", "file", "topic", "queue_id", "detail")
    return [tuple(row[key] for key in keys) for row in rows[:4]]
