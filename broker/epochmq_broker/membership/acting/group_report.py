"""Reports what a broker is in a group without controllers: its role, since when it acts for the master, what
keeps it isolated, and what has left for other groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from epochmq_broker.membership.acting.member_group import GroupRole
from epochmq_broker.membership.acting.member_group_service import MemberGroupService
from epochmq_broker.membership.acting.pre_online import (
    AnnounceMaster,
    AskMaster,
    AskMembers,
    AwaitMaster,
    AwaitRetry,
    AwaitSlave,
    GoOnline,
    MeasureLag,
    PreOnlineStep,
    TakeBackTables,
)
from epochmq_broker.writing.escape.bridge import EscapeBridge
from epochmq_protocol.admin_api import results

ROLES: Final[dict[GroupRole, results.GroupRoleName]] = {
    GroupRole.ISOLATED: "isolated",
    GroupRole.MASTER: "master",
    GroupRole.ACTING_MASTER: "acting",
    GroupRole.SLAVE: "slave",
}


class GroupReporter:
    """The report of one broker. `step` returns the present step of its pre-online phase, None without one."""

    def __init__(
        self,
        group: MemberGroupService,
        escape: EscapeBridge,
        step: Callable[[], PreOnlineStep | None],
    ) -> None:
        self._group = group
        self._escape = escape
        self._step = step

    def state(self) -> results.MemberGroupState:
        """The present state."""
        group, known = self._group, self._group.group
        step = self._step()
        escape = [
            results.EscapeState(
                kind=kind.value,
                escaped=counts.escaped,
                waiting=self._escape.waiting(kind),
                failed=counts.failed,
            )
            for kind, counts in self._escape.counts.items()
        ]
        return results.MemberGroupState(
            role=ROLES[known.role],
            acting_since_ms=group.acting_since_ms,
            isolated_because=describe_step(step) if group.isolated and step is not None else "",
            min_broker_id=known.min_broker_id,
            alive_replicas=known.alive_replicas,
            escape=escape,
        )

    def runtime_info(self) -> dict[str, str]:
        """The entries that EpochMQ adds to RocketMQ's runtime information: the role, when the broker began to
        act for its master (milliseconds since 1970; absent if it does not act), what keeps it isolated, and
        the messages that have left for other groups and that wait to leave."""
        state = self.state()
        found = {
            "groupRole": state.role,
            "escapedMessages": str(sum(one.escaped for one in state.escape)),
            "escapeWaitingMessages": str(sum(one.waiting for one in state.escape)),
        }
        if state.acting_since_ms is not None:
            found["actingSince"] = str(state.acting_since_ms)
        if state.isolated_because:
            found["isolatedBecause"] = state.isolated_because
        return found


def describe_step(step: PreOnlineStep) -> str:
    """What a broker does in this step of its pre-online phase, in words."""
    match step:
        case AskMembers():
            return "asks the nameservers which members of its group are alive"
        case AnnounceMaster(address=address) | AwaitSlave(address=address):
            return f"waits until the slave {address} follows its log"
        case TakeBackTables(address=address):
            return f"takes the tables of the slave {address} back"
        case AskMaster(address=address):
            return f"asks the master {address} for its HA address"
        case AwaitMaster(ha_address=address):
            return f"connects to the master's HA port {address}"
        case MeasureLag(address=address):
            return f"copies the log of the master {address}"
        case AwaitRetry(why=why):
            return f"tries again: {why}"
        case GoOnline():
            return "goes online"
