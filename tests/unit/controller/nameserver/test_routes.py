"""How brokers register and unregister, and which routes clients get."""

from __future__ import annotations

import msgspec
import pytest

from epochmq_controller.nameserver.config import NamesrvConfig
from epochmq_controller.nameserver.routes import (
    CloseChannel,
    NotifyMinBrokerId,
    RegisterBrokerResult,
    RouteTables,
)
from epochmq_protocol.route import QueueData, TopicRouteData
from epochmq_protocol.topics import (
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicQueueMappingInfo,
)
from tests.unit.controller.nameserver.brokers import NAME, address_of, registration, unregistration, wrapper

NOW = 1_000_000


def tables(**changes: bool | int) -> RouteTables:
    return RouteTables(NamesrvConfig(**changes))  # type: ignore[arg-type]


def route(routes: RouteTables, topic: str = "T1") -> TopicRouteData:
    found = routes.route(topic)
    assert found is not None, f"no route of {topic}"
    return found


def addresses(routes: RouteTables, topic: str = "T1") -> dict[int, str]:
    (broker,) = route(routes, topic).broker_datas
    return broker.broker_addrs


def perm(routes: RouteTables, topic: str = "T1") -> int:
    (queue,) = route(routes, topic).queue_datas
    return queue.perm


# registration


def test_a_masters_topics_have_a_route_to_it() -> None:
    routes = tables()
    result, effects = routes.register(registration(), NOW)
    assert (result, effects) == (RegisterBrokerResult(), [])
    assert addresses(routes) == {0: address_of(0)}
    assert msgspec.to_builtins(route(routes).queue_datas) == [
        {"brokerName": NAME, "readQueueNums": 16, "writeQueueNums": 16, "perm": 6, "topicSysFlag": 0}
    ]
    assert routes.route("nobody's") is None


def test_a_slave_is_told_its_master_and_its_topics_do_not_count() -> None:
    routes = tables()
    assert routes.register(registration(1, acting=None), NOW)[0] == RegisterBrokerResult()
    assert routes.route("T1") is None
    routes.register(registration(0), NOW)
    result, _ = routes.register(registration(1, topics=wrapper(["T1", "T2", "only the slave's"])), NOW)
    assert result == RegisterBrokerResult(f"ha-{address_of(0)}", address_of(0))
    assert routes.route("only the slave's") is None
    assert addresses(routes) == {0: address_of(0), 1: address_of(1)}


def test_a_first_registration_with_a_single_topic_is_refused_and_leaves_nothing() -> None:
    routes = tables()
    result, effects = routes.register(registration(topics=wrapper(["T1"])), NOW)
    assert (result, effects) == (None, [])
    assert (routes.topics, routes.brokers, routes.clusters, routes.live.table) == ({}, {}, {}, {})
    routes.register(registration(), NOW)
    result, _ = routes.register(registration(topics=wrapper(["new"], counter=2)), NOW)
    assert result == RegisterBrokerResult()
    assert set(routes.topics) == {"T1", "T2", "new"}


def test_an_empty_first_registration_is_taken() -> None:
    routes = tables()
    assert routes.register(registration(topics=wrapper([])), NOW)[0] == RegisterBrokerResult()


def test_a_slave_that_becomes_master_stands_under_its_new_id_only() -> None:
    routes = tables()
    routes.register(registration(0), NOW)
    routes.register(registration(1), NOW)
    routes.register(registration(0, address_of(1), wrapper(counter=2, state=2)), NOW)
    assert addresses(routes) == {0: address_of(1)}


def test_an_older_master_does_not_push_out_its_successor() -> None:
    routes = tables()
    routes.register(registration(0, "new:1", wrapper(state=3)), NOW)
    result, effects = routes.register(registration(0, "old:1", wrapper(state=2)), NOW)
    assert (result, effects) == (RegisterBrokerResult(), [])
    assert addresses(routes) == {0: "new:1"}
    assert routes.live.data_version("c", "old:1") is None
    routes.register(registration(0, "newest:1", wrapper(state=4)), NOW)
    assert addresses(routes) == {0: "newest:1"}


def test_topics_change_only_with_the_data_version() -> None:
    routes = tables()
    routes.register(registration(), NOW)
    wider = [TopicConfig(topic_name="T1", write_queue_nums=32), TopicConfig(topic_name="T2")]
    routes.register(registration(topics=wrapper(wider)), NOW)
    assert route(routes).queue_datas[0].write_queue_nums == 16
    routes.register(registration(topics=wrapper(wider, counter=2)), NOW)
    assert route(routes).queue_datas[0].write_queue_nums == 32


def test_a_topic_that_got_lost_here_comes_back_with_the_same_data_version() -> None:
    routes = tables()
    routes.register(registration(), NOW)
    routes.delete_topic("T1")
    routes.register(registration(), NOW)
    assert addresses(routes) == {0: address_of(0)}


