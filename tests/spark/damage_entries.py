"""Injects damage into the entries of a DLedger log, its index files and the small files of its peer."""

from __future__ import annotations

import random
import struct
from pathlib import Path

from epochmq_formats.dledger_log import INDEX_UNIT_SIZE
from tests.spark.damage_kit import (
    InjectedDamage,
    Record,
    any_record_but_the_last,
    damage,
    dledger_injector,
    flip_bit,
    overwrite,
    records,
    segments,
)


def index_of(record: Record) -> int:
    """The index of a record's entry."""
    return int(struct.unpack_from(">q", record.path.read_bytes(), record.at - record.header + 8)[0])


def unit_of(replica: Path, index: int) -> tuple[Path, int]:
    """The unit of an entry: the index file, and the position in it."""
    at = index * INDEX_UNIT_SIZE
    paths = sorted((segments(replica)[0].parents[1] / "index").iterdir())
    path = max(path for path in paths if int(path.name) <= at)
    return path, at - int(path.name)


def peer_file(replica: Path, name: str) -> Path:
    return segments(replica)[0].parents[1] / name


def damaged_header(
    group: list[Path], rng: random.Random, at: int, size: int, *expected: str, allowed: tuple[str, ...] = ()
) -> InjectedDamage:
    """Flips a bit in a field of an entry's header."""
    replica = rng.choice(group)
    record = any_record_but_the_last(replica, rng)
    flip_bit(record.path, record.at - record.header + at + rng.randrange(size), rng)
    where = record.start if "log.broken-record" in expected else record.offset
    return damage(replica, *expected, allowed=allowed, start_offset=where)


@dledger_injector
def bit_in_entry_magic(group: list[Path], rng: random.Random) -> InjectedDamage:
    return damaged_header(group, rng, 0, 4, "log.broken-record", "message.missing")


@dledger_injector
def bit_in_entry_size(group: list[Path], rng: random.Random) -> InjectedDamage:
    return damaged_header(group, rng, 4, 4, "log.broken-record", "message.missing")


@dledger_injector
def bit_in_entry_index(group: list[Path], rng: random.Random) -> InjectedDamage:
    allowed = ("dledger.no-entry", "dledger.missing-unit", "dledger.wrong-unit")
    return damaged_header(group, rng, 8, 8, "log.diverged", "dledger.gap", allowed=allowed)


@dledger_injector
def bit_in_entry_term(group: list[Path], rng: random.Random) -> InjectedDamage:
    allowed = ("dledger.term-order", "dledger.term-behind")
    return damaged_header(group, rng, 16, 8, "log.diverged", "dledger.wrong-unit", allowed=allowed)


@dledger_injector
def bit_in_entry_position(group: list[Path], rng: random.Random) -> InjectedDamage:
    return damaged_header(group, rng, 24, 8, "log.broken-record", "message.missing")


@dledger_injector
def bit_in_unused_fields(group: list[Path], rng: random.Random) -> InjectedDamage:
    return damaged_header(group, rng, 32, 12, "log.diverged")


@dledger_injector
def bit_in_entry_body_size(group: list[Path], rng: random.Random) -> InjectedDamage:
    return damaged_header(group, rng, 44, 4, "log.broken-record", "message.missing")


@dledger_injector
def unit_of_entry_flipped(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    record = any_record_but_the_last(replica, rng)
    index = index_of(record)
    path, at = unit_of(replica, index)
    flip_bit(path, at + rng.randrange(INDEX_UNIT_SIZE), rng)
    return damage(replica, "dledger.wrong-unit", queue_offset=index, start_offset=record.start)


@dledger_injector
def unit_of_entry_missing(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    record = any_record_but_the_last(replica, rng)
    index = index_of(record)
    overwrite(*unit_of(replica, index), bytes(INDEX_UNIT_SIZE))
    return damage(replica, "dledger.missing-unit", queue_offset=index, start_offset=record.start)


@dledger_injector
def index_of_entries_missing(group: list[Path], rng: random.Random) -> InjectedDamage:
    """The last file of the index of entries is missing."""
    replica = rng.choice(group)
    record = records(replica)[-1]
    index = index_of(record)
    unit_of(replica, index)[0].unlink()
    return damage(replica, "dledger.missing-unit", queue_offset=index, start_offset=record.start)


@dledger_injector
def checkpoint_beyond_the_log(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    index = index_of(records(replica)[-1]) + rng.randrange(1, 100)
    peer_file(replica, "checkpoint").write_text(f"endIndex={index}\ncommittedIndex={index}\n")
    return damage(replica, "log.cut-below-confirmed")


@dledger_injector
def checkpoint_emptied(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path = peer_file(replica, rng.choice(["checkpoint", "currterm"]))
    path.write_text("")
    return damage(replica, "dledger.broken-state", file=str(path))


@dledger_injector
def saved_term_too_low(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    peer_file(replica, "currterm").write_text("currTerm=0\nvoteLeader=n0\n")
    return damage(replica, "dledger.term-behind")


@dledger_injector
def last_term_too_low(group: list[Path], rng: random.Random) -> InjectedDamage:
    """The last entry, which is committed, looks as if a truncation had left it."""
    replica = rng.choice(group)
    record = records(replica)[-1]
    set_term(record, term_of(record) - 1)
    allowed = ("dledger.missing-unit", "queue.no-record")
    return damage(replica, "log.cut-below-confirmed", allowed=allowed, start_offset=record.start)


@dledger_injector
def committed_end_of_a_lost_leader(group: list[Path], rng: random.Random) -> InjectedDamage:
    """A replica has committed an entry in whose place the others have one of a later term: two histories."""
    replica = rng.choice(group)
    record = records(replica)[-1]
    for other in group:
        if other is not replica:
            last = records(other)[-1]
            term = term_of(last) + 1
            set_term(last, term)
            path, at = unit_of(other, index_of(last))
            overwrite(path, at + 24, struct.pack(">q", term))
            peer_file(other, "currterm").write_text(f"currTerm={term}\nvoteLeader=n0\n")
    return damage(replica, "log.tail-not-common", start_offset=record.offset)


def term_of(record: Record) -> int:
    """The term of a record's entry."""
    return int(struct.unpack_from(">q", record.path.read_bytes(), record.at - record.header + 16)[0])


def set_term(record: Record, term: int) -> None:
    """Changes the term of a record's entry."""
    overwrite(record.path, record.at - record.header + 16, struct.pack(">q", term))
