# pure: bytes of properties to positions of names and values
"""Finds the names and values of the properties of many messages in compiled code.

The rules are those of `epochmq_protocol.message.parse_properties`: an entry without a name or a value is
dropped, the last of equal names counts, in the place of the first one."""

from __future__ import annotations

from typing import Any, Final

import numba as nb

NAME_AT, NAME_SIZE, VALUE_AT, VALUE_SIZE = range(4)
COLUMNS: Final = 4


@nb.njit(nogil=True, cache=True)
def _are_equal(data: Any, left: int, right: int, size: int) -> Any:
    index = 0
    while index < size and data[left + index] == data[right + index]:
        index += 1
    return index == size


@nb.njit(nogil=True, cache=True)
def find_entries(data: Any, starts: Any, sizes: Any, ends: Any, entries: Any) -> Any:
    """Sets the rows of `entries` (name at, size, value at, size) to the properties of the messages, whose
    properties are the bytes [starts, starts + sizes), and `ends` (len + 1 numbers) to where those of each
    message end. Returns how many there are. `entries` needs (size + 1) // 4 rows for each message."""
    count = 0
    ends[0] = 0
    for number in range(len(starts)):
        first = count
        at = starts[number]
        end = at + sizes[number]
        while at < end:
            stop = at
            split = at - 1  # none yet
            while stop < end and data[stop] != 2:
                if data[stop] == 1 and split < at:
                    split = stop
                stop += 1
            if split > at and stop > split + 1:
                size = split - at
                entry = first
                while entry < count:
                    name_at = entries[entry, NAME_AT]
                    if entries[entry, NAME_SIZE] == size and _are_equal(data, name_at, at, size):
                        break
                    entry += 1
                if entry == count:
                    entries[entry, NAME_AT], entries[entry, NAME_SIZE] = at, size
                    count += 1
                entries[entry, VALUE_AT], entries[entry, VALUE_SIZE] = split + 1, stop - split - 1
            at = stop + 1
        ends[number + 1] = count
    return count
