"""Holds all consume queues of a store (ConsumeQueueStore)."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Final

from epochmq_broker.store.consume_queue import ConsumeQueue
from epochmq_broker.store.pending_units import PendingUnits
from epochmq_broker.store.queue_extension import QueueExtension
from epochmq_broker.store.queue_files import MappingCache

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

    def __init__(self, directory: Path, file_size: int, extension_file_size: int = 0) -> None:
        super().__init__()
        self.directory = directory
        self.file_size = file_size
        self.extension_directory = directory.with_name(f"{directory.name}_ext")
        self._extension_file_size = extension_file_size
        self.pending = PendingUnits()
        self.mappings = MappingCache()
        self.new_queues: list[ConsumeQueue] = []  # created since the last run of QueueExpiry
        self.damaged = False  # a queue lacked a file in the middle when it was loaded

    def __missing__(self, key: tuple[str, int]) -> ConsumeQueue:
        topic, queue_id = key
        if not is_queue_name(topic) or queue_id < 0:
            raise ValueError(f"{topic!r}-{queue_id} is not a valid queue name")
        queue = self[key] = self._create(topic, queue_id, load=False)
        self.new_queues.append(queue)
        if len(self) % FREEZE_QUEUES == 0:
            gc.freeze()
        return queue

    def _create(self, topic: str, queue_id: int, *, load: bool) -> ConsumeQueue:
        extension = None
        if self._extension_file_size:
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

    def load(self, *, zeroed: bool = False) -> None:
        """Opens every queue of the directory and finds its end; `zeroed` as in `ConsumeQueue.recover`. Raises
        StoreDamagedError or OSError."""
        if not self.directory.is_dir():
            return
        for topic in sorted(path for path in self.directory.iterdir() if path.is_dir()):
            for folder in topic.iterdir():
                if folder.is_dir() and folder.name.isdecimal():
                    key = topic.name, int(folder.name)
                    queue = self._create(*key, load=True)
                    at = queue.files.first_after_gap()
                    if at is not None:
                        # Recovery rebuilds the units after the gap from the log.
                        queue.files.delete_from(at)
                        self.damaged = True
                    queue.recover(zeroed=zeroed)
                    if queue.extension is not None:
                        queue.extension.recover(queue.newest_address())
                    self[key] = queue

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
        because senders keep references to them."""
        dropped = 0
        for queue in self.values():
            if queue.max_offset and 0 <= queue.max_physical <= min_physical:
                queue.destroy()
                dropped += 1
        return dropped

    def delete_topics(self, topics: set[str]) -> int:
        """Removes the queues of these topics, and returns how many of the topics had queues
        (deleteTopics)."""
        found = set()
        for key in [key for key in self if key[0] in topics]:
            found.add(key[0])
            self.pop(key).destroy()
        self.pending.delete_folders(self.directory / topic for topic in found)
        if self._extension_file_size:
            self.pending.delete_folders(self.extension_directory / topic for topic in found)
        return len(found)

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