@pytest.mark.parametrize("enabled", [False, True])
def test_topics_missing_from_a_registration_are_dropped_only_when_asked_for(enabled: bool) -> None:
    routes = tables(delete_topic_with_broker_registration=enabled)
    routes.register(registration(), NOW)
    routes.register(registration(topics=wrapper(["T2", "T3"], counter=2)), NOW)
    assert ("T1" in routes.topics) is not enabled
    assert {"T2", "T3"} <= set(routes.topics)


def test_static_topic_mappings_are_shown_by_broker() -> None:
    routes = tables()
    topics = wrapper()
    info = TopicQueueMappingInfo(topic="T1", total_queues=2, bname=NAME, epoch=1, curr_id_map={0: 0})
    topics.topic_queue_mapping_info_map["T1"] = info
    routes.register(registration(topics=topics), NOW)
    assert route(routes).topic_queue_mapping_by_broker == {NAME: info}
    assert route(routes, "T2").topic_queue_mapping_by_broker is None


def test_filter_servers_are_shown_while_registered() -> None:
    routes = tables()
    routes.register(msgspec.structs.replace(registration(), filter_servers=["f:1"]), NOW)
    assert route(routes).filter_server_table == {address_of(0): ["f:1"]}
    routes.register(msgspec.structs.replace(registration(), filter_servers=None), NOW)
    assert route(routes).filter_server_table == {address_of(0): ["f:1"]}
    routes.register(registration(), NOW)
    assert route(routes).filter_server_table == {}


def test_a_broker_name_that_moves_to_another_cluster_leaves_the_first() -> None:
    routes = tables()
    routes.register(registration(cluster="one"), NOW)
    routes.register(registration(cluster="two"), NOW)
    assert routes.clusters == {"two": {NAME: None}}
    assert routes.topics_of_cluster("one") == []
    assert routes.topics_of_cluster("two") == ["T1", "T2"]


# liveness


def test_a_broker_that_stays_silent_is_closed_and_forgotten() -> None:
    routes = tables()
    routes.register(registration(timeout_ms=10_000), NOW)
    assert routes.scan(NOW + 10_000) == []
    assert routes.scan(NOW + 10_001) == [CloseChannel(f"channel of {address_of(0)}", address_of(0), 10_000)]
    assert routes.unregister_pending() == []
    assert (routes.topics, routes.brokers, routes.clusters, routes.live.table) == ({}, {}, {}, {})


def test_a_broker_that_names_no_timeout_has_two_minutes() -> None:
    routes = tables()
    routes.register(registration(), NOW)
    assert routes.scan(NOW + 120_000) == []
    assert len(routes.scan(NOW + 120_001)) == 1


def test_a_heartbeat_keeps_a_broker_and_one_of_a_stranger_changes_nothing() -> None:
    routes = tables()
    routes.register(registration(timeout_ms=1000), NOW)
    routes.live.record_heartbeat("c", address_of(0), NOW + 900)
    routes.live.record_heartbeat("c", "stranger:1", NOW + 900)
    assert routes.scan(NOW + 1900) == []
    assert len(routes.live) == 1


def test_brokers_whose_connection_is_gone_are_forgotten_at_once() -> None:
    routes = tables()
    routes.register(registration(0, channel="shared"), NOW)
    routes.register(registration(0, name="broker-b", channel="shared"), NOW)
    routes.register(registration(0, name="broker-c"), NOW)
    assert routes.channel_closed("shared")
    routes.unregister_pending()
    assert set(routes.brokers) == {"broker-c"}
    assert not routes.channel_closed("shared")


def test_the_end_of_a_connection_that_was_replaced_changes_nothing() -> None:
    routes = tables()
    routes.register(registration(channel="first"), NOW)
    routes.register(registration(channel="second"), NOW)
    assert not routes.channel_closed("first")
    assert not routes.has_pending
    assert routes.channel_closed("second")


# unregistration


def test_unregistrations_wait_for_their_batch_and_too_many_are_refused() -> None:
    routes = tables(un_register_broker_queue_capacity=2)
    for number in range(3):
        routes.register(registration(name=f"b{number}"), NOW)
    assert [routes.submit_unregister(unregistration(name=f"b{number}")) for number in range(3)] == [
        True,
        True,
        False,
    ]
    assert routes.submit_unregister(unregistration(name="b0"))  # waits already
    assert set(routes.brokers) == {"b0", "b1", "b2"}
    routes.unregister_pending()
    assert set(routes.brokers) == {"b2"}
    assert routes.submit_unregister(unregistration(name="b2"))


