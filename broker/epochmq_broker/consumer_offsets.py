"""How far each consumer group has come on each queue, and the resets an administrator ordered.

The rules are those of RocketMQ's ConsumerOffsetManager; the table does no I/O. Offsets are logical queue
offsets: the next message the group wants. The file `config/consumerOffset.json` is written by whoever watches
`changes`.
"""
# pure: state and rules only, the clock is handed in

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from epochmq_protocol.topics import DataVersion

SEPARATOR = "@"


class ConsumerOffsetTable:
    """(topic, group) -> queue -> offset, keyed `topic@group` as the file and the wire spell it.

    `version_step` is the number of commits after which the data version moves on
    (consumerOffsetUpdateVersionStep); `server_side_reset` says whether resets are kept here until the next
    pull fetches them (useServerSideResetOffset). `changes` counts everything that changes what the file
    should hold.
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

    @property
    def table(self) -> Mapping[str, Mapping[int, int]]:
        """`topic@group` -> queue -> offset, to read only."""
        return self._offsets

    # the hot path

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Stores a group's offset, also one below the stored one (a rewind is the consumer's right)."""
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
        """Notes how far a group has pulled; only statistics look at it, and it is not kept over a restart."""
        key = topic + "@" + group
        queues = self._pulled.get(key)
        if queues is None:
            queues = self._pulled[key] = {}
        queues[queue_id] = offset

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The pending reset of that queue if there is one, else the stored offset, else None."""
        key = topic + "@" + group
        if self._resets and self.server_side_reset:
            reset = self._resets.get(key)
            if reset is not None and queue_id in reset:
                return reset[queue_id]
        queues = self._offsets.get(key)
        return None if queues is None else queues.get(queue_id)

    def query_pull(self, group: str, topic: str, queue_id: int) -> int | None:
        """How far the group has pulled, or what `query` says when it has not pulled since the start."""
        queues = self._pulled.get(topic + "@" + group)
        offset = None if queues is None else queues.get(queue_id)
        return self.query(group, topic, queue_id) if offset is None else offset

    # resets

    @property
    def has_resets(self) -> bool:
        """Whether any reset is pending; lets the pull path skip the look-up."""
        return bool(self._resets)

    def assign_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Orders a group to go on at `offset`: what it commits for that queue is ignored until a pull took
        the reset (`take_reset`). Negative offsets and queue ids are ignored, as in RocketMQ."""
        if queue_id < 0 or offset < 0 or not topic or not group:
            return
        key = topic + SEPARATOR + group
        self._resets.setdefault(key, {})[queue_id] = offset
        self._offsets.setdefault(key, {})[queue_id] = offset
        self.changes += 1

    def reset_pending(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset of that queue waits for the group's next pull."""
        return bool(self._resets) and queue_id in self._resets.get(topic + SEPARATOR + group, ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The pending reset of that queue, which is thereby done; None when there is none."""
        key = topic + SEPARATOR + group
        queues = self._resets.get(key)
        if queues is None:
            return None
        offset = queues.pop(queue_id, None)
        if not queues:
            del self._resets[key]
        return offset

    # who consumes what

    def topics_of(self, group: str) -> set[str]:
        """Topics the group has an offset on."""
        return {topic for topic, owner in self._keys() if owner == group}

    def groups_of(self, topic: str) -> set[str]:
        """Groups that have an offset on the topic."""
        return {group for owned, group in self._keys() if owned == topic}

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Queue -> offset of a group on a topic; empty when it has none."""
        return self._offsets.get(topic + SEPARATOR + group, {})

    def lowest(
        self, topic: str, min_offset: Callable[[int], int], skipped: Collection[str] = ()
    ) -> dict[int, int]:
        """Queue -> the lowest offset any group but the `skipped` ones has there, of those not below the
        queue's `min_offset` (QUERY_CORRECTION_OFFSET)."""
        lowest: dict[int, int] = {}
        for key, queues in self._offsets.items():
            parts = key.split(SEPARATOR)
            if parts[0] != topic or (len(parts) > 1 and parts[1] in skipped):
                continue
            for queue_id, offset in queues.items():
                if offset >= min_offset(queue_id):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        return lowest

    # administration

    def clone(self, source: str, target: str, topic: str) -> None:
        """Gives one group the offsets of another on a topic, when the other has any."""
        queues = self._offsets.get(topic + SEPARATOR + source)
        if queues is not None:
            self._offsets[topic + SEPARATOR + target] = dict(queues)
            self.changes += 1

    def forget_group(self, group: str) -> bool:
        """Drops every offset, reset and pull position of a group; whether there was any."""
        return self._forget(lambda _topic, owner: owner == group)

    def forget_topic(self, topic: str) -> bool:
        """Drops every offset, reset and pull position on a topic; whether there was any."""
        return self._forget(lambda owned, _group: owned == topic)

    # loading and following

    def restore(self, table: Mapping[str, Mapping[int, int]], data_version: DataVersion | None) -> None:
        """Becomes what a file, or a master, says: table and version."""
        self._offsets = {key: dict(queues) for key, queues in table.items()}
        if data_version is not None:
            self.data_version = data_version
        self.changes += 1

    def clamp(self, end: Callable[[str, int], int]) -> int:
        """Takes back every offset to the `end` (of topic and queue id) of what there is; how many. What was
        copied from a master may be ahead of what its log's copy holds: the messages that come to lie there
        would be skipped (#4771)."""
        taken_back = 0
        for key, queues in self._offsets.items():
            topic = key.split(SEPARATOR)[0]
            for queue_id, offset in queues.items():
                if offset > 0 and offset > (last := max(0, end(topic, queue_id))):
                    queues[queue_id] = last
                    taken_back += 1
        self.changes += taken_back > 0
        return taken_back

    def bump_version(self) -> None:
        """A new data version, so that slaves and returning masters see that offsets have moved."""
        self.data_version = self.data_version.next(self._clock_ms(), self._state_version())

    def _keys(self) -> list[tuple[str, str]]:
        pairs = (key.split(SEPARATOR) for key in self._offsets)
        return [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]

    def _forget(self, matches: Callable[[str, str], bool]) -> bool:
        found = False
        for table in (self._offsets, self._resets, self._pulled):
            gone = []
            for key in table:
                pair = key.split(SEPARATOR)
                if len(pair) == 2 and matches(pair[0], pair[1]):
                    gone.append(key)
            for key in gone:
                del table[key]
                found = True
        self.changes += found
        return found
