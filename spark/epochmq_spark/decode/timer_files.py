# pure: bytes of the timer's files to columns
"""Decodes the timer wheel, its log and its checkpoint, and follows the chains of units.

`epochmq_formats.timer_wheel` and its neighbours define the formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from epochmq_formats import timer_log, timer_wheel
from epochmq_formats.timer_checkpoint import NUMBERS
from epochmq_formats.timer_log import MAGIC_MAX, NO_UNIT, UNIT_BYTES
from epochmq_formats.timer_wheel import SLOTS
from epochmq_spark.decode.field_types import dtype_of

Array = Any

SLOT: Final = dtype_of(timer_wheel.FIELDS)
UNIT: Final = dtype_of(timer_log.FIELDS)
PRECISIONS_MS: Final = (1000, 500, 200, 100)
"""What `timerPrecisionMs` may be."""


@dataclass(frozen=True)
class TimerProgress:
    """The numbers of `config/timercheck`. Messages that are due before `read_time_ms` (epoch ms) are
    delivered; those before `queue_offset` of the timer topic's queue are in the wheel, or delivered; the
    timer log is on disk up to the position `log_flushed`."""

    read_time_ms: int
    log_flushed: int
    queue_offset: int
    master_queue_offset: int


def decode_progress(data: bytes) -> TimerProgress:
    """The checkpoint in the bytes of a file. Raises ValueError."""
    if len(data) < NUMBERS.size:
        raise ValueError(f"{len(data)} bytes, expected at least {NUMBERS.size}")
    progress = TimerProgress(*NUMBERS.unpack_from(data))
    for name in ("read_time_ms", "log_flushed", "queue_offset", "master_queue_offset"):
        if (value := getattr(progress, name)) < 0:
            raise ValueError(f"{name} is {value}, expected 0 or more")
    return progress


def decode_units(data: Array) -> Array:
    """The units in the data as a table with the columns of `UNIT`; an incomplete one at the end is left
    out."""
    return np.frombuffer(data[: len(data) - len(data) % UNIT_BYTES], UNIT)


def valid_count(units: Array) -> int:
    """The number of valid units before the first one that is not."""
    valid = (units["bytes"] == UNIT_BYTES) & (units["magic"] & ~MAGIC_MAX == 0) & (units["size"] > 0)
    wrong = np.flatnonzero(~valid)
    return int(wrong[0]) if len(wrong) else len(units)


def due_times(units: Array) -> Array:
    """When the messages are due, or are to be stored again; epoch ms."""
    return units["write_time"].astype(np.int64) + units["delay"].astype(np.int64)


class SlotChains:
    """Checks the chains of the units of the timer log, which name each other by slot."""

    def __init__(self, precision_ms: int) -> None:
        self.precision_ms = precision_ms
        self.times = np.zeros(SLOTS, np.int64)
        """The time of each slot in units of the precision; 0 for none."""
        self.last = np.full(SLOTS, NO_UNIT, np.int64)
        """The position of the last unit of each slot."""

    def add(self, positions: Array, units: Array) -> tuple[Array, Array]:
        """Adds units. Returns (the numbers of the units that do not name the previous unit of their slot,
        what these should name)."""
        times = due_times(units) // self.precision_ms
        slots = times % SLOTS
        order = np.argsort(slots, kind="stable")
        times, slots, sorted_positions = times[order], slots[order], positions[order]
        before_time = np.where(self.times[slots] == times, times, 0)
        expected = np.where(before_time == times, self.last[slots], NO_UNIT)
        same = np.flatnonzero((slots[1:] == slots[:-1]) & (times[1:] == times[:-1])) + 1
        expected[same] = sorted_positions[same - 1]
        other = np.flatnonzero((slots[1:] == slots[:-1]) & (times[1:] != times[:-1])) + 1
        expected[other] = NO_UNIT
        self.times[slots], self.last[slots] = times, sorted_positions  # of equal slots the last one wins
        wrong = np.flatnonzero(units["previous"][order].astype(np.int64) != expected)
        return order[wrong], expected[wrong]
