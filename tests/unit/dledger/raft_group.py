"""Runs the peers of one Raft group on loopback, each in its own directory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epochmq_dledger.core.types import RaftRole, RaftSettings
from epochmq_dledger.peer import DLedgerPeer
from epochmq_dledger.processor import DLedgerProcessor
from epochmq_dledger.state_machine import StateMachine
from epochmq_dledger.store.block_log import BlockLog
from epochmq_protocol.dledger import DLedgerEntry, RequestOrResponse, encode_body
from epochmq_protocol.frame import request as make_request
from epochmq_protocol.transport.client import RemotingClient, split_address
from epochmq_protocol.transport.server import RemotingServer

HOST = "127.58.0.1"


@dataclass
class RunningPeer:
    """One peer with its port and its client."""

    peer: DLedgerPeer
    server: RemotingServer
    client: RemotingClient
    applied: list[DLedgerEntry] = field(default_factory=list)

    async def stop(self) -> None:
        await self.server.stop(0.5)
        await self.peer.stop()
        await self.client.close()


class RaftGroup:
    """Peers n0, n1, n2, each in its own directory."""

    def __init__(
        self,
        folder: Path,
        ports: list[int],
        *,
        flush_async: bool = False,
        machines: Callable[[list[DLedgerEntry]], StateMachine] | None = None,
        settings: Mapping[str, Any] | None = None,
        blocks: bool = False,
    ) -> None:
        """`machines` makes a peer's state machine from the list of its applied entries. `settings` override
        the defaults. `blocks`: the peers have block logs."""
        self.blocks = blocks
        self.folder = folder
        self.flush_async = flush_async
        self.machines = machines
        self.settings = settings or {}
        self.addresses = {f"n{i}": f"{HOST}:{port}" for i, port in enumerate(ports)}
        self.running: dict[str, RunningPeer] = {}

    async def start(self, name: str, addresses: dict[str, str] | None = None, **more: Any) -> None:
        """Starts a peer. `addresses`: the peers in its settings, by default all."""
        known = dict(self.addresses if addresses is None else addresses)
        plain = {"group": "g", "self_id": name, "peers": tuple(known), "file_size": 1 << 16}
        pace = {"heartbeat_interval_ms": 1000, "vote_interval_min_ms": 50, "vote_interval_max_ms": 150}
        settings = RaftSettings(**{**plain, **pace, **self.settings, **more})
        client = RemotingClient()
        applied: list[DLedgerEntry] = []
        peer = DLedgerPeer(
            settings,
            known,
            self.folder / name,
            client,
            apply=applied.append,
            machine=self.machines(applied) if self.machines is not None else None,
            flush_async=self.flush_async,
            log=BlockLog(self.folder / name, settings.file_size) if self.blocks else None,
        )
        server = RemotingServer(DLedgerProcessor(peer).handlers())
        peer.start()
        await server.start(*split_address(self.addresses[name]))
        self.running[name] = RunningPeer(peer, server, client, applied)

    async def stop(self, name: str) -> None:
        await self.running.pop(name).stop()

    async def leader(self, *, without: str = "") -> DLedgerPeer:
        """The leader, once all voters that run follow it, but for the one that cannot: until then another
        candidate may take its place."""

        def find() -> DLedgerPeer | None:
            leading = [r.peer for r in self.running.values() if r.peer.role is RaftRole.LEADER]
            leader = max(leading, key=lambda peer: peer.term, default=None)
            if leader is None:
                return None
            own, reachable = leader.node.member, self.running.keys() - {without}
            voters = [self.running[name].peer.node.member for name in own.voters if name in reachable]
            following = sum((member.term, member.leader) == (own.term, own.leader) for member in voters)
            return leader if following == len(voters) >= own.quorum else None

        await until(lambda: find() is not None)
        found = find()
        assert found is not None
        return found

    async def ask(self, name: str, code: int, request: RequestOrResponse) -> bytes:
        client = self.running[name].client
        command = make_request(code, body=encode_body(request))
        response = await client.call(self.addresses[name], command, 60_000)
        assert response.code == 200
        return response.body


async def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Waits for a condition. Fails after a while."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (peers have no event for what tests ask)
            await asyncio.sleep(0.005)
