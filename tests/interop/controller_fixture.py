"""The processes that `mqadmin` shows in the tests of controllers: three controllers, a nameserver, and a
replica group. The brokers are RocketMQ's, or simulated by connections that carry their heartbeats."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.interop.controller_requests import ALTER, APPLY_ID, ELECT, HEARTBEAT, INFO, NO_METADATA, sync_set
from tests.interop.mqadmin import CommandOutput, MqAdmin, Step
from tests.support.cluster import ClientAccess, Settings
from tests.support.group_processes import Factory, Member
from tests.support.process import wait_until
from tests.support.remoting import call, frame, read_frame, split_address
from tests.support.replica_group import ReplicaGroup

OCTET = 60
SLOW_HEARTBEATS: Settings = {"heartBeatTimeIntervalMs": 2000}
"""DLedger's own interval, so that the leader keeps its leadership on a busy machine. (A key of EpochMQ;
RocketMQ's controllers ignore it.)"""
REGISTER_AT_NAMESERVER = 103
ATTEMPTS_MAX = 3
"""How often a scenario is repeated, in new directories, whose leader was replaced meanwhile."""
SIMULATED_BROKERS = (1, 2, 3)
"""The ids of the simulated brokers: 1 is elected, 2 is in sync, 3 dies."""


def leader_agreed(group: ReplicaGroup) -> bool:
    """Whether all controllers know the leader, and the leader serves requests. (RocketMQ's says that it leads
    before it does.)"""
    group.check_alive()
    found = [group.metadata(member) or {} for member in group.controllers]
    leaders = [one.get("controllerLeaderAddress") for one in found]
    followers = [one for one in found if one.get("isLeader") == "false"]
    if len(set(leaders)) != 1 or not leaders[0] or len(followers) != len(found) - 1:
        return False
    response = group.ask(INFO, {"brokerName": "nobody"})
    return response is not None and response.code == NO_METADATA