@pytest.mark.parametrize("closed", [True, False], ids=["the connection closed", "the broker unregistered"])
def test_a_broker_that_registers_again_stays_after_the_unregistration_before(*, closed: bool) -> None:
    routes = tables()
    routes.register(registration(0, channel="first"), NOW)
    routes.register(registration(1), NOW)
    assert routes.channel_closed("first") if closed else routes.submit_unregister(unregistration(0))
    routes.register(registration(0, channel="second"), NOW)
    routes.unregister_pending()
    assert addresses(routes) == {0: address_of(0), 1: address_of(1)}
    assert routes.channel_closed("second")


def test_a_broker_that_has_just_unregistered_registers_with_all_its_topics() -> None:
    routes = tables(notify_min_broker_id_changed=True)
    routes.register(registration(1, acting=True), NOW)
    routes.register(registration(2, acting=True), NOW)
    routes.submit_unregister(unregistration(1))
    result, effects = routes.register(registration(1, acting=True, topics=wrapper(["new"])), NOW)
    assert result is None
    assert effects == [NotifyMinBrokerId((address_of(2),), 2, address_of(2), address_of(1), None)]


def test_unregistering_removes_the_address_under_whatever_id_it_stands() -> None:
    routes = tables()
    routes.register(registration(0), NOW)
    routes.register(registration(1), NOW)
    routes.submit_unregister(unregistration(7, address_of(1)))
    routes.unregister_pending()
    assert addresses(routes) == {0: address_of(0)}


def test_a_topic_goes_with_the_last_broker_that_has_it() -> None:
    routes = tables()
    routes.register(registration(name="b0"), NOW)
    routes.register(registration(name="b1", topics=wrapper(["T1", "T3"])), NOW)
    routes.submit_unregister(unregistration(name="b0"))
    routes.unregister_pending()
    assert {topic: set(queues) for topic, queues in routes.topics.items()} == {"T1": {"b1"}, "T3": {"b1"}}


def test_unregistering_strangers_and_the_same_broker_twice_changes_nothing_else() -> None:
    routes = tables(notify_min_broker_id_changed=True)
    routes.register(registration(), NOW)
    for wanted in (unregistration(name="nobody"), unregistration(0), unregistration(1, address_of(0))):
        routes.submit_unregister(wanted)
    assert routes.unregister_pending() == []
    assert routes.brokers == {}
    assert routes.unregister_pending() == []


# acting master (RIP-32)


def test_the_smallest_slave_registers_topics_read_only_when_it_may_act_as_master() -> None:
    routes = tables()
    routes.register(registration(2, acting=True), NOW)
    assert perm(routes) == 4
    routes.register(registration(1, acting=True, topics=wrapper(["T1", "T9"])), NOW)
    routes.register(registration(2, acting=True, topics=wrapper(["T1", "not the smallest"], counter=5)), NOW)
    assert "T9" in routes.topics
    assert "not the smallest" not in routes.topics


def test_a_newer_slave_alone_registers_its_topics_even_when_it_does_not_act() -> None:
    routes = tables()
    routes.register(registration(1, acting=False), NOW)
    assert perm(routes) == 6


def test_an_older_slave_alone_registers_no_topics() -> None:
    routes = tables()
    routes.register(registration(1, acting=None), NOW)
    assert routes.topics == {}


@pytest.mark.parametrize("acting", [True, False])
def test_when_the_master_goes_its_queues_lose_the_write_permission_if_a_slave_may_act(acting: bool) -> None:
    routes = tables()
    routes.register(registration(0, acting=acting), NOW)
    routes.register(registration(1, acting=acting), NOW)
    routes.submit_unregister(unregistration(0))
    routes.unregister_pending()
    assert perm(routes) == (4 if acting else 6)
    assert addresses(routes) == {1: address_of(1)}


def test_when_a_slave_goes_the_write_permission_stays() -> None:
    routes = tables()
    routes.register(registration(0, acting=True), NOW)
    routes.register(registration(1, acting=True), NOW)
    routes.submit_unregister(unregistration(1))
    routes.unregister_pending()
    assert perm(routes) == 6


def headless(*, acting: bool = True, supported: bool = True) -> RouteTables:
    """A group without a master, with the slaves 2 and 3."""
    routes = tables(support_acting_master=supported)
    topics = wrapper(["T1", "rmq_sys_SYNC_BROKER_MEMBER_broker-a"])
    for broker_id in (0, 2, 3):
        routes.register(registration(broker_id, acting=acting, topics=topics), NOW)
    routes.submit_unregister(unregistration(0))
    routes.unregister_pending()
    return routes


def test_the_smallest_slave_is_shown_as_the_master() -> None:
    routes = headless()
    assert addresses(routes) == {0: address_of(2), 3: address_of(3)}
    assert routes.members(NAME) == {2: address_of(2), 3: address_of(3)}, "the tables keep the truth"


