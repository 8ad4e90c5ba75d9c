"""A Raft group of two EpochMQ peers and one of DLedger 0.3.1.2: whichever peer leads or dies, the logs are
equal."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from epochmq_dledger.store.file_log import FileLog
from epochmq_protocol.dledger import (
    AppendEntryRequest,
    AppendEntryResponse,
    DLedgerRequestCode,
    DLedgerResponseCode,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    MetadataRequest,
    MetadataResponse,
    RequestOrResponse,
    decode_body,
    encode_body,
)
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import request as make_request
from epochmq_protocol.transport.client import RemotingClient
from tests.interop.java_env import JavaProcess, compile_java
from tests.support.net import free_port, loopback
from tests.support.process import ManagedProcess

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

GROUP = "mixed"
FILE_SIZE = 4 << 20
APPENDS = 100_000
IN_FLIGHT = 400
JAVA = "n2"


class MixedRaftGroup:
    """n0 and n1 are EpochMQ's, n2 is DLedger's; each can be killed and started, on its own directory or
    another's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.addresses = {}
        for name in ("n0", "n1", "n2"):
            host = loopback(58)
            self.addresses[name] = f"{host}:{free_port(host)}"
        self.peers = ";".join(f"{name}-{address}" for name, address in self.addresses.items())
        self.kinds = {name: name == JAVA for name in self.addresses}
        self.processes: dict[str, ManagedProcess] = {}
        self.client = RemotingClient()
        self.acknowledged: dict[int, bytes] = {}
        self.terms: dict[str, int] = {}

    def store(self, name: str) -> Path:
        return self.folder / name

    def start(self, name: str) -> None:
        if self.kinds[name]:
            options = [GROUP, name, self.peers, str(self.store(name)), str(FILE_SIZE)]
            classes = compile_java("DLedgerPeer.java")
            home = self.folder / f"java-{name}"
            process: ManagedProcess = JavaProcess("DLedgerPeer", options, home=home, classes=classes)
        else:
            command = [
                sys.executable,
                "-m",
                "epochmq_dledger.main",
                "-g",
                GROUP,
                "-i",
                name,
                "-p",
                self.peers,
            ]
            command += ["-s", str(self.store(name)), "--file-size", str(FILE_SIZE), "--heartbeat-ms", "500"]
            process = ManagedProcess(command, name=name, directory=self.folder / f"ours-{name}")
        process.start()
        self.processes[name] = process

    def kill(self, name: str) -> None:
        self.processes.pop(name).kill()

    async def ask(self, name: str, code: int, request: RequestOrResponse, timeout_ms: int = 10_000) -> bytes:
        request.group, request.remote_id = GROUP, name
        response = await self.client.call(
            self.addresses[name], make_request(code, body=encode_body(request)), timeout_ms
        )
        return response.body

    async def leader(self, among: Iterable[str] | None = None) -> str:
        """The peer that all given (or all running) peers take for the leader."""
        names = list(among or self.processes)
        async with asyncio.timeout(180):
            while True:
                known = set()
                for name in names:
                    try:
                        data = await self.ask(name, DLedgerRequestCode.METADATA, MetadataRequest())
                        known.add(decode_body(MetadataResponse, data).leader_id)
                    except EpochMQError:
                        known.add(None)
                found = known.pop() if len(known) == 1 else None
                if found is not None and found in names:
                    return found
                await asyncio.sleep(0.1)

    async def lead(self, target: str) -> None:
        """Transfers leadership until `target` leads."""
        async with asyncio.timeout(240):
            while (present := await self.leader()) != target:
                request = LeadershipTransferRequest(
                    transfer_id=present, transferee_id=target, term=await self.term(present)
                )
                try:
                    data = await self.ask(present, DLedgerRequestCode.LEADERSHIP_TRANSFER, request)
                    code = decode_body(LeadershipTransferResponse, data).code
                except EpochMQError:
                    code = DLedgerResponseCode.TIMEOUT
                if code != DLedgerResponseCode.SUCCESS:
                    await asyncio.sleep(0.3)

    async def term(self, leader: str) -> int:
        """The leader's term, by an append."""
        return (await self.append(leader, b"term?")).term

    def checkpointed(self, name: str) -> int:
        """The committed index in a peer's checkpoint; -1 if there is none."""
        path = self.store(name) / f"dledger-{name}" / "checkpoint"
        found = re.search(r"^committedIndex=(\d+)$", path.read_text(), re.M) if path.exists() else None
        return -1 if found is None else int(found[1])

    async def append(self, name: str, body: bytes) -> AppendEntryResponse:
        """Appends once. Without a response in time, the entry may or may not be in the log."""
        request = AppendEntryRequest(body=body)
        try:
            data = await self.ask(name, DLedgerRequestCode.APPEND, request)
        except EpochMQError:
            return AppendEntryResponse(code=DLedgerResponseCode.TIMEOUT)
        response = decode_body(AppendEntryResponse, data)
        if response.code == DLedgerResponseCode.SUCCESS:
            self.acknowledged[response.index] = body
        return response

    async def append_many(self, name: str, count: int, mark: str) -> int:
        """Appends through one peer with many in flight; returns how many were acknowledged."""
        numbers = iter(range(count))
        done = 0

        async def one() -> None:
            nonlocal done
            for number in numbers:
                body = f"{mark}-{number}".encode() + b"." * (number % 200)
                response = await self.append(name, body)
                done += response.code == DLedgerResponseCode.SUCCESS

        await asyncio.gather(*(one() for _ in range(IN_FLIGHT)))
        return done

    async def append_all(self, name: str, count: int, mark: str) -> None:
        """Appends while this peer leads, until `count` are acknowledged. On a busy machine the leader may
        change while many appends are in flight; leadership is then transferred back."""
        done = 0
        async with asyncio.timeout(480):
            while done < count:
                await self.lead(name)
                done += await self.append_many(name, count - done, f"{mark}-after-{done}")

    def logs(self) -> dict[str, FileLog]:
        """The logs of the stopped peers, opened."""
        found = {}
        for name in self.addresses:
            log = FileLog(self.store(name) / f"dledger-{name}", FILE_SIZE)
            log.open()
            found[name] = log
        return found


