"""Runs the transfers of a DLedger group's leadership that an administrator requests over this broker's admin
API: this broker gives its leadership away (handover), or a chosen replica takes it (promote). And makes the
changes of the group's members that are requested there."""

from __future__ import annotations

from epochmq_broker.membership.dledger.commit_log_peer import CommitLogPeer
from epochmq_broker.membership.dledger.leadership import CompletedTransfer, Leadership
from epochmq_dledger.requested_changes import change_members
from epochmq_protocol.admin_api.messages import AdminError, FaultKind
from epochmq_protocol.admin_api.operations import ChangeMembersArguments
from epochmq_protocol.admin_api.results import MembersResult, SwitchoverResult
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.group_members import BROKERS


class LeadershipOperations:
    """The operations of one broker."""

    def __init__(self, commit_log: CommitLogPeer, leadership: Leadership, client: RemotingClient) -> None:
        self._commit_log = commit_log
        self._leadership = leadership
        self._client = client

    async def stop(self) -> None:
        """Ends the operations. The core of the peer ends a transfer that has begun."""

    async def handover(self, timeout_ms: float) -> SwitchoverResult:
        """Gives the leadership to another peer; tries the one with the most entries first. Returns at once
        with `moved=False` if this broker does not lead, or if no other peer responds. Raises RequestError if
        no peer took over in time."""
        leadership = self._leadership
        if not leadership.leads:
            return self._not_moved("this broker is not the master")
        if not leadership.candidates():
            return self._not_moved("no other replica is connected")
        return _result(await leadership.give_away(timeout_ms))

    async def linger(self, linger_ms: float) -> None:
        """Returns at once: a former leader relays no requests."""

    async def promote(self, broker_id: int | None, timeout_ms: float) -> SwitchoverResult:
        """Makes a replica the leader: the one with this id, or without an id this broker. Raises AdminError
        or RequestError if that is impossible."""
        leadership = self._leadership
        wanted = leadership.broker_id if broker_id is None else broker_id
        if wanted == leadership.leader_id:
            return self._not_moved(f"broker {wanted} is the master already")
        if leadership.leads:
            return _result(await leadership.transfer(wanted, timeout_ms))
        if leadership.leader_id is None:
            raise AdminError(FaultKind.REFUSED, "this broker knows no master to ask for the leadership")
        return _result(await leadership.request_transfer(self._client, wanted, timeout_ms))

    async def change_members(self, wanted: ChangeMembersArguments, timeout_ms: float) -> MembersResult:
        """Adds or removes one broker, and waits until the change is committed. A leader that is to be removed
        transfers its leadership, and rejects the request. Raises AdminError or RequestError if the change
        cannot be made now."""
        peer = self._commit_log.peer
        if not self._commit_log.has_joined:
            raise AdminError(FaultKind.REFUSED, "this broker has not joined its group yet")
        leads_and_leaves = wanted.address is None and wanted.member == peer.settings.self_id
        if leads_and_leaves and self._leadership.candidates():
            await self._leadership.give_away(timeout_ms)
        return await change_members(peer, wanted, BROKERS)

    def _not_moved(self, reason: str) -> SwitchoverResult:
        return SwitchoverResult(
            moved=False,
            reason=reason,
            master_broker_id=self._leadership.leader_id,
            master_epoch=self._leadership.term,
        )


def _result(done: CompletedTransfer) -> SwitchoverResult:
    return SwitchoverResult(
        moved=True, master_broker_id=done.master_id, master_epoch=done.term, held_ms=done.took_ms
    )
