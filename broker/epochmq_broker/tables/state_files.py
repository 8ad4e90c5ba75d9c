"""Reads and writes the broker's tables on disk: `config/topics.json`, `subscriptionGroup.json` and
`consumerOffset.json`.

The files have the format of RocketMQ's ConfigManagers: a Java broker can read them, and this broker those of
a Java broker. Topics and groups go to the writer in the event-loop iteration that changed them, offsets at
their interval if any has changed. The writer makes the files durable on its own thread. A killed broker loses
no topic or group of an earlier iteration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring
from pathlib import Path

import msgspec

from epochmq_broker.tables.consumer_offsets import ConsumerOffsetTable
from epochmq_broker.tables.subscription_groups import SubscriptionGroupTable
from epochmq_broker.tables.topics import TopicTable
from epochmq_protocol import fastjson
from epochmq_protocol.bodies import from_json
from epochmq_protocol.integers import Int, Long
from epochmq_protocol.subscription_groups import SubscriptionGroupConfig
from epochmq_protocol.topics import DataVersion, TopicConfig
from epochmq_store.state_files.state_file_io import read_state_file
from epochmq_store.state_files.state_file_writer import StateFileWriter

log = logging.getLogger(__name__)

TOPICS, GROUPS, OFFSETS = "topics.json", "subscriptionGroup.json", "consumerOffset.json"
LIGHT_OFFSETS = "lmqConsumerOffset.json"
"""The file of all consumer offsets while enableLmq is on, in place of OFFSETS."""


class _TopicsFile(msgspec.Struct, rename="camel"):
    data_version: DataVersion | None = None
    topic_config_table: dict[str, TopicConfig] = {}


class _GroupsFile(msgspec.Struct, rename="camel"):
    data_version: DataVersion | None = None
    forbidden_table: dict[str, dict[str, Int]] = {}
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}


class _OffsetsFile(msgspec.Struct, rename="camel"):
    data_version: DataVersion | None = None
    offset_table: dict[str, dict[Int, Long]] = {}
    lmq_offset_table: dict[str, Long] = {}


class StateFiles:
    """Loads the tables at the start and writes their files after changes."""

    def __init__(
        self,
        *,
        directory: Path,
        topics: TopicTable,
        groups: SubscriptionGroupTable,
        offsets: ConsumerOffsetTable,
        writer: StateFileWriter,
    ) -> None:
        self._writer = writer
        self._directory = directory
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._offsets_file = OFFSETS if offsets.light_table is None else LIGHT_OFFSETS
        self._due: dict[str, Callable[[], bytes]] = {}
        self._scheduled: asyncio.Handle | None = None
        self._written_changes = -1
        self._when_queues_written: Callable[[Callable[[], None]], None] = lambda write: write()
        self._topic_entries = _RenderedEntries()
        self._group_entries = _RenderedEntries()

    def write_offsets_after_queues(self, when_queues_written: Callable[[Callable[[], None]], None]) -> None:
        """Writes consumer offsets only after the units of the messages that they pass. `when_queues_written`
        calls its argument once the present content of the consume queues is in their files. Without this
        call offsets are written at once."""
        self._when_queues_written = when_queues_written

    def load(self) -> None:
        """Fills the tables from their files, or from the backups. Raises if a file and its backup are both
        damaged."""
        topics = read_state_file(self._directory / TOPICS, lambda data: from_json(_TopicsFile, data))
        if topics is not None:
            self._topics.restore(topics.topic_config_table, topics.data_version)
        groups = read_state_file(self._directory / GROUPS, lambda data: from_json(_GroupsFile, data))
        if groups is not None:
            self._groups.restore(groups.subscription_group_table, groups.forbidden_table, groups.data_version)
        offsets = self._read_offsets()
        if offsets is not None:
            self._offsets.restore(offsets.offset_table, offsets.data_version, offsets.lmq_offset_table)
        self._written_changes = self._offsets.changes
        self._topics.on_change.append(lambda _names: self._write_now(TOPICS, self.topics_json))
        self._groups.on_change.append(lambda _names: self._write_soon(GROUPS, self.groups_json))

    def _read_offsets(self) -> _OffsetsFile | None:
        """Reads the offsets from this broker's file, or from the one that it had before enableLmq changed, if
        that has a newer data version. RocketMQ reads its present file only, so that groups go back to where
        they were at the previous change, or to the start."""
        other = OFFSETS if self._offsets_file == LIGHT_OFFSETS else LIGHT_OFFSETS
        found = [
            read_state_file(self._directory / name, lambda data: from_json(_OffsetsFile, data))
            for name in (self._offsets_file, other)
        ]
        return max((file for file in found if file is not None), key=_age, default=None)

    def persist_offsets(self) -> None:
        """Writes the offsets' file if an offset has changed since the last call."""
        changes = self._offsets.changes
        if changes == self._written_changes:
            self._writer.retry()
            return
        self._written_changes = changes
        data = self.offsets_json()

        def write() -> None:
            if self._written_changes == changes:  # no newer state was written in the meantime
                self._writer.write(self._directory / self._offsets_file, data)

        self._when_queues_written(write)

    def persist(self) -> None:
        """Writes every file durably on the calling thread, for start and stop. Raises OSError; the writer
        retries later."""
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        self._due.clear()
        for name, encode in (
            (TOPICS, self.topics_json),
            (GROUPS, self.groups_json),
            (self._offsets_file, self.offsets_json),
        ):
            self._writer.add(self._directory / name, encode())
        self._written_changes = self._offsets.changes
        self._writer.flush()

    def topics_json(self) -> bytes:
        """Encodes topics.json."""
        return _file(self._topics.data_version, topicConfigTable=self._topic_entries.text(self._topics.table))

    def groups_json(self) -> bytes:
        """Encodes subscriptionGroup.json."""
        groups = self._groups
        forbidden = {group: dict(bits) for group, bits in groups.forbidden_table.items()}
        return _file(
            groups.data_version,
            forbiddenTable=_indented(fastjson.dumps(forbidden, pretty=True).decode(), 1),
            subscriptionGroupTable=self._group_entries.text(groups.table),
        )

    def offsets_json(self) -> bytes:
        """Encodes consumerOffset.json or lmqConsumerOffset.json."""
        entries = []
        for key, queues in sorted(self._offsets.table.items()):
            inner = ",".join([f"{queue_id}:{offset}" for queue_id, offset in sorted(queues.items())])
            entries.append(f"\n\t\t{encode_basestring(key)}:{{{inner}\n\t\t}}")
        tables = {"offsetTable": _joined(entries)}
        light = self._offsets.light_table
        if light is not None:
            rows = [f"\n\t\t{encode_basestring(key)}:{offset}" for key, offset in sorted(light.items())]
            tables = {"lmqOffsetTable": _joined(rows)} | tables
        return _file(self._offsets.data_version, **tables)

    def _write_now(self, name: str, encode: Callable[[], bytes]) -> None:
        """Writes a file in this event-loop iteration. A message stored under a new topic may be acknowledged
        in the same iteration; if the broker were killed before the topic is on disk, the message would be
        unreachable."""
        self._write_soon(name, encode)
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._write_due()

    def _write_soon(self, name: str, encode: Callable[[], bytes]) -> None:
        self._due[name] = encode
        if self._scheduled is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:  # no loop runs yet: `persist` or the next change writes the file
                return
            self._scheduled = loop.call_soon(self._write_due)

    def _write_due(self) -> None:
        self._scheduled = None
        due, self._due = self._due, {}
        for name, encode in due.items():
            self._writer.write(self._directory / name, encode(), survives_kill=True)


