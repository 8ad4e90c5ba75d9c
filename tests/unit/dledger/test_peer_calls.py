"""The requests of a peer reach other peers over one connection, and each gets its response or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from epochmq_dledger.call_frames import request_frame, response_frame
from epochmq_dledger.core.types import CallCompleted, RaftInput, RaftSettings, SendRequest
from epochmq_dledger.peer_calls import PeerCalls
from epochmq_dledger.peer_context import PeerContext
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.dledger import (
    DLedgerRequestCode,
    HeartBeatRequest,
    HeartBeatResponse,
    decode_body,
    encode_body,
)
from epochmq_protocol.frame import Command, encode, request, response
from epochmq_protocol.transport import RemotingClient, RemotingConnection, RemotingServer
from tests.support.net import loopback

HEART_BEAT = DLedgerRequestCode.HEART_BEAT
TIMEOUT_MS = 200
DEADLINE_S = 30
OPAQUES = st.integers(0, 2**31 - 1)


class OtherPeer:
    """Responds to heartbeats with their term, or as `behave` says. Counts its connections."""

    def __init__(self) -> None:
        self.behave: Callable[[RemotingConnection, Command], Command | None] = self.respond
        self.connections = 0
        self.server = RemotingServer({HEART_BEAT: self._handle}, on_connect=self._connected)

    def _connected(self, _: RemotingConnection) -> None:
        self.connections += 1

    def _handle(self, connection: RemotingConnection, command: Command) -> Command | None:
        return self.behave(connection, command)

    @staticmethod
    def respond(_: RemotingConnection, command: Command) -> Command:
        term = decode_body(HeartBeatRequest, command.body).term
        return response(command, 200, body=encode_body(HeartBeatResponse(term=term)))


class Stage:
    """A peer's calls, and what its core gets."""

    def __init__(self, folder: Path, other: OtherPeer) -> None:
        self.other = other
        self.context = PeerContext(
            RaftSettings(group="g", self_id="n0", peers=("n0", "n1"), rpc_timeout_ms=TIMEOUT_MS), folder
        )
        self.client = RemotingClient()
        address = f"{other.server.host}:{other.server.port}"
        self.calls = PeerCalls(self.context, self.client, {"n1": address})
        self.completed: asyncio.Queue[CallCompleted] = asyncio.Queue()
        self.context.feed = self._feed

    def _feed(self, event: RaftInput) -> None:
        assert isinstance(event, CallCompleted)
        self.completed.put_nowait(event)

    def send(self, term: int) -> None:
        self.calls.start(SendRequest("n1", term, HeartBeatRequest(term=term)))

    async def result(self) -> tuple[int, int | None]:
        """(context, term of the response) of the next completed call."""
        async with asyncio.timeout(DEADLINE_S):
            event = await self.completed.get()
        assert isinstance(event.request, HeartBeatRequest)
        assert event.context == event.request.term
        return event.context, None if event.response is None else event.response.term

    async def call(self, term: int) -> int | None:
        self.send(term)
        context, found = await self.result()
        assert context == term
        return found


@asynccontextmanager
async def stage_of(folder: Path) -> AsyncIterator[Stage]:
    other = OtherPeer()
    await other.server.start(loopback(57), 0)
    stage = Stage(folder, other)
    try:
        yield stage
    finally:
        stage.context.is_stopping = True
        await stage.calls.stop()
        await stage.client.close()
        await other.server.stop(1)
        stage.context.sync_worker.close()
        stage.context.file_worker.close()


@given(st.sampled_from(DLedgerRequestCode), OPAQUES, st.binary(max_size=2000))
def test_frames_are_those_of_the_general_encoder(code: DLedgerRequestCode, opaque: int, body: bytes) -> None:
    command = request(code, body=body)
    command.opaque = opaque
    assert request_frame(code, opaque, body) == encode(command)
    assert response_frame(opaque, body) == encode(response(command, 200, body=body))


async def test_the_first_request_connects_and_all_get_their_own_responses(tmp_path: Path) -> None:
    async with stage_of(tmp_path) as stage:
        assert await stage.call(1) == 1
        for term in range(2, 50):
            stage.send(term)
        assert [await stage.result() for _ in range(2, 50)] == [(term, term) for term in range(2, 50)]
        assert stage.other.connections == 1


async def test_a_request_without_a_response_completes_at_its_timeout(tmp_path: Path) -> None:
    async with stage_of(tmp_path) as stage:
        assert await stage.call(1) == 1
        stage.other.behave = lambda _, command: None
        assert await stage.call(2) is None
        stage.other.behave = stage.other.respond
        assert await stage.call(3) == 3


async def test_requests_complete_when_the_connection_is_lost_and_the_next_one_connects(
    tmp_path: Path,
) -> None:
    async with stage_of(tmp_path) as stage:
        assert await stage.call(1) == 1
        stage.other.behave = lambda connection, _: connection.abort()
        assert await stage.call(2) is None
        stage.other.behave = stage.other.respond
        assert await stage.call(3) == 3
        assert stage.other.connections == 2


async def test_a_malformed_response_counts_as_none(tmp_path: Path) -> None:
    async with stage_of(tmp_path) as stage:
        assert await stage.call(1) == 1
        stage.other.behave = lambda _, command: response(command, 200, body=b'{"term":[]}')
        assert await stage.call(2) is None


async def test_a_request_to_a_stopping_peer_is_repeated_over_a_new_connection(tmp_path: Path) -> None:
    async with stage_of(tmp_path) as stage:
        assert await stage.call(1) == 1

        def go_away(connection: RemotingConnection, command: Command) -> Command:
            if stage.other.connections > 1:
                return stage.other.respond(connection, command)
            return response(command, ResponseCode.GO_AWAY)

        stage.other.behave = go_away
        assert await stage.call(2) == 2
        assert stage.other.connections == 2


async def test_a_stopping_peer_sends_nothing_and_gets_nothing(tmp_path: Path) -> None:
    async with stage_of(tmp_path) as stage:
        assert await stage.call(1) == 1
        stage.other.behave = lambda _, command: None
        stage.send(2)
        stage.context.is_stopping = True
        stage.send(3)
        await stage.client.close()
        assert stage.completed.empty()
