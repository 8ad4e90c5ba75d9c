"""The registry knows the connected clients and their subscriptions, and notifies a group when it must
rebalance."""

from __future__ import annotations

import pytest

from epochmq_broker.tables.clients import CHANNEL_EXPIRY_MS, SUBSCRIPTION_EXPIRY_MS, Client, ClientRegistry
from epochmq_protocol.bodies import ConsumerData, ConsumeType, MessageModel, SubscriptionData
from tests.unit.broker.tables.support import FakeChannel


def consumer(
    group: str = "g", *topics: str, model: MessageModel = MessageModel.CLUSTERING, version: int = 1
) -> ConsumerData:
    return ConsumerData(
        group_name=group,
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=model,
        subscription_data_set=[
            SubscriptionData(topic=topic, sub_string="*", sub_version=version) for topic in topics
        ],
    )


def client(channel: FakeChannel, client_id: str = "c1", now_ms: int = 0) -> Client:
    return Client(channel, client_id, 0, 479, now_ms)


class Watched:
    """A registry whose notices are recorded as (group, number of notified members)."""

    def __init__(self) -> None:
        self.registry = ClientRegistry()
        self.notices: list[tuple[str, int]] = []
        self.registry.on_group_change.append(
            lambda group, channels: self.notices.append((group, len(channels)))
        )

    def taken(self) -> list[tuple[str, int]]:
        """The notices since the last call."""
        notices, self.notices = self.notices, []
        return notices


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_members_are_notified_when_one_joins_or_leaves(watched: Watched) -> None:
    one, two = FakeChannel(), FakeChannel()
    assert watched.registry.register_consumer(client(one, "c1"), consumer("g", "t"))
    assert watched.registry.register_consumer(client(two, "c2"), consumer("g", "t"))
    assert watched.taken() == [("g", 1), ("g", 2)]
    assert not watched.registry.register_consumer(client(one, "c1"), consumer("g", "t"))
    assert watched.taken() == []
    watched.registry.unregister_consumer("g", one)
    assert watched.taken() == [("g", 1)]
    group = watched.registry.group("g")
    assert group is not None
    assert group.client_ids == ["c2"]


def test_members_are_notified_of_added_and_removed_topics_but_not_of_new_versions(
    watched: Watched,
) -> None:
    channel = FakeChannel()
    watched.registry.register_consumer(client(channel), consumer("g", "a"))
    watched.taken()
    generation = watched.registry.generation
    assert watched.registry.register_consumer(client(channel), consumer("g", "a", "b"))
    assert watched.registry.register_consumer(client(channel), consumer("g", "b"))
    assert watched.taken() == [("g", 1), ("g", 1)]
    assert not watched.registry.register_consumer(client(channel), consumer("g", "b", version=9))
    assert watched.taken() == []
    assert watched.registry.generation > generation
    found = watched.registry.subscription("g", "b")
    assert found is not None
    assert found.sub_version == 9


def test_an_older_subscription_does_not_replace_a_newer_one(watched: Watched) -> None:
    channel = FakeChannel()
    watched.registry.register_consumer(client(channel), consumer("g", "a", version=5))
    watched.registry.register_consumer(client(channel), consumer("g", "a", version=4))
    found = watched.registry.subscription("g", "a")
    assert found is not None
    assert found.sub_version == 5


def test_broadcasting_groups_and_groups_that_opted_out_are_not_notified(watched: Watched) -> None:
    watched.registry.register_consumer(
        client(FakeChannel()), consumer("b", "t", model=MessageModel.BROADCASTING)
    )
    watched.registry.register_consumer(client(FakeChannel()), consumer("q", "t"), notify=False)
    assert watched.taken() == []


def test_a_short_heartbeat_keeps_the_known_subscriptions(watched: Watched) -> None:
    channel = FakeChannel()
    watched.registry.register_consumer(client(channel), consumer("g", "t"))
    watched.registry.register_consumer(client(channel), consumer("g"), with_subscriptions=False)
    assert watched.registry.subscription_count("g") == 1


def test_a_first_fingerprint_does_not_count_as_changed(watched: Watched) -> None:
    registry = watched.registry
    assert not registry.fingerprint_changed("g", 7)
    assert not registry.fingerprint_changed("g", 7)
    assert registry.fingerprint_changed("g", 8)
    assert registry.fingerprint_changed("g", 0)


def test_the_group_its_topics_and_its_fingerprint_are_removed_with_the_last_member(watched: Watched) -> None:
    registry, channel = watched.registry, FakeChannel()
    registry.fingerprint_changed("g", 7)
    registry.register_consumer(client(channel), consumer("g", "t"))
    assert registry.consumers_of("t") == {"g"}
    assert registry.consumers_of("other") == set()
    registry.unregister_consumer("g", channel)
    assert registry.group("g") is None
    assert registry.subscription("g", "t") is None
    assert registry.consumers_of("t") == set()
    assert not registry.fingerprint_changed("g", 9)
    registry.unregister_consumer("g", channel)


def test_a_closed_channel_is_removed_from_every_group(watched: Watched) -> None:
    registry, channel, other = watched.registry, FakeChannel(), FakeChannel()
    registry.register_consumer(client(channel), consumer("g1", "t"))
    registry.register_consumer(client(channel), consumer("g2", "t"))
    registry.register_consumer(client(other, "c2"), consumer("g2", "t"))
    registry.register_producer("p", client(channel))
    watched.taken()
    registry.channel_closed(channel)
    assert sorted(watched.taken()) == [("g1", 0), ("g2", 1)]
    assert registry.group("g1") is None
    assert registry.producers == {}
    assert registry.producer_channel("c1") is None
    registry.channel_closed(channel)


