"""Holds the broker's subscription groups: configuration, creation on first use, and topics that a group may
not read.

The rules are those of RocketMQ's SubscriptionGroupManager. The table does no I/O. A listener in `on_change`
is called after each change with the names of the groups that it created, changed or deleted.
"""
# pure: state and rules only; the caller passes the clock

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from epochmq_broker.tables.attributes import GROUP_ATTRIBUTES, alter_attributes
from epochmq_broker.tables.change_listeners import ChangeListeners
from epochmq_protocol import topics as names
from epochmq_protocol.subscription_groups import SubscriptionGroupConfig
from epochmq_protocol.topics import DataVersion

BUILT_IN_GROUPS = (
    names.TOOLS_CONSUMER_GROUP,
    names.FILTERSRV_CONSUMER_GROUP,
    names.SELF_TEST_CONSUMER_GROUP,
    names.ONS_HTTP_PROXY_GROUP,
    names.CID_ONSAPI_PULL_GROUP,
    names.CID_ONSAPI_PERMISSION_GROUP,
    names.CID_ONSAPI_OWNER_GROUP,
    names.CID_SYS_RMQ_TRANS,
)

FORBID_READ_BIT = 2
"""Index of the bit in the forbidden table that forbids reading (PermName.INDEX_PERM_READ)."""


class GroupSettings(Protocol):
    """The broker settings that the table reads; `BrokerConfig` has them under the same names."""

    @property
    def auto_create_subscription_group(self) -> bool: ...
    @property
    def enable_create_sys_group(self) -> bool: ...


