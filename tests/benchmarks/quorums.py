"""Measures elections, failovers and memory of three controllers, ours or RocketMQ's, with many replica
groups.

Brokers are simulated: their requests to the controllers (ids, registrations, heartbeats, SyncStateSets) use a
few long-lived connections. Only the heartbeats of masters that will be lost have a connection each to the
leading controller, because RocketMQ's controller detects one lost broker for each closed connection. These
connections are closed together."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from epochmq_protocol.frame import Command
from epochmq_protocol.frame import request as make_request
from epochmq_protocol.transport.client import RemotingClient
from tests.benchmarks.lease_renewals import LeaseRenewals
from tests.benchmarks.machine import memory_dict
from tests.interop.java_env import FULL_SPEED, JavaProcess
from tests.support.group_processes import Member, our_controller
from tests.support.process import ManagedProcess
from tests.support.remoting import call
from tests.support.replica_group import (
    CONTROLLER_ELECT_MASTER,
    CONTROLLER_GET_METADATA_INFO,
    CONTROLLER_GET_SYNC_STATE_DATA,
    ReplicaGroup,
)

OCTET = 62
ALTER_SYNC_STATE_SET, REGISTER_BROKER, APPLY_BROKER_ID, HEARTBEAT = 1001, 1003, 1013, 904
LEASE_EPOCH = "writeLeaseEpoch"
CLUSTER = "bench"
REPLICAS = 3
JAVA_HEAP_MB = 512
IN_FLIGHT = 64
RETRIES = 20
POLL_S = 0.005
ASK_TIMEOUT_MS = 10_000
FAIL_OVER_TIMEOUT_S = 60
HEARTBEAT_TIMEOUT_MS = 600_000
"""So long that no broker expires: only closed connections count as failures."""


class QuorumFailedError(Exception):
    """A quorum failed during a measurement. The message says how."""


def java_controller(config: Path) -> ManagedProcess:
    """RocketMQ's controller with the G1 collector."""
    return JavaProcess(
        "org.apache.rocketmq.controller.ControllerStartup",
        ["-c", str(config)],
        home=config.parent,
        name="java controller",
        heap_mb=JAVA_HEAP_MB,
        jvm=["-server", *FULL_SPEED, "-XX:-UseSerialGC", "-XX:+UseG1GC"],
    )


class Quorum:
    """Three controllers. `kind` is `ours` or `java`."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        make = {"ours": our_controller, "java": java_controller}[kind]
        self.group = ReplicaGroup(folder, [make] * 3, [], octet=OCTET)

    def start(self) -> None:
        """Starts the controllers and waits until one leads and the others follow."""
        for member in self.group.controllers:
            member.start()
        self.wait_complete()

    def kill(self) -> None:
        """Kills the controllers."""
        self.group.kill()

    def wait_complete(self, timeout_s: float = 90) -> Member:
        """Waits until all three controllers report the same leader; returns it."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = [self.group.metadata(member) for member in self.group.controllers]
            names = {one.get("controllerLeaderId") for one in found if one}
            leads = [one is not None and one.get("isLeader") == "true" for one in found]
            if all(found) and len(names) == 1 and sum(leads) == 1:
                return self.group.controllers[leads.index(True)]
            time.sleep(0.05)
        raise QuorumFailedError(f"{self.kind}: no leader within {timeout_s} s\n{self.group.logs()}")

    def election_s(self, timeout_s: float = 60) -> float:
        """Kills the leading controller with kill -9 and returns the seconds until another one reports itself
        as leader. Starts the killed one again."""
        leader = self.wait_complete()
        others = [member for member in self.group.controllers if member is not leader]
        leader.process.kill()
        killed = time.monotonic()
        while time.monotonic() < killed + timeout_s:
            for member in others:
                try:
                    response = call(member.address, CONTROLLER_GET_METADATA_INFO, timeout_s=2)
                except OSError:
                    continue
                if response.ext.get("isLeader") == "true":
                    took = time.monotonic() - killed
                    leader.start()
                    return took
            time.sleep(POLL_S)
        raise QuorumFailedError(f"{self.kind}: no other leader within {timeout_s} s\n{self.group.logs()}")

    def memory(self) -> dict[str, list[dict[str, float]]]:
        """The resident memory of the leader, and of the other two."""
        leader = self.wait_complete()
        rest = [member for member in self.group.controllers if member is not leader]
        return {
            "leader": [memory_dict(leader.process.pid)],
            "followers": [memory_dict(m.process.pid) for m in rest],
        }


