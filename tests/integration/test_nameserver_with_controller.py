"""`enableControllerInNamesrv=true`: one process serves routes on the nameserver's port and keeps replica
groups on the controller's, from one file."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cluster import Settings, our_process, properties
from tests.support.net import free_port, loopback
from tests.support.process import wait_holds, wait_until
from tests.support.remoting import Response, call, frame, read_frame, split_address

OCTET = 60
CLUSTER_INFO, REGISTER_BROKER_AT_NAMESERVER, UPDATE_NAMESRV_CONFIG, GET_NAMESRV_CONFIG = 106, 103, 318, 319
HEARTBEAT, ELECT_MASTER, REPLICA_INFO, METADATA, SYNC_STATE = 904, 1002, 1004, 1005, 1006
UPDATE_CONTROLLER_CONFIG, GET_CONTROLLER_CONFIG, APPLY_BROKER_ID = 1009, 1010, 1013
NOT_SUPPORTED, NOT_LEADER = 3, 2007
WHO = {"clusterName": "c", "brokerName": "b"}


class NameserverWithController:
    """A nameserver with its controller: one process, two addresses."""

    def __init__(
        self, directory: Path, name: str, peers: dict[str, str], more: Settings | None = None
    ) -> None:
        host = loopback(OCTET)
        self.controller = peers[name]
        self.nameserver = f"{host}:{free_port(host, beside=())}"
        self.config = directory / name / "namesrv.conf"
        self.config.parent.mkdir()
        self.config.write_text(
            properties(
                {
                    "bindAddress": host,
                    "listenPort": split_address(self.nameserver)[1],
                    "kvConfigPath": str(directory / name / "kvConfig.json"),
                    "enableControllerInNamesrv": True,
                    "controllerDLegerGroup": "g",
                    "controllerDLegerPeers": ";".join(f"{one}-{at}" for one, at in peers.items()),
                    "controllerDLegerSelfId": name,
                    "controllerStorePath": str(directory / name / "store"),
                    "mappedFileSize": 1 << 20,
                    **(more or {}),
                }
            )
        )
        self.process = our_process("nameserver", self.config)

    def start(self) -> None:
        """Starts it and waits until both ports answer."""
        self.process.start()
        self.process.wait_until(lambda: self.is_up, what="answering on both ports")

    @property
    def is_up(self) -> bool:
        """Whether both ports answer."""
        try:
            responses = [call(self.nameserver, CLUSTER_INFO), call(self.controller, METADATA)]
        except OSError:
            return False
        return [response.code for response in responses] == [0, 0]

    @property
    def leads(self) -> bool:
        """Whether its controller says that it leads."""
        try:
            return call(self.controller, METADATA).ext["isLeader"] == "true"
        except OSError:
            return False


def peers(count: int) -> dict[str, str]:
    """The addresses of `count` controllers, by id."""
    hosts = [loopback(OCTET) for _ in range(count)]
    return {f"n{i}": f"{host}:{free_port(host, beside=())}" for i, host in enumerate(hosts)}


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[NameserverWithController]]:
    """Three nameservers whose controllers are one quorum."""
    places = peers(3)
    pairs = [NameserverWithController(tmp_path, name, places) for name in places]
    with ExitStack() as stack:
        for pair in pairs:
            stack.callback(pair.process.kill)
            pair.process.start()
        for pair in pairs:
            pair.process.wait_until(lambda pair=pair: pair.is_up, what="answering")  # type: ignore[misc]
        wait_until(lambda: any(pair.leads for pair in pairs), what="a controller leads")
        yield pairs


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[NameserverWithController]:
    """A quorum of one."""
    pair = NameserverWithController(tmp_path, "n0", peers(1), {"scanNotActiveBrokerInterval": 700})
    try:
        pair.start()
        wait_until(lambda: pair.leads, what="it leads")
        yield pair
    finally:
        pair.process.kill()


def ask_leader(
    pairs: list[NameserverWithController], code: int, ext: dict[str, str], body: bytes = b""
) -> Response:
    """The leader's response; asks again if the controller is no longer the leader."""
    found: list[Response] = []

    def answered() -> bool:
        for pair in pairs:
            if pair.process.alive and pair.leads:
                found[:] = [call(pair.controller, code, ext, body)]
        return bool(found) and found[0].code != NOT_LEADER

    wait_until(answered, what=f"a leading controller answers request {code}")
    return found[0]


def beat(pair: NameserverWithController, broker_id: int) -> socket.socket:
    """A connection over which this replica has sent a heartbeat."""
    connection = socket.create_connection(split_address(pair.controller), timeout=60)
    ext = {
        **WHO,
        "brokerId": str(broker_id),
        "brokerAddr": f"127.0.0.1:{broker_id}",
        "heartbeatTimeoutMills": "600000",
        "epoch": "1",
        "maxOffset": "1",
    }
    connection.sendall(frame(HEARTBEAT, ext))
    assert read_frame(connection)[0]["code"] == 0
    return connection


