"""Reads and writes `compaction/position-checkpoint`: up to which queue offset each queue has been compacted
(CompactionPositionMgr).

The file is a JSON object in fastjson's layout: `empty`, and `queueOffsetMap` with an entry `TOPIC_QUEUE` for
each queue.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from epochmq_protocol import fastjson
from epochmq_protocol.errors import BodyError
from epochmq_store.state_files.state_file_io import read_state_file, write_state_file

FILE_NAME: Final = "position-checkpoint"
NEVER_COMPACTED: Final = -1


def position_key(topic: str, queue_id: int) -> str:
    """The key of a queue in the file."""
    return f"{topic}_{queue_id}"


def encode_positions(positions: dict[str, int]) -> bytes:
    """The content of the file."""
    entries = ",".join(f"\n\t\t{json.dumps(key, ensure_ascii=False)}:{at}" for key, at in positions.items())
    table = f"{{{entries}\n\t}}" if entries else "{}"
    return f'{{\n\t"empty":{str(not positions).lower()},\n\t"queueOffsetMap":{table}\n}}'.encode()


def decode_positions(data: bytes) -> dict[str, int]:
    """The positions in the file's content. Raises BodyError."""
    document = fastjson.loads(data)
    table = document.get("queueOffsetMap") if isinstance(document, dict) else None
    if not isinstance(table, dict):
        raise BodyError("queueOffsetMap is missing: expected an object of queues and offsets")
    for key, offset in table.items():
        if not isinstance(key, str) or not isinstance(offset, int) or isinstance(offset, bool):
            raise BodyError(f"queueOffsetMap[{key!r}] is {offset!r}: expected an integer")
    return table


class CompactionPositions:
    """The positions of all queues. Reads and writes of the file wait for the disk."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._positions: dict[str, int] = {}

    def load(self) -> None:
        """Reads the file. Raises StateFileDamagedError."""
        self._positions = read_state_file(self._path, decode_positions) or {}

    def get(self, topic: str, queue_id: int) -> int:
        """The queue offset of the last message that took part in a compaction, NEVER_COMPACTED without."""
        return self._positions.get(position_key(topic, queue_id), NEVER_COMPACTED)

    def set(self, topic: str, queue_id: int, offset: int) -> None:
        """Changes a position in memory."""
        self._positions[position_key(topic, queue_id)] = offset

    def remove(self, topic: str, queue_id: int) -> None:
        """Removes the position of a deleted queue from memory."""
        self._positions.pop(position_key(topic, queue_id), None)

    def write(self) -> None:
        """Writes the file durably. Raises OSError."""
        write_state_file(self._path, encode_positions(dict(self._positions)))
