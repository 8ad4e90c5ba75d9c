"""The format of `config/timercheck`: how far timer messages are in the wheel, and are delivered
(TimerCheckpoint).

The first 56 bytes are in use; they are also the body of the response to GET_TIMER_CHECK_POINT.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from epochmq_formats.fields import struct_of
from epochmq_protocol.topics import DataVersion

FILE_NAME: Final = "timercheck"
FILE_BYTES: Final = 4096

_NUMBERS: Final = (
    ("read_time_ms", "q"), ("log_flushed", "q"), ("queue_offset", "q"), ("master_queue_offset", "q"),
)  # fmt: skip
_VERSION: Final = (("state_version", "q"), ("timestamp", "q"), ("counter", "q"))
_FIELDS: Final = struct_of((*_NUMBERS, *_VERSION))
NUMBERS: Final = struct_of(_NUMBERS)
"""The fields before the data version, which old brokers do not write."""
CHECKPOINT_BYTES: Final = _FIELDS.size


class TimerCheckpoint(Struct, kw_only=True):
    """The numbers of the checkpoint."""

    read_time_ms: int = 0
    """All messages that are due before this time, epoch ms, are delivered."""
    log_flushed: int = 0
    """The timer log is on disk up to this position, and the wheel has its units."""
    queue_offset: int = 0
    """The messages before this offset of the timer topic's queue are in this broker's wheel, or delivered."""
    master_queue_offset: int = 0
    """The same of the master."""
    data_version: DataVersion = DataVersion()

    def encode(self) -> bytes:
        """The 56 bytes."""
        version = self.data_version
        return _FIELDS.pack(
            self.read_time_ms,
            self.log_flushed,
            self.queue_offset,
            self.master_queue_offset,
            version.state_version,
            version.timestamp,
            version.counter,
        )

    @classmethod
    def decode(cls, data: bytes) -> TimerCheckpoint:
        """Decodes the bytes of a file or a response; old brokers send no data version. Raises ValueError."""
        if len(data) < NUMBERS.size:
            raise ValueError(f"a timer checkpoint has {CHECKPOINT_BYTES} bytes, not {len(data)}")
        fields = _FIELDS.unpack(data[:CHECKPOINT_BYTES].ljust(CHECKPOINT_BYTES, b"\0"))
        return cls(
            read_time_ms=fields[0],
            log_flushed=fields[1],
            queue_offset=fields[2],
            master_queue_offset=fields[3],
            data_version=DataVersion(state_version=fields[4], timestamp=fields[5], counter=fields[6]),
        )
