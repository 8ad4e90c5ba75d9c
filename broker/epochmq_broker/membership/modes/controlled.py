"""The mode of a broker under controllers (enableControllerMode, RIP-44)."""

from __future__ import annotations

from collections.abc import Mapping

from epochmq_broker.config import refusals
from epochmq_broker.config.refusals import SendRefusal
from epochmq_broker.membership.controlled.manager import ReplicasManager
from epochmq_broker.membership.controlled.role_transitions import ReplicaDependencies
from epochmq_broker.membership.modes.availability_mode import AvailabilityMode, GroupParts
from epochmq_broker.replication.ha.service import HARole
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_controller import ExchangeHAInfoRequestHeader
from epochmq_protocol.headers_namesrv import RegisterBrokerResponseHeader
from epochmq_protocol.replica_control import (
    SwitchoverRequestHeader,
    SwitchoverResponseHeader,
    format_broker_ids,
)
from epochmq_protocol.write_promise import WritePromiseRequestHeader, WritePromiseResponseHeader


class ControlledMode(AvailabilityMode):
    """Controllers elect the master, which writes while it holds a lease. The broker registers with the
    nameservers as soon as it has a role."""

    is_controlled = True
    can_drain = True

    def __init__(self, parts: GroupParts) -> None:
        super().__init__(parts)
        self.replicas = ReplicasManager(
            ReplicaDependencies(
                parts.live,
                parts.store,
                parts.writer,
                parts.ha,
                parts.tables.topics,
                parts.master_services,
                parts.held_pulls,
                parts.registration,
                parts.client,
                parts.slave_sync,
            )
        )
        self.gate = self.replicas.gate

    def load(self) -> None:
        """See `AvailabilityMode`."""
        self.replicas.load()

    async def start(self) -> None:
        """See `AvailabilityMode`."""
        self.replicas.start()

    async def leave(self) -> None:
        """See `AvailabilityMode`."""
        await self.replicas.stop()

    def takes_messages(self) -> bool:
        """See `AvailabilityMode`."""
        return super().takes_messages() and self.replicas.takes_messages()

    def refusal(self) -> SendRefusal | None:
        """See `AvailabilityMode`."""
        machine = self.replicas.started_state_machine
        if machine is not None and machine.refusal is not None:
            return refusals.store_refused(machine.refusal)
        return super().refusal()

    def _refusal_of_replica(self) -> SendRefusal | None:
        if self._parts.ha.doubt.current.in_doubt:
            return refusals.IN_DOUBT
        if self._parts.ha.role in (HARole.MASTER, HARole.REPLICA):
            return None
        machine = self.replicas.started_state_machine
        return refusals.starting(refusals.no_master_yet(machine.leader if machine is not None else None))

    def runtime_info(self) -> Mapping[str, str]:
        """Adds the id that the controllers gave to this broker, why they refuse its store, and what a person
        needs who has to rebuild the group (`epochmq controllers adopt`)."""
        machine, doubt = self.replicas.started_state_machine, self._parts.ha.doubt
        if machine is None or machine.identity is None:
            return {}
        view, sync = machine.latest_master_view, self._parts.ha.sync_state
        known = view.epoch if view is not None else 0
        members = sync.members_or_proposed if sync is not None else view.members if view is not None else ()
        found = {
            "replicaId": str(machine.identity.id),
            "replicaGroup": machine.identity.name,
            "replicaCluster": machine.identity.cluster,
            "knownMasterEpoch": str(max(known, self._parts.ha.epochs.epochs.last_epoch)),
            "knownMembers": format_broker_ids(members),
            "writtenEpoch": str(doubt.written_epoch),
            "mayLackAcknowledged": str(doubt.may_lack_acknowledged).lower(),
        }
        return found if machine.refusal is None else {**found, "storeRefused": machine.refusal}

    def registered(self, response: RegisterBrokerResponseHeader) -> None:
        """Nothing follows: controllers name the master, and a nameserver may still name the former one."""

    def master_announced(self, header: ExchangeHAInfoRequestHeader) -> None:
        """Nothing follows, for the same reason."""

    def role_notified(self, command: Command, *, verified: bool = True) -> None:
        """See `AvailabilityMode`. One whose sender is not known makes this broker ask the leading controller,
        as controllers do not sign their notifications."""
        self.replicas.role_notified(command, verified=verified)

    def write_promised(self, header: WritePromiseRequestHeader) -> WritePromiseResponseHeader:
        """See `AvailabilityMode`."""
        return self.replicas.promises.answer(header)

    async def settle_store(self, *, adopt: bool, timeout_ms: int) -> int:
        """See `AvailabilityMode`."""
        return await self.replicas.refused_store.settle(adopt=adopt, timeout_ms=timeout_ms)

    async def switch_over(self, header: SwitchoverRequestHeader, timeout_ms: int) -> SwitchoverResponseHeader:
        """See `AvailabilityMode`."""
        switched = await self.replicas.switchover.switch_to(header.broker_id, header.address, timeout_ms)
        return SwitchoverResponseHeader(
            master_broker_id=switched.master_id,
            master_address=switched.master_address,
            master_epoch=switched.master_epoch,
            held_ms=switched.held_ms,
        )