def _age(file: _OffsetsFile) -> tuple[int, int, int]:
    version = file.data_version or DataVersion()
    return version.state_version, version.counter, version.timestamp


class _RenderedEntries:
    """The JSON text of a table's entries. The tables replace values instead of modifying them, so an entry is
    rendered again only if its value is another object. Writing a large table costs as much as its changes."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, str]] = {}

    def text(self, table: Mapping[str, object]) -> str:
        """The whole table, pretty-printed, as the value of a field of the file."""
        before, known = self._known, {}
        for name, value in table.items():
            entry = before.get(name)
            if entry is None or entry[0] is not value:
                rendered = _indented(fastjson.dumps(value, pretty=True).decode(), 2)
                entry = (value, f"\n\t\t{encode_basestring(name)}:{rendered}")
            known[name] = entry
        self._known = known
        return _joined([known[name][1] for name in sorted(known)])


def _file(data_version: DataVersion, **fields: str) -> bytes:
    """A file with these fields in order; each field's value is its JSON text."""
    version = _indented(fastjson.dumps(data_version, pretty=True).decode(), 1)
    rest = "".join(f',\n\t"{name}":{text}' for name, text in fields.items())
    return f'{{\n\t"dataVersion":{version}{rest}\n}}'.encode()


def _joined(entries: list[str]) -> str:
    return f"{{{','.join(entries)}\n\t}}" if entries else "{}"


def _indented(text: str, levels: int) -> str:
    return text.replace("\n", "\n" + "\t" * levels)
