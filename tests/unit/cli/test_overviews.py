"""Tests `epochmq cluster list` and `epochmq controller list`: what they print, and how they fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from epochmq.app import run
from epochmq.main import is_process
from epochmq.verbs.cluster import summary_of
from epochmq.verbs.controllers import group_row, members_of
from epochmq.verbs.target import NameserverTarget
from epochmq_protocol.admin_api.results import RefusedProcess, ReplicaGroupMember, ReplicaGroupState
from epochmq_protocol.bodies import BrokerReplicasInfo, KVTable, ReplicaIdentity, ReplicasInfo, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_controller import GetMetaDataResponseHeader
from epochmq_protocol.transport import RemotingConnection
from epochmq_protocol.transport.connection import RequestHandler
from tests.support.net import free_port, loopback
from tests.unit.cli.fake_brokers import FakeBrokers, Handlers

INFO = ReplicasInfo(
    master_broker_id=2,
    master_address="h:2",
    master_epoch=7,
    sync_state_set_epoch=9,
    in_sync_replicas=[ReplicaIdentity("b", 2, "h:2", True), ReplicaIdentity("b", 1, "h:1", True)],
    not_in_sync_replicas=[ReplicaIdentity("b", 3, "h:3", False)],
)


def answers(body: Callable[[], bytes]) -> RequestHandler:
    """A handler that responds with a body."""

    def handle(connection: RemotingConnection, command: Command) -> Command:
        return response(command, ResponseCode.SUCCESS, body=body())

    return handle


def runtime(rate: str) -> Handlers:
    table = {"brokerVersionDesc": "V5_3_3", "putTps": f"{rate} 1.0 1.0", "getTransferredTps": "0.5 0 0"}
    return {RequestCode.GET_BROKER_RUNTIME_INFO: answers(lambda: to_json(KVTable(table)))}


def test_a_cluster_is_listed_with_its_brokers(capsys: pytest.CaptureFixture[str]) -> None:
    host = loopback(55)
    absent = f"{host}:{free_port(host)}"
    with FakeBrokers({("b", 0): runtime("4.5"), ("b", 1): runtime("4.5")}, {("d", 1): absent}) as fake:
        assert run(["cluster", "list", *fake.options, "-o", "json", "--timeout", "60"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert run(["cluster", "list", *fake.options, "-o", "name"]) == 0
        assert capsys.readouterr().out == "c\n"
        assert run(["cluster", "list", *fake.options, "--cluster", "x"]) == 1
        assert "cluster x is unknown; there is: c" in capsys.readouterr().err
    assert (found["groups"], found["brokerCount"], found["serving"]) == (2, 3, 2)
    assert (found["withoutMaster"], found["versions"]) == (["d"], ["V5_3_3"])
    assert (found["inRate"], found["outRate"]) == (4.5, 1.0), "what a slave copies is not counted again"
    assert [(row["broker"], row["id"], row["role"]) for row in found["brokers"]] == [
        ("b", 0, "master"),
        ("b", 1, "slave"),
        ("d", 1, "slave"),
    ]
    assert absent in found["brokers"][2]["state"]


def test_a_cluster_without_rates_has_none() -> None:
    row = {"broker": "b", "role": "master", "state": "no connection"}
    assert summary_of("c", [row])["inRate"] == 0.0


class Controller:
    """A controller as the only broker's address, which leads or knows no leader."""

    def __init__(self, *, leads: bool, ours: bool = True) -> None:
        self.leads, self.ours = leads, ours
        self.brokers = FakeBrokers(
            {
                ("b", 0): {
                    RequestCode.GET_BROKER_CONFIG: answers(self._config),
                    RequestCode.CONTROLLER_GET_METADATA_INFO: self._metadata,
                    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self._groups,
                }
            }
        )

    @property
    def address(self) -> str:
        return self.brokers.addresses["b", 0]

    def _config(self) -> bytes:
        return f"enableControllerMode=true\ncontrollerAddr={self.address}\n".encode()

    def _metadata(self, connection: RemotingConnection, command: Command) -> Command:
        leader = self.address if self.leads else ""
        header = GetMetaDataResponseHeader(
            group="q", controller_leader_id="n1", controller_leader_address=leader, peers="n0:h:1;n1:h:9;"
        )
        ext = {"term": "12"} if self.ours else {}
        after = (command.ext or {}).get("brokerNamesAfter")
        if after is not None and self.ours:
            ext["brokerNames"] = json.dumps(["b", "unregistered"] if not after else [])
        return response(command, ResponseCode.SUCCESS, header=header, ext=ext)

    def _groups(self, connection: RemotingConnection, command: Command) -> Command:
        names = msgspec.json.decode(command.body, type=list[str])
        return response(
            command,
            ResponseCode.SUCCESS,
            body=to_json(BrokerReplicasInfo(dict.fromkeys(names, INFO))),
        )