def test_no_slave_is_shown_as_the_master_when_it_must_not_be() -> None:
    untouched = {2: address_of(2), 3: address_of(3)}
    assert addresses(headless(supported=False)) == untouched
    assert addresses(headless(acting=False)) == untouched
    assert addresses(headless(), "rmq_sys_SYNC_BROKER_MEMBER_broker-a") == untouched
    routes = headless()
    routes.set_write_permission(NAME, allowed=True)
    assert addresses(routes) == untouched


def test_brokers_are_told_of_a_new_smallest_id() -> None:
    routes = tables(notify_min_broker_id_changed=True)
    assert routes.register(registration(2, acting=True), NOW)[1] == []
    assert routes.register(registration(3, acting=True), NOW)[1] == []
    _, effects = routes.register(registration(1, acting=True), NOW)
    assert effects == [
        NotifyMinBrokerId((address_of(2), address_of(3)), 1, address_of(1), None, f"ha-{address_of(1)}")
    ]
    routes.submit_unregister(unregistration(1))
    routes.submit_unregister(unregistration(3))
    assert routes.unregister_pending() == [
        NotifyMinBrokerId((address_of(2),), 2, address_of(2), address_of(1), None)
    ]


def test_brokers_are_told_nothing_unless_it_is_switched_on_and_they_may_act() -> None:
    for switched_on, acting in ((False, True), (True, False)):
        routes = tables(notify_min_broker_id_changed=switched_on)
        routes.register(registration(0, acting=acting), NOW)
        routes.register(registration(1, acting=acting), NOW)
        routes.submit_unregister(unregistration(0))
        assert routes.unregister_pending() == []


# administration


def test_wiping_and_adding_the_write_permission_lasts_until_the_brokers_topics_change() -> None:
    routes = tables()
    routes.register(registration(), NOW)
    assert routes.set_write_permission(NAME, allowed=False) == 2
    assert perm(routes) == 4
    routes.register(registration(), NOW)
    assert perm(routes) == 4
    routes.register(registration(topics=wrapper(counter=2)), NOW)
    assert perm(routes) == 6
    routes.register(
        registration(topics=wrapper([TopicConfig(topic_name="T1", perm=0), "T2"], counter=3)), NOW
    )
    assert routes.set_write_permission(NAME, allowed=True) == 2
    assert perm(routes) == 6
    assert routes.set_write_permission("nobody", allowed=True) == 0


def test_a_topic_is_registered_by_hand_for_brokers_that_exist() -> None:
    routes = tables()
    routes.register(registration(), NOW)
    queue = QueueData(broker_name=NAME, read_queue_nums=1, write_queue_nums=1, perm=6)
    assert routes.register_topic("by hand", [queue])
    assert addresses(routes, "by hand") == {0: address_of(0)}
    assert not routes.register_topic("ghost", [queue, QueueData(broker_name="nobody")])
    assert not routes.register_topic("empty", [])
    assert "ghost" not in routes.topics
    assert "empty" not in routes.topics


def test_a_topic_is_deleted_everywhere_or_from_one_cluster() -> None:
    routes = tables()
    routes.register(registration(name="b0", cluster="one"), NOW)
    routes.register(registration(name="b1", cluster="two"), NOW)
    routes.delete_topic("T1", "one")
    routes.delete_topic("T1", "nowhere")
    assert set(routes.topics["T1"]) == {"b1"}
    routes.delete_topic("T1", "two")
    routes.delete_topic("T2")
    assert routes.topics == {}


def test_lists_of_topics() -> None:
    routes = tables()
    unit = [
        TopicConfig(topic_name="plain"),
        TopicConfig(topic_name="unit", topic_sys_flag=1),
        TopicConfig(topic_name="sub", topic_sys_flag=2),
        TopicConfig(topic_name="both", topic_sys_flag=3),
    ]
    routes.register(registration(topics=wrapper(unit)), NOW)
    assert routes.unit_topics(unit=True, unit_sub=None) == ["unit", "both"]
    assert routes.unit_topics(unit=None, unit_sub=True) == ["sub", "both"]
    assert routes.unit_topics(unit=False, unit_sub=True) == ["sub"]
    assert routes.system_topics() == (["c", NAME], address_of(0))
    assert tables().system_topics() == ([], None)


def test_the_data_version_registered_last_is_known() -> None:
    routes = tables()
    version = DataVersion(counter=7, timestamp=9)
    assert routes.live.is_data_version_changed("c", address_of(0), version)
    routes.register(registration(topics=TopicConfigSerializeWrapper(data_version=version)), NOW)
    assert not routes.live.is_data_version_changed("c", address_of(0), version)
    assert routes.live.is_data_version_changed("c", address_of(0), version.next(10))
    assert routes.live.is_data_version_changed("other", address_of(0), version)
