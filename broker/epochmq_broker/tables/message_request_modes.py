"""Holds the message request modes: whether a group gets the messages of a topic by pull or by pop (RocketMQ's
MessageRequestModeManager). The file is `config/messageRequestMode.json`.

Each mode stays encoded, for the file and for slaves, so that a change costs as much as one mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from json.encoder import encode_basestring
from pathlib import Path

from epochmq_protocol import fastjson
from epochmq_protocol.bodies import (
    MessageRequestModeSerializeWrapper,
    SetMessageRequestModeRequestBody,
    from_json,
    to_json,
)
from epochmq_protocol.bodies_in_turns import map_entry
from epochmq_store.state_files.rendered_table import RenderedTable
from epochmq_store.state_files.state_file_io import read_state_file, write_state_file

FILE = "messageRequestMode.json"
_Modes = dict[str, dict[str, SetMessageRequestModeRequestBody]]


class MessageRequestModeTable:
    """(topic, group) -> mode. `changes` counts the changes of the table."""

    def __init__(self, directory: Path, write: Callable[[Path, bytes], None] = write_state_file) -> None:
        """`write` writes the file; on a running event loop, through another thread."""
        self.changes = 0
        self._write_file = write
        self._path = directory / FILE
        self._modes: _Modes = {}
        self._for_file = _RenderedModes(_file_entry)
        self._for_slaves = _RenderedModes(map_entry)

    def load(self) -> None:
        """Reads the file, or its backup. Raises if both are damaged."""
        found = read_state_file(self._path, lambda data: from_json(MessageRequestModeSerializeWrapper, data))
        if found is not None:
            self._set_all(found)
            self._file_content()  # encodes each mode before the broker serves
            self.encode()

    def find(self, topic: str, group: str) -> SetMessageRequestModeRequestBody | None:
        """Returns the mode of a group on a topic, if it was set."""
        return self._modes.get(topic, {}).get(group)

    def set_mode(self, mode: SetMessageRequestModeRequestBody) -> None:
        """Sets the mode of a group on a topic, and writes the file. Raises OSError."""
        self._modes.setdefault(mode.topic, {})[mode.consumer_group] = mode
        for rendered in (self._for_file, self._for_slaves):
            rendered.changed(mode.topic, mode.consumer_group)
        self._write()

    def encode(self) -> bytes:
        """Encodes the whole table, for slaves."""
        topics = [
            b"%b:{%b}" % (to_json(topic), modes) for topic, modes in self._for_slaves.topics(self._modes)
        ]
        return b'{"messageRequestModeMap":{%b}}' % b",".join(topics)

    def replace_all(self, table: MessageRequestModeSerializeWrapper) -> None:
        """Makes the table a copy of a master's. Raises OSError."""
        if table.message_request_mode_map != self._modes:
            self._set_all(table)
            self._write()

    def _set_all(self, table: MessageRequestModeSerializeWrapper) -> None:
        self._modes = table.message_request_mode_map
        for rendered in (self._for_file, self._for_slaves):
            rendered.forget()

    def _write(self) -> None:
        self.changes += 1
        self._write_file(self._path, self._file_content())

    def _file_content(self) -> bytes:
        topics = [
            b"\n\t\t%b:{%b}" % (encode_basestring(topic).encode(), modes + b"\n\t\t" if modes else b"")
            for topic, modes in self._for_file.topics(self._modes)
        ]
        return b'{\n\t"messageRequestModeMap":{%b}\n}' % (b",".join(topics) + b"\n\t" if topics else b"")


class _RenderedModes:
    """The encoded modes of each topic."""

    def __init__(self, encode: Callable[[str, object], bytes]) -> None:
        self._encode = encode
        self._topics: dict[str, RenderedTable] = {}

    def changed(self, topic: str, group: str) -> None:
        if topic in self._topics:
            self._topics[topic].changed([group])

    def forget(self) -> None:
        self._topics.clear()

    def topics(self, modes: _Modes) -> list[tuple[str, bytes]]:
        """Each topic in order, with its encoded modes."""
        found = []
        for topic in sorted(modes):
            if topic not in self._topics:
                self._topics[topic] = RenderedTable(self._encode)
            table: Mapping[str, object] = modes[topic]
            found.append((topic, self._topics[topic].join(table)))
        return found


def _file_entry(group: str, mode: object) -> bytes:
    rendered = fastjson.dumps(mode, pretty=True).replace(b"\n", b"\n\t\t\t")
    return b"\n\t\t\t%b:%b" % (encode_basestring(group).encode(), rendered)
