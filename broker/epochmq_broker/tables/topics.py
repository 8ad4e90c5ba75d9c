"""Holds the broker's topics: the configuration of each, creation on first use, and the table's data version.

The rules are those of RocketMQ's TopicConfigManager. The table does no I/O. A listener in `on_change` is
called after each change with the names of the topics that it created, changed or deleted; listeners write
`config/topics.json` and register with the nameservers.
"""
# pure: state and rules only; the caller passes the clock

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from epochmq_broker.tables.attributes import TOPIC_ATTRIBUTES, alter_attributes, is_batch_cq
from epochmq_broker.tables.change_listeners import ChangeListeners
from epochmq_protocol import topics as names
from epochmq_protocol.pop_records import REVIVE_TOPIC_PREFIX
from epochmq_protocol.topics import PERM_INHERIT, PERM_READ, PERM_WRITE, DataVersion, TopicConfig

SCHEDULE_TOPIC_QUEUES = 18
BENCHMARK_TOPIC_QUEUES = 1024
DEFAULT_QUEUES = 16
SYS_FLAG_UNIT = 1
SYS_FLAG_UNIT_SUB = 2


class TopicSettings(Protocol):
    """The broker settings that the table reads; `BrokerConfig` has them under the same names."""

    @property
    def broker_name(self) -> str: ...
    @property
    def broker_cluster_name(self) -> str: ...
    @property
    def auto_create_topic_enable(self) -> bool: ...
    @property
    def default_topic_queue_nums(self) -> int: ...
    @property
    def cluster_topic_enable(self) -> bool: ...
    @property
    def broker_topic_enable(self) -> bool: ...
    @property
    def trace_topic_enable(self) -> bool: ...
    @property
    def msg_trace_topic_name(self) -> str: ...
    @property
    def revive_queue_num(self) -> int: ...


def built_in_topics(settings: TopicSettings) -> list[TopicConfig]:
    """The topics that every broker has from its first start (TopicConfigManager.init)."""
    both = PERM_READ | PERM_WRITE
    cluster, broker = settings.broker_cluster_name, settings.broker_name
    rows: list[tuple[str, int, int]] = [
        (names.RMQ_SYS_SELF_TEST_TOPIC, 1, both),
        (names.RMQ_SYS_BENCHMARK_TOPIC, BENCHMARK_TOPIC_QUEUES, both),
        (cluster, DEFAULT_QUEUES, PERM_INHERIT | (both if settings.cluster_topic_enable else 0)),
        (broker, 1, PERM_INHERIT | (both if settings.broker_topic_enable else 0)),
        (names.RMQ_SYS_OFFSET_MOVED_EVENT, 1, both),
        (names.RMQ_SYS_SCHEDULE_TOPIC, SCHEDULE_TOPIC_QUEUES, both),
        (names.reply_topic(cluster), 1, both),
        (REVIVE_TOPIC_PREFIX + cluster, settings.revive_queue_num, both),
        (names.SYNC_BROKER_MEMBER_GROUP_PREFIX + broker, 1, PERM_INHERIT),
        (names.RMQ_SYS_TRANS_HALF_TOPIC, 1, both),
        (names.RMQ_SYS_TRANS_OP_HALF_TOPIC, 1, both),
        (names.TIMER_TOPIC, 1, both),
    ]
    if settings.auto_create_topic_enable:
        rows.append(
            (names.AUTO_CREATE_TOPIC_KEY_TOPIC, settings.default_topic_queue_nums, PERM_INHERIT | both)
        )
    if settings.trace_topic_enable:
        rows.append((settings.msg_trace_topic_name, 1, both))
    return [topic_config(name, queues, perm) for name, queues, perm in rows]


def topic_config(
    name: str, queues: int, perm: int = PERM_READ | PERM_WRITE, *, sys_flag: int = 0
) -> TopicConfig:
    """A topic with equal numbers of read and write queues, and defaults for everything else."""
    return TopicConfig(
        topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm, topic_sys_flag=sys_flag
    )


