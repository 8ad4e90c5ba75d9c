"""Serves DLedger's request codes on a remoting server, for peers and clients of a group
(`DLedgerRpcNettyService`).

The remoting code of a response is always 200; the result is in its body. A request that arrives before the
peer is started gets no response, as from Java. One that cannot be decoded gets SYSTEM_ERROR and is counted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from epochmq_dledger.call_frames import response_frame
from epochmq_dledger.core.types import RaftRole
from epochmq_dledger.peer import DLedgerPeer
from epochmq_dledger.peer_addresses import is_valid_member
from epochmq_dledger.results import AppendResult, RaftOperationError
from epochmq_protocol.dledger import (
    REQUEST_TYPES,
    AppendEntryRequest,
    AppendEntryResponse,
    ChangeMembersRequest,
    ChangeMembersResponse,
    DLedgerRequestCode,
    DLedgerResponseCode,
    GetEntriesRequest,
    GetEntriesResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    MetadataRequest,
    MetadataResponse,
    RequestOrResponse,
    decode_body,
    encode_body,
)
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.frame import Command
from epochmq_protocol.frame import response as make_response
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

R = TypeVar("R", bound=RequestOrResponse)


class DLedgerProcessor:
    """The handlers of one peer's port."""

    def __init__(self, peer: DLedgerPeer) -> None:
        self._peer = peer
        self.may_take_over: Callable[[], bool] = lambda: True
        """Whether the peer accepts a leadership that the leader transfers to it."""
        self._leaders: dict[RemotingConnection, str] = {}
        """The leader that sends heartbeats over a connection."""

    def handlers(self) -> dict[int, RequestHandler]:
        """The handlers by request code. A server may serve other codes on the same port."""
        return {
            DLedgerRequestCode.VOTE: self._pass_to_core,
            DLedgerRequestCode.HEART_BEAT: self._heartbeat,
            DLedgerRequestCode.PUSH: self._pass_to_core,
            DLedgerRequestCode.LEADERSHIP_TRANSFER: self._transfer,
            DLedgerRequestCode.APPEND: self._append,
            DLedgerRequestCode.GET: self._get,
            DLedgerRequestCode.METADATA: self._metadata,
            DLedgerRequestCode.INSTALL_SNAPSHOT: self._pass_to_core,
            DLedgerRequestCode.CHANGE_MEMBERS: self._members,
        }

    def _decode(self, kind: type[R], command: Command) -> R:
        """The body of a request. RemoteProtocolError: malformed; it is counted."""
        try:
            return decode_body(kind, command.body)
        except RemoteProtocolError:
            self._peer.malformed_requests += 1
            raise

    def _pass_to_core(self, connection: RemotingConnection, command: Command) -> None:
        """Passes a peer's request to the core, which responds later."""
        self._pass(connection, command, self._decode(REQUEST_TYPES[command.code], command))

    def _pass(self, connection: RemotingConnection, command: Command, request: RequestOrResponse) -> None:
        connection.defer(command.opaque)

        opaque = command.opaque

        def respond(response: RequestOrResponse | None) -> None:
            if response is None:
                connection.abandon(opaque)
                return
            connection.respond_encoded(opaque, response_frame(opaque, encode_body(response)))

        self._peer.handle_request(request, respond)

    def _heartbeat(self, connection: RemotingConnection, command: Command) -> None:
        """Passes a leader's heartbeat to the core, and watches the connection: its end means that the leader
        may have died."""
        request = self._decode(REQUEST_TYPES[command.code], command)
        if request.local_id is not None:
            if connection not in self._leaders:
                connection.on_close.append(self._on_close)
            self._leaders[connection] = request.local_id
        self._pass(connection, command, request)

    def _on_close(self, connection: RemotingConnection) -> None:
        leader = self._leaders.pop(connection, None)
        if leader is not None and leader not in self._leaders.values():
            self._peer.leader_disconnected(leader)

    def _rejection_code(self, request: RequestOrResponse, *, by_leader: bool) -> DLedgerResponseCode | None:
        settings = self._peer.settings
        if request.remote_id != settings.self_id:
            return DLedgerResponseCode.UNKNOWN_MEMBER
        if request.group != settings.group:
            return DLedgerResponseCode.UNKNOWN_GROUP
        if by_leader and self._peer.role is not RaftRole.LEADER:
            return DLedgerResponseCode.NOT_LEADER
        return None

    def _append(self, connection: RemotingConnection, command: Command) -> Command | None:
        """Appends entries, and responds once they are committed."""
        request = self._decode(AppendEntryRequest, command)
        response = AppendEntryResponse(leader_id=self._peer.leader_id, term=self._peer.term)
        code = self._rejection_code(request, by_leader=True)
        bodies = request.batch_msgs if request.batch_msgs is not None else [request.body or b""]
        if code is None and not all(len(body) in self._peer.log.body_sizes for body in bodies):
            code = DLedgerResponseCode.UNEXPECTED_ARGUMENT
        if code is None:
            connection.defer(command.opaque)

            def done(outcome: AppendResult | RaftOperationError) -> None:
                failure = None
                if isinstance(outcome, RaftOperationError):
                    failure = outcome.code
                else:
                    response.index, response.pos, response.term = outcome.index, outcome.pos, outcome.term
                body = encode_body(_with_code(response, request, failure))
                connection.respond_encoded(command.opaque, response_frame(command.opaque, body))

            self._peer.submit(tuple(bodies), done)
            return None
        return _envelope(command, _with_code(response, request, code))

    def _get(self, _: RemotingConnection, command: Command) -> Command:
        """Reads one committed entry. Only the leader serves it."""
        request = self._decode(GetEntriesRequest, command)
        response = GetEntriesResponse(leader_id=self._peer.leader_id)
        code = self._rejection_code(request, by_leader=True)
        if code is None:
            index = request.begin_index if request.begin_index is not None else -1
            entry = self._peer.log.entry(index) if index <= self._peer.committed_index else None
            if entry is None:
                code = DLedgerResponseCode.INDEX_OUT_OF_RANGE
            else:
                response.entries = [entry]
        return _envelope(command, _with_code(response, request, code))

    def _metadata(self, _: RemotingConnection, command: Command) -> Command:
        request = self._decode(MetadataRequest, command)
        response = MetadataResponse(leader_id=self._peer.leader_id, peers=self._peer.members)
        return _envelope(
            command, _with_code(response, request, self._rejection_code(request, by_leader=False))
        )

    def _transfer(
        self, connection: RemotingConnection, command: Command
    ) -> Command | Awaitable[Command] | None:
        """Passes the request to the core of the transferee; the leader transfers its leadership."""
        request = self._decode(LeadershipTransferRequest, command)
        if request.transfer_id == self._peer.settings.self_id:
            return self._transfer_leadership(command, request)
        if not self.may_take_over():
            response = LeadershipTransferResponse(leader_id=self._peer.leader_id, term=self._peer.term)
            code = DLedgerResponseCode.TAKE_LEADERSHIP_FAILED
            return _envelope(command, _with_code(response, request, code))
        self._pass_to_core(connection, command)
        return None

    async def _transfer_leadership(self, command: Command, request: LeadershipTransferRequest) -> Command:
        response = LeadershipTransferResponse(leader_id=self._peer.leader_id, term=self._peer.term)
        code = self._rejection_code(request, by_leader=False)
        if code is None and request.transferee_id not in self._peer.members:
            code = DLedgerResponseCode.UNKNOWN_MEMBER
        if code is None and request.term != self._peer.term:
            code = DLedgerResponseCode.INCONSISTENT_TERM
        if code is None:
            try:
                await self._peer.transfer_leadership(request.transferee_id or "")
            except RaftOperationError as error:
                code = error.code
        return _envelope(command, _with_code(response, request, code))

    def _members(self, _: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Any peer returns the members and the name of the group, which the sender need not know. The leader
        changes them, and responds once the change is committed."""
        request = self._decode(ChangeMembersRequest, command)
        if request.peer_id is not None:
            return self._change_members(command, request, request.peer_id)
        request.group = self._peer.settings.group
        return _envelope(command, _with_code(self._members_response(), request, None))

    def _members_response(self) -> ChangeMembersResponse:
        peer = self._peer
        return ChangeMembersResponse(leader_id=peer.leader_id, term=peer.term, members=peer.members)

    async def _change_members(self, command: Command, request: ChangeMembersRequest, peer_id: str) -> Command:
        code = self._rejection_code(request, by_leader=True)
        if code is None and not is_valid_member(peer_id, request.address):
            code = DLedgerResponseCode.UNEXPECTED_ARGUMENT
        if code is None:
            try:
                await self._peer.change_members(peer_id, request.address)
            except RaftOperationError as error:
                code = error.code
        return _envelope(command, _with_code(self._members_response(), request, code))


def _with_code(
    response: RequestOrResponse, request: RequestOrResponse, code: DLedgerResponseCode | None
) -> RequestOrResponse:
    response.group = request.group
    response.code = code if code is not None else DLedgerResponseCode.SUCCESS
    return response


def _envelope(command: Command, response: RequestOrResponse) -> Command:
    return make_response(command, DLedgerResponseCode.SUCCESS, body=encode_body(response))
