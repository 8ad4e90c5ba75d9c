"""Consumer offsets: commits of groups, resets by an administrator, and lookups by topic and group."""

from __future__ import annotations

from epochmq_broker.tables.consumer_offsets import ConsumerOffsetTable
from epochmq_protocol.topics import DataVersion
from tests.unit.broker.tables.support import Clock


def table(version_step: int = 500) -> ConsumerOffsetTable:
    return ConsumerOffsetTable(Clock(), version_step=version_step)


def test_the_last_commit_applies_even_if_it_is_lower() -> None:
    offsets = table()
    assert offsets.query("g", "t", 0) is None
    offsets.commit("g", "t", 0, 10)
    offsets.commit("g", "t", 0, 4)
    assert offsets.query("g", "t", 0) == 4
    assert offsets.table == {"t@g": {0: 4}}


def test_the_data_version_increments_every_so_many_commits() -> None:
    offsets = table(version_step=3)
    for offset in range(7):
        offsets.commit("g", "t", 0, offset)
    assert offsets.data_version.counter == 2


def test_a_reset_takes_precedence_over_commits_until_a_pull_takes_it() -> None:
    offsets = table()
    offsets.commit("g", "t", 0, 10)
    offsets.set_pending_reset("g", "t", 0, 3)
    assert offsets.has_pending_reset("g", "t", 0)
    assert offsets.query("g", "t", 0) == 3
    assert offsets.take_reset("g", "t", 0) == 3
    assert not offsets.has_resets
    assert offsets.take_reset("g", "t", 0) is None
    offsets.commit("g", "t", 0, 4)
    assert offsets.query("g", "t", 0) == 4


def test_a_pending_reset_is_ignored_if_clients_reset_offsets() -> None:
    offsets = ConsumerOffsetTable(Clock(), server_side_reset=False)
    offsets.set_pending_reset("g", "t", 0, 3)
    offsets.commit("g", "t", 0, 9)
    assert offsets.query("g", "t", 0) == 9


def test_an_invalid_reset_is_ignored() -> None:
    offsets = table()
    offsets.set_pending_reset("g", "t", -1, 3)
    offsets.set_pending_reset("g", "t", 0, -3)
    offsets.set_pending_reset("", "t", 0, 3)
    assert offsets.table == {}


def test_pulled_and_consumed_offsets_are_separate() -> None:
    offsets = table()
    offsets.commit("g", "t", 0, 5)
    assert offsets.query_pull("g", "t", 0) == 5
    offsets.commit_pull("g", "t", 0, 9)
    assert offsets.query_pull("g", "t", 0) == 9
    assert offsets.query("g", "t", 0) == 5


def test_topics_are_found_by_group_and_groups_by_topic() -> None:
    offsets = table()
    offsets.commit("g1", "a", 0, 1)
    offsets.commit("g1", "b", 0, 1)
    offsets.commit("g2", "a", 0, 1)
    assert offsets.topics_of("g1") == {"a", "b"}
    assert offsets.groups_of("a") == {"g1", "g2"}
    assert offsets.queues("g1", "a") == {0: 1}
    assert offsets.queues("g9", "a") == {}


def test_cloned_offsets_are_independent_of_their_source() -> None:
    offsets = table()
    offsets.commit("g1", "t", 0, 7)
    offsets.clone("g1", "g2", "t")
    offsets.clone("nobody", "g3", "t")
    offsets.commit("g1", "t", 0, 8)
    assert offsets.query("g2", "t", 0) == 7
    assert offsets.query("g3", "t", 0) is None


def test_forgetting_a_group_or_topic_deletes_its_resets() -> None:
    offsets = table()
    offsets.commit("g1", "t", 0, 7)
    offsets.set_pending_reset("g2", "t", 0, 1)
    offsets.commit_pull("g2", "t", 0, 5)
    assert offsets.forget_group("g2")
    assert not offsets.has_resets
    assert offsets.query_pull("g2", "t", 0) is None
    assert offsets.forget_topic("t")
    assert offsets.table == {}
    assert not offsets.forget_topic("t")


def test_the_lowest_offset_omits_skipped_groups_and_expired_offsets() -> None:
    offsets = table()
    offsets.commit("slow", "t", 0, 2)
    offsets.commit("fast", "t", 0, 9)
    offsets.commit("gone", "t", 0, 5)
    offsets.commit("fast", "other", 0, 1)
    assert offsets.lowest("t", lambda queue_id: 0) == {0: 2}
    assert offsets.lowest("t", lambda queue_id: 4) == {0: 5}
    assert offsets.lowest("t", lambda queue_id: 4, ["gone"]) == {0: 9}


def test_changes_are_counted_so_that_the_file_is_written_only_when_needed() -> None:
    offsets = table()
    before = offsets.changes
    offsets.query("g", "t", 0)
    offsets.commit_pull("g", "t", 0, 1)
    assert offsets.changes == before
    offsets.commit("g", "t", 0, 1)
    assert offsets.changes > before


def test_a_file_or_master_replaces_the_table() -> None:
    offsets = table()
    offsets.commit("g", "t", 0, 1)
    offsets.restore({"a@b": {1: 2}}, DataVersion(5, 0, 6))
    assert offsets.table == {"a@b": {1: 2}}
    assert offsets.data_version == DataVersion(5, 0, 6)


def test_offsets_ahead_of_the_log_are_lowered_to_its_end() -> None:
    offsets = table()
    offsets.restore({"a@g": {0: 9, 1: 5, 2: 3}, "b@g": {0: 4}}, DataVersion(5, 0, 6))
    changes = offsets.changes
    assert offsets.clamp(lambda topic, queue_id: 5 if topic == "a" and queue_id < 2 else 0) == 3
    assert offsets.table == {"a@g": {0: 5, 1: 5, 2: 0}, "b@g": {0: 0}}
    assert offsets.changes == changes + 1
    assert offsets.clamp(lambda topic, queue_id: 5) == 0
    assert offsets.changes == changes + 1