class ControllerFixture:
    """Create it, `start`, `run`, `close`. Without `brokers` the brokers are simulated."""

    def __init__(self, directory: Path, controller: Factory, brokers: Sequence[Factory] = ()) -> None:
        self.directory = directory
        self.group = ReplicaGroup(
            directory, [controller] * 3, brokers, controller=SLOW_HEARTBEATS, octet=OCTET
        )
        self.cluster_name, self.broker_name = self.group.CLUSTER, self.group.NAME
        self.nameserver_address = self.group.nameserver.address
        self.inner_access = ClientAccess(self.nameserver_address)
        self.broker_address = "no broker alone"
        self._simulated = not brokers
        self._stack = ExitStack()
        self._beats: dict[int, list[socket.socket]] = {}
        self._roles: dict[str, str] = {}

    # Start and stop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts everything, until there is a master with a replica in sync."""
        try:
            self._stack.callback(self.group.kill)
            if self._simulated:
                for member in [*self.group.controllers, self.group.nameserver]:
                    member.start()
                wait_until(lambda: leader_agreed(self.group), what="all controllers know the leader")
                self._simulate_brokers()
            else:
                self.group.start()
                wait_until(lambda: leader_agreed(self.group), what="all controllers know the leader")
            admin_home = self.directory / "admin"
            self.admin = MqAdmin(self, admin_home)
            self._stack.callback(self.admin.close)
            self._name_roles()
        except BaseException as error:
            error.add_note(self.group.logs())
            self.close()
            raise

    def kept_leader(self) -> bool:
        """Whether the leader of the start still leads. On a busy machine another one may be elected, which
        the words and roles of this fixture do not know."""
        wait_until(lambda: leader_agreed(self.group), what="all controllers know the leader")
        return self.leader.address == self.admin.words["leader"]

    def close(self) -> None:
        """Ends everything."""
        self._stack.close()

    @property
    def leader(self) -> Member:
        """The controller that leads."""
        return self.group.wait_leader()

    # Simulated brokers --------------------------------------------------------------------------------------

    @staticmethod
    def address_of(broker_id: int) -> str:
        """An address where no process listens."""
        return f"127.{OCTET}.0.{broker_id}:10911"

    def _simulate_brokers(self) -> None:
        who = {"clusterName": self.cluster_name, "brokerName": self.broker_name}
        for broker_id in SIMULATED_BROKERS:
            address = self.address_of(broker_id)
            applied = {"appliedBrokerId": str(broker_id), "registerCheckCode": f"{address};{broker_id}"}
            assert call(self.leader.address, APPLY_ID, {**who, **applied}).code == 0
            beat = {
                **who,
                "brokerId": str(broker_id),
                "brokerAddr": address,
                "heartbeatTimeoutMills": "600000",
                "epoch": "1",
                "maxOffset": "0",
            }
            for member in self.group.controllers:
                connection = self._connect(member.address)
                self._beats.setdefault(broker_id, []).append(connection)
                connection.sendall(frame(HEARTBEAT, beat))
                assert read_frame(connection)[0]["code"] == 0
        elected = {**who, "brokerId": "1", "designateElect": "false", "invokeTime": "0"}
        assert call(self.leader.address, ELECT, elected).code == 0
        master = {
            "brokerName": self.broker_name,
            "masterBrokerId": "1",
            "masterEpoch": "1",
            "invokeTime": "0",
        }
        assert call(self.leader.address, ALTER, master, sync_set(1, 1, 2)).code == 0
        registration = self._connect(self.nameserver_address)
        master_address = self.address_of(1)
        header = {**who, "brokerId": "0", "brokerAddr": master_address, "haServerAddr": master_address}
        registration.sendall(frame(REGISTER_AT_NAMESERVER, header))
        assert read_frame(registration)[0]["code"] == 0

    def _connect(self, address: str) -> socket.socket:
        return self._stack.enter_context(socket.create_connection(split_address(address), timeout=60))

    def end(self, broker_id: int) -> None:
        """Ends a simulated broker: its connections close."""
        for connection in self._beats.pop(broker_id):
            connection.close()
        wait_until(lambda: broker_id not in self.living(), what="its end is noticed")

    def living(self) -> set[int]:
        """The brokers that the leading controller takes for alive."""
        found = self.group.replicas() or {}
        replicas = [*found.get("inSyncReplicas", []), *found.get("notInSyncReplicas", [])]
        return {replica["brokerId"] for replica in replicas if replica["alive"]}

    # mqadmin ------------------------------------------------------------------------------------------------

    def _name_roles(self) -> None:
        """Defines words for commands, and names everything that differs between two fixtures by chance: the
        leader and, with real brokers, the ids."""
        leader = self.leader
        followers = [member for member in self.group.controllers if member is not leader]
        self.admin.words |= {
            "leader": leader.address,
            "follower": followers[0].address,
            "all": ";".join(member.address for member in self.group.controllers),
        }
        for member, role in zip([leader, *followers], ("LEADER", "FOLLOWER1", "FOLLOWER2"), strict=True):
            self._roles[rf"\bn{member.name[-1]}:(?={re.escape(member.address)})"] = f"{role}:"
            self._roles[rf"(?<=#ControllerLeaderId\t)n{member.name[-1]}\b"] = role
            self._roles[rf"\b{re.escape(member.address)}\b"] = role
        found = self.group.wait_replicas()
        replicas = [*found["inSyncReplicas"], *found["notInSyncReplicas"]]
        master = found["masterBrokerId"]
        for number, replica in enumerate(
            sorted(replicas, key=lambda one: (one["brokerId"] != master, one["brokerId"]))
        ):
            self.admin.words[f"id{number}"] = str(replica["brokerId"])
            self._roles[rf"\b{re.escape(replica['brokerAddress'])}\b"] = f"BROKER{number}"
            self._roles[rf"(?<=brokerId=){replica['brokerId']}\b"] = f"ID{number}"
            self._roles[rf"(?<=#MasterBrokerId\t){replica['brokerId']}\b"] = f"ID{number}"
            self._roles[rf"(?<=,  ){replica['brokerId']}(?=\] is still alive)"] = f"ID{number}"
            self._roles[rf"(?<=The old master ){replica['brokerId']}\b"] = f"ID{number}"

    def run(self, batch: Sequence[Step]) -> list[list[str]]:
        """Runs commands in parallel; returns for each the lines that it printed, comparable between
        fixtures."""
        return [
            self._comparable(step, outcome)
            for step, outcome in zip(batch, self.admin.run(batch), strict=True)
        ]

    def _comparable(self, step: Step, outcome: CommandOutput) -> list[str]:
        texts = []
        for text in outcome:
            for pattern, role in self._roles.items():
                text = re.sub(pattern, role, text)
            texts.append(text)
        return self.admin.comparable(step, CommandOutput(*texts))
