"""`epochmq topic` and `epochmq group` against a nameserver and a broker, as people type them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.support.cluster import OurCluster
from tests.support.command import EpochmqCommand

OCTET = 99


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EpochmqCommand]:
    home = tmp_path_factory.mktemp("home")
    ordered = {"orderMessageEnable": True}
    with OurCluster(tmp_path_factory.mktemp("cluster"), octet=OCTET, nameserver=ordered) as cluster:
        yield EpochmqCommand(cluster.nameserver_address, home)


def test_a_topic_is_created_shown_altered_and_deleted(command: EpochmqCommand) -> None:
    command.run("topic", "create", "orders", "--queues", "3", "--type", "fifo")
    assert "orders" in command.text("topic", "list", "-o", "name").splitlines()
    (settings,) = command.json("topic", "describe", "orders")["brokers"]
    assert (settings["readQueues"], settings["writeQueues"], settings["perm"]) == (3, 3, "rw")
    assert settings["attributes"] == {"message.type": "FIFO"}

    command.run("topic", "alter", "orders", "--read-queues", "5", "--perm", "r")
    described = command.json("topic", "describe", "orders")
    (settings,) = described["brokers"]
    assert (settings["readQueues"], settings["writeQueues"], settings["perm"]) == (5, 3, "r")
    assert settings["attributes"] == {"message.type": "FIFO"}, "what is not named stays"

    command.run("topic", "delete", "orders", "--yes")
    assert "does not exist" in command.failure("topic", "describe", "orders")
    assert "orders" not in command.text("topic", "list", "--all", "-o", "name").splitlines()


def test_a_dry_run_changes_nothing(command: EpochmqCommand) -> None:
    (row,) = command.json("topic", "create", "planned", "--dry-run")
    assert row["topic"] == "planned"
    assert "does not exist" in command.failure("topic", "describe", "planned")


def test_a_topic_that_exists_is_not_created_again(command: EpochmqCommand) -> None:
    command.run("topic", "create", "twice", "--queues", "1")
    error = command.failure("topic", "create", "twice", "--queues", "7")
    assert "epochmq topic alter twice" in error
    assert command.json("topic", "describe", "twice")["brokers"][0]["readQueues"] == 1


def test_an_ordered_topic_has_its_queues_at_the_nameservers(command: EpochmqCommand) -> None:
    command.run("topic", "create", "ordered", "--queues", "2", "--order")
    (row,) = [row for row in command.json("topic", "list") if row["topic"] == "ordered"]
    assert row["orderConf"] == "broker-a:2"


def test_deletion_needs_a_yes_where_nobody_can_answer(command: EpochmqCommand) -> None:
    command.run("topic", "create", "kept")
    assert "--yes" in command.failure("topic", "delete", "kept", expected=2)
    assert "kept" in command.text("topic", "list", "-o", "name").splitlines()


def test_yaml_and_json_say_the_same(command: EpochmqCommand) -> None:
    command.run("topic", "create", "formats")
    shown = yaml.safe_load(command.text("topic", "describe", "formats", "-o", "yaml"))
    assert shown == command.json("topic", "describe", "formats")


def test_the_broker_that_rejects_a_setting_is_named(command: EpochmqCommand) -> None:
    error = command.failure("topic", "create", "odd", "--attribute", "nothing=1")
    assert "nothing" in error
    assert "127.99." in error


def consumed(command: EpochmqCommand, topic: str, group: str, count: int) -> None:
    command.run("topic", "create", topic, "--queues", "1")
    command.run("produce", topic, "--timeout", "60", stdin=b"".join(b"%d\n" % n for n in range(10)))
    command.run("consume", topic, "--group", group, "--count", str(count))


def test_the_lag_of_a_group_is_what_it_has_not_consumed(command: EpochmqCommand) -> None:
    consumed(command, "lagging", "behind", 4)
    (row,) = command.json("group", "lag", "behind")
    assert (row["maxOffset"], row["consumed"], row["lag"]) == (10, 4, 6)
    (listed,) = [row for row in command.json("group", "list") if row["group"] == "behind"]
    assert (listed["lag"], listed["topics"]) == (6, ["lagging"])
    assert command.json("group", "describe", "behind")["queues"] == [row]


@pytest.mark.parametrize(
    ("options", "offset"),
    [
        (["--to", "earliest"], 0),
        pytest.param(["--to", "latest"], 10, marks=pytest.mark.soak),
        (["--offset", "7"], 7),
        pytest.param(["--delta", "-2"], 2, marks=pytest.mark.soak),
        (["--delta", "99"], 10),
        (["--time", "1h"], 0),
    ],
)
def test_a_group_is_reset(command: EpochmqCommand, options: list[str], offset: int) -> None:
    name = f"reset{''.join(options)}".replace(" ", "")
    consumed(command, f"topic-{name}", name, 4)
    reset = ["group", "reset", name, "--topic", f"topic-{name}", *options]
    (plan,) = command.json(*reset, "--dry-run")
    assert (plan["consumed"], plan["newOffset"], plan["change"]) == (4, offset, offset - 4)
    assert command.json("group", "lag", name)[0]["consumed"] == 4, "a dry run changes nothing"
    command.run(*reset, "--yes")
    assert command.json("group", "lag", name)[0]["consumed"] == offset
    if offset < 10:
        first = command.json("consume", f"topic-{name}", "--group", name, "--count", "1")
        assert first["queueOffset"] == offset


def test_a_deleted_group_is_gone_with_its_offsets(command: EpochmqCommand) -> None:
    consumed(command, "left", "leaving", 3)
    command.run("group", "delete", "leaving", "--yes")
    assert "does not exist" in command.failure("group", "describe", "leaving")
    assert "leaving" not in command.text("group", "list", "--all", "-o", "name").splitlines()
