"""The format of the file `timerwheel` (TimerWheel, Slot): 2 * 7 * 86,400 slots of 32 bytes, whatever their
precision.

A slot has time / precision (8 bytes), position of the first unit in the timer log (8), of the last unit (8),
number of messages (4), magic (4). The slot of a time has the number (time / precision) mod slots. A slot with
another time counts as empty."""

from __future__ import annotations

from typing import Final

from epochmq_formats.fields import struct_of

WINDOW_SLOTS: Final = 7 * 24 * 3600
"""Half of the slots: messages may be due so many slots ahead, and the broker may be down for so long."""
SLOTS: Final = 2 * WINDOW_SLOTS
FIELDS: Final = (("time", "q"), ("first", "q"), ("last", "q"), ("num", "i"), ("magic", "i"))
SLOT: Final = struct_of(FIELDS)
SLOT_TIME: Final = struct_of(FIELDS[:1])
WHEEL_BYTES: Final = SLOTS * SLOT.size
