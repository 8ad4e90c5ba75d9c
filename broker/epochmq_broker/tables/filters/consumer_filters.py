"""Holds the expressions that consumer groups registered by their heartbeats (RocketMQ's
ConsumerFilterManager, `config/consumerFilter.json`).

The expression of a group that has no members is dead: it still filters, and is deleted after
filterDataCleanTimeSpan. The table is not replicated; after a failover the next heartbeats fill it.
"""
# pure: rules over values; the caller passes the time

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping

import msgspec

from epochmq_broker.tables.filters.bloom import BloomFilter, BloomFilterData
from epochmq_broker.tables.filters.sql import SqlExpression, compile_sql
from epochmq_broker.tables.filters.sql_lexer import SqlSyntaxError
from epochmq_broker.tables.subscriptions import is_tag_type
from epochmq_protocol import fastjson
from epochmq_protocol.bodies import SubscriptionData, from_json
from epochmq_protocol.integers import Long

log = logging.getLogger(__name__)

SQL92 = "SQL92"
_NUMBERS = re.compile(rb"\[[\s0-9,]+\](?=\n)")
PRESUMED_DEAD_MS = 30_000
"""After a restart, groups count as dead since this long before the start."""


class ConsumerFilterData(msgspec.Struct, rename="camel"):
    """The registered expression of a group on a topic. Times are epoch ms; `client_version` is the version of
    the subscription. `dead` is written for RocketMQ only, which derives it from the times."""

    bloom_filter_data: BloomFilterData | None = None
    born_time: Long = 0
    client_version: Long = 0
    consumer_group: str = ""
    dead: bool = False
    dead_time: Long = 0
    expression: str | None = None
    expression_type: str | None = None
    topic: str = ""

    def as_json(self) -> str:
        """The text that QUERY_CONSUME_QUEUE shows."""
        self.dead = self.is_dead
        return _pretty(self).decode()

    @property
    def is_dead(self) -> bool:
        """Whether the group has no members."""
        return self.dead_time >= self.born_time


class _TopicFilters(msgspec.Struct, rename="camel"):
    group_filter_data: dict[str, ConsumerFilterData] = {}
    topic: str = ""


class _FilterFile(msgspec.Struct, rename="camel"):
    filter_data_by_topic: dict[str, _TopicFilters] = {}


def _pretty(value: object) -> bytes:
    """Pretty-printed JSON; the only arrays, of numbers, are in one line as in Java."""
    text = fastjson.dumps(value, pretty=True)
    return _NUMBERS.sub(lambda found: b"".join(found[0].split()), text)


class RegisteredFilter:
    """The registered expression of a group with its compiled form."""

    __slots__ = ("data", "expression")

    def __init__(self, data: ConsumerFilterData, expression: SqlExpression | None) -> None:
        self.data = data
        self.expression = expression  # None: it does not compile, and every message matches


def compiled(expression: str | None, expression_type: str | None) -> SqlExpression | None:
    """The compiled expression; None if it does not compile, or if the type is unknown. RocketMQ then lets
    every message match."""
    if expression_type != SQL92 or expression is None:
        return None
    try:
        return compile_sql(expression)
    except SqlSyntaxError as error:
        log.warning("the filter expression %.200r does not compile: %s", expression, error)
        return None


