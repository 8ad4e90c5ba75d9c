"""Compares the consume queues with the records that the scrub has read, and rewrites units that differ from
them: what the log says is right.

A unit that leads to another record of the same queue and offset stays: the topic was deleted and created
again, and the older record has no place any more. A unit stays, too, if the record's place does not fit
between its neighbours': as in RocketMQ, a queue closes a gap in its offsets. This needs no other replica.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from epochmq_broker.replication.scrub.paced_reads import PacedReads
from epochmq_store.appending.expected_units import ExpectedUnit, ExpectedUnits
from epochmq_store.appending.unit_check import (
    StoredUnit,
    UnitRun,
    differing,
    is_between,
    places_of_record,
    rewrite,
    runs_of,
    stored_unit,
    written_file,
)
from epochmq_store.message_store import MessageStore

log = logging.getLogger(__name__)

UNITS_AT_A_TIME: Final = 2000
RUNS_AT_A_TIME: Final = 64
"""After so many, other work of the event loop and of the thread gets its turn."""
NAMED_MAX: Final = 20
"""The most rewritten units of one part of the log that the broker's log names."""


class QueueRepair:
    """Checks and repairs the consume queues of one broker."""

    def __init__(self, store: MessageStore, reads: PacedReads, *, limit: Callable[[], int]) -> None:
        """`limit`: up to which offset the records of the log stay."""
        self._store = store
        self._reads = reads
        self._limit = limit
        self.repaired = 0
        """Units that were rewritten since the start."""

    def collector(self, header_bytes: int) -> ExpectedUnits:
        """Collects the units of the records of one part of the log."""
        light = self._store.light_queues
        return ExpectedUnits(
            header_bytes, self._store.config.delays_ms, light=light is not None and light.dispatches
        )

    async def run(self, expected: ExpectedUnits) -> None:
        """Compares the queues with the records of one part of the log, without those that are known to be
        damaged."""
        before = self.repaired
        runs: list[UnitRun] = []
        units_there = 0
        for key, units in expected.by_queue.items():
            runs += runs_of(self._store.queues.get(key), units)
            units_there += len(units)
            if units_there >= UNITS_AT_A_TIME or len(runs) >= RUNS_AT_A_TIME:
                await self._check(runs, before)
                runs, units_there = [], 0
        await self._check(runs, before)
        if self.repaired - before > NAMED_MAX:
            log.warning("%d more units of consume queues were repaired", self.repaired - before - NAMED_MAX)

    async def _check(self, runs: list[UnitRun], before: int) -> None:
        """Compares and repairs some runs. `before`: the units that were repaired before this part of the
        log."""
        found = await self._reads.checked(partial(_compare, runs), sum(run.size for run in runs))
        for run, units in zip(runs, found, strict=True):
            try:
                if isinstance(units, OSError):
                    raise units
                for unit in units:
                    await self._repair(run, unit, is_named=self.repaired - before < NAMED_MAX)
            except FileNotFoundError:
                pass  # the queue's file has expired, or its topic was deleted
            except OSError as error:
                log.error("%s cannot be compared with the log: %s", run.file.path, error)

    async def _repair(self, run: UnitRun, unit: ExpectedUnit, *, is_named: bool) -> None:
        end = unit.physical + unit.size
        if self._store.damage.first_within(unit.physical, end) is not None:
            return
        seen = await self._reads.on_thread(partial(stored_unit, run.file, unit.offset))
        if seen[0] != unit.physical and not await self._is_misplaced(run, unit, seen):
            return
        if self._store.log.files.find(unit.physical) is None or end > self._limit():
            return
        if not rewrite(run, unit, seen):
            return
        self.repaired += 1
        await self._reads.on_thread(run.file.sync)
        if is_named:
            log.warning(
                "%s: the unit at offset %d of the queue %s-%d was (position %d, size %d, code %d) and is not "
                "what the log says; it was replaced by (position %d, size %d, code %d)",
                run.file.path,
                unit.offset,
                run.queue.topic,
                run.queue.queue_id,
                *seen,
                unit.physical,
                unit.size,
                unit.tags_code,
            )

    async def _is_misplaced(self, run: UnitRun, unit: ExpectedUnit, seen: StoredUnit) -> bool:
        """Whether a unit that leads to another place than this record is wrong."""
        queue = run.queue
        if (queue.topic, queue.queue_id, unit.offset) in await self._places(seen):
            return False
        for offset in (unit.offset - 1, unit.offset + 1):
            file = written_file(queue, offset)
            if file is None:
                continue
            neighbour = await self._reads.on_thread(partial(stored_unit, file, offset))
            if is_between(unit.physical, neighbour, is_next=offset > unit.offset):
                continue
            if any(place[:2] == (queue.topic, queue.queue_id) for place in await self._places(neighbour)):
                return False
        return True

    async def _places(self, stored: StoredUnit) -> list[tuple[str, int, int]]:
        """The places in queues of the record to which a unit leads."""
        file = self._store.log.files.find(stored[0])
        if file is None:
            return []
        delays_ms = self._store.config.delays_ms
        return await self._reads.on_thread(partial(places_of_record, file, stored[0], delays_ms))


def _compare(runs: list[UnitRun]) -> list[list[ExpectedUnit] | OSError]:
    """The differing units of each run, or why its file cannot be read."""
    found: list[list[ExpectedUnit] | OSError] = []
    for run in runs:
        try:
            found.append(differing(run))
        except OSError as error:
            found.append(error)
    return found
