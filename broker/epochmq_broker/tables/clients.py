"""Holds the connected producers and consumers by group, their subscriptions, and the listeners of group
changes.

The rules are those of RocketMQ's ProducerManager, ConsumerManager and ConsumerGroupInfo. A channel is any
object that represents a client's connection. The registry uses it as a key, reads its `remote` and `closed`,
and does no I/O. A listener in `on_group_change` gets a consumer group and its channels, and sends
NOTIFY_CONSUMER_IDS_CHANGED.
"""
# pure: state and rules only; the caller passes the time

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from epochmq_protocol.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)

CHANNEL_EXPIRY_MS = 120_000
SUBSCRIPTION_EXPIRY_MS = 600_000


class Channel(Protocol):
    """A client's connection, compared by identity."""

    @property
    def remote(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    @property
    def attributes(self) -> dict[str, Any]: ...


class Client:
    """A member of one group on a channel, as the latest heartbeat that named the group described it."""

    __slots__ = ("channel", "client_id", "language", "last_update_ms", "version")

    def __init__(self, channel: Channel, client_id: str, language: int, version: int, now_ms: int) -> None:
        self.channel = channel
        self.client_id = client_id
        self.language = language
        self.version = version
        self.last_update_ms = now_ms


class ConsumerGroup:
    """The online members of a consumer group and its subscriptions. The latest heartbeat of any member
    decides for the group."""

    __slots__ = ("clients", "consume_from_where", "consume_type", "message_model", "name", "subscriptions")

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type: ConsumeType | None = None
        self.message_model: MessageModel | None = None
        self.consume_from_where: ConsumeFromWhere | None = None
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.clients: dict[Channel, Client] = {}

    @property
    def client_ids(self) -> list[str]:
        """Client ids of the members, one per channel."""
        return [client.client_id for client in self.clients.values()]

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member gets every message. Then the members share no queues, and need no notice of
        each other."""
        return self.message_model is MessageModel.BROADCASTING

    def find(self, client_id: str) -> Client | None:
        """Returns the member with that client id."""
        return next((client for client in self.clients.values() if client.client_id == client_id), None)

    def join(self, client: Client, data: ConsumerData) -> bool:
        """Adds or refreshes a member. Returns whether it is new."""
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        known = self.clients.get(client.channel)
        if known is not None and known.client_id == client.client_id:
            known.last_update_ms = client.last_update_ms
            return False
        self.clients[client.channel] = client
        return known is None

    def subscribe(self, subscriptions: Iterable[SubscriptionData]) -> tuple[bool, bool]:
        """Replaces the group's subscriptions. Returns (whether the set of topics changed, whether anything
        changed)."""
        subscribed = {subscription.topic: subscription for subscription in subscriptions}
        topics_changed = self.subscriptions.keys() != subscribed.keys()
        has_changed = topics_changed
        for topic in self.subscriptions.keys() - subscribed.keys():
            del self.subscriptions[topic]
        for topic, subscription in subscribed.items():
            old = self.subscriptions.get(topic)
            if old is None or subscription.sub_version > old.sub_version:
                self.subscriptions[topic] = subscription
                has_changed = True
        return topics_changed, has_changed


class ClientRegistry:
    """All clients of a broker. `generation` grows whenever a subscription or a group's type may have changed,
    so that the pull path can cache lookups and compare one integer."""

    def __init__(
        self, expiry_ms: int = CHANNEL_EXPIRY_MS, subscription_expiry_ms: int = SUBSCRIPTION_EXPIRY_MS
    ) -> None:
        self.expiry_ms = expiry_ms
        self.subscription_expiry_ms = subscription_expiry_ms
        self.generation = 0
        self.on_group_change: list[Callable[[str, list[Channel]], None]] = []
        self.on_subscriptions: list[Callable[[str, list[SubscriptionData]], None]] = []
        """Called with a group and the subscriptions of each of its heartbeats."""
        self.on_group_end: list[Callable[[str], None]] = []
        """Called with a group that has lost its last member."""
        self.may_take_over: Callable[[Channel, Channel], bool] = lambda _new, _old: True
        """Whether a new connection may get the replies of a producer that has an open one."""
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Channel, Client]] = {}
        self._producer_ids: dict[str, Channel] = {}
        self._fingerprints: dict[str, int] = {}
        self._compensated: dict[str, ConsumerGroup] = {}
        self._groups_of_channel: dict[Channel, tuple[set[str], set[str]]] = {}
        self._round_robin = 0

    # consumers

    def group(self, name: str) -> ConsumerGroup | None:
        """Returns the consumer group if a member is online."""
        return self._consumers.get(name)

    @property
    def groups(self) -> Mapping[str, ConsumerGroup]:
        """All online consumer groups, read-only."""
        return self._consumers

    @property
    def seen_groups(self) -> Iterator[ConsumerGroup]:
        """All online consumer groups, and those without a member whose pulls or POPs carry a subscription."""
        yield from list(self._consumers.values())
        for group in list(self._compensated.values()):
            if group.name not in self._consumers:
                yield group

    def register_consumer(
        self, client: Client, data: ConsumerData, *, notify: bool = True, with_subscriptions: bool = True
    ) -> bool:
        """Registers one consumer group of a heartbeat. Returns whether the members or the subscribed topics
        changed. `notify` is the group's notifyConsumerIdsChangedEnable. Without subscriptions (heartbeat V2)
        the known ones stay."""
        name = data.group_name
        group = self._consumers.get(name)
        if group is None:
            group = self._consumers[name] = ConsumerGroup(name)
            self.generation += 1
        was = (group.consume_type, group.message_model)
        joined = group.join(client, data)
        if was != (group.consume_type, group.message_model):
            self.generation += 1
        if joined:
            self._groups_of(client.channel)[1].add(name)
        changed = False
        if with_subscriptions:
            changed, has_changed = group.subscribe(data.subscription_data_set)
            self.generation += has_changed
            for callback in self.on_subscriptions:
                callback(name, list(data.subscription_data_set))
        # As in RocketMQ, a heartbeat without subscriptions can only add a member.
        if (joined or changed) and notify and not group.is_broadcasting:
            self._notify(group)
        return joined or changed

    def fingerprint_changed(self, group: str, value: int) -> bool:
        """Stores the fingerprint of a group's latest heartbeat V2 (0 for V1). Returns whether it differs from
        the previous one; a client whose fingerprint differs sends its subscriptions again."""
        before = self._fingerprints.get(group)
        self._fingerprints[group] = value
        return before is not None and before != value

    def unregister_consumer(self, name: str, channel: Channel, *, notify: bool = True) -> None:
        """Removes a client from a consumer group, and the group with its last member."""
        group = self._consumers.get(name)
        if group is None:
            return
        self._leave(group, channel)
        if notify and not group.is_broadcasting:
            self._notify(group)

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Returns a group's subscription to a topic: from a heartbeat, or else from a pull that carried
        it."""
        online = self._consumers.get(group)
        if online is not None:
            found = online.subscriptions.get(topic)
            if found is not None:
                return found
        compensated = self._compensated.get(group)
        return None if compensated is None else compensated.subscriptions.get(topic)

    def subscription_count(self, group: str) -> int:
        """The number of topics that an online group subscribes."""
        online = self._consumers.get(group)
        return 0 if online is None else len(online.subscriptions)

    def compensate(
        self,
        group: str,
        topic: str,
        subscription: SubscriptionData,
        consume_type: ConsumeType,
        message_model: MessageModel,
    ) -> None:
        """Stores the subscription that a pull carried, for a consumer that sends no heartbeats. It expires
        ten minutes after its version, which is a time in epoch ms."""
        known = self._compensated.get(group)
        if known is None:
            known = self._compensated[group] = ConsumerGroup(group)
        known.consume_type, known.message_model = consume_type, message_model
        before = known.subscriptions.get(topic)
        if before is subscription:
            return
        known.subscriptions[topic] = subscription
        # Every such pull has a new version; only the expression matters.
        expression = (subscription.expression_type, subscription.sub_string)
        if before is None or (before.expression_type, before.sub_string) != expression:
            self.generation += 1

    def consumers_of(self, topic: str) -> set[str]:
        """The online groups that subscribe to a topic. RocketMQ 5.3.3 reports the topic's own name in place
        of theirs."""
        return {name for name, group in self._consumers.items() if topic in group.subscriptions}

    # producers

    @property
    def producers(self) -> Mapping[str, Mapping[Channel, Client]]:
        """Producer group -> its clients by channel, read-only."""
        return self._producers

    def register_producer(self, group: str, client: Client) -> bool:
        """Adds or refreshes a producer. Returns whether it is new."""
        clients = self._producers.setdefault(group, {})
        known = clients.get(client.channel)
        if known is not None:
            known.last_update_ms = client.last_update_ms
            return False
        clients[client.channel] = client
        old = self._producer_ids.get(client.client_id)
        if old is None or old.closed or self.may_take_over(client.channel, old):
            self._producer_ids[client.client_id] = client.channel
        self._groups_of(client.channel)[0].add(group)
        return True

    def unregister_producer(self, group: str, channel: Channel) -> None:
        """Removes a client from a producer group, and the group with its last member."""
        clients = self._producers.get(group)
        client = None if clients is None else clients.pop(channel, None)
        if client is None:
            return
        if not clients:
            del self._producers[group]
        groups = self._groups_of_channel.get(channel)
        if groups is not None:
            groups[0].discard(group)
            self._forget_channel_if_idle(channel, groups)
            if groups[0]:
                return
        if self._producer_ids.get(client.client_id) is channel:
            del self._producer_ids[client.client_id]

    def producer_channel(self, client_id: str) -> Channel | None:
        """The channel on which a producer of that client id registered last."""
        return self._producer_ids.get(client_id)

    def any_producer(
        self, group: str, accepts: Callable[[Channel], bool] = lambda _channel: True
    ) -> Channel | None:
        """Returns an open channel of a producer group, round robin among those that `accepts` accepts."""
        channels = [one for one in self._producers.get(group, ()) if not one.closed and accepts(one)]
        if not channels:
            return None
        self._round_robin += 1
        return channels[self._round_robin % len(channels)]

    # channels

    def channel_closed(self, channel: Channel) -> None:
        """Removes every client of a channel and notifies its consumer groups."""
        groups = self._groups_of_channel.get(channel)
        if groups is None:
            return
        producers, consumers = groups
        for name in list(producers):
            self.unregister_producer(name, channel)
        for name in list(consumers):
            self.unregister_consumer(name, channel)
        self._groups_of_channel.pop(channel, None)

    def sweep(self, now_ms: int) -> list[Channel]:
        """Removes members that no heartbeat has named within the expiry time, and expired subscriptions of
        pulls. Returns the channels that have no other member, for the caller to close; RocketMQ closes the
        channel of every such member. Members of the affected groups are notified; RocketMQ does not do
        that."""
        producers = self._silent(self._producers.items(), now_ms)
        consumers = self._silent(((name, group.clients) for name, group in self._consumers.items()), now_ms)
        for name, channel in producers:
            self.unregister_producer(name, channel)
        for name, channel in consumers:
            self.unregister_consumer(name, channel)
        silent = dict.fromkeys(channel for _, channel in (*producers, *consumers))
        for name in list(self._compensated):
            subscriptions = self._compensated[name].subscriptions
            for topic, subscription in list(subscriptions.items()):
                if now_ms - subscription.sub_version > self.subscription_expiry_ms:
                    del subscriptions[topic]
                    self.generation += 1
            if not subscriptions:
                del self._compensated[name]
        return [channel for channel in silent if channel not in self._groups_of_channel]

    def _silent(
        self, groups: Iterable[tuple[str, Mapping[Channel, Client]]], now_ms: int
    ) -> list[tuple[str, Channel]]:
        """The members of these groups whose heartbeats have stopped, as (group, channel)."""
        return [
            (name, channel)
            for name, clients in groups
            for channel, client in clients.items()
            if now_ms - client.last_update_ms > self.expiry_ms
        ]

    def _leave(self, group: ConsumerGroup, channel: Channel) -> None:
        group.clients.pop(channel, None)
        groups = self._groups_of_channel.get(channel)
        if groups is not None:
            groups[1].discard(group.name)
            self._forget_channel_if_idle(channel, groups)
        if not group.clients and self._consumers.pop(group.name, None) is not None:
            self._fingerprints.pop(group.name, None)
            self.generation += 1
            for callback in self.on_group_end:
                callback(group.name)

    def _groups_of(self, channel: Channel) -> tuple[set[str], set[str]]:
        return self._groups_of_channel.setdefault(channel, (set(), set()))

    def _forget_channel_if_idle(self, channel: Channel, groups: tuple[set[str], set[str]]) -> None:
        if not groups[0] and not groups[1]:
            self._groups_of_channel.pop(channel, None)

    def _notify(self, group: ConsumerGroup) -> None:
        channels = list(group.clients)
        for callback in self.on_group_change:
            callback(group.name, channels)
