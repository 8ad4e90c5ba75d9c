"""A replica group of three brokers under three controllers, with the interface of `tests.support.cluster`."""

from __future__ import annotations

from pathlib import Path

from tests.support.cluster import Cluster, Settings, properties
from tests.support.group_processes import our_broker, our_controller
from tests.support.process import ManagedProcess
from tests.support.replica_group import ReplicaGroup

BROKER: Settings = {
    "allAckInSyncStateSet": True,
    "minInSyncReplicas": 2,
    "autoCreateTopicEnable": True,
    "traceTopicEnable": True,
}

CONTROLLER: Settings = {"writeLeaseMs": 5000}
"""A master that a busy machine stops for a moment keeps its lease, so that no send is rejected."""


class _Group(ReplicaGroup):
    NAME = "broker-a"  # as that of a single broker, which handles and addresses contain


class ReplicatedCluster(Cluster):
    """EpochMQ's nameserver, three controllers and three brokers. "The broker" is the present master."""

    def __init__(
        self,
        directory: Path,
        *,
        broker: Settings | None = None,
        nameserver: Settings | None = None,
        octet: int = 95,
    ) -> None:
        self.directory = directory
        self.broker_settings = {**BROKER, **(broker or {})}
        self.nameserver_settings = dict(nameserver or {})
        self.group = _Group(
            directory,
            [our_controller] * 3,
            [our_broker] * 3,
            controller=CONTROLLER,
            broker=self.broker_settings,
            octet=octet,
        )
        with self.group.nameserver.config.open("a") as config:
            config.write(properties(self.nameserver_settings))
        self.nameserver_address = self.group.nameserver.address

    @property
    def broker_address(self) -> str:  # type: ignore[override]  # the master changes
        """Address of the master."""
        return self.group.wait_master().address

    @property
    def broker_process(self) -> ManagedProcess:  # type: ignore[override]  # the master changes
        """Process of the master."""
        return self.group.wait_master().process

    @property
    def nameserver_process(self) -> ManagedProcess:  # type: ignore[override]  # that of the group
        """Process of the nameserver."""
        return self.group.nameserver.process

    @property
    def cluster_name(self) -> str:
        """Name under which the brokers register their cluster."""
        return self.group.CLUSTER

    @property
    def broker_name(self) -> str:
        """Name of the broker group."""
        return self.group.NAME

    def start(self) -> None:
        """Starts all processes, and waits until three replicas are in sync."""
        self.group.start()

    def start_broker(self) -> None:
        """Starts the brokers that do not run, and waits until three replicas are in sync."""
        for member in self.group.brokers:
            if not member.process.alive:
                member.start()
        self.group.wait_in_sync(len(self.group.brokers))

    def stop_broker(self) -> int | None:
        """Orderly stop of the master; its exit status."""
        return self.broker_process.stop()

    def kill_broker(self) -> None:
        """kill -9 of the master. Another broker becomes master."""
        self.broker_process.kill()

    def abandon(self) -> None:
        """kill -9 of all processes."""
        self.group.kill()

    def stop(self) -> None:
        """kill -9 of all processes: nobody looks at the stores."""
        self.group.kill()

    def logs(self, characters: int = 3000) -> str:
        """The end of every process's output."""
        return self.group.logs(characters)
