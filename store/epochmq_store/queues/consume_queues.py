"""Holds all consume queues of a store (ConsumeQueueStore).

Queues of topics with `queue.type=BatchCQ` are batch consume queues, in a directory of their own. The broker
tells by `is_batch_topic` which topics these are. A replica may receive messages before it has the topic's
settings; then a record that is an inner batch shows what its queue is.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from epochmq_formats.batch_unit import UNIT_BYTES as BATCH_UNIT_BYTES
from epochmq_protocol.topics import is_lmq
from epochmq_store.files.queue_files import MappingCache
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.queues.pending_units import PendingUnits
from epochmq_store.queues.queue_extension import QueueExtension

log = logging.getLogger(__name__)

BATCH_FILE_BYTES: Final = 300_000 * BATCH_UNIT_BYTES

FREEZE_QUEUES: Final = 512
"""After so many new queues the garbage collector stops looking at the objects there are. A queue lives as
long as its topic; with 20,000 queues a full collection took 0.26 s, about as long as a write lease."""


def is_queue_name(topic: str) -> bool:
    """Whether the topic can be the name of a directory. Other names come from damaged records."""
    return (
        bool(topic)
        and "/" not in topic
        and "\0" not in topic
        and topic not in (".", "..")
        and len(topic) < 256
    )


class ConsumeQueues(dict[tuple[str, int], ConsumeQueue]):
    """Maps (topic, queue id) to the queue. A lookup creates a missing queue, in memory only.
    `extension_file_size`: the size of the files of queue extensions, 0 without extensions."""

    def __init__(
        self,
        directory: Path,
        file_size: int,
        extension_file_size: int = 0,
        batch_file_size: int = BATCH_FILE_BYTES,
        *,
        is_batch_topic: Callable[[str], bool | None] = lambda _topic: None,
        store_timestamp: Callable[[int], int] = lambda _physical: -1,
    ) -> None:
        """`is_batch_topic`: whether the topic has batch consume queues; None if its settings are not known.
        `store_timestamp`: store time, epoch ms, of the record at a physical offset, -1 without one."""
        super().__init__()
        self.directory = directory
        self.file_size = file_size
        self.batch_directory = directory.with_name(f"batch{directory.name}")
        self._batch_file_size = batch_file_size
        self.is_batch_topic = is_batch_topic
        self._store_timestamp = store_timestamp
        self.extension_directory = directory.with_name(f"{directory.name}_ext")
        self._extension_file_size = extension_file_size
        self.pending = PendingUnits()
        self.mappings = MappingCache()
        self._new_queues: list[ConsumeQueue] = []  # since the last `take_new_queues`
        self.light_queues = 0  # the number of light message queues
        self.damaged = False  # a queue lacked a file in the middle when it was loaded
        self.cut: list[ConsumeQueue] = []
        """The queues that may have lost units when they were loaded, of records that the log has."""

    def offer_all_as_new(self) -> None:
        """Makes `take_new_queues` return all queues that there are."""
        self._new_queues = list(self.values())

    def take_new_queues(self) -> list[ConsumeQueue]:
        """The queues that were created since the last call."""
        new, self._new_queues = self._new_queues, []
        return new

    def __missing__(self, key: tuple[str, int]) -> ConsumeQueue:
        topic, queue_id = key
        if not is_queue_name(topic) or queue_id < 0:
            raise ValueError(f"{topic!r}-{queue_id} is not a valid queue name")
        return self._add(topic, queue_id, is_batch=self.is_batch_topic(topic) is True)

    def readable(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue for reads. A name that no queue can have, such as a very long one, has
        an empty queue, which is not kept."""
        queue = self.get((topic, queue_id))
        if queue is not None:
            return queue
        if is_queue_name(topic) and queue_id >= 0:
            return self[topic, queue_id]
        return ConsumeQueue(
            topic,
            queue_id,
            self.directory,
            self.file_size,
            load=False,
            pending=PendingUnits(),
            mappings=self.mappings,
            extension=None,
        )

    def _add(self, topic: str, queue_id: int, *, is_batch: bool) -> ConsumeQueue:
        queue = self[topic, queue_id] = self._create(topic, queue_id, is_batch=is_batch, load=False)
        self._new_queues.append(queue)
        if len(self) % FREEZE_QUEUES == 0:
            gc.freeze()
        return queue

    def for_record(self, topic: str, queue_id: int, *, is_inner_batch: bool) -> ConsumeQueue | None:
        """The queue for a record of the log, created on demand. None for a name that no queue can have. If
        the settings of the topic are not known, an inner batch replaces another queue by a batch consume
        queue."""
        queue = self.get((topic, queue_id))
        if queue is None:
            if queue_id < 0 or not is_queue_name(topic):
                return None
            known = self.is_batch_topic(topic)
            return self._add(topic, queue_id, is_batch=is_inner_batch if known is None else known)
        is_batch = isinstance(queue, BatchConsumeQueue)
        if is_inner_batch and not is_batch and self.is_batch_topic(topic) is not False:
            return self._replace(queue)
        return queue

    def replace_by_batch_queues(self, topic: str) -> None:
        """Replaces the queues of a topic that were created before it was known that it has batch consume
        queues: on a replica, those of the first seconds of the topic."""
        for queue in self.of_topic(topic):
            if not isinstance(queue, BatchConsumeQueue):
                self._replace(queue)

    def _replace(self, queue: ConsumeQueue) -> ConsumeQueue:
        """Replaces a queue by a batch consume queue with the same messages, which are no inner batches."""
        made = self._create(queue.topic, queue.queue_id, is_batch=True, load=False)
        assert isinstance(made, BatchConsumeQueue)
        for offset in range(queue.min_offset, queue.max_offset):
            unit = queue.unit(offset)
            stored = -1 if unit is None else self._store_timestamp(unit[0])
            if unit is None or stored < 0:
                break
            made.put(offset, *unit, stored)
        queue.destroy()
        self[queue.topic, queue.queue_id] = made
        self._new_queues.append(made)
        return made

    def _create(self, topic: str, queue_id: int, *, is_batch: bool, load: bool) -> ConsumeQueue:
        if is_batch:
            return BatchConsumeQueue(
                topic,
                queue_id,
                self.batch_directory,
                self._batch_file_size,
                load=load,
                pending=self.pending,
                mappings=self.mappings,
            )
        extension = None
        self.light_queues += is_lmq(topic)
        if self._extension_file_size and not is_lmq(topic):  # RocketMQ's light queues have tag codes only
            folder = self.extension_directory / topic / str(queue_id)
            extension = QueueExtension(
                folder, self._extension_file_size, self.pending, self.mappings, load=load
            )
        return ConsumeQueue(
            topic,
            queue_id,
            self.directory,
            self.file_size,
            load=load,
            pending=self.pending,
            mappings=self.mappings,
            extension=extension,
        )

    def load(self, *, zeroed: bool = False, before_cut: Callable[[], None] = lambda: None) -> None:
        """Opens every queue of the directories and finds its end; the arguments as in `ConsumeQueue.recover`.
        Queues that are not of their topic's type are replaced. Raises StoreDamagedError or OSError."""
        for directory, is_batch in ((self.batch_directory, True), (self.directory, False)):
            if not directory.is_dir():
                continue
            for topic in sorted(path for path in directory.iterdir() if path.is_dir()):
                for folder in topic.iterdir():
                    if folder.is_dir() and folder.name.isdecimal():
                        queue = self._create(topic.name, int(folder.name), is_batch=is_batch, load=True)
                        is_cut = self._recover(queue, zeroed=zeroed, before_cut=before_cut)
                        self._add_loaded(queue)
                        kept = self.get((queue.topic, queue.queue_id)) if is_cut else None
                        if kept is not None:
                            self.cut.append(kept)

    def _add_loaded(self, queue: ConsumeQueue) -> None:
        is_batch = isinstance(queue, BatchConsumeQueue)
        wanted = self.is_batch_topic(queue.topic)
        key = queue.topic, queue.queue_id
        if key in self or (is_batch and wanted is False):
            log.warning(
                "the queue %s in %s is not of its topic's type and is removed", queue, queue.files.directory
            )
            queue.destroy()
        elif wanted and not is_batch:
            self._replace(queue)
        else:
            self[key] = queue

    def _recover(self, queue: ConsumeQueue, *, zeroed: bool, before_cut: Callable[[], None]) -> bool:
        """Whether the queue may lack units of records that the log has."""
        at = queue.files.first_after_gap()
        if at is not None:
            # Recovery rebuilds the units after the gap from the log.
            before_cut()
            queue.files.delete_from(at)
            self.damaged = True
        is_cut = queue.recover(zeroed=zeroed, before_cut=before_cut)
        if not isinstance(queue, BatchConsumeQueue):  # whose units stand for several offsets
            queue.check_invariants()
        if queue.extension is not None:
            queue.extension.recover(queue.newest_address())
        return is_cut or at is not None

    @property
    def max_physical(self) -> int:
        """End of the last record that a queue has a unit for, -1 without one."""
        return max((queue.max_physical for queue in self.values()), default=-1)

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """The existing queues of one topic."""
        return [queue for (name, _), queue in self.items() if name == topic]

    def truncate(self, physical: int) -> None:
        """Removes all units at or after this physical offset. Raises OSError."""
        for queue in self.values():
            queue.truncate(physical)

    def correct_min_offsets(self, min_physical: int) -> None:
        """Raises every queue's first offset to its first message in the log."""
        for queue in self.values():
            queue.correct_min_offset(min_physical)

    def drop_expired(self, min_physical: int) -> int:
        """Empties the queues that have no message left in the log, and returns their number
        (cleanExpiredConsumerQueue). As in RocketMQ their offsets start at 0 again. The queue objects stay,
        because senders keep references to them; only light queues go, as they are many and short-lived."""
        dropped = 0
        light: set[str] = set()
        for queue in self.values():
            if queue.max_offset and 0 <= queue.max_physical <= min_physical:
                if is_lmq(queue.topic):
                    light.add(queue.topic)
                    continue
                queue.destroy()
                dropped += 1
        return dropped + self.delete_topics(light)

    def delete_topics(self, topics: set[str]) -> int:
        """Removes the queues of these topics, and returns how many of the topics had queues
        (deleteTopics)."""
        deleted = set()
        for key in [key for key in self if key[0] in topics]:
            deleted.add(key[0])
            self.light_queues -= is_lmq(key[0])
            self.pop(key).destroy()
        self.pending.delete_folders(self.directory / topic for topic in deleted)
        if self.batch_directory.is_dir():
            self.pending.delete_folders(self.batch_directory / topic for topic in deleted)
        if self._extension_file_size:
            self.pending.delete_folders(self.extension_directory / topic for topic in deleted)
        return len(deleted)

    def destroy(self) -> None:
        """Removes all queues, because the log is gone."""
        self.delete_topics({topic for topic, _ in self})

    def mark_unsynced(self) -> None:
        """Marks all files as not synced, because a killed process wrote them."""
        for queue in self.values():
            for file in queue.files.files:
                self.pending.unsynced[file] = None

    def close(self) -> None:
        """Frees all memory and mappings."""
        for queue in self.values():
            queue.close()
