"""DLedger's calls on a remoting server: what peers and clients of a group may ask (`DLedgerRpcNettyService`).

An answer's remoting code is always 200; what happened stands in its body. A call that cannot be read, or a
peer that is not started yet, gets no answer, as from Java.
"""

from __future__ import annotations

from collections.abc import Awaitable

from epochmq_dledger.core.types import RaftRole
from epochmq_dledger.peer import DLedgerPeer
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
from epochmq_protocol.frame import Command, encode
from epochmq_protocol.frame import response as make_response
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler


class DLedgerProcessor:
    """The handlers of one peer's port."""

    def __init__(self, peer: DLedgerPeer) -> None:
        self._peer = peer
        self._leaders: dict[RemotingConnection, str] = {}
        """Who sends heartbeats over a connection."""

    def handlers(self) -> dict[int, RequestHandler]:
        """By request code, to be joined with whatever else listens on the port."""
        return {
            DLedgerRequestCode.VOTE: self._core,
            DLedgerRequestCode.HEART_BEAT: self._heartbeat,
            DLedgerRequestCode.PUSH: self._core,
            DLedgerRequestCode.LEADERSHIP_TRANSFER: self._transfer,
            DLedgerRequestCode.APPEND: self._append,
            DLedgerRequestCode.GET: self._get,
            DLedgerRequestCode.METADATA: self._metadata,
            DLedgerRequestCode.INSTALL_SNAPSHOT: self._core,
            DLedgerRequestCode.CHANGE_MEMBERS: self._members,
        }

    def _core(self, connection: RemotingConnection, command: Command) -> None:
        """A peer's call goes to the core, which answers when it may."""
        self._pass_on(connection, command, decode_body(REQUEST_TYPES[command.code], command.body))

    def _pass_on(self, connection: RemotingConnection, command: Command, request: RequestOrResponse) -> None:
        connection.defer(command.opaque)

        def reply(answer: RequestOrResponse) -> None:
            connection.respond_encoded(command.opaque, encode(_envelope(command, answer)))

        self._peer.handle_request(request, reply)

    def _heartbeat(self, connection: RemotingConnection, command: Command) -> None:
        """A leader's; the end of its connection is news of it."""
        request = decode_body(REQUEST_TYPES[command.code], command.body)
        if request.local_id is not None:
            if connection not in self._leaders:
                connection.on_close.append(self._closed)
            self._leaders[connection] = request.local_id
        self._pass_on(connection, command, request)

    def _closed(self, connection: RemotingConnection) -> None:
        leader = self._leaders.pop(connection, None)
        if leader is not None and leader not in self._leaders.values():
            self._peer.leader_disconnected(leader)

    def _refusal(self, request: RequestOrResponse, *, by_leader: bool) -> DLedgerResponseCode | None:
        settings = self._peer.settings
        if request.remote_id != settings.self_id:
            return DLedgerResponseCode.UNKNOWN_MEMBER
        if request.group != settings.group:
            return DLedgerResponseCode.UNKNOWN_GROUP
        if by_leader and self._peer.role is not RaftRole.LEADER:
            return DLedgerResponseCode.NOT_LEADER
        return None

    def _append(self, connection: RemotingConnection, command: Command) -> Command | None:
        """Answered once the entries are committed."""
        request = decode_body(AppendEntryRequest, command.body)
        answer = AppendEntryResponse(leader_id=self._peer.leader_id, term=self._peer.term)
        code = self._refusal(request, by_leader=True)
        if code is None:
            bodies = request.batch_msgs if request.batch_msgs is not None else [request.body or b""]
            connection.defer(command.opaque)

            def done(outcome: AppendResult | RaftOperationError) -> None:
                refusal = None
                if isinstance(outcome, RaftOperationError):
                    refusal = outcome.code
                else:
                    answer.index, answer.pos, answer.term = outcome.index, outcome.pos, outcome.term
                envelope = _envelope(command, _with_code(answer, request, refusal))
                connection.respond_encoded(command.opaque, encode(envelope))

            self._peer.submit(tuple(bodies), done)
            return None
        return _envelope(command, _with_code(answer, request, code))

    def _get(self, _: RemotingConnection, command: Command) -> Command:
        """Reads one committed entry, at the leader only."""
        request = decode_body(GetEntriesRequest, command.body)
        answer = GetEntriesResponse(leader_id=self._peer.leader_id)
        code = self._refusal(request, by_leader=True)
        if code is None:
            index = request.begin_index if request.begin_index is not None else -1
            entry = self._peer.log.entry(index) if index <= self._peer.committed_index else None
            if entry is None:
                code = DLedgerResponseCode.INDEX_OUT_OF_RANGE
            else:
                answer.entries = [entry]
        return _envelope(command, _with_code(answer, request, code))

    def _metadata(self, _: RemotingConnection, command: Command) -> Command:
        request = decode_body(MetadataRequest, command.body)
        answer = MetadataResponse(leader_id=self._peer.leader_id, peers=self._peer.members)
        return _envelope(command, _with_code(answer, request, self._refusal(request, by_leader=False)))

    def _transfer(self, connection: RemotingConnection, command: Command) -> Awaitable[Command] | None:
        """To the transferee it is a peer's call; to the leader an order to hand over."""
        request = decode_body(LeadershipTransferRequest, command.body)
        if request.transfer_id == self._peer.settings.self_id:
            return self._hand_over(command, request)
        self._core(connection, command)
        return None

    async def _hand_over(self, command: Command, request: LeadershipTransferRequest) -> Command:
        answer = LeadershipTransferResponse(leader_id=self._peer.leader_id, term=self._peer.term)
        code = self._refusal(request, by_leader=True)
        if code is None and request.term != self._peer.term:
            code = DLedgerResponseCode.INCONSISTENT_TERM
        if code is None:
            try:
                await self._peer.transfer_leadership(request.transferee_id or "")
            except RaftOperationError as error:
                code = error.code
        return _envelope(command, _with_code(answer, request, code))

    def _members(self, _: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Who belongs to the group, from any peer; a change, from the leader, once it is committed."""
        request = decode_body(ChangeMembersRequest, command.body)
        if request.peer_id is not None:
            return self._change(command, request, request.peer_id)
        code = self._refusal(request, by_leader=False)
        return _envelope(command, _with_code(self._who(), request, code))

    def _who(self) -> ChangeMembersResponse:
        peer = self._peer
        return ChangeMembersResponse(leader_id=peer.leader_id, term=peer.term, members=peer.members)

    async def _change(self, command: Command, request: ChangeMembersRequest, peer_id: str) -> Command:
        code = self._refusal(request, by_leader=True)
        if code is None and not _is_member(peer_id, request.address):
            code = DLedgerResponseCode.UNEXPECTED_ARGUMENT
        if code is None:
            try:
                await self._peer.change_members(peer_id, request.address)
            except RaftOperationError as error:
                code = error.code
        return _envelope(command, _with_code(self._who(), request, code))


def _is_member(peer_id: str, address: str | None) -> bool:
    """Whether these can stand in a list of peers."""
    if address is None:
        return True
    try:
        return parse_peers(f"{peer_id}-{address}") == {peer_id: address}
    except ValueError:
        return False


def _with_code(
    answer: RequestOrResponse, request: RequestOrResponse, code: DLedgerResponseCode | None
) -> RequestOrResponse:
    answer.group = request.group
    answer.code = code if code is not None else DLedgerResponseCode.SUCCESS
    return answer


def _envelope(command: Command, answer: RequestOrResponse) -> Command:
    return make_response(command, DLedgerResponseCode.SUCCESS, body=encode_body(answer))


def parse_peers(text: str) -> dict[str, str]:
    """`n0-host:port;n1-host:port` as id to address. An id ends at the first dash, so a host may have dashes.

    ValueError names what is wrong."""
    peers: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, dash, address = part.partition("-")
        host, colon, port = address.rpartition(":")
        if not (name and dash and host and colon and port.isdigit()):
            raise ValueError(f"{part!r}, expected id-host:port")
        if name in peers:
            raise ValueError(f"{part!r}: the id {name} is there twice")
        peers[name] = address
    if not peers:
        raise ValueError(f"{text!r}, expected id-host:port;id-host:port;…")
    return peers
