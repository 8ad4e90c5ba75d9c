"""Kills controllers of a quorum again and again while brokers apply for ids, elect and report who is in
sync.

A client simulates the brokers of many groups. What a controller acknowledged (an id, a master epoch, a
SyncStateSet) must be there after every round, whichever controller leads. A request without a response may
or may not have been committed."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.cluster import Settings
from tests.support.group_processes import our_controller
from tests.support.process import wait_until
from tests.support.remoting import Response, call
from tests.support.replica_group import ReplicaGroup

REGISTER_BROKER, GET_SYNC_STATE_DATA = 1003, 1006
ALTER_SYNC_STATE_SET, ELECT_MASTER, APPLY_BROKER_ID, HEARTBEAT = 1001, 1002, 1013, 904
CLUSTER = "kills"
BEFORE_A_KILL = 3
"""At least so many requests are acknowledged before each kill, however slow the machine is."""


@dataclass
class AcknowledgedState:
    """What was acknowledged about one group: ids, and the least epochs that it must have reached."""

    ids: set[int] = field(default_factory=set)
    master_epoch: int = 0
    set_epoch: int = 0
    members: list[int] = field(default_factory=list)
    open_set: bool = False
    """Whether an unanswered request may have changed the SyncStateSet since."""


class ControllerRounds:
    """Three controllers, no brokers; every request goes to the controller that says it leads."""

    def __init__(self, directory: Path, seed: int, settings: Settings) -> None:
        self.random = random.Random(seed)
        self.group = ReplicaGroup(directory, [our_controller] * 3, [], controller=settings)
        self.known: dict[str, AcknowledgedState] = {}
        self.acknowledged = 0

    def start(self) -> None:
        for member in self.group.controllers:
            member.start()
        self.wait_leader()

    def wait_leader(self) -> None:
        self.group.wait_leader()

    def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Response | None:
        """The leader's response; None when it is unknown whether the request was committed."""
        leader = self.group.leader()
        if leader is None:
            return None
        try:
            response = call(leader.address, code, ext, body, timeout_s=10)
        except (OSError, ValueError):
            return None
        return None if response.code in (1, 2007) else response

    def beat(self, name: str, ids: set[int]) -> None:
        """Sends heartbeats to all controllers, so that every leader takes the replicas for alive."""
        for member in self.group.controllers:
            for broker_id in ids if member.process.alive else ():
                ext = {
                    "clusterName": CLUSTER,
                    "brokerName": name,
                    "brokerAddr": f"127.0.0.1:{broker_id}",
                    "brokerId": str(broker_id),
                    "epoch": "1",
                    "maxOffset": "1",
                    "heartbeatTimeoutMills": "600000",
                }
                try:
                    call(member.address, HEARTBEAT, ext, timeout_s=5)
                except (OSError, ValueError):
                    continue

    def work(self, seconds: float, acknowledged: int = 0) -> None:
        """Sends requests for some seconds, about one group after another, until `acknowledged` of them are
        acknowledged."""
        until, floor = time.monotonic() + seconds, self.acknowledged + acknowledged
        while time.monotonic() < until:
            self.step()

        def enough() -> bool:
            if self.acknowledged < floor:
                self.step()
            return self.acknowledged >= floor

        wait_until(enough, what=f"{acknowledged} requests are acknowledged")

    def step(self) -> None:
        """Sends one request: a new group, a new id, a SyncStateSet, or an election."""
        grow = not self.known or self.random.random() < 0.3
        name = f"g{len(self.known)}" if grow else self.random.choice(list(self.known))
        known = self.known.setdefault(name, AcknowledgedState())
        if len(known.ids) < 3:
            self.apply_id(name, known)
        elif known.master_epoch == 0 or self.random.random() < 0.2:
            self.elect(name, known)
        else:
            self.alter(name, known)

    def apply_id(self, name: str, known: AcknowledgedState) -> None:
        broker_id = len(known.ids) + 1
        ext = {
            "clusterName": CLUSTER,
            "brokerName": name,
            "appliedBrokerId": str(broker_id),
            "registerCheckCode": f"127.0.0.1:{broker_id};{name}",
        }
        response = self.ask(APPLY_BROKER_ID, ext)
        if response is not None and response.code == 0:
            known.ids.add(broker_id)
            self.acknowledged += 1

    def elect(self, name: str, known: AcknowledgedState) -> None:
        self.beat(name, known.ids)
        wanted = self.random.choice(sorted(known.members or known.ids))
        ext = {"clusterName": CLUSTER, "brokerName": name, "brokerId": str(wanted), "designateElect": "true"}
        response = self.ask(ELECT_MASTER, ext)
        known.open_set |= response is None
        if response is not None and response.code in (0, 2011):
            known.master_epoch = int(response.ext["masterEpoch"])
            known.set_epoch = int(response.ext["syncStateSetEpoch"])
            if response.code == 0:
                known.members, known.open_set = [int(response.ext["masterBrokerId"])], False
            self.acknowledged += 1

    def alter(self, name: str, known: AcknowledgedState) -> None:
        found = self.overview([name]).get(name)
        if found is None or found.get("masterBrokerId") is None:
            return
        self.beat(name, known.ids)
        master = int(found["masterBrokerId"])
        members = sorted({master, *self.random.sample(sorted(known.ids), self.random.randint(1, 3))})
        ext = {
            "brokerName": name,
            "masterBrokerId": str(master),
            "masterEpoch": str(found["masterEpoch"]),
        }
        body = json.dumps({"syncStateSet": members, "syncStateSetEpoch": found["syncStateSetEpoch"]})
        response = self.ask(ALTER_SYNC_STATE_SET, ext, body.encode())
        known.open_set |= response is None
        if response is not None and response.code == 0:
            known.set_epoch = int(response.ext["newSyncStateSetEpoch"])
            known.members, known.open_set = members, False
            self.acknowledged += 1

    def overview(self, names: list[str]) -> dict[str, Any]:
        response = self.ask(GET_SYNC_STATE_DATA, {}, json.dumps(names).encode())
        if response is None or response.code != 0:
            return {}
        table: dict[str, Any] = json.loads(response.body)["replicasInfoTable"]
        return table

    def check(self) -> None:
        """Asserts that everything acknowledged is there."""
        self.wait_leader()
        names = [name for name, known in self.known.items() if known.ids]
        table: dict[str, Any] = {}

        def answered() -> bool:
            table.update(self.overview(names))
            return bool(table) or not names

        wait_until(answered, what="the leader's overview")
        for name in names:
            known, found = self.known[name], table[name]
            replicas = [*found["inSyncReplicas"], *found["notInSyncReplicas"]]
            assert known.ids <= {one["brokerId"] for one in replicas}, (name, known, found)
            assert found["masterEpoch"] >= known.master_epoch, (name, known, found)
            assert found["syncStateSetEpoch"] >= known.set_epoch, (name, known, found)
            if found["syncStateSetEpoch"] == known.set_epoch and known.members and not known.open_set:
                now = sorted(one["brokerId"] for one in found["inSyncReplicas"])
                assert now == known.members, (name, known, found)

    def round(self, number: int) -> None:
        """Sends requests, kills at a random moment, continues with the rest, starts the killed controllers,
        and checks."""
        self.work(self.random.uniform(0.05, 0.6), BEFORE_A_KILL)
        leader = self.group.leader()
        followers = [m for m in self.group.controllers if m is not leader]
        victim = leader if leader is not None and number % 2 == 0 else self.random.choice(followers)
        victim.process.kill()
        self.work(self.random.uniform(0.05, 1.0))
        if number % 5 == 0:
            for member in self.group.controllers:
                member.process.kill()
            for member in self.group.controllers:
                member.start()
        else:
            victim.start()
        self.check()

    def stop(self) -> None:
        self.group.kill()
