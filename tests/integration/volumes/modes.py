"""The groups whose volumes fail, one class for each availability mode, with what the rounds need of them."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.integration.disks.ack_ledger import differences
from tests.integration.disks.run_directory import command
from tests.integration.volumes.faults import BIT, CLONE, CONTROLLER, EMPTY, FILES, OLDER, RAFT_FILES
from tests.support.acting_group import ActingGroup
from tests.support.cluster import Value
from tests.support.dledger_group import OurDLedgerGroup
from tests.support.group_processes import Factory, GroupProcesses, Member
from tests.support.group_traffic import (
    GET_BROKER_RUNTIME_INFO,
    QUEUES,
    acknowledged,
    deliver_to,
    wait_confirmed,
)
from tests.support.process import ManagedProcess, wait_until
from tests.support.remoting import call
from tests.support.replica_group import ReplicaGroup

SIZE = 3
SETTLE_STORE = 20_011
HEAL_S = 180
"""How long a group may take until it is whole again."""
REPAIR_S = 120
"""How long the scrub may take for what is damaged."""
SETTINGS: dict[str, Value] = {
    # Files of this size are full after some rounds, so that faults hit old files and the newest one.
    "mappedFileSizeCommitLog": 1 << 20,
    "maxMessageSize": 1 << 16,
    "mappedFileSizeConsumeQueue": 20 * 2000,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20_000,
    "defaultTopicQueueNums": QUEUES,
    "registerNameServerPeriod": 10_000,
    "scrubFirstDelayMs": 1000,
    "scrubPassIntervalMs": 500,
    "scrubBytesPerSecond": 64 << 20,
}
SAFE: dict[str, Value] = {"allAckInSyncStateSet": True, "minInSyncReplicas": 2}


def made(role: str) -> Factory:
    """A factory of processes of this role, which end with the tests."""

    def make(config: Path) -> ManagedProcess:
        arguments = [sys.executable, "-m", "epochmq", role, "--config", str(config)]
        return ManagedProcess(command(arguments), name=config.parent.name, directory=config.parent)

    return make


class VolumeGroup(GroupProcesses):
    """What the rounds need of a group beside its processes."""

    KINDS: tuple[str, ...]
    """The faults that are drawn for its brokers."""
    controllers: list[Member]

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.controllers = []
        super().__init__(*arguments, **settings)

    def whole(self) -> bool:
        """Whether clients find a master, and all brokers are in sync with it."""
        raise NotImplementedError

    def current_master(self) -> Member | None:
        """The broker that accepts messages."""
        raise NotImplementedError

    def settled(self) -> Member:
        """Waits until all brokers have the whole log, and the master shows all of it. No client sends
        meanwhile. Returns the master."""
        raise NotImplementedError

    def differing(self, member: Member, master: Member) -> list[str]:
        """The differences between a broker's log and the master's, as texts."""
        raise NotImplementedError

    def settle(self, member: Member, *, adopt: bool) -> str:
        """Adopts or discards the store of this broker; returns why that was rejected, empty if it was
        not."""
        ext = {"adopt": str(adopt).lower(), "timeoutMs": "60000"}
        response = call(member.address, SETTLE_STORE, ext, timeout_s=90)
        return "" if response.code == 0 else response.remark or str(response.code)

    def lead(self, member: Member) -> None:
        """Makes this broker the master, if the mode can do that."""

    def create_topic(self) -> None:
        """Has the first message create the topic."""
        raise NotImplementedError

    def accepts_without(self, member: Member) -> bool:
        """Whether the group accepts messages while this member is away."""
        return True


class ControlledVolumes(VolumeGroup, ReplicaGroup):
    """Three brokers under three controllers, with the settings of groups of three."""

    KINDS = (
        OLDER,
        EMPTY,
        CLONE,
        *(BIT + one for one in FILES),
        CONTROLLER + EMPTY,
        *(CONTROLLER + BIT + one for one in RAFT_FILES),
    )

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory,
            [made("controller")] * SIZE,
            [made("broker")] * SIZE,
            broker={
                **SETTINGS,
                **SAFE,
                "haMaxTimeSlaveNotCatchup": 3000,
                "checkSyncStateSetPeriod": 500,
                "controllerHeartBeatTimeoutMills": 5000,
            },
            nameserver=made("nameserver"),
            octet=126,
        )

    def whole(self) -> bool:
        master = self.master()
        return (
            master is not None
            and len(self.in_sync()) == SIZE
            and self.routed_master() == master.address
            and all(self.has_metadata(one) for one in self.controllers)
        )

    def current_master(self) -> Member | None:
        return self.master()

    def settled(self) -> Member:
        return wait_confirmed(self)

    def differing(self, member: Member, master: Member) -> list[str]:
        return differences(member, master)

    def lead(self, member: Member) -> None:
        self.elect(member)

    def create_topic(self) -> None:
        deliver_to(self, b"first")


class DLedgerVolumes(VolumeGroup, OurDLedgerGroup):
    """Three brokers with a DLedger log."""

    KINDS = (OLDER, EMPTY, *(BIT + one for one in (*FILES, *RAFT_FILES)))

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory,
            [made("broker")] * SIZE,
            broker={**SETTINGS, "flushDiskType": "SYNC_FLUSH"},
            nameserver=made("nameserver"),
            octet=127,
        )

    def whole(self) -> bool:
        """A peer that has no vote yet would make the next fault the second one at a time."""
        with contextlib.suppress(OSError):
            return self._in_sync() == SIZE and not any(
                self.runtime(member)["dledgerProblem"] for member in self.brokers
            )
        return False

    def current_master(self) -> Member | None:
        return self.master()

    def settled(self) -> Member:
        return self.wait_settled()

    def differing(self, member: Member, master: Member) -> list[str]:
        return self.differences(member, master)

    def create_topic(self) -> None:
        wait_until(lambda: self.send(self.wait_master(), b"first"), what="the first message is stored")


class ActingVolumes(VolumeGroup, ActingGroup):
    """A master and two slaves that act for it, without controllers."""

    KINDS = (OLDER, EMPTY, *(BIT + one for one in FILES if one != "the epoch file"))

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory,
            [made("broker")] * SIZE,
            broker={**SETTINGS, "inSyncReplicas": 2},
            nameserver=made("nameserver"),
        )

    def whole(self) -> bool:
        if sorted(self.listed()) != list(range(SIZE)):
            return False
        roles = []
        for member in self.brokers:
            with contextlib.suppress(OSError):
                table = json.loads(call(member.address, GET_BROKER_RUNTIME_INFO).body)["table"]
                roles.append(table.get("groupRole"))
        return roles == ["master", "slave", "slave"] and len(self.ha()["haConnectionInfo"]) == SIZE - 1

    def accepts_without(self, member: Member) -> bool:
        return member is not self.brokers[0]

    def current_master(self) -> Member | None:
        return self.brokers[0] if self.brokers[0].process.alive else None

    def settled(self) -> Member:
        self.wait_followed(SIZE - 1)
        return self.brokers[0]

    def differing(self, member: Member, master: Member) -> list[str]:
        end = self.end()
        number = self.brokers.index(member)
        same = self.log_bytes(number, end) == self.log_bytes(0, end)
        return [] if same else [f"the log of {member.name} differs from the master's before {end}"]

    def create_topic(self) -> None:
        wait_until(lambda: acknowledged(self.brokers[0], b"first"), what="the first message is stored")


COMMAND = re.compile(r"`(epochmq replica (adopt|discard) \S+)`")
EMPTIED = re.compile(r"\b(empty|clear) (its|this|the) (store|directory)|empty its directory")


COPIED = re.compile(r"copy the store of the slave at (\S+) to")
TABLE = re.compile(r"(/\S+) and its backup cannot be read .* remove both")


def output_since(member: Member, position: int) -> str:
    """What the process of a member wrote after this many bytes of output."""
    path = member.process.output_path
    return path.read_bytes()[position:].decode(errors="replace") if path.exists() else ""


def output_size(member: Member) -> int:
    """How much it has written."""
    path = member.process.output_path
    return path.stat().st_size if path.exists() else 0