def test_replica_groups_are_served_on_one_port_and_routes_on_the_other(
    three: list[NameserverWithController],
) -> None:
    """Ids and an election at the controllers, a broker's registration at the nameservers. The end of the
    leader loses nothing of the former and does not change the other nameservers' routes."""
    with ExitStack() as stack:
        for broker_id in (1, 2):
            for pair in three:
                stack.enter_context(beat(pair, broker_id))
            applied = {"appliedBrokerId": str(broker_id), "registerCheckCode": f"127.0.0.1:{broker_id};t"}
            assert ask_leader(three, APPLY_BROKER_ID, {**WHO, **applied}).code == 0
        elected = ask_leader(three, ELECT_MASTER, {**WHO, "brokerId": "1", "designateElect": "false"})
        assert (elected.code, elected.ext["masterAddress"]) == (0, "127.0.0.1:1")

        registered = {**WHO, "brokerId": "0", "brokerAddr": "127.0.0.1:1", "haServerAddr": "127.0.0.1:2"}
        routes = []
        for pair in three:
            routes.append(stack.enter_context(socket.create_connection(split_address(pair.nameserver), 60)))
            routes[-1].sendall(frame(REGISTER_BROKER_AT_NAMESERVER, registered))
            assert read_frame(routes[-1])[0]["code"] == 0

        wait_until(lambda: any(pair.leads for pair in three), what="a controller leads")
        leader = next((pair for pair in three if pair.leads), three[0])
        leader.process.kill()
        rest = [pair for pair in three if pair is not leader]
        info = ask_leader(rest, REPLICA_INFO, WHO)
        assert (info.code, info.ext["masterBrokerId"], info.ext["masterEpoch"]) == (0, "1", "1")
        for pair in rest:
            assert b"127.0.0.1:1" in call(pair.nameserver, CLUSTER_INFO).body
        leader.start()

        def check() -> None:
            response = ask_leader(three, SYNC_STATE, {}, b'["b"]')
            assert response.code == 0, response
            shown = json.loads(response.body)["replicasInfoTable"]["b"]
            assert [replica["brokerId"] for replica in shown["inSyncReplicas"]] == [1]

        wait_holds(check)


def test_each_port_serves_only_its_own_requests(alone: NameserverWithController) -> None:
    for address, code in ((alone.nameserver, METADATA), (alone.controller, CLUSTER_INFO)):
        response = call(address, code)
        assert (response.code, response.remark) == (NOT_SUPPORTED, f" request type {code} not supported")


def settings_of(address: str, code: int) -> dict[str, str]:
    """The settings that GET_…_CONFIG shows."""
    return dict(line.split("=", 1) for line in call(address, code).body.decode().splitlines())


def test_both_read_one_file_and_changes_of_either_survive_a_restart(
    alone: NameserverWithController,
) -> None:
    """A key that both know applies to both. A change at the controller does not undo one at the nameserver,
    nor the other way round."""
    for address, code in ((alone.nameserver, GET_NAMESRV_CONFIG), (alone.controller, GET_CONTROLLER_CONFIG)):
        shown = settings_of(address, code)
        assert shown["scanNotActiveBrokerInterval"] == "700"
        assert shown["controllerDLegerSelfId"] == "n0"
    assert "unknown key" not in alone.process.output()
    written = alone.config.read_text()
    changes = b"enableElectUncleanMaster=true\n"
    assert call(alone.controller, UPDATE_CONTROLLER_CONFIG, body=changes).code == 0
    assert call(alone.nameserver, UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\n").code == 0
    assert alone.config.read_text() == written + "enableElectUncleanMaster=true\norderMessageEnable=true\n"
    alone.process.kill()
    alone.start()
    assert settings_of(alone.controller, GET_CONTROLLER_CONFIG)["enableElectUncleanMaster"] == "true"
    assert settings_of(alone.nameserver, GET_NAMESRV_CONFIG)["orderMessageEnable"] == "true"


def test_it_stops_cleanly_on_a_signal(alone: NameserverWithController) -> None:
    with beat(alone, 1):
        alone.process.signal(signal.SIGTERM)
        assert alone.process.wait() == 0
    assert "event=stopped" in alone.process.output()


def test_an_invalid_setting_of_the_controller_keeps_the_process_from_starting(tmp_path: Path) -> None:
    pair = NameserverWithController(tmp_path, "n0", peers(1), {"controllerDLegerSelfId": "n7"})
    pair.process.start()
    assert pair.process.wait() == 2
    expected = (
        "epochmq nameserver: controllerDLegerSelfId=n7: expected one of the ids in controllerDLegerPeers: n0"
    )
    assert expected in pair.process.output()
    assert "Traceback" not in pair.process.output()


def test_a_controllers_address_in_use_keeps_the_process_from_starting(tmp_path: Path) -> None:
    pair = NameserverWithController(tmp_path, "n0", peers(1))
    with socket.create_server(split_address(pair.controller)):
        pair.process.start()
        assert pair.process.wait() == 1
    assert pair.controller.split(":")[1] in pair.process.output()
    assert "Traceback" not in pair.process.output()