@pytest.fixture
async def mixed(tmp_path: Path) -> AsyncIterator[MixedRaftGroup]:
    group = MixedRaftGroup(tmp_path)
    for name in group.addresses:
        group.start(name)
    yield group
    await group.client.close()
    for process in group.processes.values():
        process.kill()


async def stop_when_equal(group: MixedRaftGroup) -> int:
    """Stops all peers once each knows that all entries are committed; returns the index of the last one. A
    leader that is elected after that entry adds another one to the logs of the peers that still run."""
    async with asyncio.timeout(240):
        # On a busy machine the leader may change between two questions.
        while (last := await group.append(await group.leader(), b"last")).code != DLedgerResponseCode.SUCCESS:
            pass
        for name in group.addresses:
            # A file of another process: there is no event to wait for.
            while group.checkpointed(name) < last.index:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    for name in list(group.processes):
        group.processes.pop(name).stop()
    return last.index


def compare(group: MixedRaftGroup, last: int) -> None:
    """Asserts that every log has the same entries as far as index `last`, and every acknowledged one."""
    assert max(group.acknowledged) == last
    logs = group.logs()
    for index in range(last + 1):
        entries = {name: log.entry(index) for name, log in logs.items()}
        assert len(set(entries.values())) == 1, entries
        entry = entries["n0"]
        assert entry is not None
        assert group.acknowledged.get(index, entry.body) == entry.body
    for log in logs.values():
        log.close()


@pytest.mark.parametrize("appends", [9_000, pytest.param(APPENDS, marks=pytest.mark.soak)])
async def test_logs_are_equal_whichever_peer_leads_or_dies(mixed: MixedRaftGroup, appends: int) -> None:
    for leader in ("n0", JAVA, "n1"):
        await mixed.append_all(leader, appends // 3 + 1, f"led-by-{leader}")
        for name in ("n0", "n1", JAVA):
            mixed.kill(name)
            survivor = await mixed.leader()
            await mixed.append_many(survivor, 200, f"without-{name}-{leader}")
            mixed.start(name)
            await mixed.leader()
    assert len(mixed.acknowledged) >= appends
    compare(mixed, await stop_when_equal(mixed))


async def test_dledger_and_epochmq_open_each_others_directory(mixed: MixedRaftGroup) -> None:
    leader = await mixed.leader()
    await mixed.append_many(leader, 5000, "before")
    await stop_when_equal(mixed)
    mixed.kinds = {"n0": True, "n1": False, JAVA: False}
    for name in mixed.addresses:
        mixed.start(name)
    await mixed.append_all(await mixed.leader(), 5000, "after")
    compare(mixed, await stop_when_equal(mixed))
