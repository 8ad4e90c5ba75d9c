"""The tables are restored after a restart, from files that a Java broker can read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from epochmq_broker.tables.consumer_offsets import ConsumerOffsetTable
from epochmq_broker.tables.state_files import GROUPS, OFFSETS, TOPICS, StateFiles
from epochmq_broker.tables.subscription_groups import SubscriptionGroupTable
from epochmq_broker.tables.topics import TopicTable, topic_config
from epochmq_protocol import fastjson
from epochmq_store.state_files.state_file_writer import StateFileWriter
from tests.unit.broker.kit import until


class Settings:
    """The settings that the tables read."""

    broker_name = "broker-a"
    broker_cluster_name = "TestCluster"
    auto_create_topic_enable = True
    default_topic_queue_nums = 8
    cluster_topic_enable = True
    broker_topic_enable = True
    trace_topic_enable = False
    msg_trace_topic_name = "RMQ_SYS_TRACE_TOPIC"
    revive_queue_num = 8
    timer_wheel_enable = True
    auto_create_subscription_group = True
    enable_create_sys_group = True


class Tables:
    """The three tables and their files."""

    def __init__(self, directory: Path) -> None:
        self.topics = TopicTable(Settings(), lambda: 1000)
        self.groups = SubscriptionGroupTable(Settings(), lambda: 1000)
        self.offsets = ConsumerOffsetTable(lambda: 1000)
        self.writer = StateFileWriter()
        self.files = StateFiles(
            directory=directory,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            writer=self.writer,
        )
        self.files.load()


async def test_written_tables_are_read_back(tmp_path: Path) -> None:
    before = Tables(tmp_path)
    before.topics.put(topic_config("T", 4))
    before.groups.find("g")
    before.groups.forbid("g", "T", True)
    before.offsets.commit("g", "T", 3, 42)
    before.files.persist()
    after = Tables(tmp_path)
    assert dict(after.topics.table) == dict(before.topics.table)
    assert after.topics.data_version == before.topics.data_version
    assert dict(after.groups.table) == dict(before.groups.table)
    assert after.groups.is_forbidden("g", "T")
    assert after.offsets.query("g", "T", 3) == 42
    assert after.offsets.data_version == before.offsets.data_version


async def test_a_changed_topic_or_group_is_written_at_once(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.topics.put(topic_config("T", 4))
    tables.groups.find("g")
    await until(lambda: (tmp_path / TOPICS).exists() and (tmp_path / GROUPS).exists())
    assert "T" in fastjson.loads((tmp_path / TOPICS).read_bytes())["topicConfigTable"]
    assert "g" in fastjson.loads((tmp_path / GROUPS).read_bytes())["subscriptionGroupTable"]


async def test_offsets_are_written_if_they_have_changed(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.files.persist_offsets()
    assert not (tmp_path / OFFSETS).exists()
    tables.offsets.commit("g", "T", 0, 1)
    tables.files.persist_offsets()
    tables.writer.flush()
    first = (tmp_path / OFFSETS).stat().st_mtime_ns
    tables.files.persist_offsets()
    tables.writer.flush()
    assert (tmp_path / OFFSETS).stat().st_mtime_ns == first
    assert b'"T@g":{0:1' in (tmp_path / OFFSETS).read_bytes()


async def test_the_backup_is_read_if_the_file_is_damaged(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.offsets.commit("g", "T", 0, 1)
    tables.files.persist_offsets()
    tables.writer.flush()
    tables.offsets.commit("g", "T", 0, 2)
    tables.files.persist_offsets()
    tables.writer.flush()
    (tmp_path / OFFSETS).write_bytes(b'{"offsetTable":{"T@g"')
    assert Tables(tmp_path).offsets.query("g", "T", 0) == 1


async def test_a_damaged_file_without_a_backup_prevents_the_start(tmp_path: Path) -> None:
    (tmp_path / TOPICS).write_bytes(b"[not a table")
    with pytest.raises(Exception, match=r"topic|JSON|table"):
        Tables(tmp_path)


async def test_the_files_equal_those_of_the_general_json_writer(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.topics.put(topic_config("T", 4))
    tables.groups.find("g")
    tables.groups.forbid("g", "T", True)
    for queue_id in (10, 9, 0):
        tables.offsets.commit("g", 'odd "name"', queue_id, queue_id * 7)
    tables.offsets.commit("g2", "T", 0, 1)
    for _ in range(2):  # the second time from the cache
        written = fastjson.dumps(
            {"dataVersion": tables.topics.data_version, "topicConfigTable": dict(tables.topics.table)},
            pretty=True,
        )
        assert tables.files.topics_json() == written
        groups = {
            "dataVersion": tables.groups.data_version,
            "forbiddenTable": {"g": dict(tables.groups.forbidden_table["g"])},
            "subscriptionGroupTable": dict(tables.groups.table),
        }
        assert tables.files.groups_json() == fastjson.dumps(groups, pretty=True)
        offsets = {
            "dataVersion": tables.offsets.data_version,
            "offsetTable": {key: dict(queues) for key, queues in tables.offsets.table.items()},
        }
        assert tables.files.offsets_json() == fastjson.dumps(offsets, pretty=True)
        tables.topics.put(topic_config("T", 5))
        tables.topics.delete("BenchmarkTest")


async def test_files_of_a_java_broker_are_read(tmp_path: Path) -> None:
    (tmp_path / TOPICS).write_text(
        '{\n\t"dataVersion":{"counter":2,"stateVersion":0,"timestamp":5},\n\t"topicConfigTable":{"T":{'
        '"attributes":{},"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",'
        '"topicName":"T","topicSysFlag":0,"writeQueueNums":8}}\n}'
    )
    (tmp_path / OFFSETS).write_text('{\n\t"offsetTable":{"T@g":{0:12,1:3\n\t\t}\n\t}\n}')
    tables = Tables(tmp_path)
    topic = tables.topics.get("T")
    assert topic is not None
    assert topic.read_queue_nums == 8
    assert tables.topics.data_version.counter == 2
    assert tables.offsets.query("g", "T", 0) == 12


async def test_offsets_are_written_after_the_queues_and_never_older_ones(tmp_path: Path) -> None:
    """An audit of the directory then finds no consumer ahead of its queue."""
    tables = Tables(tmp_path)
    waiting: list[Callable[[], None]] = []
    tables.files.write_offsets_after_queues(waiting.append)
    path = tmp_path / OFFSETS
    tables.offsets.commit("g", "T", 0, 1)
    tables.files.persist_offsets()
    assert not path.exists()
    tables.offsets.commit("g", "T", 0, 2)
    tables.files.persist_offsets()
    first, second = waiting
    second()
    first()
    tables.writer.flush()
    assert b"{0:2" in path.read_bytes()
