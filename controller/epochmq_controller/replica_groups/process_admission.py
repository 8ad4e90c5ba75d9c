# pure: which heartbeats count
"""Decides whether a heartbeat counts: not if its process must not act under its broker id
(`incarnations`)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from epochmq_controller.replica_groups import incarnations
from epochmq_controller.replica_groups.controller_tables import ControllerTables
from epochmq_controller.replica_groups.heartbeats import BrokerIdentityInfo, Heartbeat
from epochmq_controller.replica_groups.incarnations import IncarnationVerdict

REFUSED_FOR_MS: Final = 15_000
"""How long after its last heartbeat a refused process is still named; heartbeats come more often."""


class Refusal(Struct):
    """Why the heartbeats of a process do not count, and when the last one came."""

    address: str
    incarnation: str
    text: str
    last_ms: float


class ProcessAdmission:
    """The admission of the processes that send heartbeats to one controller."""

    def __init__(self, state: ControllerTables) -> None:
        self._state = state
        self._refusals: dict[BrokerIdentityInfo, Refusal] = {}
        """By broker id: the refusal that was logged last."""

    def refused(self, name: str) -> list[tuple[int, Refusal]]:
        """The processes of a group that are refused at present, with the broker ids that they claim."""
        earliest_ms = self._state.now_ms - REFUSED_FOR_MS
        found = [
            (broker_id, refusal)
            for (_, group, broker_id), refusal in self._refusals.items()
            if group == name and refusal.last_ms >= earliest_ms
        ]
        return sorted(found, key=lambda one: one[0])

    def verdict(self, replica: BrokerIdentityInfo, heartbeat: Heartbeat) -> IncarnationVerdict:
        """Judges the sender of a heartbeat."""
        lineage, (_, name, broker_id) = heartbeat.lineage, replica
        if not lineage:
            return IncarnationVerdict.REGISTERED
        group = self._state.groups.get(name)
        known = group.replicas.get(broker_id) if group is not None else None
        registered = known.incarnation if known is not None else ""
        if registered and incarnations.newest(lineage) == registered:
            return IncarnationVerdict.REGISTERED
        return incarnations.judge(registered, lineage, heartbeat.address, self._state.alive(*replica))

    def grants_leases(self, replica: BrokerIdentityInfo, verdict: IncarnationVerdict) -> bool:
        """Whether the sender may get a lease: it has registered, or no process has under its id."""
        _, name, broker_id = replica
        group = self._state.groups.get(name)
        known = group.replicas.get(broker_id) if group is not None else None
        return verdict is IncarnationVerdict.REGISTERED or known is None or not known.incarnation

    def log_refusal(
        self, replica: BrokerIdentityInfo, heartbeat: Heartbeat, verdict: IncarnationVerdict
    ) -> None:
        """Logs once for each process why its heartbeats do not count."""
        _, name, broker_id = replica
        address, incarnation = heartbeat.address, incarnations.newest(heartbeat.lineage)
        known_refusal, now_ms = self._refusals.get(replica), self._state.now_ms
        if known_refusal is not None and (known_refusal.address, known_refusal.incarnation) == (
            address,
            incarnation,
        ):
            known_refusal.last_ms = now_ms
            return
        group, living = self._state.groups.get(name), self._state.alive(*replica)
        known = group.replicas.get(broker_id) if group is not None else None
        other = living.address if living is not None else known.address if known is not None else ""
        is_alive = living is not None and incarnations.is_other_process(
            living, heartbeat.lineage, heartbeat.address
        )
        text = incarnations.refusal_text(name, broker_id, verdict, address, other, is_alive=is_alive)
        self._refusals[replica] = Refusal(address, incarnation, text, now_ms)
        self._state.log(f"heartbeats do not count: {text}", is_warning=True)
