# pure: which heartbeats count
"""Decides whether a heartbeat counts: not if its process must not act under its broker id
(`incarnations`)."""

from __future__ import annotations

from epochmq_controller.replica_groups import incarnations
from epochmq_controller.replica_groups.controller_tables import ControllerTables
from epochmq_controller.replica_groups.heartbeats import BrokerIdentityInfo, Heartbeat
from epochmq_controller.replica_groups.incarnations import IncarnationVerdict


class ProcessAdmission:
    """The admission of the processes that send heartbeats to one controller."""

    def __init__(self, state: ControllerTables) -> None:
        self._state = state
        self._logged: dict[BrokerIdentityInfo, tuple[str, str]] = {}
        """By broker id: address and incarnation of the process whose refusal was logged last."""

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
        process = heartbeat.address, incarnations.newest(heartbeat.lineage)
        if self._logged.get(replica) == process:
            return
        self._logged[replica] = process
        group, living = self._state.groups.get(name), self._state.alive(*replica)
        known = group.replicas.get(broker_id) if group is not None else None
        address = living.address if living is not None else known.address if known is not None else ""
        is_alive = living is not None and incarnations.is_other_process(
            living, heartbeat.lineage, heartbeat.address
        )
        text = incarnations.refusal_text(
            name, broker_id, verdict, heartbeat.address, address, is_alive=is_alive
        )
        self._state.log(f"heartbeats do not count: {text}", is_warning=True)
