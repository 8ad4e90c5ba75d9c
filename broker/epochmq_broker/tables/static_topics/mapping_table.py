"""Holds the mappings of the static topics of a broker (RocketMQ's TopicQueueMappingManager). The file is
`config/topicQueueMapping.json`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from epochmq_broker.tables.static_topics.mapping_checks import merged_mapping
from epochmq_broker.tables.static_topics.queue_items import QueueContext, mapping_info
from epochmq_protocol import fastjson
from epochmq_protocol.bodies import from_json
from epochmq_protocol.topics import (
    DataVersion,
    LogicQueueMappingItem,
    TopicQueueMappingDetail,
    TopicQueueMappingInfo,
    TopicQueueMappingSerializeWrapper,
)
from epochmq_store.state_files.state_file_io import read_state_file

FILE = "topicQueueMapping.json"


class FileWriter(Protocol):
    """Writes a state file."""

    def __call__(self, path: Path, data: bytes, *, survives_kill: bool) -> None: ...


class StaticTopicTable:
    """Topic → mapping. `table` is always the same object, and its mappings are replaced, never modified.
    `on_change` is called after each change."""

    def __init__(
        self,
        directory: Path,
        clock_ms: Callable[[], int],
        write: FileWriter,
    ) -> None:
        """`write` writes the file; on a running event loop, through another thread."""
        self.generation = 0
        self.data_version = DataVersion(timestamp=clock_ms())
        self.on_change: list[Callable[[], None]] = []
        self.table: dict[str, TopicQueueMappingDetail] = {}
        self._clock_ms = clock_ms
        self._write_file = write
        self._path = directory / FILE

    def load(self) -> None:
        """Reads the file, or its backup. Raises if both are damaged."""
        found = read_state_file(self._path, lambda data: from_json(TopicQueueMappingSerializeWrapper, data))
        if found is not None:
            self.table.update(found.topic_queue_mapping_info_map)
            self.data_version = found.data_version
            self.generation += 1

    def context(self, topic: str, queue_id: int, *, choose: bool = False) -> QueueContext | None:
        """The mapping of one logical queue, None if the topic is not static. `choose`: with a negative
        `queue_id`, of any queue that this broker knows (buildTopicQueueMappingContext)."""
        detail = self.table.get(topic)
        if detail is None:
            return None
        if queue_id < 0 and choose and detail.hosted_queues:
            queue_id = min(detail.hosted_queues)
        items: Iterable[LogicQueueMappingItem] = detail.hosted_queues.get(queue_id) or ()
        return QueueContext(topic, queue_id, detail, tuple(items))

    def infos(self, topics: Iterable[str]) -> dict[str, TopicQueueMappingInfo]:
        """What nameservers get of these topics, as far as they are static."""
        if not self.table:
            return {}
        return {topic: mapping_info(self.table[topic]) for topic in topics if topic in self.table}

    def update(self, mapping: TopicQueueMappingDetail, *, force: bool) -> None:
        """Creates or replaces a topic's mapping. Raises RequestError."""
        topic = mapping.topic or ""
        self.table[topic] = merged_mapping(self.table.get(topic), mapping, force=force)
        self._changed()

    def drop_items(self, topic: str, queues: Mapping[int, list[LogicQueueMappingItem] | None]) -> None:
        """Replaces the items of some queues; None: forgets the queue."""
        old = self.table[topic]
        hosted = {queue_id: items for queue_id, items in old.hosted_queues.items() if queue_id not in queues}
        hosted |= {queue_id: items for queue_id, items in queues.items() if items is not None}
        self.table[topic] = TopicQueueMappingDetail(
            topic=old.topic,
            scope=old.scope,
            total_queues=old.total_queues,
            bname=old.bname,
            epoch=old.epoch,
            dirty=old.dirty,
            curr_id_map=old.curr_id_map,
            hosted_queues=hosted,
        )
        self._changed()

    def delete(self, topic: str) -> None:
        """Deletes a topic's mapping, if it has one."""
        if self.table.pop(topic, None) is not None:
            self._changed()

    def replace_all(self, table: Mapping[str, TopicQueueMappingDetail], version: DataVersion) -> None:
        """Makes the table a copy of a master's."""
        if table != self.table or version != self.data_version:
            self.table.clear()
            self.table.update(table)
            self.data_version = version
            self._write()

    def encode(self) -> bytes:
        """Encodes the file."""
        body = TopicQueueMappingSerializeWrapper(
            topic_queue_mapping_info_map=self.table, data_version=self.data_version
        )
        return fastjson.dumps(body, pretty=True)

    def _changed(self) -> None:
        self.data_version = self.data_version.next(self._clock_ms())
        self._write()

    def _write(self) -> None:
        self.generation += 1
        self._write_file(self._path, self.encode(), survives_kill=True)
        for notify in self.on_change:
            notify()