class SimulatedBrokers:
    """The brokers of `count` groups of three replicas. A third of the masters will be lost."""

    def __init__(self, quorum: Quorum, count: int) -> None:
        self.names = [f"group-{i:05}" for i in range(count)]
        self.masters_to_lose = self.names[::3]
        self._to_lose = frozenset(self.masters_to_lose)
        self._quorum = quorum
        self._leader = quorum.wait_complete().address
        self._epochs: dict[str, str] = {}
        self._stay = RemotingClient()
        self._heartbeat_clients = {name: RemotingClient() for name in self.masters_to_lose}

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[SimulatedBrokers]:
        """Connects, and closes the connections at the end."""
        try:
            yield self
        finally:
            await self._stay.close()
            await self._lose()

    async def _lose(self) -> None:
        await asyncio.gather(*(client.close() for client in self._heartbeat_clients.values()))

    async def _ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        """The leader's response to a request. Retries a few times while the leader is busy."""
        for attempt in itertools.count():
            response = await self._stay.call(
                self._leader, make_request(code, ext=ext, body=body), ASK_TIMEOUT_MS
            )
            if response.code == 0 or (code == CONTROLLER_ELECT_MASTER and response.code == 2011):
                return response
            if attempt == RETRIES:
                raise QuorumFailedError(
                    f"{self._quorum.kind}: request {code} {ext}: {response.code} {response.remark}"
                )
            await asyncio.sleep(0.1)
        raise AssertionError

    async def beat(self, name: str, broker_id: int, client: RemotingClient, lease_epoch: str = "") -> None:
        """Sends one heartbeat to every controller. With an epoch it requests a write lease, as our masters
        do."""
        request = self._heartbeat(name, broker_id, lease_epoch)
        for member in self._quorum.group.controllers:
            taken = client if member.address == self._leader else self._stay
            await taken.call(member.address, make_request(HEARTBEAT, ext=request.ext), ASK_TIMEOUT_MS)

    def _heartbeat(self, name: str, broker_id: int, lease_epoch: str) -> Command:
        ext = {
            "clusterName": CLUSTER,
            "brokerName": name,
            "brokerAddr": self._address(broker_id),
            "brokerId": str(broker_id),
            "epoch": "1",
            "maxOffset": "1",
            "confirmOffset": "1",
            "electionPriority": "1",
            "heartbeatTimeoutMills": str(HEARTBEAT_TIMEOUT_MS),
        }
        if lease_epoch:
            ext[LEASE_EPOCH] = lease_epoch
        return make_request(HEARTBEAT, ext=ext)

    async def renew(self, warmup_s: float, seconds: float) -> dict[str, Any]:
        """Renews the leases of all masters, at the rate of our brokers."""
        leader = self._quorum.wait_complete()
        requests = [self._heartbeat(name, 1, self._epochs[name]) for name in self.names]
        return await LeaseRenewals(leader.address, requests).run(warmup_s, seconds, leader.process)

    @staticmethod
    def _address(broker_id: int) -> str:
        return f"127.0.0.1:{10900 + broker_id}"

    async def _register(self, name: str) -> None:
        """Registers three brokers of a group, as at their start. Replica 1 becomes the master, and all become
        in sync. If the master will be lost, its heartbeats use the connection that will be closed."""
        group = {"clusterName": CLUSTER, "brokerName": name}
        for broker_id in range(1, REPLICAS + 1):
            check = f"{self._address(broker_id)};{name}"
            apply = {**group, "appliedBrokerId": str(broker_id), "registerCheckCode": check}
            await self._ask(APPLY_BROKER_ID, apply)
            lost = broker_id == 1 and name in self._to_lose
            await self.beat(name, broker_id, self._heartbeat_clients[name] if lost else self._stay)
            place = {"brokerId": str(broker_id), "brokerAddress": self._address(broker_id), "invokeTime": "0"}
            await self._ask(REGISTER_BROKER, {**group, **place})
        elect = {**group, "brokerId": "1", "designateElect": "false", "invokeTime": "0"}
        elected = (await self._ask(CONTROLLER_ELECT_MASTER, elect)).ext or {}
        assert elected["masterBrokerId"] == "1", elected
        self._epochs[name] = elected["masterEpoch"]
        alter = {
            "brokerName": name,
            "masterBrokerId": "1",
            "masterEpoch": elected["masterEpoch"],
            "invokeTime": "0",
        }
        members = {"syncStateSet": [1, 2, 3], "syncStateSetEpoch": int(elected["syncStateSetEpoch"])}
        await self._ask(ALTER_SYNC_STATE_SET, alter, json.dumps(members).encode())

    async def register(self) -> float:
        """Registers all groups; returns the seconds."""
        names = iter(self.names)

        async def some() -> None:
            for name in names:
                await self._register(name)

        started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(some())
        return time.monotonic() - started

    async def _without_new_master(self, names: Sequence[str]) -> list[str]:
        body = json.dumps(list(names)).encode()
        response = await self._ask(CONTROLLER_GET_SYNC_STATE_DATA, {}, body)
        table = json.loads(response.body)["replicasInfoTable"]
        return [name for name in names if table[name].get("masterBrokerId") not in (2, 3)]

    async def lose_masters(self) -> tuple[float, int]:
        """Closes the connections of the masters that are to be lost. Returns the seconds until all their
        groups have new masters, and the number of groups without one after `FAIL_OVER_TIMEOUT_S`. All masters
        have just renewed their leases (RocketMQ's controllers have none)."""
        assert len(await self._without_new_master(self.masters_to_lose)) == len(self.masters_to_lose)
        beats = (
            self.beat(name, 1, self._heartbeat_clients[name], self._epochs[name])
            for name in self.masters_to_lose
        )
        await asyncio.gather(*beats)
        lost = time.monotonic()
        await self._lose()
        left: Sequence[str] = self.masters_to_lose
        while left:
            left = await self._without_new_master(left)
            if left and time.monotonic() > lost + FAIL_OVER_TIMEOUT_S:
                break
            if left:
                await asyncio.sleep(POLL_S)
        return time.monotonic() - lost, len(left)
