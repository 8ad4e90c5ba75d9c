# pure: which bytes the next block holds
"""Plans the next block of log bytes to a replica, and encodes its header (`AutoSwitchHAConnection`).

A block lies in one file and in one epoch, and its header names that epoch. A log that was begun without a
controller has bytes before its first epoch; their blocks name the first epoch.
"""

from __future__ import annotations

from msgspec import Struct

from epochmq_broker.replication.ha.epochs import Epochs
from epochmq_protocol.epoch_entries import OFFSET_MAX
from epochmq_protocol.ha_frames import encode_default_transfer, encode_transfer


class BlockLabel(Struct, frozen=True):
    """The epoch that a block's header names: its number, its start offset, and the offset where it ends."""

    epoch: int
    start_offset: int
    until: int


class BlockPlanner:
    """Plans the blocks of one HA connection. `epochs` is None without a controller; headers then name no
    epoch."""

    __slots__ = ("_epochs", "_file_size", "_label")

    def __init__(self, epochs: Epochs | None, file_size: int) -> None:
        self._epochs = epochs
        self._file_size = file_size
        self._label: BlockLabel | None = None

    def epochs_changed(self) -> None:
        """Forgets the cached label: an epoch was appended, so that the one before it has an end now."""
        self._label = None

    def label(self, position: int) -> BlockLabel:
        """The epoch that the byte at `position` belongs to."""
        label = self._label
        if label is not None and position < label.until:
            return label
        epochs = self._epochs
        entries = epochs.entries if epochs is not None else []
        if epochs is None or not entries:
            return BlockLabel(0, 0, OFFSET_MAX)
        entry = epochs.find(position)
        if entry is None:
            first = entries[0]
            return BlockLabel(first.epoch, first.start_offset, first.start_offset)
        label = self._label = BlockLabel(entry.epoch, entry.start_offset, epochs.end_of(entry))
        return label

    def size(self, position: int, end: int, most: int) -> int:
        """How many bytes the block at `position` holds if the log ends at `end`; at most `most`."""
        file_end = position - position % self._file_size + self._file_size
        size = min(end, file_end, position + most) - position
        if self._epochs is not None:
            size = min(size, self.label(position).until - position)
        return size

    def header(self, position: int, size: int, confirm_offset: int) -> bytes:
        """Encodes the header of a block or, with `size` 0, of a heartbeat."""
        if self._epochs is None:
            return encode_default_transfer(position, size)
        label = self.label(position)
        return encode_transfer(size, position, label.epoch, label.start_offset, confirm_offset)
