"""Holds the tables of a broker with light message queues (enableLmq). Every light topic `%LMQ%…` exists, with
one queue, and so does every group of that prefix; neither is stored. The offsets of these groups are apart
from those of other groups (LmqTopicConfigManager, LmqSubscriptionGroupManager, LmqConsumerOffsetManager)."""
# pure: state and rules only; the caller passes the clock

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from epochmq_broker.tables.consumer_offsets import SEPARATOR, ConsumerOffsetTable
from epochmq_broker.tables.stats import BrokerStats, TrafficCounter
from epochmq_broker.tables.subscription_groups import GroupSettings, SubscriptionGroupTable
from epochmq_broker.tables.topics import TopicSettings, TopicTable, topic_config
from epochmq_protocol.subscription_groups import SubscriptionGroupConfig
from epochmq_protocol.topics import LMQ_PREFIX, LMQ_QUEUE_ID, DataVersion, TopicConfig, is_lmq


class LightTopicTable(TopicTable):
    """A topic table in which every light topic exists."""

    def __init__(
        self,
        settings: TopicSettings,
        clock_ms: Callable[[], int],
        state_version: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(settings, clock_ms, state_version)
        self.get = self._get

    def _get(self, name: str) -> TopicConfig | None:
        return topic_config(name, 1) if is_lmq(name) else self._table.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._table or (isinstance(name, str) and is_lmq(name))

    def put(self, config: TopicConfig) -> None:
        """Stores a configuration; ignores that of a light topic."""
        if not is_lmq(config.topic_name):
            super().put(config)

    def update(self, configs: Iterable[TopicConfig]) -> None:
        """Creates or replaces topics; ignores light ones."""
        super().update([config for config in configs if not is_lmq(config.topic_name)])

    def create_if_absent(self, config: TopicConfig) -> TopicConfig:
        """Returns the topic of that name, or stores `config` if there is none."""
        existing = self._get(config.topic_name)
        return super().create_if_absent(config) if existing is None else existing


class LightGroupTable(SubscriptionGroupTable):
    """A group table in which every group of light queues exists, with RocketMQ's defaults."""

    def __init__(
        self,
        settings: GroupSettings,
        clock_ms: Callable[[], int],
        state_version: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(settings, clock_ms, state_version)
        self.get = self._get

    def _get(self, name: str) -> SubscriptionGroupConfig | None:
        return SubscriptionGroupConfig(group_name=name) if is_lmq(name) else self._table.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._table or (isinstance(name, str) and is_lmq(name))

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """Returns the group's configuration; creates an unknown group that is not light, if that is
        allowed."""
        return SubscriptionGroupConfig(group_name=name) if is_lmq(name) else super().find(name)

    def update(self, configs: Iterable[SubscriptionGroupConfig]) -> None:
        """Creates or replaces groups; ignores light ones."""
        super().update([config for config in configs if not is_lmq(config.group_name)])


class LightConsumerOffsetTable(ConsumerOffsetTable):
    """An offset table that keeps one offset for each (topic, light group): such a group reads light topics,
    which have one queue. As in RocketMQ a light group has no resets, its commits do not change the data
    version, and it is in no list of groups or topics."""

    def __init__(
        self,
        clock_ms: Callable[[], int],
        *,
        version_step: int = 500,
        server_side_reset: bool = True,
        state_version: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(
            clock_ms,
            version_step=version_step,
            server_side_reset=server_side_reset,
            state_version=state_version,
        )
        self._light: dict[str, int] = {}

    @property
    def light_table(self) -> Mapping[str, int]:
        """`topic@group` -> offset, of light groups, read-only."""
        return self._light

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Stores a group's offset."""
        if is_lmq(group):
            self._light[topic + SEPARATOR + group] = offset
            self.changes += 1
        else:
            super().commit(group, topic, queue_id, offset)

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Returns the stored offset of a light group; of others the pending reset or the stored offset."""
        if is_lmq(group):
            return self._light.get(topic + SEPARATOR + group)
        return super().query(group, topic, queue_id)

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Queue -> offset of a group on a topic."""
        if not is_lmq(group):
            return super().queues(group, topic)
        offset = self._light.get(topic + SEPARATOR + group)
        return {} if offset is None else {LMQ_QUEUE_ID: offset}

    def restore(
        self,
        table: Mapping[str, Mapping[int, int]],
        data_version: DataVersion | None,
        light: Mapping[str, int] | None = None,
    ) -> None:
        """Replaces the table; the offsets of light groups only if they are given, because a RocketMQ master's
        table that was copied without them has none."""
        super().restore(table, data_version, light)
        if light is not None:
            self._light = dict(light)

    def clamp(self, end: Callable[[str, int], int]) -> int:
        """Lowers every offset beyond the end of its queue to that `end`. Returns how many it lowered."""
        lowered = 0
        for key, offset in self._light.items():
            topic = key.split(SEPARATOR)[0]
            if offset > (last := max(0, end(topic, LMQ_QUEUE_ID))):
                self._light[key] = last
                lowered += 1
        self.changes += lowered > 0
        return lowered + super().clamp(end)

    def _forget(self, matching: Callable[[Iterable[str]], list[str]]) -> bool:
        gone = matching(self._light)
        for key in gone:
            del self._light[key]
        self.changes += bool(gone)
        return super()._forget(matching) or bool(gone)


class LightBrokerStats(BrokerStats):
    """Counters in which all light queues together, and all their groups, have one name, `%LMQ%`, unless
    `counts_each` (LmqBrokerStatsManager, enableLmqStats)."""

    counts_each = False

    def configure(self, *, counts_each: bool) -> None:
        """Uses new settings."""
        self.counts_each = counts_each

    def get_traffic(self, group: str, topic: str, queue_id: int) -> TrafficCounter:
        """The counter of messages that a group fetched from a queue."""
        return super().get_traffic(self._name(group), self._name(topic), queue_id)

    def add(self, name: str, key: str, value: int = 1, times: int = 1) -> None:
        """Increments a counter outside the send and pull paths."""
        super().add(name, self._key(key), value, times)

    def tps(self, name: str, key: str) -> float:
        """Values per second over the last minute."""
        return super().tps(name, self._key(key))

    def _name(self, name: str) -> str:
        return LMQ_PREFIX if not self.counts_each and is_lmq(name) else name

    def _key(self, key: str) -> str:
        return SEPARATOR.join(map(self._name, key.split(SEPARATOR)))
