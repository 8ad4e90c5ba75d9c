"""Transfers the leadership of a DLedger group when an administrator asks for it, away from a drained peer,
and away from a peer that stops.

A drained peer may still be elected, because it may be the only one that has every committed entry. It then
transfers the leadership as soon as another peer has caught up, and rejects a leadership that another leader
transfers to it. While no other peer takes over, because all are drained or cannot win, the drained one leads,
and tries again after pauses that grow: each attempt rejects sends until the other peer has responded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from epochmq_broker.membership.dledger.commit_log_peer import CommitLogPeer, broker_id_of_peer
from epochmq_dledger.core.peer_progress import PeerProgress
from epochmq_dledger.core.types import RaftRole
from epochmq_dledger.results import RaftOperationError
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.dledger import (
    DLedgerRequestCode,
    DLedgerResponseCode,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    decode_body,
    encode_body,
)
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import request as frame_request
from epochmq_protocol.transport.client import RemotingClient

log = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 0.05
DRAIN_CHECK_MS: Final = 1000
"""How often a drained peer looks whether it leads, and the first pause after a failed attempt. The pause
doubles each time."""
DRAIN_PAUSE_MAX_S: Final = 10.0
"""The longest pause between two attempts of a drained leader."""
DRAIN_TRANSFER_MS: Final = 5000
"""The time in which a drained leader tries each other peer once."""
STOP_TRANSFER_S: Final = 1.5
"""The longest time that a stop waits for another leader. Without one the others elect it later."""
TAKEOVER_ATTEMPTS: Final = 4
TAKEOVER_PAUSE_S: Final = 0.7
"""How often an administrator's transfer asks a peer that does not take over, and the pause between. A peer
that has just started does not know the leader before its next heartbeat; a slow one needs more time."""
FOLLOW_S: Final = 2.0
"""How long a former leader waits until it knows the new leader's term."""

_REASONS: Final[Mapping[DLedgerResponseCode, str]] = {
    DLedgerResponseCode.NOT_LEADER: "this broker is not the master",
    DLedgerResponseCode.UNKNOWN_MEMBER: "it is no peer of this group",
    DLedgerResponseCode.FALL_BEHIND_TOO_MUCH: "it lacks too many entries of the log",
    DLedgerResponseCode.LEADER_TRANSFERRING: "another transfer has not ended yet",
    DLedgerResponseCode.TAKE_LEADERSHIP_FAILED: "it did not take over: it does not respond, or it is drained",
}
_TEMPORARY: Final = (
    DLedgerResponseCode.FALL_BEHIND_TOO_MUCH,
    DLedgerResponseCode.LEADER_TRANSFERRING,
    DLedgerResponseCode.TAKE_LEADERSHIP_FAILED,
)
"""Reasons that may be gone a moment later."""


def _pause_s(code: int) -> float:
    """The pause before a peer is asked again."""
    return TAKEOVER_PAUSE_S if code == DLedgerResponseCode.TAKE_LEADERSHIP_FAILED else POLL_INTERVAL_S


@dataclass(frozen=True, slots=True)
class CompletedTransfer:
    """A transfer of the leadership: the broker id and the term of the new leader, and how long the transfer
    took. The group rejected sends meanwhile."""

    master_id: int
    term: int
    took_ms: int


