"""Damage to consume queues, indexes, consumer offsets and whole directories."""

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
    injected,
    kind,
    poke,
    records,
)


def a_unit(replica: Path, rng: random.Random, *, inside: bool = False) -> tuple[Path, int, int, Record]:
    """A unit: file, place in it, queue offset, and its message. `inside`: not the queue's last."""
    every = records(replica)
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


@kind
def unit_of_another_offset(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path, at, _, record = a_unit(replica, rng)
    poke(path, at, struct.pack(">q", record.offset + 1))
    return injected(replica, "queue.wrong-unit", **queue_where(record))


@kind
def unit_of_another_size(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path, at, _, record = a_unit(replica, rng)
    poke(path, at + 8, struct.pack(">i", record.size + 1))
    return injected(replica, "queue.wrong-unit", **queue_where(record))


@kind
def unit_of_another_tag(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path, at, _, record = a_unit(replica, rng)
    poke(path, at + 12, struct.pack(">q", 4711))
    return injected(replica, "queue.wrong-unit", **queue_where(record))


@kind
def unit_missing(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path, at, _, record = a_unit(replica, rng, inside=True)
    poke(path, at, bytes(20))
    return injected(replica, "queue.missing-unit", **queue_where(record))


@kind
def units_swapped(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    while True:
        path, at, _, record = a_unit(replica, rng, inside=True)
        data = path.read_bytes()
        if at + 40 <= len(data) and struct.unpack_from(">i", data, at + 28)[0] > 0:
            break
    poke(path, at, data[at + 20 : at + 40] + data[at : at + 20])
    return injected(replica, "queue.wrong-unit", **queue_where(record))


@kind
def unit_without_a_message(group: list[Path], rng: random.Random) -> InjectedDamage:
    """One unit more than there are messages."""
    replica = rng.choice(group)
    every = records(replica)
    last = rng.choice(list({(one.message.topic, one.message.queue_id): one for one in every}.values()))
    one = last.message
    folder = replica / "consumequeue" / one.topic / str(one.queue_id)
    byte = (one.queue_offset + 1) * 20
    path = max((p for p in folder.iterdir() if int(p.name) <= byte), key=lambda p: int(p.name))
    at = byte - int(path.name)
    if at >= path.stat().st_size:
        path, at = path.with_name(f"{byte:020d}"), 0
        path.write_bytes(bytes(2000))
    poke(path, at, struct.pack(">qiq", every[0].offset + 3, 100, 0))
    where = {"topic": one.topic, "queue_id": one.queue_id, "queue_offset": one.queue_offset + 1}
    return injected(replica, "queue.no-record", **where)


def renumber(replica: Path, rng: random.Random, step: int) -> Record:
    """Gives a message another queue offset."""
    every = records(replica)
    last = {(one.message.topic, one.message.queue_id): one for one in every}
    first = {(one.message.topic, one.message.queue_id): one for one in reversed(every)}
    chosen = [one for one in every if one not in last.values() and one not in first.values()]
    record = rng.choice(chosen)
    poke(record.path, record.at + 20, struct.pack(">q", record.message.queue_offset + step))
    return record


@kind
def queue_offset_duplicated(group: list[Path], rng: random.Random) -> InjectedDamage:
    """In every replica alike, so that only the queue shows it."""
    number = rng.random()
    for replica in group:
        record = renumber(replica, random.Random(number), -1)
    one = record.message
    where = {"topic": one.topic, "queue_id": one.queue_id, "queue_offset": one.queue_offset - 1}
    expected = frozenset({"queue-offset.duplicate", "queue-offset.skipped", "queue.wrong-unit"})
    return InjectedDamage("*", expected, where)


@kind
def queue_offset_skipped(group: list[Path], rng: random.Random) -> InjectedDamage:
    number = rng.random()
    for replica in group:
        record = renumber(replica, random.Random(number), 1 << 30)
    one = record.message
    where = {"topic": one.topic, "queue_id": one.queue_id, "queue_offset": one.queue_offset}
    allowed = {"queue.wrong-unit", "queue.no-record", "queue.missing-unit", "consumer-offset.ahead"}
    return InjectedDamage("*", frozenset({"queue-offset.skipped"}), where, frozenset(allowed))


@kind
def consumer_ahead(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path = replica / "config" / "consumerOffset.json"
    table = json.loads(path.read_text())
    name = rng.choice(sorted(table["offsetTable"]))
    queue_id = rng.choice(sorted(table["offsetTable"][name]))
    table["offsetTable"][name][queue_id] = ahead = 1_000_000 + rng.randrange(1000)
    path.write_text(json.dumps(table))
    where = {"topic": name.partition("@")[0], "queue_id": int(queue_id), "queue_offset": ahead}
    return injected(replica, "consumer-offset.ahead", **where)


@kind
def offsets_unreadable(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path = replica / "config" / "consumerOffset.json"
    path.write_text(path.read_text()[:-5])
    return injected(replica, "state.unreadable")


def index_entry(replica: Path, rng: random.Random) -> tuple[Path, int, tuple[int, ...]]:
    """An entry of an index file: file, place, (hash, physical offset, seconds, previous)."""
    path = rng.choice(sorted((replica / "index").iterdir()))
    data = path.read_bytes()
    count = struct.unpack_from(">i", data, 36)[0]
    at = 40 + 100 * 4 + rng.randrange(1, count) * 20
    return path, at, struct.unpack_from(">iqii", data, at)


@kind
def index_entry_of_another_offset(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path, at, entry = index_entry(replica, rng)
    poke(path, at + 4, struct.pack(">q", entry[1] + 1))
    return injected(replica, "index.missing-entry", start_offset=entry[1])


@kind
def index_entry_of_another_key(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path, at, entry = index_entry(replica, rng)
    poke(path, at, struct.pack(">i", entry[0] ^ 0x100))
    allowed = ("index.broken-chain",)
    return injected(replica, "index.missing-entry", allowed=allowed, start_offset=entry[1])


@kind
def index_chain_broken(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path, at, entry = index_entry(replica, rng)
    poke(path, at + 16, struct.pack(">i", entry[3] + 1))
    return injected(replica, "index.broken-chain", start_offset=entry[1])


@kind
def index_file_cut(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path = rng.choice(sorted((replica / "index").iterdir()))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 7)
    return injected(replica, "file.unreadable", allowed=("index.missing-entry",))


@kind
def index_file_missing(group: list[Path], rng: random.Random) -> InjectedDamage:
    """The newest did not come along; of a single one the directory is left."""
    replica = rng.choice(group)
    every = sorted((replica / "index").iterdir())
    every[-1].unlink()
    return injected(replica, "index.missing-entry" if len(every) > 1 else "directory.incomplete")


@kind
def directory_empty(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    clear(replica)
    return injected(replica, "directory.empty", file=str(replica))


def clear(replica: Path) -> None:
    """Removes what is in a directory."""
    shutil.rmtree(replica)
    replica.mkdir()


@kind
def directory_missing(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    clear(replica)
    replica.rmdir()
    return injected(replica, "directory.missing", file=str(replica))


@kind
def directory_foreign(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    clear(replica)
    (replica / "photos").mkdir()
    return injected(replica, "directory.foreign", file=str(replica))


@kind
def directory_a_file(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    clear(replica)
    replica.rmdir()
    replica.write_text("no directory")
    return injected(replica, "directory.unreadable", file=str(replica))


@kind
def half_copied(group: list[Path], rng: random.Random) -> InjectedDamage:
    """The queues did not come along."""
    replica = rng.choice(group)
    shutil.rmtree(replica / "consumequeue")
    return injected(replica, "directory.incomplete")


@kind
def foreign_file(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    path = replica / "commitlog" / "notes.txt"
    path.write_text("remember the milk")
    return injected(replica, "file.foreign", file=str(path))


@kind
def of_another_group(group: list[Path], rng: random.Random) -> InjectedDamage:
    replica = rng.choice(group)
    (replica / "brokerIdentity").write_text("DefaultCluster#group-b#1")
    return injected(replica, "directory.other-group")


@kind
def same_replica_twice(group: list[Path], rng: random.Random) -> InjectedDamage:
    (group[1] / "brokerIdentity").write_text((group[0] / "brokerIdentity").read_text())
    return injected(group[1], "directory.same-replica")
