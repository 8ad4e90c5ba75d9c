"""A replica group as real processes: controllers, a nameserver and brokers, each of ours or of RocketMQ's,
with a directory and a loopback address of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.cluster import START_TIMEOUT_S, Settings
from tests.support.group_processes import ElectingGroup, Factory, Member, Places, our_nameserver, own_places
from tests.support.process import wait_until
from tests.support.remoting import Response, call

GET_BROKER_CLUSTER_INFO = 106
CONTROLLER_ELECT_MASTER = 1002
CONTROLLER_GET_REPLICA_INFO = 1004
CONTROLLER_GET_METADATA_INFO = 1005
CONTROLLER_GET_SYNC_STATE_DATA = 1006
CONTROLLER_NOT_LEADER = 2007
CONTROLLER_MASTER_STILL_EXIST = 2011


class ReplicaGroup(ElectingGroup):
    """`controllers` and `brokers` make one process each. One nameserver. Without `places` each
    process has a loopback address of its own."""

    def __init__(
        self,
        directory: Path,
        controllers: Sequence[Factory],
        brokers: Sequence[Factory],
        *,
        controller: Settings | None = None,
        broker: Settings | None = None,
        octet: int = 59,
        nameserver: Factory = our_nameserver,
        places: Places | None = None,
    ) -> None:
        super().__init__(directory, places or own_places(octet))
        self.nameserver = self.make_nameserver(nameserver)
        listening = [self._places(f"controller-{i}") for i in range(len(controllers))]
        peers = ";".join(f"n{i}-{address}" for i, address in enumerate(listening))
        self.controllers = [
            self.make_member(
                f"controller-{i}",
                listening[i],
                make,
                {
                    "controllerType": "DLedger",
                    "controllerDLegerGroup": "controllers",
                    "controllerDLegerPeers": peers,
                    "controllerDLegerSelfId": f"n{i}",
                    "controllerStorePath": str(directory / f"controller-{i}" / "store"),
                    "mappedFileSize": 1 << 24,
                    **(controller or {}),
                },
            )
            for i, make in enumerate(controllers)
        ]
        self.brokers = [
            self.make_broker(
                number,
                make,
                {
                    "mappedFileSizeCommitLog": 16 << 20,
                    "enableControllerMode": True,
                    "controllerAddr": ";".join(member.address for member in self.controllers),
                    "inSyncReplicas": 2,
                    "minInSyncReplicas": 1,
                    "enableAutoInSyncReplicas": True,
                    "brokerHeartbeatInterval": 1000,
                    "syncBrokerMetadataPeriod": 1000,
                    "checkSyncStateSetPeriod": 1000,
                    # The connection tells of a killed process. One that is starved for a moment is to stay.
                    "controllerHeartBeatTimeoutMills": 15_000,
                    **(broker or {}),
                },
            )
            for number, make in enumerate(brokers)
        ]

    # Life ---------------------------------------------------------------------------------------------------

    @property
    def members(self) -> list[Member]:
        """All processes, in the order in which they are started."""
        return [*self.controllers, self.nameserver, *self.brokers]

    def _start(self) -> None:
        """Waits for a leader, a master and every replica in sync."""
        for member in [*self.controllers, self.nameserver]:
            member.start()
        wait_until(self._led, timeout_s=START_TIMEOUT_S, what="a controller leads")
        for member in self.brokers:
            member.start()
        self.wait_in_sync(len(self.brokers))

    def _led(self) -> bool:
        self.check_alive()
        return self.leader() is not None

    # What controllers say -----------------------------------------------------------------------------------

    def metadata(self, member: Member) -> dict[str, str] | None:
        """The metadata of the group at this controller; None when it does not respond."""
        try:
            response = call(member.address, CONTROLLER_GET_METADATA_INFO, timeout_s=2)
        except OSError:
            return None
        return response.ext if response.code == 0 else None

    def has_metadata(self, member: Member) -> bool:
        """Whether this controller answers with metadata of the group."""
        return self.metadata(member) is not None

    def leader(self) -> Member | None:
        """The controller that says it leads."""
        for member in self.controllers:
            found = self.metadata(member) if member.process.alive else None
            if found is not None and found.get("isLeader") == "true":
                return member
        return None

    def wait_leader(self, *, other_than: Member | None = None) -> Member:
        """Waits for a controller (other than this one) that says it leads, and returns it."""
        found: list[Member] = []

        def reached() -> bool:
            leader = self.leader()
            found[:] = [] if leader is None or leader is other_than else [leader]
            return bool(found)

        wait_until(reached, what="a controller leads")
        return found[0]

    def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Response | None:
        """Asks the leading controller; None when there is none, or it does not answer."""
        leader = self.leader()
        if leader is None:
            return None
        try:
            return call(leader.address, code, ext or {}, body, timeout_s=10)
        except OSError:
            return None

    def answered(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Response:
        """The response of the leading controller. A controller that no longer leads has not executed the
        request; one that does not respond may have. So the request must be one that may be executed twice."""
        found: list[Response] = []

        def reached() -> bool:
            response = self.ask(code, ext, body)
            found[:] = [] if response is None or response.code == CONTROLLER_NOT_LEADER else [response]
            return bool(found)

        wait_until(reached, what=f"the leading controller answers request {code}")
        return found[0]

    def replicas(self) -> dict[str, Any] | None:
        """Master, epochs and replicas of the group, as the leader gives them."""
        response = self.ask(CONTROLLER_GET_SYNC_STATE_DATA, body=json.dumps([self.NAME]).encode())
        if response is None or response.code != 0:
            return None
        table: dict[str, Any] = json.loads(response.body)["replicasInfoTable"]
        return table.get(self.NAME)

    def in_sync(self) -> set[int]:
        """The ids of the SyncStateSet's living members."""
        found = self.replicas() or {"inSyncReplicas": []}
        return {replica["brokerId"] for replica in found["inSyncReplicas"] if replica["alive"]}

    def master(self) -> Member | None:
        """The elected master's process, while it lives."""
        found = self.replicas()
        address = found.get("masterAddress") if found is not None else None
        for member in self.brokers:
            if member.address == address and member.process.alive:
                return member
        return None

    def wait_replicas(self) -> dict[str, Any]:
        """`replicas`, once a controller leads."""
        found: list[dict[str, Any]] = []

        def reached() -> bool:
            response = self.replicas()
            found[:] = [] if response is None else [response]
            return bool(found)

        wait_until(reached, what="a leading controller knows the group")
        return found[0]

    def epoch(self) -> int:
        """The master epoch, once a controller leads."""
        return int(self.wait_replicas()["masterEpoch"])

    def routed_master(self) -> str | None:
        """The address that the nameserver gives clients for the master."""
        try:
            response = call(self.nameserver.address, GET_BROKER_CLUSTER_INFO, timeout_s=2)
        except OSError:
            return None
        info = json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', response.body))
        group = info.get("brokerAddrTable", {}).get(self.NAME, {})
        found: str | None = group.get("brokerAddrs", {}).get("0")
        return found

    def wait_in_sync(self, count: int, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits for a master that clients find and a SyncStateSet of `count` living replicas."""

        def reached() -> bool:
            self.check_alive()
            master = self.master()
            return (
                master is not None and len(self.in_sync()) == count and self.routed_master() == master.address
            )

        wait_until(reached, timeout_s=timeout_s, what=f"{count} replicas in sync")

    def wait_master(self, *, other_than: Member | None = None) -> Member:
        """Waits for a master (other than this one) that clients find, and returns it."""
        found: list[Member] = []

        def reached() -> bool:
            master = self.master()
            if master is None or master is other_than or self.routed_master() != master.address:
                return False
            found.append(master)
            return True

        wait_until(reached, timeout_s=START_TIMEOUT_S, what="a master, another one if need be")
        return found[-1]

    def elect(self, wanted: Member) -> None:
        """Has the controllers make this broker the master, and waits until clients find it."""

        def elected() -> bool:
            found = self.replicas() or {"inSyncReplicas": []}
            ids = [
                one["brokerId"] for one in found["inSyncReplicas"] if one["brokerAddress"] == wanted.address
            ]
            if not ids:
                return False
            ext = {
                "clusterName": self.CLUSTER,
                "brokerName": self.NAME,
                "brokerId": str(ids[0]),
                "designateElect": "true",
                "invokeTime": "0",
            }
            response = self.ask(CONTROLLER_ELECT_MASTER, ext)
            return response is not None and response.code in (0, CONTROLLER_MASTER_STILL_EXIST)

        wait_until(elected, what=f"{wanted.name} is elected")
        wait_until(
            lambda: self.master() is wanted and self.routed_master() == wanted.address,
            what=f"{wanted.name} is master",
        )
