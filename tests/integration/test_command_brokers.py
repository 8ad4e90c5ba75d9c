"""`epochmq broker`, `epochmq config` and completion, as people type them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import OurCluster
from tests.support.command import EpochmqCommand

OCTET = 99
SECRET = "hush-hush"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurCluster]:
    with OurCluster(tmp_path_factory.mktemp("cluster"), octet=OCTET) as started:
        yield started


@pytest.fixture(scope="module")
def command(cluster: OurCluster, tmp_path_factory: pytest.TempPathFactory) -> EpochmqCommand:
    return EpochmqCommand(cluster.nameserver_address, tmp_path_factory.mktemp("home"))


def test_the_brokers_of_a_cluster_are_listed_and_described(
    command: EpochmqCommand, cluster: OurCluster
) -> None:
    (row,) = command.json("broker", "list")
    assert (row["broker"], row["id"], row["address"]) == ("broker-a", 0, cluster.broker_address)
    assert row["state"] == "serves"
    (described,) = command.json("broker", "describe", "broker-a")
    assert described["runtime"]["brokerVersionDesc"] == row["version"]
    assert "there is: broker-a" in command.failure("broker", "describe", "nix")


def test_a_setting_is_shown_and_changed(command: EpochmqCommand) -> None:
    key = "maxMessageSize"
    (before,) = command.json("config", "get", key)
    command.run("config", "set", f"{key}=65536", "--dry-run")
    assert command.json("config", "get", key) == [before], "a dry run changes nothing"
    (plan,) = command.json("config", "set", f"{key}=65536", "--yes")
    assert (plan["value"], plan["newValue"]) == (before["value"], "65536")
    (after,) = command.json("config", "get", key)
    assert after["value"] == "65536"
    assert "nix" in command.failure("config", "get", "nix", expected=2)
    assert "expected KEY=VALUE" in command.failure("config", "set", "nix", expected=2)
    assert command.json("config", "diff") == []


def test_secrets_are_not_shown(command: EpochmqCommand) -> None:
    key = "innerClientAuthenticationCredentials"
    value = f'{{"accessKey":"a","secretKey":"{SECRET}"}}'
    planned = command.run("config", "set", f"{key}={value}", "--dry-run")
    assert SECRET.encode() not in planned.stdout + planned.stderr


def test_a_shell_completes_verbs(command: EpochmqCommand, tmp_path_factory: pytest.TempPathFactory) -> None:
    script = command.text("completion", "bash")
    assert "_EPOCHMQ_COMPLETE=complete_bash" in script
    words = {"_EPOCHMQ_COMPLETE": "complete_bash", "COMP_WORDS": "epochmq topic de", "COMP_CWORD": "2"}
    shell = EpochmqCommand("h:1", tmp_path_factory.mktemp("home"), **words)
    assert shell.text().split() == ["describe", "delete"]
