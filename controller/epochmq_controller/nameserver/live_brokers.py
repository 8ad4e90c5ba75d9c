# pure: live brokers
"""Keeps the live brokers of a nameserver: their last heartbeat, data version and connection
(`BrokerLiveInfo`)."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from epochmq_protocol.topics import DataVersion

BrokerKey = tuple[str, str]
"""(cluster, address) of a broker."""


class BrokerLiveInfo(msgspec.Struct):
    """What the nameserver knows of a live broker."""

    broker_name: str
    last_update_ms: int
    heartbeat_timeout_ms: int
    data_version: DataVersion
    channel: Hashable
    ha_address: str
    external_address: str | None = None
    """The address for clients outside; None: the broker has no external listener."""


class LiveBrokers:
    """The live brokers by key, and by the channel over which they registered last."""

    def __init__(self) -> None:
        self.table: dict[BrokerKey, BrokerLiveInfo] = {}
        self._by_channel: dict[Hashable, set[BrokerKey]] = {}

    def __len__(self) -> int:
        return len(self.table)

    def get(self, key: BrokerKey) -> BrokerLiveInfo | None:
        """The live broker with this key."""
        return self.table.get(key)

    def put(self, key: BrokerKey, info: BrokerLiveInfo) -> None:
        """Adds or replaces a broker."""
        self.drop(key)
        self.table[key] = info
        self._by_channel.setdefault(info.channel, set()).add(key)

    def drop(self, key: BrokerKey) -> None:
        """Removes a broker, if it is there."""
        dropped = self.table.pop(key, None)
        if dropped is None:
            return
        keys = self._by_channel[dropped.channel]
        keys.discard(key)
        if not keys:
            del self._by_channel[dropped.channel]

    def record_heartbeat(self, cluster: str, address: str, now_ms: int) -> None:
        """Records a heartbeat (904) or another sign of life (322). Brokers that never registered are
        ignored."""
        found = self.table.get((cluster, address))
        if found is not None:
            found.last_update_ms = now_ms

    def timed_out(self, now_ms: int) -> list[tuple[BrokerKey, BrokerLiveInfo]]:
        """The brokers whose heartbeats have timed out."""
        return [
            (key, found)
            for key, found in self.table.items()
            if found.last_update_ms + found.heartbeat_timeout_ms < now_ms
        ]

    def of_channel(self, channel: Hashable) -> list[BrokerKey]:
        """The brokers that registered over this channel last."""
        return sorted(self._by_channel.get(channel, ()))

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """The version of the topics that this broker registered last."""
        found = self.table.get((cluster, address))
        return None if found is None else found.data_version

    def is_data_version_changed(self, cluster: str, address: str, version: DataVersion) -> bool:
        """Whether a broker with this version has changes to register."""
        return self.data_version(cluster, address) != version
