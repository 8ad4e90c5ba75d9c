"""After any sequence of registrations and unregistrations the tables are consistent, and empty without
brokers."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epochmq_controller.nameserver.config import NamesrvConfig
from epochmq_controller.nameserver.routes import (
    BrokerUnregistration,
    CloseChannel,
    NotifyMinBrokerId,
    RouteEffect,
    RouteTables,
)
from epochmq_protocol.route import MASTER_ID
from epochmq_protocol.topics import is_writeable
from tests.unit.controller.nameserver.brokers import registration, wrapper

names = st.sampled_from(["b0", "b1"])
clusters = st.sampled_from(["one", "two"])
ids = st.integers(0, 3)
addresses = st.sampled_from([f"host:{port}" for port in range(5)])
channels = st.sampled_from(["ch0", "ch1", "ch2"])
topic_lists = st.lists(st.sampled_from(["T1", "T2", "T3"]), unique=True)


class Brokers(RuleBasedStateMachine):
    """Brokers that register, unregister and die."""

    def __init__(self) -> None:
        super().__init__()
        config = NamesrvConfig(
            support_acting_master=True, notify_min_broker_id_changed=True, un_register_broker_queue_capacity=3
        )
        self.tables = RouteTables(config)
        self.now_ms = 0

    @rule(
        broker_id=ids,
        address=addresses,
        topics=topic_lists,
        name=names,
        cluster=clusters,
        acting=st.sampled_from([None, False, True]),
        channel=channels,
        counter=st.integers(1, 3),
        state=st.integers(0, 2),
    )
    def register(
        self,
        broker_id: int,
        address: str,
        topics: list[str],
        name: str,
        cluster: str,
        acting: bool | None,
        channel: str,
        counter: int,
        state: int,
    ) -> None:
        wanted = registration(
            broker_id,
            address,
            wrapper(topics, counter=counter, state=state),
            name=name,
            cluster=cluster,
            acting=acting,
            channel=channel,
            timeout_ms=100,
        )
        _, effects = self.tables.register(wanted, self.now_ms)
        self.check_effects(effects)

    @rule(name=names, cluster=clusters, broker_id=ids, address=addresses)
    def unregister(self, name: str, cluster: str, broker_id: int, address: str) -> None:
        self.tables.submit_unregister(BrokerUnregistration(cluster, name, broker_id, address))

    @rule()
    def batch(self) -> None:
        self.check_effects(self.tables.unregister_pending())

    @rule(channel=channels)
    def close(self, channel: str) -> None:
        self.tables.channel_closed(channel)

    @rule(after_ms=st.integers(1, 150))
    def time_passes(self, after_ms: int) -> None:
        self.now_ms += after_ms
        self.check_effects(self.tables.scan(self.now_ms))

    @rule(cluster=clusters, address=addresses)
    def heartbeat(self, cluster: str, address: str) -> None:
        self.tables.live.record_heartbeat(cluster, address, self.now_ms)

    @rule(name=names, allowed=st.booleans())
    def permission(self, name: str, allowed: bool) -> None:
        self.tables.set_write_permission(name, allowed=allowed)

    @rule(topic=st.sampled_from(["T1", "T2"]), cluster=st.sampled_from([None, "one", "two"]))
    def delete(self, topic: str, cluster: str | None) -> None:
        self.tables.delete_topic(topic, cluster)

    def check_effects(self, effects: list[RouteEffect]) -> None:
        for effect in effects:
            assert isinstance(effect, NotifyMinBrokerId | CloseChannel)
            if isinstance(effect, NotifyMinBrokerId):
                assert effect.addresses
                assert effect.offline_address not in effect.addresses

    @invariant()
    def every_address_stands_under_one_id_of_its_name(self) -> None:
        for broker in self.tables.brokers.values():
            at = list(broker.broker_addrs.values())
            assert at, "a broker name without an address"
            assert len(at) == len(set(at))

    @invariant()
    def clusters_and_brokers_agree(self) -> None:
        by_cluster = {(cluster, name) for cluster, found in self.tables.clusters.items() for name in found}
        assert by_cluster == {(broker.cluster, name) for name, broker in self.tables.brokers.items()}
        assert all(self.tables.clusters.values())

    @invariant()
    def topics_are_those_of_brokers_that_exist(self) -> None:
        for queues in self.tables.topics.values():
            assert queues
            assert set(queues) <= set(self.tables.brokers)

    @invariant()
    def routes_show_a_master_only_if_there_is_one_or_nothing_is_writable(self) -> None:
        for topic in self.tables.topics:
            found = self.tables.route(topic)
            assert found is not None
            queues = {queue.broker_name: queue for queue in found.queue_datas}
            for broker in found.broker_datas:
                real = self.tables.members(broker.broker_name)
                assert sorted(broker.broker_addrs.values()) == sorted(real.values())
                if MASTER_ID in broker.broker_addrs and MASTER_ID not in real:
                    assert not is_writeable(queues[broker.broker_name].perm)

    @invariant()
    def no_more_unregistrations_wait_than_may(self) -> None:
        assert len(self.tables._pending) <= 3

    def teardown(self) -> None:
        for _ in range(20):  # at most three go at a time
            self.now_ms += 1000
            self.tables.scan(self.now_ms)
            self.tables.unregister_pending()
        assert self.tables.live.table == {}
        assert self.tables.live._by_channel == {}
        assert self.tables._pending == {}


TestBrokers = pytest.mark.long(Brokers.TestCase)
TestBrokers.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