@pytest.fixture
def leading() -> Iterator[Controller]:
    controller = Controller(leads=True)
    with controller.brokers:
        yield controller


def test_controllers_and_groups_are_found_by_the_settings_of_a_broker(
    leading: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["controller", "list", *leading.brokers.options, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["id"], row["role"], row["term"]) for row in found["controllers"]] == [
        ("n0", "follower", None),
        ("n1", "leader", 12),
    ]
    assert [row["broker"] for row in found["groups"]] == ["b", "unregistered"]
    group = found["groups"][0]
    assert (group["masterId"], group["masterEpoch"], group["syncStateSet"]) == (2, 7, [1, 2])
    assert (group["notInSync"], group["notAlive"], group["eligible"]) == ([3], [3], None)
    assert run(["controller", "list", leading.address]) == 0
    assert "unregistered" in capsys.readouterr().out


def test_rocketmqs_controllers_are_asked_for_the_groups_of_the_nameserver(
    capsys: pytest.CaptureFixture[str],
) -> None:
    controller = Controller(leads=True, ours=False)
    with controller.brokers:
        assert run(["controller", "list", *controller.brokers.options, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["term"] for row in found["controllers"]] == [None, None]
    assert [row["broker"] for row in found["groups"]] == ["b"]


def test_a_quorum_without_a_leader_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    controller = Controller(leads=False)
    with controller.brokers:
        assert run(["controller", "list", controller.address]) == 1
    output = capsys.readouterr()
    assert f"no controller leads: {controller.address} knows no leader" in output.err
    assert output.out == ""


def test_brokers_without_controllers_are_said_to_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    config = answers(lambda: b"enableControllerMode=false\ncontrollerAddr=h:1\n")
    with FakeBrokers({("b", 0): {RequestCode.GET_BROKER_CONFIG: config}}) as fake:
        assert run(["controller", "list", *fake.options]) == 1
    assert "`epochmq controller list HOST:PORT`" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["h", "h:", ":1", "h:x", "h:99999"])
def test_a_wrong_address_is_named(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["controller", "list", address]) == 2
    assert f"ADDRESS {address}: expected HOST:PORT of a controller" in capsys.readouterr().err


def test_what_only_the_leader_knows_is_shown_where_it_can_be_asked() -> None:
    state = ReplicaGroupState(
        broker_name="b",
        cluster="c",
        master_broker_id=None,
        master_epoch=7,
        sync_state_set=[1],
        sync_state_set_epoch=9,
        replicas=[ReplicaGroupMember(broker_id=1, address="h:1", alive=True)],
        eligible=[3],
        refused=[RefusedProcess(broker_id=2, address="h:4", reason="another store")],
        waits="for 1",
    )
    row = group_row("b", INFO, state)
    assert (row["eligible"], row["refusedIds"], row["waits"]) == ([3], [2], "for 1")
    assert row["refused"][0]["reason"] == "another store"
    assert group_row("b", INFO, None)["refused"] is None


def test_a_controller_that_names_no_peers_is_the_only_member() -> None:
    header = GetMetaDataResponseHeader(controller_leader_id="n0")
    assert [row["address"] for row in members_of(header, "x", "h:1")] == ["h:1"]


def test_the_word_controller_runs_one_and_shows_a_quorum() -> None:
    assert is_process(["controller"])
    assert is_process(["controller", "elect"])
    assert not is_process(["controller", "list"])


def test_a_run_directory_is_known_only_where_it_leads_to_the_nameservers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHMQ_CONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("EPOCHMQ_NAMESERVER", raising=False)
    monkeypatch.delenv("EPOCHMQ_PROFILE", raising=False)
    assert NameserverTarget(tmp_path, None, None).run_directory() == tmp_path
    assert NameserverTarget(None, None, None).run_directory() == Path(".epochmq")
    assert NameserverTarget(None, "h:1", None).run_directory() is None
    monkeypatch.setenv("EPOCHMQ_NAMESERVER", "h:1")
    assert NameserverTarget(None, None, None).run_directory() is None