class Leadership:
    """The transfers of one peer. `stop` waits for a running one."""

    def __init__(self, commit_log: CommitLogPeer, is_drained: Callable[[], bool]) -> None:
        self._commit_log = commit_log
        self._is_drained = is_drained
        self._drain: asyncio.Task[None] | None = None
        self._drain_pause_s = 0.0
        self._next_drain_s = 0.0
        self._is_stopping = False
        commit_log.processor.may_take_over = lambda: not self._is_stopping and not is_drained()

    async def stop_leading(self) -> None:
        """Gives the leadership away, because this broker stops: the group then needs no election after a
        time-out. Takes no leadership any more. Waits for at most `STOP_TRANSFER_S`."""
        self._is_stopping = True
        if not self.leads or not self.candidates():
            return
        try:
            async with asyncio.timeout(STOP_TRANSFER_S):
                await self.give_away(STOP_TRANSFER_S * 1000, once=True)
        except (RequestError, TimeoutError) as error:
            why = error.remark if isinstance(error, RequestError) else f"not within {STOP_TRANSFER_S:g} s"
            log.warning("this broker stops as the leader of its group: %s", why)

    async def stop(self) -> None:
        """Waits until a transfer away from this drained peer has ended."""
        if self._drain is not None:
            await asyncio.gather(self._drain, return_exceptions=True)

    @property
    def leads(self) -> bool:
        """Whether this peer is the leader of its group."""
        return self._commit_log.has_joined and self._commit_log.peer.role is RaftRole.LEADER

    @property
    def broker_id(self) -> int:
        """The broker id of this peer."""
        return broker_id_of_peer(self._commit_log.peer.settings.self_id)

    @property
    def leader_id(self) -> int | None:
        """The broker id of the leader that this peer knows."""
        known = self._commit_log.peer.leader_id if self._commit_log.has_joined else None
        return None if known is None else broker_id_of_peer(known)

    @property
    def term(self) -> int:
        """The term of this peer."""
        return self._commit_log.peer.term if self._commit_log.has_joined else 0

    def candidates(self) -> list[int]:
        """The broker ids of the other peers that respond to this leader, the one with the most entries
        first."""
        leader = self._commit_log.peer.node.leader if self._commit_log.has_joined else None
        if leader is None:
            return []

        def rank(peer: PeerProgress) -> tuple[int, str]:
            return -peer.match_index, peer.name

        alive = sorted((one for one in leader.voters() if one.alive), key=rank)
        return [broker_id_of_peer(one.name) for one in alive]

    async def transfer(
        self, broker_id: int, timeout_ms: float, *, attempts: int = TAKEOVER_ATTEMPTS
    ) -> CompletedTransfer:
        """Transfers the leadership to the peer with this broker id; waits meanwhile until it has caught up.
        Asks it up to `attempts` times to take over. RequestError if that is impossible, or not possible in
        time."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        deadline_s = began_s + timeout_ms / 1000
        peer = self._commit_log.peer
        if not self.leads:
            raise RequestError(ResponseCode.SYSTEM_ERROR, _REASONS[DLedgerResponseCode.NOT_LEADER])
        name = next((one for one in peer.members if broker_id_of_peer(one) == broker_id), "")
        while True:
            try:
                await self._commit_log.transfer_leadership(name)
                break
            except RaftOperationError as error:
                attempts -= error.code == DLedgerResponseCode.TAKE_LEADERSHIP_FAILED
                may_retry = error.code in _TEMPORARY and attempts > 0
                if not may_retry or loop.time() >= deadline_s:
                    raise self._rejection(broker_id, error.code) from None
                await asyncio.sleep(_pause_s(error.code))
        took_ms = int((loop.time() - began_s) * 1000)
        await self._wait_follows(name)
        log.info("%s transferred the leadership to %s in %d ms", peer.settings.self_id, name, took_ms)
        return CompletedTransfer(broker_id, self.term, took_ms)

    async def request_transfer(
        self, client: RemotingClient, broker_id: int, timeout_ms: float
    ) -> CompletedTransfer:
        """Asks the leader to transfer the leadership to the peer with this broker id, by DLedger's request.
        The peers know the leader's address at once; its address for clients they learn with a later
        registration. RequestError if no leader is known or the leader rejects it; RetryableError if it does
        not respond."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        peer = self._commit_log.peer
        leader = peer.leader_id
        name = next((one for one in peer.members if broker_id_of_peer(one) == broker_id), None)
        if leader is None or name is None:
            code = DLedgerResponseCode.NOT_LEADER if leader is None else DLedgerResponseCode.UNKNOWN_MEMBER
            raise self._rejection(broker_id, code)
        request = LeadershipTransferRequest(
            group=peer.settings.group,
            remote_id=leader,
            local_id=peer.settings.self_id,
            transfer_id=leader,
            transferee_id=name,
            term=peer.term,
        )
        for attempts_left in range(TAKEOVER_ATTEMPTS - 1, -1, -1):
            command = frame_request(DLedgerRequestCode.LEADERSHIP_TRANSFER, body=encode_body(request))
            left_ms = timeout_ms - (loop.time() - began_s) * 1000
            answer = await client.call(peer.addresses[leader], command, max(left_ms, 1.0))
            found = decode_body(LeadershipTransferResponse, answer.body)
            if found.code == DLedgerResponseCode.SUCCESS:
                break
            if found.code not in _TEMPORARY or not attempts_left:
                raise self._rejection(broker_id, found.code)
            await asyncio.sleep(_pause_s(found.code))
        await self._wait_follows(name)
        return CompletedTransfer(broker_id, self.term, int((loop.time() - began_s) * 1000))

    def _rejection(self, broker_id: int, code: int) -> RequestError:
        try:
            reason = _REASONS.get(DLedgerResponseCode(code), DLedgerResponseCode(code).name)
        except ValueError:
            reason = f"code {code}"
        return RequestError(
            ResponseCode.SYSTEM_ERROR, f"broker {broker_id} cannot become the master: {reason}"
        )

    async def _wait_follows(self, leader: str) -> None:
        """Waits until this peer has heard the new leader, whose term it then knows."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + FOLLOW_S
        while True:
            if self._commit_log.peer.leader_id == leader or loop.time() >= deadline_s:
                return
            await asyncio.sleep(POLL_INTERVAL_S)

    async def give_away(self, timeout_ms: float, *, once: bool = False) -> CompletedTransfer:
        """Transfers the leadership to any other peer; tries the one with the most entries first, and each of
        them again until the time is over, or only `once`. RequestError if no peer takes over in time."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        why = "no other replica responds"
        while True:
            for broker_id in self.candidates():
                left_ms = (deadline_s - loop.time()) * 1000
                try:
                    return await self.transfer(broker_id, min(left_ms, timeout_ms / 2), attempts=1)
                except RequestError as error:
                    why = error.remark
            if once or loop.time() + POLL_INTERVAL_S >= deadline_s:
                raise RequestError(ResponseCode.SYSTEM_ERROR, f"no other replica became the master: {why}")
            await asyncio.sleep(POLL_INTERVAL_S)

    def check_drained(self) -> None:
        """Starts to transfer the leadership if this drained peer has it. Called every `DRAIN_CHECK_MS`."""
        loop = asyncio.get_running_loop()
        if self._drain is not None and not self._drain.done():
            return
        if not self._is_drained() or not self.leads:
            self._drain_pause_s = self._next_drain_s = 0.0
        elif loop.time() >= self._next_drain_s:
            self._drain = loop.create_task(self._give_away_drained(), name="give the leadership away")

    async def _give_away_drained(self) -> None:
        try:
            await self.give_away(DRAIN_TRANSFER_MS, once=True)
        except RequestError as error:
            self._drain_pause_s = min(max(2 * self._drain_pause_s, DRAIN_CHECK_MS / 1000), DRAIN_PAUSE_MAX_S)
            self._next_drain_s = asyncio.get_running_loop().time() + self._drain_pause_s
            log.warning(
                "this broker, which is drained, lacks the ends of queues or accepts no message, still leads "
                "its group, and tries again in %g s: %s",
                self._drain_pause_s,
                error.remark,
            )
