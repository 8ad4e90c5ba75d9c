"""Injects damage into consume queues, indexes, consumer offsets and whole directories."""

from __future__ import annotations

import json
import random
import shutil
import struct
from pathlib import Path
from typing import Any

from tests.spark.damage_kit import (
    InjectedDamage,
    Record,
    damage,
    injector,
    log_folder,
    messages,
    overwrite,
    segments,
)


def a_unit(replica: Path, rng: random.Random, *, inside: bool = False) -> tuple[Path, int, int, Record]:
    """A unit: its file, its position in the file, its queue offset, and its message. `inside`: not the last
    of its queue."""
    every = messages(replica)
    record = rng.choice(every)
    if inside:
        last = {(one.message.topic, one.message.queue_id): one for one in every}
        record = rng.choice([one for one in every if one not in last.values()])
    one = record.message
    folder = replica / "consumequeue" / one.topic / str(one.queue_id)
    byte = one.queue_offset * 20
    path = max((path for path in folder.iterdir() if int(path.name) <= byte), key=lambda path: int(path.name))
    return path, byte - int(path.name), one.queue_offset, record


def queue_where(record: Record) -> dict[str, Any]:
    one = record.message
    return {"topic": one.topic, "queue_id": one.queue_id, "queue_offset": one.queue_offset}