class SubscriptionGroupTable:
    """Group name -> SubscriptionGroupConfig. The table never modifies a stored configuration. `generation`
    grows with every change of a group or of the forbidden table."""

    def __init__(
        self,
        settings: GroupSettings,
        clock_ms: Callable[[], int],
        state_version: Callable[[], int] = lambda: 0,
    ) -> None:
        self.settings = settings
        self.generation = 0
        self.data_version = DataVersion(timestamp=clock_ms())
        self.on_change = ChangeListeners()
        self._clock_ms = clock_ms
        self._state_version = state_version
        self._table: dict[str, SubscriptionGroupConfig] = {
            name: SubscriptionGroupConfig(group_name=name) for name in BUILT_IN_GROUPS
        }
        self._forbidden: dict[str, dict[str, int]] = {}
        self.get: Callable[[str], SubscriptionGroupConfig | None] = self._table.get

    def configure(self, settings: GroupSettings) -> None:
        """Uses new settings."""
        self.settings = settings

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    @property
    def table(self) -> Mapping[str, SubscriptionGroupConfig]:
        """The whole table, read-only."""
        return self._table

    @property
    def forbidden_table(self) -> Mapping[str, Mapping[str, int]]:
        """Group -> topic -> bits of forbidden operations, read-only."""
        return self._forbidden

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """Returns the group's configuration. Creates an unknown group with defaults if its name is legal and
        autoCreateSubscriptionGroup is on (or it is a system group); otherwise returns None. A blank name,
        which RocketMQ creates a group for, is not legal: no client could use the group."""
        config = self._table.get(name)
        if config is not None:
            return config
        settings = self.settings
        system = settings.enable_create_sys_group and name.startswith(names.CID_RMQ_SYS_PREFIX)
        if not (settings.auto_create_subscription_group or system):
            return None
        if not name.strip() or len(name) > names.GROUP_LENGTH_MAX or names.is_topic_or_group_illegal(name):
            return None
        config = SubscriptionGroupConfig(group_name=name)
        self._table[name] = config
        self._changed((name,))
        return config

    def altered(self, configs: Iterable[SubscriptionGroupConfig]) -> dict[str, SubscriptionGroupConfig]:
        """The groups as `update` would store them. Raises RequestError."""
        altered: dict[str, SubscriptionGroupConfig] = {}
        for config in configs:
            name = config.group_name
            current = altered.get(name, self._table.get(name))
            attributes = alter_attributes(
                GROUP_ATTRIBUTES,
                None if current is None else current.attributes or {},
                config.attributes or {},
            )
            altered[name] = msgspec.structs.replace(config, attributes=attributes)
        return altered

    def update(self, configs: Iterable[SubscriptionGroupConfig]) -> None:
        """Creates or replaces groups for an administrator; all or nothing. Raises RequestError for a change
        of attributes that is not allowed."""
        altered = self.altered(configs)
        if altered:
            self._table.update(altered)
            self._changed(tuple(altered), versions=len(altered))

    def delete(self, name: str) -> bool:
        """Deletes a group and its forbidden topics. Returns whether the group existed."""
        self._forbidden.pop(name, None)
        if self._table.pop(name, None) is None:
            return False
        self._changed((name,))
        return True

    def disable_consume(self, name: str) -> None:
        """Stops a group from consuming (disableConsumeIfConsumerReadSlowly)."""
        config = self._table.get(name)
        if config is not None and config.consume_enable:
            self._table[name] = msgspec.structs.replace(config, consume_enable=False)
            self._changed((name,))

    # topics that a group may not read

    def is_forbidden(self, group: str, topic: str, bit: int = FORBID_READ_BIT) -> bool:
        """Whether the bit is set for (group, topic)."""
        topics = self._forbidden.get(group)
        return topics is not None and bool(max(0, topics.get(topic, 0)) >> bit & 1)

    def forbid(self, group: str, topic: str, forbidden: bool, bit: int = FORBID_READ_BIT) -> None:
        """Sets or clears a bit of (group, topic). The group's other topics keep their bits; RocketMQ's
        updateForbiddenValue drops all of them together with the last bit of one topic."""
        topics = dict(self._forbidden.get(group, {}))
        before = max(0, topics.get(topic, 0))
        after = before | 1 << bit if forbidden else before & ~(1 << bit)
        if after == before:
            return
        topics[topic] = after
        topics = {name: bits for name, bits in topics.items() if bits > 0}
        if topics:
            self._forbidden[group] = topics
        else:
            self._forbidden.pop(group, None)
        self._changed((group,))

    # loading, and copying from a master

    def restore(
        self,
        table: Mapping[str, SubscriptionGroupConfig],
        forbidden: Mapping[str, Mapping[str, int]],
        data_version: DataVersion | None,
    ) -> None:
        """Loads the content of a file. Its entries replace built-in groups of the same name; other built-in
        groups stay."""
        self._table.update(table)
        self._forbidden.update({group: dict(topics) for group, topics in forbidden.items()})
        if data_version is not None:
            self.data_version = data_version
        self.generation += 1

    def replace_all(
        self,
        table: Mapping[str, SubscriptionGroupConfig],
        forbidden: Mapping[str, Mapping[str, int]],
        data_version: DataVersion,
    ) -> None:
        """Makes the table a copy of a master's, data version and forbidden topics included. RocketMQ's slave
        keeps its own forbidden table, so after a change of master a group could read what was forbidden
        before."""
        before, forbidden_before = dict(self._table), dict(self._forbidden)
        self._table.clear()
        for name, config in table.items():
            known = before.get(name)
            self._table[name] = known if known == config else config
        self._forbidden = {group: dict(topics) for group, topics in forbidden.items()}
        touched = tuple(
            name
            for name in before.keys() | table.keys() | forbidden_before.keys() | forbidden.keys()
            if before.get(name) is not self._table.get(name)
            or forbidden_before.get(name) != self._forbidden.get(name)
        )
        self.data_version = data_version
        self.generation += bool(touched)
        self._notify(touched)

    def _changed(self, touched: tuple[str, ...], versions: int = 1) -> None:
        for _ in range(versions):
            self.data_version = self.data_version.next(self._clock_ms(), self._state_version())
        self.generation += 1
        self._notify(touched)

    def _notify(self, touched: tuple[str, ...]) -> None:
        self.on_change.notify(touched)
