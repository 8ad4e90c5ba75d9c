"""Groups that are as brokers leave them, although they look damaged at first, and what an audit must find in
them: nothing but notes, or a warning."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.spark import damage
from tests.spark.damage_kit import (
    epochs_with_bytes,
    overwrite,
    records,
    replace_record,
    set_times_of_index,
    write_epochs,
)

Row = dict[str, Any]
Change = Callable[[list[Path]], set[tuple[str, str]]]
"""Changes the directories of a healthy group of three. Returns (replica, kind) of all findings that are not
of the healthy group."""

CHANGES: dict[str, Change] = {}


def change(one: Change) -> Change:
    """Registers a change."""
    CHANGES[one.__name__] = one
    return one


def set_confirm_offset(replica: Path, offset: int) -> None:
    """Writes the confirm offset of the checkpoint."""
    overwrite(replica / "checkpoint", 32, struct.pack(">q", offset))


def add_tail(group: list[Path], name: str) -> tuple[Path, int]:
    """Gives one replica a tail in an epoch that ended earlier for all others, and returns the replica and the
    start of the tail. The broker was killed after it wrote the tail."""
    done = damage.KINDS["tail_of_a_lost_master"](group, random.Random(name))
    replica = next(path for path in group if path.name == done.replica)
    (replica / "abort").write_text("")
    return replica, done.where["start_offset"]


@change
def master_and_slaves_before_controllers(group: list[Path]) -> set[tuple[str, str]]:
    """The first epoch starts where the log ended when the group got controllers."""
    every = records(group[0])
    first = every[len(every) // 2].offset
    for replica in group:
        later = [(epoch, start) for epoch, start in epochs_with_bytes(replica) if start > first]
        write_epochs(replica, [(max(later[0][0] - 1, 0) if later else 1, first), *later])
    return {(path.name, "epoch.before-first") for path in group}


@change
def an_epoch_that_one_replica_has_lost(group: list[Path]) -> set[tuple[str, str]]:
    """The same start as above, but in one replica only."""
    every = records(group[0])
    epoch = epochs_with_bytes(group[0])[-1][0]
    for replica in group:
        write_epochs(replica, [(epoch - 1, 0), (epoch, every[len(every) // 2].offset)])
    write_epochs(group[1], [(epoch, every[len(every) // 2].offset)])
    return {(group[1].name, "epoch.gap"), (group[1].name, "epoch.missing")}


@change
def a_former_master_before_its_restart(group: list[Path]) -> set[tuple[str, str]]:
    """A master was killed with a tail that it had not acknowledged; the others have gone on."""
    replica, start = add_tail(group, "restart")
    set_confirm_offset(replica, start)
    return {(replica.name, "log.unacknowledged-tail")}


@change
def a_confirmed_tail(group: list[Path]) -> set[tuple[str, str]]:
    """The same, but the former master has acknowledged its tail."""
    replica, start = add_tail(group, "confirmed")
    set_confirm_offset(replica, start + 1)
    return {(replica.name, "log.tail-not-common")}


@change
def a_lost_index_file(group: list[Path]) -> set[tuple[str, str]]:
    """A default broker of RocketMQ that was killed deletes its newest index file at the next start. The
    history of some seeds has only one."""
    every = sorted((group[2] / "index").iterdir())
    every[-1].unlink()
    return {(group[2].name, "index.missing-range" if len(every) > 1 else "directory.incomplete")}


@change
def a_clock_that_was_set_back(group: list[Path]) -> set[tuple[str, str]]:
    """The store times decrease in the middle of all logs."""
    every = records(group[0])
    for replica in group:
        for record in records(replica)[len(every) // 2 :]:
            one = record.message
            one.store_timestamp -= 3_600_000
            replace_record(record, one)
        set_times_of_index(replica)
    return set()


def found(rows: Sequence[Row]) -> set[tuple[str, str]]:
    """(replica, kind) of findings. A replica that lags or that was sent a message again is no matter here."""
    return {(row["replica"], row["kind"]) for row in rows if row["kind"] != "message.duplicate"}