@injector
def unit_of_another_offset(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path, at, _, record = a_unit(replica, rng)
    overwrite(path, at, struct.pack(">q", record.offset + 1))
    return damage(replica, "queue.wrong-unit", **queue_where(record))


@injector
def unit_of_another_size(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path, at, _, record = a_unit(replica, rng)
    overwrite(path, at + 8, struct.pack(">i", record.size + 1))
    return damage(replica, "queue.wrong-unit", **queue_where(record))


@injector
def unit_of_another_tag(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path, at, _, record = a_unit(replica, rng)
    overwrite(path, at + 12, struct.pack(">q", 4711))
    return damage(replica, "queue.wrong-unit", **queue_where(record))


@injector
def unit_missing(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path, at, _, record = a_unit(replica, rng, inside=True)
    overwrite(path, at, bytes(20))
    return damage(replica, "queue.missing-unit", **queue_where(record))


@injector
def units_swapped(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    while True:
        path, at, _, record = a_unit(replica, rng, inside=True)
        data = path.read_bytes()
        if at + 40 <= len(data) and struct.unpack_from(">i", data, at + 28)[0] > 0:
            break
    overwrite(path, at, data[at + 20 : at + 40] + data[at : at + 20])
    return damage(replica, "queue.wrong-unit", **queue_where(record))


@injector
def unit_without_a_message(group: list[Path], rng: random.Random) -> InjectedDamage:
    """The queue has one more unit than messages."""
    replica = rng.choice(group)
    every = messages(replica)
    last = rng.choice(list({(one.message.topic, one.message.queue_id): one for one in every}.values()))
    one = last.message
    folder = replica / "consumequeue" / one.topic / str(one.queue_id)
    byte = (one.queue_offset + 1) * 20
    path = max((p for p in folder.iterdir() if int(p.name) <= byte), key=lambda p: int(p.name))
    at = byte - int(path.name)
    if at >= path.stat().st_size:
        path, at = path.with_name(f"{byte:020d}"), 0
        path.write_bytes(bytes(2000))
    overwrite(path, at, struct.pack(">qiq", every[0].offset + 3, 100, 0))
    where: dict[str, Any] = {
        "topic": one.topic,
        "queue_id": one.queue_id,
        "queue_offset": one.queue_offset + 1,
    }
    return damage(replica, "queue.no-record", **where)


def renumber(replica: Path, rng: random.Random, step: int) -> Record:
    """Changes the queue offset of a message by `step`."""
    every = messages(replica)
    last = {(one.message.topic, one.message.queue_id): one for one in every}
    first = {(one.message.topic, one.message.queue_id): one for one in reversed(every)}
    chosen = [one for one in every if one not in last.values() and one not in first.values()]
    record = rng.choice(chosen)
    overwrite(record.path, record.at + 20, struct.pack(">q", record.message.queue_offset + step))
    return record


@injector
def queue_offset_duplicated(group: list[Path], rng: random.Random) -> InjectedDamage:
    """The same in every replica, so that only the queue shows it."""
    number = rng.random()
    for replica in group:
        record = renumber(replica, random.Random(number), -1)
    one = record.message
    where: dict[str, Any] = {
        "topic": one.topic,
        "queue_id": one.queue_id,
        "queue_offset": one.queue_offset - 1,
    }
    expected = frozenset({"queue-offset.duplicate", "queue-offset.skipped", "queue.wrong-unit"})
    return InjectedDamage("*", expected, where)


@injector
def queue_offset_skipped(group: list[Path], rng: random.Random) -> InjectedDamage:
    number = rng.random()
    for replica in group:
        record = renumber(replica, random.Random(number), 1 << 30)
    one = record.message
    where: dict[str, Any] = {"topic": one.topic, "queue_id": one.queue_id, "queue_offset": one.queue_offset}
    allowed = {"queue.wrong-unit", "queue.no-record", "queue.missing-unit", "consumer-offset.ahead"}
    return InjectedDamage("*", frozenset({"queue-offset.skipped"}), where, frozenset(allowed))


@injector
def consumer_ahead(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path = replica / "config" / "consumerOffset.json"
    table = json.loads(path.read_text())
    name = rng.choice(sorted(table["offsetTable"]))
    queue_id = rng.choice(sorted(table["offsetTable"][name]))
    table["offsetTable"][name][queue_id] = ahead = 1_000_000 + rng.randrange(1000)
    path.write_text(json.dumps(table))
    where = {"topic": name.partition("@")[0], "queue_id": int(queue_id), "queue_offset": ahead}
    return damage(replica, "consumer-offset.ahead", **where)


@injector
def offsets_unreadable(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path = replica / "config" / "consumerOffset.json"
    path.write_text(path.read_text()[:-5])
    return damage(replica, "state.unreadable")


def index_entry(replica: Path, rng: random.Random) -> tuple[Path, int, tuple[int, ...]]:
    """An entry of an index file: the file, its position, and (hash, physical offset, seconds, previous). Not
    one of the last message of a full file: further keys of that message may have been in a file that a
    broker has deleted after a kill, so a lack of them is a warning only."""
    candidates = []
    for path in sorted((replica / "index").iterdir()):
        data = path.read_bytes()
        (last_physical,) = struct.unpack_from(">q", data, 24)
        (count,) = struct.unpack_from(">i", data, 36)
        for number in range(1, count):
            at = 40 + 100 * 4 + number * 20
            entry = struct.unpack_from(">iqii", data, at)
            if entry[1] < last_physical:
                candidates.append((path, at, entry))
    return rng.choice(candidates)


@injector
def index_entry_of_another_offset(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path, at, entry = index_entry(replica, rng)
    overwrite(path, at + 4, struct.pack(">q", entry[1] + 1))
    return damage(replica, "index.missing-entry", start_offset=entry[1])


@injector
def index_entry_of_another_key(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path, at, entry = index_entry(replica, rng)
    overwrite(path, at, struct.pack(">i", entry[0] ^ 0x100))
    allowed = ("index.broken-chain",)
    return damage(replica, "index.missing-entry", allowed=allowed, start_offset=entry[1])


@injector
def index_chain_broken(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path, at, entry = index_entry(replica, rng)
    overwrite(path, at + 16, struct.pack(">i", entry[3] + 1))
    return damage(replica, "index.broken-chain", start_offset=entry[1])


@injector
def index_file_cut(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path = rng.choice(sorted((replica / "index").iterdir()))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 7)
    return damage(replica, "file.unreadable", allowed=("index.missing-entry",))


@injector
def index_file_missing(group: list[Path], rng: random.Random) -> InjectedDamage:
    """The newest index file is missing. If it was the only one, the directory is empty."""
    replica = rng.choice(group)
    every = sorted((replica / "index").iterdir())
    every[-1].unlink()
    return damage(replica, "index.missing-range" if len(every) > 1 else "directory.incomplete")


@injector
def directory_empty(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    clear(replica)
    return damage(replica, "directory.empty", file=str(replica))


def clear(replica: Path) -> None:
    """Empties a directory."""
    shutil.rmtree(replica)
    replica.mkdir()


@injector
def directory_missing(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    clear(replica)
    replica.rmdir()
    return damage(replica, "directory.missing", file=str(replica))


@injector
def directory_foreign(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    clear(replica)
    (replica / "photos").mkdir()
    return damage(replica, "directory.foreign", file=str(replica))


@injector
def directory_a_file(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    clear(replica)
    replica.rmdir()
    replica.write_text("no directory")
    return damage(replica, "directory.unreadable", file=str(replica))


@injector
def half_copied(group: list[Path], rng: random.Random) -> InjectedDamage:
    """The directory was copied without its consume queues."""
    replica = rng.choice(group)
    shutil.rmtree(replica / "consumequeue")
    return damage(replica, "directory.incomplete")


@injector
def foreign_file(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path = log_folder(replica) / "notes.txt"
    path.write_text("remember the milk")
    return damage(replica, "file.foreign", file=str(path))


@injector
def of_another_group(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    (replica / "brokerIdentity").write_text("DefaultCluster#group-b#1")
    return damage(replica, "directory.other-group")


@injector
def identity_emptied(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path = replica / "brokerIdentity"
    path.write_text("")
    return damage(replica, "state.unreadable", file=str(path))


@injector
def same_replica_twice(group: list[Path], rng: random.Random) -> InjectedDamage:
    (group[1] / "brokerIdentity").write_text((group[0] / "brokerIdentity").read_text())
    return damage(group[1], "directory.same-replica")


@injector
def segment_of_another_replica(group: list[Path], rng: random.Random) -> InjectedDamage:
    source = rng.choice(segments(group[0]))
    target = segments(group[1])[0].with_name(source.name)
    target.unlink(missing_ok=True)
    target.hardlink_to(source)
    return damage(group[1], "directory.same-files", file=str(target))
