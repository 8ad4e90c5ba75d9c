"""The mode of a broker in a group with an acting master (enableSlaveActingMaster, RIP-32)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from epochmq_broker.membership.acting.group_report import GroupReporter
from epochmq_broker.membership.acting.isolation import IsolationGate, starts_isolated
from epochmq_broker.membership.acting.member_group_service import MemberGroupDependencies, MemberGroupService
from epochmq_broker.membership.acting.pre_online import PreOnlineStep
from epochmq_broker.membership.acting.pre_online_service import PreOnlineService, poll_all_members
from epochmq_broker.membership.acting.table_return import TableReturn
from epochmq_broker.membership.modes.availability_mode import AvailabilityMode, GroupParts
from epochmq_protocol.headers_controller import NotifyMinBrokerIdChangeRequestHeader
from epochmq_protocol.headers_namesrv import RegisterBrokerResponseHeader


class ActingMasterMode(AvailabilityMode):
    """The living brokers of the group decide who acts for a master that is down."""

    def __init__(self, parts: GroupParts) -> None:
        super().__init__(parts)
        config = parts.live.current
        self.group = MemberGroupService(
            MemberGroupDependencies(
                parts.live,
                parts.client,
                parts.registration,
                parts.ha,
                parts.slave_sync,
                parts.master_services,
                parts.special_services,
                parts.held_pulls.release,
            )
        )
        if starts_isolated(config):
            self.isolation = IsolationGate(closed=config.broker_id == 0)
        self.reporter = GroupReporter(self.group, parts.escape, self._pre_online_step)
        self._pre_online: PreOnlineService | None = None

    async def start(self) -> None:
        """Goes into service by the steps of pre-online, or at once if this broker does not start isolated
        (startServiceWithoutCondition)."""
        parts, group = self._parts, self.group
        config = parts.live.current
        parts.lock_quorum.members = group.members
        group.start()
        if self.isolation is None:
            group.start_service(0, config.client_addr if config.broker_id == 0 else None)
            return
        tables = TableReturn(
            parts.client,
            parts.store,
            parts.tables.offsets,
            parts.delays,
            parts.timer,
            parts.tables.files.persist_offsets,
        )
        members = partial(poll_all_members, parts.client, parts.live)
        self._pre_online = PreOnlineService(
            parts.live, parts.ha, parts.client, tables, members, partial(self._go_online, self.isolation)
        )
        self._pre_online.start()

    def _go_online(self, isolation: IsolationGate, min_broker_id: int, min_broker_address: str) -> None:
        isolation.open()
        self.group.start_service(min_broker_id, min_broker_address)

    async def leave(self) -> None:
        """See `AvailabilityMode`."""
        if self._pre_online is not None:
            await self._pre_online.stop()
        await self.group.stop()

    def _pre_online_step(self) -> PreOnlineStep | None:
        return None if self._pre_online is None else self._pre_online.core.step

    def runtime_info(self) -> Mapping[str, str]:
        """See `GroupReporter.runtime_info`."""
        return self.reporter.runtime_info()

    def registered(self, response: RegisterBrokerResponseHeader) -> None:
        """See `AvailabilityMode`."""
        self.group.registered(response)

    def min_id_changed(self, header: NotifyMinBrokerIdChangeRequestHeader) -> None:
        """See `AvailabilityMode`."""
        self.group.min_id_changed(header)

    def min_id_may_have_changed(self) -> None:
        """Asks the nameservers for the group, as they do not sign their notifications."""
        self.group.poll_now()