def test_a_changed_client_id_on_a_channel_replaces_the_old_one_without_a_notice(watched: Watched) -> None:
    channel = FakeChannel()
    watched.registry.register_consumer(client(channel, "old"), consumer("g", "t"))
    watched.taken()
    assert not watched.registry.register_consumer(client(channel, "new"), consumer("g", "t"))
    group = watched.registry.group("g")
    assert group is not None
    assert group.client_ids == ["new"]
    assert group.find("old") is None


def test_channels_without_heartbeats_expire_after_two_minutes_and_their_groups_are_notified(
    watched: Watched,
) -> None:
    registry, silent, alive = watched.registry, FakeChannel(), FakeChannel()
    registry.register_consumer(client(silent, "c1", 0), consumer("g", "t"))
    registry.register_consumer(client(alive, "c2", 50), consumer("g", "t"))
    registry.register_producer("p", client(silent, "c1", 0))
    watched.taken()
    assert registry.sweep(CHANNEL_EXPIRY_MS) == []
    assert registry.sweep(CHANNEL_EXPIRY_MS + 1) == [silent]
    assert watched.taken() == [("g", 1)]
    assert registry.producers == {}
    registry.register_consumer(client(alive, "c2", CHANNEL_EXPIRY_MS), consumer("g", "t"))
    assert registry.sweep(CHANNEL_EXPIRY_MS + 60) == []


def test_a_silent_member_leaves_its_group_and_the_channel_keeps_its_other_groups(watched: Watched) -> None:
    registry, channel = watched.registry, FakeChannel()
    for group in ("kept", "left"):
        registry.register_consumer(client(channel, "c1", 0), consumer(group, "t"))
        registry.register_producer(group, client(channel, "c1", 0))
    registry.register_consumer(client(channel, "c1", CHANNEL_EXPIRY_MS), consumer("kept", "t"))
    registry.register_producer("kept", client(channel, "c1", CHANNEL_EXPIRY_MS))
    watched.taken()
    assert registry.sweep(CHANNEL_EXPIRY_MS + 1) == [], "the channel is in use"
    assert set(registry.groups) == set(registry.producers) == {"kept"}
    assert registry.producer_channel("c1") is channel
    assert registry.sweep(2 * CHANNEL_EXPIRY_MS + 1) == [channel]
    assert not registry.groups
    assert not registry.producers


def test_the_subscription_of_a_pull_is_used_until_it_expires(watched: Watched) -> None:
    registry = watched.registry
    generation = registry.generation
    subscription = SubscriptionData(topic="t", sub_string="a", sub_version=1000)
    registry.compensate("g", "t", subscription, ConsumeType.CONSUME_ACTIVELY, MessageModel.CLUSTERING)
    assert registry.subscription("g", "t") is subscription
    assert registry.subscription_count("g") == 0
    assert registry.generation == generation + 1
    registry.compensate("g", "t", subscription, ConsumeType.CONSUME_ACTIVELY, MessageModel.CLUSTERING)
    again = SubscriptionData(topic="t", sub_string="a", sub_version=1001)
    registry.compensate("g", "t", again, ConsumeType.CONSUME_ACTIVELY, MessageModel.CLUSTERING)
    assert registry.generation == generation + 1
    registry.sweep(1001 + SUBSCRIPTION_EXPIRY_MS)
    assert registry.subscription("g", "t") is again
    registry.sweep(1002 + SUBSCRIPTION_EXPIRY_MS)
    assert registry.subscription("g", "t") is None


def test_a_heartbeats_subscription_takes_precedence_over_a_pulls(watched: Watched) -> None:
    registry = watched.registry
    registry.compensate(
        "g",
        "t",
        SubscriptionData(topic="t", sub_string="a"),
        ConsumeType.CONSUME_ACTIVELY,
        MessageModel.CLUSTERING,
    )
    registry.register_consumer(client(FakeChannel()), consumer("g", "t"))
    found = registry.subscription("g", "t")
    assert found is not None
    assert found.sub_string == "*"


def test_producers_are_found_by_group_round_robin_and_by_client_id(watched: Watched) -> None:
    registry, one, two = watched.registry, FakeChannel("1"), FakeChannel("2")
    registry.register_producer("p", client(one, "c1"))
    registry.register_producer("p", client(two, "c2"))
    assert not registry.register_producer("p", client(one, "c1", 5))
    assert {registry.any_producer("p"), registry.any_producer("p")} == {one, two}
    one.closed = True
    assert registry.any_producer("p") is two
    assert registry.any_producer("nobody") is None
    assert registry.producer_channel("c2") is two


def test_a_producer_in_two_groups_is_found_by_id_until_it_has_left_both(watched: Watched) -> None:
    registry, channel = watched.registry, FakeChannel()
    registry.register_producer("p1", client(channel))
    registry.register_producer("p2", client(channel))
    registry.unregister_producer("p1", channel)
    assert registry.producer_channel("c1") is channel
    registry.unregister_producer("p2", channel)
    registry.unregister_producer("p2", channel)
    assert registry.producer_channel("c1") is None