class ConsumerFilterTable:
    """(topic, group) -> registered expression. `changes` counts the changes of the table."""

    def __init__(self, bloom: BloomFilter) -> None:
        self.bloom = bloom
        self.changes = 0
        self._by_topic: dict[str, dict[str, RegisteredFilter]] = {}

    def get(self, topic: str, group: str) -> RegisteredFilter | None:
        """The registered expression of a group on a topic."""
        groups = self._by_topic.get(topic)
        return None if groups is None else groups.get(group)

    def of_topic(self, topic: str) -> Mapping[str, RegisteredFilter]:
        """All registered expressions on a topic, by group."""
        return self._by_topic.get(topic, {})

    def register(self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int) -> None:
        """Registers the expressions of a heartbeat. The group's other expressions die."""
        topics = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            if not is_tag_type(subscription.expression_type) and subscription.sub_string:
                self._register(group, subscription, now_ms)
        for topic, groups in self._by_topic.items():
            if topic not in topics and group in groups:
                self._mark_dead(groups[group].data, now_ms)

    def unregister(self, group: str, now_ms: int) -> None:
        """Marks the expressions of a group without members as dead."""
        for groups in self._by_topic.values():
            if group in groups:
                self._mark_dead(groups[group].data, now_ms)

    def _mark_dead(self, data: ConsumerFilterData, now_ms: int) -> None:
        if not data.is_dead:
            data.dead_time = now_ms
            self.changes += 1

    def _register(self, group: str, subscription: SubscriptionData, now_ms: int) -> None:
        topic, version = subscription.topic, subscription.sub_version
        old = self.get(topic, group)
        if old is not None and version <= old.data.client_version:
            if version == old.data.client_version and old.data.is_dead:
                old.data.dead_time = 0
                self.changes += 1
            return
        positions = self.bloom.positions(f"{group}#{topic}")
        if old is not None and (
            (old.data.expression, old.data.expression_type, old.data.bloom_filter_data)
            == (subscription.sub_string, subscription.expression_type, positions)
        ):
            old.data.client_version = version
            if old.data.is_dead:
                old.data.dead_time = 0
            self.changes += 1
            return
        expression = compiled(subscription.sub_string, subscription.expression_type)
        if expression is None:
            if old is not None:  # pulls then get FILTER_DATA_NOT_EXIST
                self._delete(topic, group)
            return
        data = ConsumerFilterData(
            bloom_filter_data=positions,
            born_time=now_ms,
            client_version=version,
            consumer_group=group,
            expression=subscription.sub_string,
            expression_type=subscription.expression_type,
            topic=topic,
        )
        self._by_topic.setdefault(topic, {})[group] = RegisteredFilter(data, expression)
        self.changes += 1

    def _delete(self, topic: str, group: str) -> None:
        groups = self._by_topic[topic]
        del groups[group]
        if not groups:
            del self._by_topic[topic]
        self.changes += 1

    def clean(self, now_ms: int, dead_for_ms: int) -> None:
        """Deletes expressions that have been dead for so long."""
        for topic, groups in list(self._by_topic.items()):
            for group, registered in list(groups.items()):
                data = registered.data
                if data.is_dead and now_ms - data.dead_time >= dead_for_ms:
                    self._delete(topic, group)

    # The file

    def encode(self) -> bytes:
        """Encodes consumerFilter.json."""
        topics = {}
        for topic, groups in sorted(self._by_topic.items()):
            rows = {group: registered.data for group, registered in sorted(groups.items())}
            for data in rows.values():
                data.dead = data.is_dead
            topics[topic] = _TopicFilters(group_filter_data=rows, topic=topic)
        return _pretty(_FilterFile(filter_data_by_topic=topics))

    def restore(self, text: bytes, now_ms: int) -> None:
        """Replaces the table by the content of a file. A file that was written with another size of the bit
        maps is ignored, as in RocketMQ."""
        found = from_json(_FilterFile, text)
        restored: dict[str, dict[str, RegisteredFilter]] = {}
        for topic, filters in found.filter_data_by_topic.items():
            for group, data in filters.group_filter_data.items():
                if not self.bloom.is_valid(data.bloom_filter_data):
                    log.warning("ignored the registered filters: the size of their bit maps has changed")
                    return
                if data.dead_time == 0:
                    data.dead_time = max(data.born_time, now_ms - PRESUMED_DEAD_MS)
                registered = RegisteredFilter(data, compiled(data.expression, data.expression_type))
                restored.setdefault(topic, {})[group] = registered
        self._by_topic = restored
