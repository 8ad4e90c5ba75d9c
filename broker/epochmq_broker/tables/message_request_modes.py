"""Holds the message request modes: whether a group gets the messages of a topic by pull or by pop (RocketMQ's
MessageRequestModeManager). The file is `config/messageRequestMode.json`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from epochmq_protocol import fastjson
from epochmq_protocol.bodies import (
    MessageRequestModeSerializeWrapper,
    SetMessageRequestModeRequestBody,
    from_json,
    to_json,
)
from epochmq_store.state_files.state_file_io import read_state_file, write_state_file

FILE = "messageRequestMode.json"


class MessageRequestModeTable:
    """(topic, group) -> mode. `changes` counts the changes of the table."""

    def __init__(self, directory: Path, write: Callable[[Path, bytes], None] = write_state_file) -> None:
        """`write` writes the file; on a running event loop, through another thread."""
        self.changes = 0
        self._write_file = write
        self._path = directory / FILE
        self._table = MessageRequestModeSerializeWrapper()

    def load(self) -> None:
        """Reads the file, or its backup. Raises if both are damaged."""
        found = read_state_file(self._path, lambda data: from_json(MessageRequestModeSerializeWrapper, data))
        if found is not None:
            self._table = found

    def find(self, topic: str, group: str) -> SetMessageRequestModeRequestBody | None:
        """Returns the mode of a group on a topic, if it was set."""
        return self._table.message_request_mode_map.get(topic, {}).get(group)

    def set_mode(self, mode: SetMessageRequestModeRequestBody) -> None:
        """Sets the mode of a group on a topic, and writes the file. Raises OSError."""
        self._table.message_request_mode_map.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self._write()

    def encode(self) -> bytes:
        """Encodes the whole table, for slaves."""
        return to_json(self._table)

    def replace_all(self, table: MessageRequestModeSerializeWrapper) -> None:
        """Makes the table a copy of a master's. Raises OSError."""
        if table != self._table:
            self._table = table
            self._write()

    def _write(self) -> None:
        self.changes += 1
        self._write_file(self._path, fastjson.dumps(self._table, pretty=True))
