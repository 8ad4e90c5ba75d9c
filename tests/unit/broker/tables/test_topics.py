"""The topic table follows RocketMQ's rules for creation from a template and for changes."""

from __future__ import annotations

import pytest

from epochmq_broker.tables.topics import SYS_FLAG_UNIT, TopicTable, topic_config
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.topics import DataVersion, TopicConfig
from tests.unit.broker.tables.support import Clock, settings


def table(**changes: object) -> TopicTable:
    return TopicTable(settings(**changes), Clock())


def watch(topics: TopicTable) -> list[tuple[str, ...]]:
    seen: list[tuple[str, ...]] = []
    topics.on_change.append(seen.append)
    return seen


def test_a_new_broker_has_rocketmqs_topics_with_their_queues_and_permissions() -> None:
    rows = {name: (c.read_queue_nums, c.write_queue_nums, c.perm) for name, c in table().table.items()}
    assert rows == {
        "SELF_TEST_TOPIC": (1, 1, 6),
        "TBW102": (8, 8, 7),
        "BenchmarkTest": (1024, 1024, 6),
        "TestCluster": (16, 16, 7),
        "broker-a": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "TestCluster_REPLY_TOPIC": (1, 1, 6),
        "rmq_sys_REVIVE_LOG_TestCluster": (8, 8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 1, 6),
        "rmq_sys_wheel_timer": (1, 1, 6),
    }


def test_settings_control_the_trace_topic_auto_creation_and_the_cluster_topics_permission() -> None:
    topics = table(trace_topic_enable=True, auto_create_topic_enable=False, cluster_topic_enable=False)
    assert "RMQ_SYS_TRACE_TOPIC" in topics
    assert "TBW102" not in topics
    assert topics.table["TestCluster"].perm == 1


@pytest.mark.parametrize(("asked", "made"), [(4, 4), (16, 8), (0, 0), (-3, 0)])
def test_a_topic_created_on_first_send_has_the_smaller_queue_count_and_no_inherit_bit(
    asked: int, made: int
) -> None:
    topics = table()
    config = topics.create_in_send("orders", "TBW102", asked)
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (made, made, 6)
    assert topics.get("orders") is config


def test_an_existing_topic_is_returned_unchanged() -> None:
    topics = table()
    first = topics.create_in_send("orders", "TBW102", 4)
    seen = watch(topics)
    assert topics.create_in_send("orders", "nothing", 9) is first
    assert seen == []


@pytest.mark.parametrize("example", ["unknown", "SELF_TEST_TOPIC"])
def test_no_topic_is_created_from_a_template_that_is_missing_or_forbids_inheritance(example: str) -> None:
    topics = table()
    assert topics.create_in_send("orders", example, 4) is None
    assert "orders" not in topics


def test_with_auto_creation_off_a_template_from_the_file_loses_its_inherit_bit() -> None:
    topics = table(auto_create_topic_enable=False)
    topics.put(topic_config("TBW102", 8, 7))
    assert topics.create_in_send("orders", "TBW102", 4) is None
    assert topics.table["TBW102"].perm == 6


def test_a_retry_topic_is_created_once_and_then_only_its_order_flag_changes() -> None:
    topics = table()
    first = topics.create_in_send_back("%RETRY%g", 2)
    assert topics.create_in_send_back("%RETRY%g", 9) is first
    ordered = topics.create_in_send_back("%RETRY%g", 9, order=True)
    assert (ordered.read_queue_nums, ordered.order) == (2, True)


def test_every_change_increments_version_and_generation_and_names_the_topic() -> None:
    clock = Clock()
    topics = TopicTable(settings(), clock, state_version=lambda: 7)
    seen = watch(topics)
    before, generation = topics.data_version, topics.generation
    clock.advance(5)
    topics.put(topic_config("orders", 4))
    assert topics.data_version == DataVersion(before.counter + 1, 7, clock.now_ms)
    assert topics.generation == generation + 1
    topics.delete("orders")
    assert seen == [("orders",), ("orders",)]
    assert "orders" not in topics


