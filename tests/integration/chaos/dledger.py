"""Chaos rounds over three brokers whose commit log is a DLedger log: they elect their master themselves, so
there are no controllers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.integration.chaos.faults import ChaosFaultPlan
from tests.integration.chaos.group import SIZE, SMALL, ClientsUnderFaults
from tests.integration.chaos.rounds import ChaosRounds
from tests.support.cluster import Settings
from tests.support.dledger_group import OurDLedgerGroup
from tests.support.group_processes import Member

PEER_PORT = 40911


class ChaosDLedgerGroup(ClientsUnderFaults, OurDLedgerGroup):
    """Three brokers, a nameserver and the clients."""

    def __init__(self, directory: Path, settings: Settings, *, java: bool = True) -> None:
        places = self._lay_out(directory, [f"broker-{i}" for i in range(SIZE)])
        super().__init__(
            directory,
            [self._made_by("broker")] * SIZE,
            broker={**SMALL, **settings},
            nameserver=self._made_by("nameserver"),
            places=places,
            peer_places=lambda name: f"{self.network.address[name]}:{PEER_PORT}",
        )
        self.controllers: list[Member] = []
        self._add_clients(java=java)

    def leader(self) -> Member | None:
        """There are no controllers."""
        return None

    def stop_all(self) -> None:
        """Stops all brokers in an orderly way."""
        for member in self.brokers:
            status = member.process.stop()
            assert status == 0, f"{member.name} stopped with {status}"


class DLedgerFaultPlan(ChaosFaultPlan):
    """Draws the faults of brokers, their links and disks. The master is concerned more often than others."""

    def _server(self) -> Member:
        return self._broker()


class DLedgerRounds(ChaosRounds):
    """`with DLedgerRounds(folder, seed) as rounds: rounds.run(60)`. Afterwards `stores` are copies of the
    brokers' directories."""

    group: ChaosDLedgerGroup

    def _made(self) -> tuple[ChaosDLedgerGroup, ChaosFaultPlan]:
        group = ChaosDLedgerGroup(self.directory, self.settings, java=self.java)
        return group, DLedgerFaultPlan(group, self.random)

    def end(self) -> None:
        """Stops sending, checks, stops the brokers, and copies their directories from their disks."""
        super().end()
        self.group.stop_all()
        self.stores = [self._copy(member) for member in self.group.brokers]

    def _copy(self, member: Member) -> Path:
        target = self.directory / "copies" / member.name
        target.mkdir(parents=True)
        subprocess.run(
            ["cp", "-a", "--sparse=always", str(member.config.parent / "store"), str(target)],
            check=True,
            timeout=300,
        )
        return target / "store"
