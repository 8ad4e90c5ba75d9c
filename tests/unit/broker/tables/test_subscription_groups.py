"""The group table follows RocketMQ's rules for creation on first use and for forbidden topics."""

from __future__ import annotations

import pytest

from epochmq_broker.tables.subscription_groups import SubscriptionGroupTable
from epochmq_protocol.errors import RequestError
from epochmq_protocol.subscription_groups import SubscriptionGroupConfig
from epochmq_protocol.topics import DataVersion
from tests.unit.broker.tables.support import Clock, settings


def table(**changes: object) -> SubscriptionGroupTable:
    return SubscriptionGroupTable(settings(**changes), Clock())


def test_a_new_broker_has_rocketmqs_groups() -> None:
    assert set(table()) == {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_RMQ_SYS_TRANS",
    }


def test_an_unknown_group_is_created_with_defaults_on_first_use() -> None:
    groups = table()
    seen: list[tuple[str, ...]] = []
    groups.on_change.append(seen.append)
    config = groups.find("g")
    assert config == SubscriptionGroupConfig(group_name="g")
    assert groups.find("g") is config
    assert seen == [("g",)]
    assert groups.data_version.counter == 1


@pytest.mark.parametrize("name", ["", " ", "a b", "ä", "x" * 256])
def test_an_illegal_name_is_not_created(name: str) -> None:
    groups = table()
    assert groups.find(name) is None
    assert name not in groups


def test_without_auto_creation_only_system_groups_are_created() -> None:
    groups = table(auto_create_subscription_group=False)
    assert groups.find("g") is None
    assert groups.find("CID_RMQ_SYS_x") is not None
    assert (
        table(auto_create_subscription_group=False, enable_create_sys_group=False).find("CID_RMQ_SYS_x")
        is None
    )


def test_an_update_replaces_the_configuration_and_rejects_attributes_as_a_whole() -> None:
    groups = table()
    groups.update([SubscriptionGroupConfig(group_name="g", retry_max_times=3)])
    with pytest.raises(RequestError, match="unsupported key: x"):
        groups.update(
            [
                SubscriptionGroupConfig(group_name="g", retry_max_times=4),
                SubscriptionGroupConfig(group_name="h", attributes={"+x": "1"}),
            ]
        )
    assert groups.table["g"].retry_max_times == 3
    assert "h" not in groups


def test_disabling_consumption_stores_a_new_configuration() -> None:
    groups = table()
    before = groups.find("g")
    groups.disable_consume("g")
    assert before is not None
    assert before.consume_enable
    assert not groups.table["g"].consume_enable


def test_forbidding_a_topic_keeps_the_groups_other_topics() -> None:
    groups = table()
    groups.forbid("g", "a", forbidden=True)
    groups.forbid("g", "b", forbidden=True)
    groups.forbid("g", "a", forbidden=False)
    assert not groups.is_forbidden("g", "a")
    assert groups.is_forbidden("g", "b")
    assert not groups.is_forbidden("other", "b")
    assert groups.forbidden_table == {"g": {"b": 4}}
    groups.forbid("g", "b", forbidden=False)
    assert groups.forbidden_table == {}


def test_a_change_that_changes_nothing_keeps_the_version() -> None:
    groups = table()
    version, generation = groups.data_version, groups.generation
    groups.forbid("g", "a", forbidden=False)
    assert groups.delete("g") is False
    assert (groups.data_version, groups.generation) == (version, generation)


def test_deleting_a_group_deletes_its_forbidden_topics() -> None:
    groups = table()
    groups.find("g")
    groups.forbid("g", "a", forbidden=True)
    assert groups.delete("g")
    assert groups.forbidden_table == {}
    assert groups.get("g") is None


def test_a_file_replaces_entries_and_a_slave_becomes_a_copy() -> None:
    groups = table()
    groups.restore({"g": SubscriptionGroupConfig(group_name="g")}, {"g": {"a": 4}}, DataVersion(3, 0, 1))
    assert groups.is_forbidden("g", "a")
    assert groups.data_version == DataVersion(3, 0, 1)
    touched: list[tuple[str, ...]] = []
    groups.on_change.append(touched.append)
    before = groups.get("g")
    both = {"g": SubscriptionGroupConfig(group_name="g"), "h": SubscriptionGroupConfig(group_name="h")}
    groups.replace_all(both, {"h": {"a": 4}}, DataVersion(5, 0, 2))
    assert list(groups) == ["g", "h"]
    assert groups.get("g") is before
    assert groups.is_forbidden("h", "a")
    assert not groups.is_forbidden("g", "a")
    assert "g" in touched[0]
    assert "h" in touched[0]
    groups.replace_all(both, {"h": {"a": 4}}, DataVersion(6, 0, 2))
    assert touched[1] == ()
    assert groups.data_version == DataVersion(6, 0, 2)
