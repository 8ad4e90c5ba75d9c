"""Injects damage into the bytes of a log."""

from __future__ import annotations

import random
from pathlib import Path

from tests.spark.damage_kit import (
    InjectedDamage,
    any_record_but_the_last,
    columns_of,
    damage,
    epochs_injector,
    epochs_with_bytes,
    flip_bit,
    injector,
    overwrite,
    records,
    replace_record,
    segments,
    set_times_of_index,
    write_epochs,
)


@injector
def bit_in_body(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    record = any_record_but_the_last(replica, rng)
    flip_bit(record.path, record.at + 88 + rng.randrange(len(record.message.body)), rng)
    return damage(replica, "record.checksum", **columns_of(record))


@injector
def bit_in_checksum(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    record = any_record_but_the_last(replica, rng)
    flip_bit(record.path, record.at + 8 + rng.randrange(4), rng)
    return damage(replica, "record.checksum", **columns_of(record))


@injector
def bit_in_size(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    record = any_record_but_the_last(replica, rng)
    flip_bit(record.path, record.at + rng.randrange(4), rng)
    return damage(replica, "log.broken-record", "message.missing", start_offset=record.start)


@injector
def bit_in_magic(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    record = any_record_but_the_last(replica, rng)
    overwrite(record.path, record.at + 4, bytes([0xDB]))
    return damage(replica, "log.broken-record", "message.missing", start_offset=record.start)


@injector
def bit_in_physical_offset(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    record = any_record_but_the_last(replica, rng)
    flip_bit(record.path, record.at + 28 + rng.randrange(8), rng)
    return damage(replica, "log.broken-record", "message.missing", start_offset=record.start)


@injector
def bit_in_body_length(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    record = any_record_but_the_last(replica, rng)
    flip_bit(record.path, record.at + 84 + rng.randrange(4), rng)
    return damage(replica, "log.broken-record", "message.missing", start_offset=record.start)


@injector
def bit_in_store_time(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    record = any_record_but_the_last(replica, rng)
    flip_bit(record.path, record.at + 62, rng)
    return damage(replica, "log.diverged", **columns_of(record))


@injector
def bit_in_flag(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    record = any_record_but_the_last(replica, rng)
    flip_bit(record.path, record.at + 16 + rng.randrange(4), rng)
    return damage(replica, "log.diverged", start_offset=record.offset)


@injector
def record_of_another_body(group: list[Path], rng: random.Random) -> InjectedDamage:
    """The record is valid, but differs from the other replicas' copies."""
    replica = rng.choice(group)
    record = any_record_but_the_last(replica, rng)
    one = record.message
    one.body = rng.randbytes(len(one.body) - 1) + bytes([one.body[-1] ^ 1])
    replace_record(record, one)
    return damage(replica, "log.diverged", **columns_of(record))


@epochs_injector
def epoch_written_twice(group: list[Path], rng: random.Random) -> InjectedDamage:
    """All messages of an epoch differ, as if two masters had written in it."""
    replica = rng.choice(group)
    entries = epochs_with_bytes(replica)
    at = rng.randrange(len(entries))
    start = entries[at][1]
    end = entries[at + 1][1] if at + 1 < len(entries) else 1 << 62
    chosen = [record for record in records(replica) if start <= record.offset < end]
    for record in chosen:
        one = record.message
        one.body = bytes([one.body[0] ^ 0x55]) + one.body[1:]
        replace_record(record, one)
    return damage(replica, "log.diverged", start_offset=chosen[0].offset)


@injector
def hole(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    record = any_record_but_the_last(replica, rng)
    record.erase()
    return damage(replica, "log.hole", "message.missing", start_offset=record.start)


@injector
def hole_of_many(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    every = records(replica)
    first = rng.randrange(len(every) - 6)
    chosen = [one for one in every[first : first + 5] if one.path == every[first].path]
    for one in chosen:
        one.erase()
    return damage(replica, "log.hole", "message.missing", start_offset=chosen[0].start)


@injector
def lost_end(group: list[Path], rng: random.Random) -> InjectedDamage:
    """The last messages are zero, as is a blank between them: the log ends below the confirm offset of its
    checkpoint."""
    replica = rng.choice(group)
    every = records(replica)
    first = every[-rng.randrange(1, 5)]
    for path in {record.path for record in every[every.index(first) :]}:
        at = first.at - first.header if path == first.path else 0
        overwrite(path, at, bytes(path.stat().st_size - at))
    allowed = ("queue.no-record", "epoch.beyond-log")
    return damage(replica, "log.cut-below-confirmed", allowed=allowed, start_offset=first.start)


@injector
def short_file(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path = segments(replica)[-1]
    with path.open("r+b") as file:
        file.truncate(rng.randrange(path.stat().st_size))
    allowed = (
        "log.cut-below-confirmed", "queue.no-record", "epoch.beyond-log", "log.broken-record",
        "message.missing",
    )  # fmt: skip
    return damage(replica, "file.short", allowed=allowed, file=str(path))


@injector
def missing_segment(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    used = sorted({record.path for record in records(replica)})
    path = used[1] if len(used) > 2 else used[-1]
    later = [one for one in segments(replica) if one.name > path.name]
    path.unlink()
    allowed = (
        "log.hole", "log.broken-record", "message.missing", "log.cut-below-confirmed", "epoch.beyond-log",
        "queue.no-record", "epoch.missing",
    )  # fmt: skip
    if not segments(replica):
        return damage(replica, "directory.empty")
    if later and segments(replica)[0] == later[0]:  # the log seems to start behind the ends of the others
        return damage(replica, "log.missing-segment", allowed=allowed, start_offset=int(later[0].name))
    if later:
        return damage(replica, "log.missing-segment", allowed=allowed, file=str(later[0]))
    return damage(replica, "log.cut-below-confirmed", allowed=allowed, start_offset=int(path.name))


@injector
def damage_before_a_clock_step(group: list[Path], rng: random.Random) -> InjectedDamage:
    """A record is damaged, and the records behind it have earlier store times in all replicas, because the
    clock of the master was set back. No checkpoint has a confirm offset."""
    every = records(group[0])
    at = rng.randrange(1, len(every) - 5)
    for replica in group:
        for record in records(replica)[at + 1 :]:
            one = record.message
            one.store_timestamp -= 3_600_000
            replace_record(record, one)
        set_times_of_index(replica)
        overwrite(replica / "checkpoint", 32, bytes(8))
    replica = rng.choice(group)
    record = records(replica)[at]
    overwrite(record.path, record.at + 4, bytes([0xDB]))
    return damage(replica, "log.broken-record", "message.missing", start_offset=record.start)


@epochs_injector
def tail_of_a_lost_master(group: list[Path], rng: random.Random) -> InjectedDamage:
    """A former master keeps an unreplicated tail, in an epoch that ended earlier for all others."""
    replica = rng.choice(group)
    every = records(replica)
    last = every[-1]
    entries = epochs_with_bytes(replica)
    start = rng.choice([one for one in every if one.offset > entries[-1][1]][-10:])
    for other in group:
        known = epochs_with_bytes(other)
        if other is not replica:
            write_epochs(other, [*known, (known[-1][0] + 1, start.offset)])
    for record in every[every.index(start) :]:
        one = record.message
        one.body = bytes([one.body[0] ^ 0x55]) + one.body[1:]
        replace_record(record, one)
    assert last.offset >= start.offset
    return damage(replica, "log.tail-not-common", start_offset=start.offset)
