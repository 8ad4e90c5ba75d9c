"""Holds the consumer offsets of every group on every queue, and the pending resets of administrators.

The rules are those of RocketMQ's ConsumerOffsetManager. The table does no I/O. A consumer offset is the queue
offset of the next message that the group wants. `StateFiles` writes `config/consumerOffset.json` when
`changes` has grown.
"""
# pure: state and rules only; the caller passes the clock

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping

from epochmq_protocol.steps import finish
from epochmq_protocol.topics import DataVersion

SEPARATOR = "@"
KEYS_AT_A_TIME = 500
"""Keys that are looked at in one step: 0.1 ms."""


class ConsumerOffsetTable:
    """(topic, group) -> queue -> offset. The key is `topic@group`, as in the file and on the wire.

    The data version increments after every `version_step` commits (consumerOffsetUpdateVersionStep). With
    `server_side_reset` a pending reset stays in the table until the group's next pull takes it
    (useServerSideResetOffset). `changes` counts every change of the file's content.
    """

    def __init__(
        self,
        clock_ms: Callable[[], int],
        *,
        version_step: int = 500,
        server_side_reset: bool = True,
        state_version: Callable[[], int] = lambda: 0,
    ) -> None:
        self.version_step = version_step
        self.server_side_reset = server_side_reset
        self.data_version = DataVersion(timestamp=clock_ms())
        self.changes = 0
        self._clock_ms = clock_ms
        self._state_version = state_version
        self._commits = 0
        self._offsets: dict[str, dict[int, int]] = {}
        self._resets: dict[str, dict[int, int]] = {}
        self._pulled: dict[str, dict[int, int]] = {}

    def configure(self, *, version_step: int, server_side_reset: bool) -> None:
        """Uses new settings."""
        self.version_step = version_step
        self.server_side_reset = server_side_reset

    @property
    def light_table(self) -> Mapping[str, int] | None:
        """The offsets of light groups (`light_tables.LightConsumerOffsetTable`), None without
        enableLmq."""
        return None

    @property
    def table(self) -> Mapping[str, Mapping[int, int]]:
        """`topic@group` -> queue -> offset, read-only."""
        return self._offsets

    # commits and queries, on the path of every pull

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Stores a group's offset, even if it is below the stored one: a consumer may rewind."""
        key = topic + "@" + group
        queues = self._offsets.get(key)
        if queues is None:
            queues = self._offsets[key] = {}
        queues[queue_id] = offset
        self.changes += 1
        self._commits += 1
        if self._commits % self.version_step == 0:
            self.bump_version()

    def commit_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Stores a group's pull position: the next offset that it will pull. Only statistics read pull
        positions, and a restart loses them."""
        key = topic + "@" + group
        queues = self._pulled.get(key)
        if queues is None:
            queues = self._pulled[key] = {}
        queues[queue_id] = offset

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Returns the queue's pending reset if there is one, else the stored offset, else None."""
        key = topic + "@" + group
        if self._resets and self.server_side_reset:
            reset = self._resets.get(key)
            if reset is not None and queue_id in reset:
                return reset[queue_id]
        queues = self._offsets.get(key)
        return None if queues is None else queues.get(queue_id)

    def query_pull(self, group: str, topic: str, queue_id: int) -> int | None:
        """Returns the group's pull position, or the result of `query` if it has not pulled since the
        start."""
        queues = self._pulled.get(topic + "@" + group)
        offset = None if queues is None else queues.get(queue_id)
        return self.query(group, topic, queue_id) if offset is None else offset

    # resets

    @property
    def has_resets(self) -> bool:
        """Whether any reset is pending; the pull path skips the lookup otherwise."""
        return bool(self._resets)

    def set_pending_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Makes the group continue at `offset`: stores it, and keeps it as a pending reset until a pull takes
        it (`take_reset`). Until then the processors must not pass the group's commits for that queue to
        `commit` (`has_pending_reset`). Does nothing for a negative offset or queue id, as in RocketMQ."""
        if queue_id < 0 or offset < 0 or not topic or not group:
            return
        key = topic + SEPARATOR + group
        self._resets.setdefault(key, {})[queue_id] = offset
        self._offsets.setdefault(key, {})[queue_id] = offset
        self.changes += 1

    def has_pending_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset of that queue waits for the group's next pull."""
        return bool(self._resets) and queue_id in self._resets.get(topic + SEPARATOR + group, ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Returns the pending reset of that queue and removes it; None if there is none."""
        key = topic + SEPARATOR + group
        queues = self._resets.get(key)
        if queues is None:
            return None
        offset = queues.pop(queue_id, None)
        if not queues:
            del self._resets[key]
        return offset

    # topics of a group, groups of a topic

    def topics_of(self, group: str) -> set[str]:
        """Topics on which the group has an offset."""
        return finish(self.topics_steps(group))

    def topics_steps(self, group: str) -> Generator[None, None, set[str]]:
        """`topics_of` in steps."""
        end = SEPARATOR + group
        found: set[str] = set()
        for keys in self._key_parts():
            found.update(
                [key[: -len(end)] for key in keys if key.endswith(end) and key.count(SEPARATOR) == 1]
            )
            yield
        return found

    def _key_parts(self) -> Iterator[list[str]]:
        """The keys of all offsets, some at a time. The table may change between two steps."""
        keys = list(self._offsets)
        return (keys[start : start + KEYS_AT_A_TIME] for start in range(0, len(keys), KEYS_AT_A_TIME))

    def groups_of(self, topic: str) -> set[str]:
        """Groups that have an offset on the topic."""
        return finish(self.groups_steps(topic))

    def groups_steps(self, topic: str) -> Generator[None, None, set[str]]:
        """`groups_of` in steps."""
        begin = topic + SEPARATOR
        found: set[str] = set()
        for keys in self._key_parts():
            matching = [key for key in keys if key.startswith(begin) and key.count(SEPARATOR) == 1]
            found.update([key[len(begin) :] for key in matching])
            yield
        return found

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Queue -> offset of a group on a topic; empty if it has none."""
        return self._offsets.get(topic + SEPARATOR + group, {})

    def lowest(
        self, topic: str, min_offset: Callable[[int], int], skipped: Container[str] = ()
    ) -> dict[int, int]:
        """`lowest_steps` at once."""
        return finish(self.lowest_steps(topic, min_offset, skipped))

    def lowest_steps(
        self, topic: str, min_offset: Callable[[int], int], skipped: Container[str]
    ) -> Generator[None, None, dict[int, int]]:
        """Queue -> the lowest offset of any group outside `skipped`, in steps. Offsets below the queue's
        `min_offset` do not count (QUERY_CORRECTION_OFFSET)."""
        lowest: dict[int, int] = {}
        begin = topic + SEPARATOR
        for keys in self._key_parts():
            for key in [key for key in keys if key.startswith(begin) or key == topic]:
                parts = key.split(SEPARATOR)
                if parts[0] != topic or (len(parts) > 1 and parts[1] in skipped):
                    continue
                for queue_id, offset in self._offsets.get(key, {}).items():
                    if offset >= min_offset(queue_id):
                        lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
            yield
        return lowest

    # administration

    def clone(self, source: str, target: str, topic: str) -> None:
        """Copies the offsets of group `source` on a topic to group `target`, if there are any."""
        queues = self._offsets.get(topic + SEPARATOR + source)
        if queues is not None:
            self._offsets[topic + SEPARATOR + target] = dict(queues)
            self.changes += 1

    def forget_group(self, group: str) -> bool:
        """Deletes every offset, reset and pull position of a group. Returns whether there was any."""
        end = SEPARATOR + group
        return self._forget(lambda table: [key for key in table if key.endswith(end)])

    def forget_topic(self, topic: str) -> bool:
        """Deletes every offset, reset and pull position on a topic. Returns whether there was any."""
        begin = topic + SEPARATOR
        return self._forget(lambda table: [key for key in table if key.startswith(begin)])

    # loading, and copying from a master

    def restore(
        self,
        table: Mapping[str, Mapping[int, int]],
        data_version: DataVersion | None,
        light: Mapping[str, int] | None = None,
    ) -> None:
        """Replaces the table and the data version with those of a file or of a master. `light`: the offsets
        of light groups, which this table does not keep."""
        self._offsets = {key: dict(queues) for key, queues in table.items()}
        if data_version is not None:
            self.data_version = data_version
        self.changes += 1

    def clamp(self, end: Callable[[str, int], int]) -> int:
        """Lowers every offset beyond the end of its queue to that `end` (of topic and queue id). Returns how
        many it lowered. A table copied from a master may be ahead of the copied log; the consumer would then
        skip the messages that fill the gap later (#4771)."""
        lowered = 0
        for key, queues in self._offsets.items():
            topic = key.split(SEPARATOR)[0]
            for queue_id, offset in queues.items():
                if offset > 0 and offset > (last := max(0, end(topic, queue_id))):
                    queues[queue_id] = last
                    lowered += 1
        self.changes += lowered > 0
        return lowered

    def bump_version(self) -> None:
        """Increments the data version, so that slaves, and a former master that comes back as a
        slave, see that offsets have changed."""
        self.data_version = self.data_version.next(self._clock_ms(), self._state_version())

    def _forget(self, matching: Callable[[Iterable[str]], list[str]]) -> bool:
        removed = False
        for table in (self._offsets, self._resets, self._pulled):
            for key in matching(table):
                if key.count(SEPARATOR) == 1:
                    del table[key]
                    removed = True
        self.changes += removed
        return removed
