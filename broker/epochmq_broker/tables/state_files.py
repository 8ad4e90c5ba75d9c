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
import time
from collections.abc import Callable, Generator
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
from epochmq_protocol.transport.turns import TURN_S
from epochmq_store.state_files.rendered_table import RenderedTable
from epochmq_store.state_files.state_file_io import read_state_file
from epochmq_store.state_files.state_file_writer import StateFileWriter

log = logging.getLogger(__name__)

TOPICS, GROUPS, OFFSETS = "topics.json", "subscriptionGroup.json", "consumerOffset.json"
LIGHT_OFFSETS = "lmqConsumerOffset.json"
"""The file of all consumer offsets while enableLmq is on, in place of OFFSETS."""


KEYS_AT_ONCE, KEYS_AT_A_TIME = 500, 20
"""A larger table of offsets is encoded in steps of so many keys, 0.1 ms each."""


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
        self._offsets_steps: Generator[None, None, bytes] | None = None
        """The encoding of the offsets' file, while it goes on."""
        self._when_queues_written: Callable[[Callable[[], None]], None] = lambda write: write()
        self._topic_entries = RenderedTable(_entry)
        self._group_entries = RenderedTable(_entry)
        topics.on_change.append(self._topic_entries.changed)
        groups.on_change.append(self._group_entries.changed)

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
            self._topic_entries.changed_everywhere()
        groups = read_state_file(self._directory / GROUPS, lambda data: from_json(_GroupsFile, data))
        if groups is not None:
            self._groups.restore(groups.subscription_group_table, groups.forbidden_table, groups.data_version)
            self._group_entries.changed_everywhere()
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
        if self._offsets_steps is not None:  # the former state is still being encoded
            return
        self._written_changes = changes
        self._offsets_steps = self._encode_offsets()
        if len(self._offsets.table) <= KEYS_AT_ONCE:
            self._write_offsets(changes, self.offsets_json())
        else:
            self._encode_more_offsets(changes)

    def _encode_more_offsets(self, changes: int) -> None:
        """Encodes a part of a large table; the rest in later turns of the event loop."""
        steps, until_s = self._offsets_steps, time.perf_counter() + TURN_S
        if steps is None:  # `persist` has written the table meanwhile
            return
        try:
            while time.perf_counter() < until_s:
                next(steps)
        except StopIteration as end:
            self._write_offsets(changes, end.value)
            return
        asyncio.get_running_loop().call_soon(self._encode_more_offsets, changes)

    def _write_offsets(self, changes: int, data: bytes) -> None:
        self._offsets_steps = None

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
        self._topic_entries.changed_everywhere()
        self._group_entries.changed_everywhere()
        for name, encode in (
            (TOPICS, self.topics_json),
            (GROUPS, self.groups_json),
            (self._offsets_file, self.offsets_json),
        ):
            self._writer.add(self._directory / name, encode())
        self._offsets_steps = None
        self._written_changes = self._offsets.changes
        self._writer.flush()

    def topics_json(self) -> bytes:
        """Encodes topics.json."""
        topics = self._topic_entries.join(self._topics.table)
        return _file(self._topics.data_version, topicConfigTable=_table(topics))

    def groups_json(self) -> bytes:
        """Encodes subscriptionGroup.json."""
        groups = self._groups
        forbidden = {group: dict(bits) for group, bits in groups.forbidden_table.items()}
        return _file(
            groups.data_version,
            forbiddenTable=(_indented(fastjson.dumps(forbidden, pretty=True), 1),),
            subscriptionGroupTable=_table(self._group_entries.join(groups.table)),
        )

    def offsets_json(self) -> bytes:
        """Encodes consumerOffset.json or lmqConsumerOffset.json."""
        steps = self._encode_offsets()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                data: bytes = end.value
                return data

    def _encode_offsets(self) -> Generator[None, None, bytes]:
        """Encodes the file in steps. Each entry is correct when it is encoded."""
        entries = []
        for number, key in enumerate(sorted(self._offsets.table)):
            queues = self._offsets.table.get(key)
            if queues is None:  # deleted since an earlier step
                continue
            inner = ",".join([f"{queue_id}:{offset}" for queue_id, offset in sorted(queues.items())])
            entries.append(f"\n\t\t{encode_basestring(key)}:{{{inner}\n\t\t}}")
            if number % KEYS_AT_A_TIME == 0:
                yield
        tables = {"offsetTable": _table(",".join(entries).encode())}
        light = self._offsets.light_table
        if light is not None:
            rows = [f"\n\t\t{encode_basestring(key)}:{offset}" for key, offset in sorted(light.items())]
            tables = {"lmqOffsetTable": _table(",".join(rows).encode())} | tables
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


def _entry(name: str, value: object) -> bytes:
    """An entry of a table in a file, pretty-printed."""
    rendered = _indented(fastjson.dumps(value, pretty=True), 2)
    return b"\n\t\t%b:%b" % (encode_basestring(name).encode(), rendered)


def _table(entries: bytes) -> tuple[bytes, ...]:
    """A table as the value of a field of the file, with these entries. In pieces: it is large."""
    return (b"{", entries, b"\n\t}") if entries else (b"{}",)


def _file(data_version: DataVersion, **fields: tuple[bytes, ...]) -> bytes:
    """A file with these fields in order; each field's value is its JSON text in pieces."""
    pieces = [b'{\n\t"dataVersion":', _indented(fastjson.dumps(data_version, pretty=True), 1)]
    for name, value in fields.items():
        pieces += [b',\n\t"%b":' % name.encode(), *value]
    return b"".join([*pieces, b"\n}"])


def _indented(text: bytes, levels: int) -> bytes:
    return text.replace(b"\n", b"\n" + b"\t" * levels)