class TopicTable:
    """Topic name -> TopicConfig. The table never modifies a stored configuration: a change stores a new value
    and increments `generation`, so that a cache of derived values only has to compare one integer.

    `clock_ms` returns epoch milliseconds for the data version. `state_version` returns the master epoch in
    controller mode, 0 otherwise.
    """

    def __init__(
        self,
        settings: TopicSettings,
        clock_ms: Callable[[], int],
        state_version: Callable[[], int] = lambda: 0,
    ) -> None:
        self.settings = settings
        self.generation = 0
        self.known_until: int | None = 0
        """Physical offset before which every message of the log has its topic in this table. None: every
        message has, as on a master, which makes a topic before it stores the first message. After a start it
        is 0: the stored table may lack the last topics if the broker was killed or lost its power."""
        self.data_version = DataVersion(timestamp=clock_ms())
        self.on_change = ChangeListeners()
        self._clock_ms = clock_ms
        self._state_version = state_version
        self._table: dict[str, TopicConfig] = {}
        self.get: Callable[[str], TopicConfig | None] = self._table.get
        for config in built_in_topics(settings):
            self._table[config.topic_name] = config
        self.system_topics = names.SYSTEM_TOPICS | frozenset(self._table)

    def configure(self, settings: TopicSettings) -> None:
        """Uses new settings."""
        self.settings = settings

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    @property
    def table(self) -> Mapping[str, TopicConfig]:
        """The whole table, read-only."""
        return self._table

    def is_system_topic(self, name: str) -> bool:
        """Whether a topic belongs to the broker itself. Clients can neither create nor delete such a
        topic."""
        return name in self.system_topics or name.startswith(names.SYSTEM_TOPIC_PREFIX)

    def is_order(self, name: str) -> bool:
        """Whether a topic exists and is marked as ordered."""
        config = self._table.get(name)
        return config is not None and config.order

    def is_batch_cq(self, name: str) -> bool | None:
        """Whether a topic has batch consume queues; None for an unknown topic."""
        config = self._table.get(name)
        return None if config is None else is_batch_cq(config)

    # creation on first use

    def create_in_send(
        self, name: str, default_topic: str, client_queue_nums: int, *, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Returns the topic, and creates it if it does not exist, from the template topic `default_topic`
        (TBW102 in practice). The new topic takes the template's permission without the inherit bit, its
        filter type, and the smaller of the client's and the template's number of queues. None if the template
        does not exist or does not allow inheritance."""
        config = self._table.get(name)
        if config is not None:
            return config
        template = self._table.get(default_topic)
        if template is None:
            return None
        if default_topic == names.AUTO_CREATE_TOPIC_KEY_TOPIC and not self.settings.auto_create_topic_enable:
            # The file was written while auto creation was on. The topic must no longer be a template.
            if template.perm & PERM_INHERIT:
                self._table[default_topic] = msgspec.structs.replace(template, perm=PERM_READ | PERM_WRITE)
            return None
        if not template.perm & PERM_INHERIT:
            return None
        queues = max(0, min(client_queue_nums, template.write_queue_nums))
        config = topic_config(name, queues, template.perm & ~PERM_INHERIT, sys_flag=sys_flag)
        config = msgspec.structs.replace(config, topic_filter_type=template.topic_filter_type)
        self.put(config)
        return config

    def create_in_send_back(
        self,
        name: str,
        queues: int,
        perm: int = PERM_READ | PERM_WRITE,
        *,
        sys_flag: int = 0,
        order: bool = False,
    ) -> TopicConfig:
        """Returns the retry or dead-letter topic of a group, and creates it if it does not exist. Of an
        existing topic only `order` changes."""
        config = self._table.get(name)
        if config is None:
            config = msgspec.structs.replace(topic_config(name, queues, perm, sys_flag=sys_flag), order=order)
            self.put(config)
        elif config.order != order:
            config = msgspec.structs.replace(config, order=order)
            self.put(config)
        return config

    def create_if_absent(self, config: TopicConfig) -> TopicConfig:
        """Returns the topic of that name, or stores `config` if there is none."""
        existing = self._table.get(config.topic_name)
        if existing is not None:
            return existing
        self.put(config)
        return config

    # changes

    def put(self, config: TopicConfig) -> None:
        """Stores a configuration unchanged and replaces the one of the same name."""
        self._table[config.topic_name] = config
        self._changed((config.topic_name,))

    def altered(self, configs: Iterable[TopicConfig]) -> dict[str, TopicConfig]:
        """The topics as `update` would store them. Raises RequestError."""
        altered: dict[str, TopicConfig] = {}
        for config in configs:
            name = config.topic_name
            current = altered.get(name, self._table.get(name))
            attributes = alter_attributes(
                TOPIC_ATTRIBUTES,
                None if current is None else current.attributes or {},
                config.attributes or {},
            )
            altered[name] = msgspec.structs.replace(config, attributes=attributes)
        return altered

    def update(self, configs: Iterable[TopicConfig]) -> None:
        """Creates or replaces topics for an administrator. Attributes in `configs` are changes (`+key`,
        `-key`) to the stored ones. All or nothing: raises RequestError if one attribute change is not
        allowed."""
        altered = self.altered(configs)
        if altered:
            self._table.update(altered)
            # RocketMQ increments the version once per topic; slaves compare versions only for equality.
            self._changed(tuple(altered), versions=len(altered))

    def delete(self, name: str) -> bool:
        """Deletes a topic. Returns whether it existed."""
        if self._table.pop(name, None) is None:
            return False
        self._changed((name,))
        return True

    def set_sys_flag(self, name: str, flag: int, on: bool) -> None:
        """Sets or clears a bit (`SYS_FLAG_UNIT`, `SYS_FLAG_UNIT_SUB`) of an existing topic."""
        config = self._table.get(name)
        if config is None:
            return
        value = config.topic_sys_flag | flag if on else config.topic_sys_flag & ~flag
        if value != config.topic_sys_flag:
            self.put(msgspec.structs.replace(config, topic_sys_flag=value))

    def mark_ordered(self, topics: Iterable[str]) -> None:
        """Marks the topics that the nameserver's ORDER_TOPIC_CONFIG names as ordered. Unknown topics are
        skipped."""
        changed = []
        for name in topics:
            config = self._table.get(name)
            if config is not None and not config.order:
                self._table[name] = msgspec.structs.replace(config, order=True)
                changed.append(name)
        if changed:
            self._changed(tuple(changed))

    def bump_version(self) -> None:
        """Increments the data version without a change of a topic, because something else in the registration
        changed."""
        self.data_version = self.data_version.next(self._clock_ms(), self._state_version())

    def derived_changed(self) -> None:
        """Discards what others have derived from the table, because a table that belongs to it changed."""
        self.generation += 1

    # loading, and copying from a master

    def restore(self, table: Mapping[str, TopicConfig], data_version: DataVersion | None) -> None:
        """Loads the content of a file. Its entries replace built-in topics of the same name; other built-in
        topics stay."""
        self._table.update(table)
        if data_version is not None:
            self.data_version = data_version
        self.generation += 1

    def replace_all(self, table: Mapping[str, TopicConfig], data_version: DataVersion) -> None:
        """Makes the table a copy of a master's, data version included. An equal entry stays the same object,
        so that listeners need not render it again."""
        before = dict(self._table)
        self._table.clear()
        for name, config in table.items():
            known = before.get(name)
            self._table[name] = known if known == config else config
        touched = tuple(
            name for name in before.keys() | table.keys() if before.get(name) is not self._table.get(name)
        )
        self.data_version = data_version
        self.generation += bool(touched)
        self._notify(touched)

    def _changed(self, touched: tuple[str, ...], versions: int = 1) -> None:
        for _ in range(versions):
            self.bump_version()
        self.generation += 1
        self._notify(touched)

    def _notify(self, touched: tuple[str, ...]) -> None:
        self.on_change.notify(touched)
