"""Injects damage into epoch files, some of it visible only against the controllers' view."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

from tests.spark.damage_kit import (
    InjectedDamage,
    damage,
    epochs,
    epochs_injector,
    epochs_with_bytes,
    records,
    write_epochs,
)
from tests.spark.damage_log import lost_end


@epochs_injector
def epoch_missing(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    entries = epochs_with_bytes(replica)
    gone = entries.pop(rng.randrange(len(entries)) if len(entries) > 1 else 0)
    if not entries:
        (replica / "epochFileCheckpoint").unlink()
        (replica / "epochFileCheckpoint.bak").unlink(missing_ok=True)
        return damage(replica, "epoch.file-missing")
    write_epochs(replica, entries)
    allowed = ("epoch.gap",) if gone[1] == 0 else ()
    return damage(replica, "epoch.missing", allowed=allowed, epoch=gone[0], start_offset=gone[1])


def two_at_least(group: list[Path], replica: Path, *, from_end: int) -> list[tuple[int, int]]:
    """The replica's epochs. If there is only one, every replica gets a second one, which starts at this
    record from the end."""
    entries = epochs_with_bytes(replica)
    if len(entries) < 2:
        entries.append((entries[-1][0] + 1, records(replica)[-from_end].offset))
        for other in group:
            write_epochs(other, entries)
    return entries


@epochs_injector
def epochs_reordered(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    entries = two_at_least(group, replica, from_end=1)
    at = rng.randrange(len(entries) - 1)
    entries[at], entries[at + 1] = entries[at + 1], entries[at]
    write_epochs(replica, entries)
    return damage(replica, "epoch.out-of-order", allowed=("epoch.overlap",))


@epochs_injector
def epochs_overlapping(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    entries = two_at_least(group, replica, from_end=1)
    at = rng.randrange(1, len(entries))
    entries[at] = (entries[at][0], entries[at - 1][1])
    write_epochs(replica, entries)
    return damage(replica, "epoch.overlap", allowed=("epoch.two-masters", "epoch.missing"))


@epochs_injector
def epoch_beyond_the_log(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    last = records(replica)[-1]
    start = last.offset + last.size + rng.randrange(1, 10_000)
    entries = epochs_with_bytes(replica)
    write_epochs(replica, [*entries, (entries[-1][0] + 1, start)])
    return damage(replica, "epoch.beyond-log", start_offset=start)


@epochs_injector
def two_masters_in_an_epoch(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    entries = two_at_least(group, replica, from_end=3)
    at = rng.randrange(1, len(entries))
    here = [one.offset for one in records(replica) if one.offset > entries[at - 1][1]]
    other_start = rng.choice([one for one in here if one != entries[at][1] and (
        at + 1 == len(entries) or one < entries[at + 1][1])])  # fmt: skip
    entries[at] = (entries[at][0], other_start)
    write_epochs(replica, entries)
    return damage(replica, "epoch.two-masters", epoch=entries[at][0], start_offset=other_start)


@epochs_injector
def epoch_inside_a_record(group: list[Path], rng: random.Random) -> InjectedDamage:
    """The same in every replica."""
    entries = two_at_least(group, group[0], from_end=3)
    at = rng.randrange(1, len(entries))
    epoch, start = entries[at] = (entries[at][0], entries[at][1] + rng.randrange(1, 80))
    for replica in group:
        write_epochs(replica, entries)
    return InjectedDamage("*", frozenset({"epoch.inside-record"}), {"epoch": epoch, "start_offset": start})


@epochs_injector
def epoch_nobody_else_knows(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    entries = epochs_with_bytes(replica)
    own = [one.offset for one in records(replica) if one.offset > entries[-1][1]]
    start = rng.choice(own)
    write_epochs(replica, [*entries, (entries[-1][0] + 1, start)])
    return damage(replica, "epoch.unknown", epoch=entries[-1][0] + 1, start_offset=start)


@epochs_injector
def epoch_file_checksum(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path = replica / "epochFileCheckpoint"
    lines = path.read_text().splitlines()
    lines[1] = str(zlib.crc32(b"other") & 0x7FFFFFFF)
    path.write_text("\n".join(lines) + "\n")
    return damage(replica, "epoch.file-broken", allowed=("epoch.missing",))


@epochs_injector
def epoch_file_cut(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path = replica / "epochFileCheckpoint"
    text = path.read_text()
    path.write_text(text[: rng.randrange(len(text) - 3)])
    return damage(replica, "epoch.file-broken", allowed=("epoch.missing", "epoch.gap", "epoch.two-masters"))


@epochs_injector
def epoch_file_missing(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    for path in replica.glob("epochFileCheckpoint*"):
        path.unlink()
    return damage(replica, "epoch.file-missing")


@epochs_injector
def ahead_of_the_controller(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    entries = epochs_with_bytes(replica)
    last = records(replica)[-1]
    epoch = max(entry.epoch for other in group for entry in epochs(other)) + 1
    write_epochs(replica, [*entries, (epoch, last.offset + last.size)])
    view = {"brokerName": "group-a", "masterEpoch": epoch - 1, "masterId": 1, "syncStateSet": [1, 2, 3]}
    return damage(replica, "epoch.ahead-of-controller", metadata=view, epoch=epoch)


@epochs_injector
def not_in_sync(group: list[Path], rng: random.Random) -> InjectedDamage:
    """The SyncStateSet contains a replica that lacks confirmed messages."""
    found = lost_end(group, rng)
    view = {"brokerName": "group-a", "masterEpoch": 1 << 20, "masterId": 9, "syncStateSet": [1, 2, 3]}
    allowed = found.allowed | {"log.cut-below-confirmed"}
    return InjectedDamage(found.replica, frozenset({"controller.not-in-sync"}), {}, allowed, view)


@epochs_injector
def unknown_to_the_controller(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    known = [{"brokerId": n} for n in (1, 2, 3) if replica.name != f"r{n}"]
    view = {"brokerName": "group-a", "masterEpoch": 1 << 20, "syncStateSet": [], "replicas": known}
    return damage(replica, "controller.unknown-replica", metadata=view)


@epochs_injector
def not_supplied(group: list[Path], rng: random.Random) -> InjectedDamage:
    """The controllers list a fourth replica."""
    view = {"brokerName": "group-a", "masterEpoch": 1 << 20, "syncStateSet": [1, 2, 3]}
    view["replicas"] = [{"brokerId": number} for number in (1, 2, 3, 4)]
    return InjectedDamage("", frozenset({"controller.not-supplied"}), {"detail": "brokerId 4"}, metadata=view)