def test_deleting_a_missing_topic_changes_nothing() -> None:
    topics = table()
    version = topics.data_version
    assert topics.delete("orders") is False
    assert topics.data_version == version


def test_an_update_merges_attributes_into_the_stored_ones() -> None:
    topics = table()
    topics.update(
        [TopicConfig(topic_name="orders", attributes={"+message.type": "FIFO", "+queue.type": "SimpleCQ"})]
    )
    topics.update(
        [TopicConfig(topic_name="orders", read_queue_nums=3, attributes={"+message.type": "DELAY"})]
    )
    stored = topics.table["orders"]
    assert stored.attributes == {"message.type": "DELAY", "queue.type": "SimpleCQ"}
    assert stored.read_queue_nums == 3


def test_an_update_of_many_topics_is_applied_as_a_whole_or_not_at_all() -> None:
    topics = table()
    seen = watch(topics)
    good = TopicConfig(topic_name="good")
    with pytest.raises(RequestError, match="unsupported key: nothing") as caught:
        topics.update([good, TopicConfig(topic_name="bad", attributes={"+nothing": "1"})])
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert "good" not in topics
    assert seen == []
    topics.update([good, TopicConfig(topic_name="fine")])
    assert seen == [("good", "fine")]


def test_a_system_flag_is_set_and_cleared_by_bit() -> None:
    topics = table()
    topics.put(topic_config("orders", 4, sys_flag=2))
    topics.set_sys_flag("orders", SYS_FLAG_UNIT, on=True)
    assert topics.table["orders"].topic_sys_flag == 3
    topics.set_sys_flag("orders", SYS_FLAG_UNIT, on=False)
    assert topics.table["orders"].topic_sys_flag == 2
    topics.set_sys_flag("nothing", SYS_FLAG_UNIT, on=True)


def test_topics_of_the_order_configuration_are_marked_and_unknown_ones_skipped() -> None:
    topics = table()
    topics.put(topic_config("orders", 4))
    seen = watch(topics)
    topics.mark_ordered(["orders", "nothing"])
    topics.mark_ordered(["orders"])
    assert topics.is_order("orders")
    assert not topics.is_order("nothing")
    assert seen == [("orders",)]


def test_a_file_replaces_built_in_topics_of_the_same_name_and_keeps_the_rest() -> None:
    topics = table()
    topics.restore(
        {"TBW102": topic_config("TBW102", 3, 7), "old": topic_config("old", 2)}, DataVersion(9, 0, 1)
    )
    assert topics.table["TBW102"].read_queue_nums == 3
    assert "SELF_TEST_TOPIC" in topics
    assert topics.data_version == DataVersion(9, 0, 1)


def test_a_slave_becomes_a_copy_data_version_included() -> None:
    topics = table()
    topics.replace_all({"only": topic_config("only", 1)}, DataVersion(4, 2, 3))
    assert list(topics) == ["only"]
    assert topics.data_version == DataVersion(4, 2, 3)
    seen, only, generation = watch(topics), topics.get("only"), topics.generation
    both = {"only": topic_config("only", 1), "more": topic_config("more", 1)}
    topics.replace_all(both, DataVersion(5, 2, 3))
    assert seen == [("more",)]
    assert topics.get("only") is only
    topics.replace_all(dict(topics.table), DataVersion(6, 2, 3))
    assert seen == [("more",), ()]
    assert topics.generation == generation + 1
    assert topics.get("only") is not None
    assert topics.get("TBW102") is None


@pytest.mark.parametrize(
    "name", ["TBW102", "CHECKPOINT_TOPIC", "TestCluster", "broker-a", "rmq_sys_anything"]
)
def test_system_topics_are_recognised(name: str) -> None:
    assert table().is_system_topic(name)
    assert not table().is_system_topic("orders")
