"""A stranger in the network, as a process of its own: it has no credentials, and attacks every port of a
cluster in every way that the tests know, all at once, until it is terminated.

It keeps idle connections and slow ones, which begin a frame and send it byte by byte; makes the attacks of
`attacks.py`, some at a time; sends the frames of `bad_frames.py` and `member_frames.py`; fills the receiving
buffers with unfinished frames; reads no responses; and opens connections by the hundred. Half of the
connections come from one address, the others from several. It prints what it has done as a line of JSON,
again and again.

`python -m tests.support.stranger PLAN`, where PLAN is a file with a `Plan` as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from epochmq_protocol.codes import RequestCode
from epochmq_protocol.member_requests import BROKER_REQUESTS, CONTROLLER_REQUESTS, RAFT_REQUESTS
from tests.support.attacks import Cluster, attacks_on
from tests.support.bad_frames import BROKER_CODES, NAMESERVER_CODES, BadFrames
from tests.support.member_frames import HAFrames, ProofFrames, RaftFrames
from tests.support.process import ManagedProcess
from tests.support.remoting import frame, split_address

REMOTING = frozenset({"broker", "nameserver", "controller", "dledger"})
"""The kinds of ports that speak remoting."""
PIECE = 20
"""Frames of one connection."""
AGAIN_S = 3.0
"""How long the stranger waits before it replaces a connection that the peer has closed."""
KEPT_S = 1.0
"""How long it keeps what it has filled a peer with."""
TRICKLE_S = 1.0
"""Time between two bytes of a slow connection."""
QUIET_S = 0.05
"""A peer that sends nothing for this long after a piece of fuzz has answered all that it answers."""
ANSWER_S = 30
ATTACKERS = 4
"""Attacks at a time on the ports of one kind."""
REPORT_S = 0.5
HOARD_BYTES = 15 << 20
FLOODED = 15
"""Connections that are opened and closed for each one of a crowd."""
UNREAD, UNREAD_PIECE = 5_000, 100
LARGE = struct.pack(">II", 16_777_212, 16_000_000)
"""The begin of a frame of the greatest length."""


class Port(msgspec.Struct):
    """One port that is attacked; `kind` is a key of `attacks.PORTS`."""

    kind: str
    address: str


class Plan(msgspec.Struct):
    """What the stranger does. `sources`: its addresses, the first of which has half of the connections.
    `crowd`: connections that fill a peer's buffers at a time. `pause_s`: the rest of each of its workers
    after a connection."""

    target: Cluster
    ports: list[Port]
    sources: list[str]
    idle: int
    slow: int
    seed: int
    crowd: int
    pause_s: float = 0.02


class Report(msgspec.Struct):
    """What the stranger has done so far. `idle`, `slow`: connections that are open now. `done`: how often, by
    kind of work and of port. `rounds`: how often it has made all attacks on a port, by kind of port.
    `answers`: response codes and HTTP statuses, and how many attacks got each. `served`: attacks that got a
    successful response; of a cluster that is safe, none."""

    idle: int = 0
    slow: int = 0
    most_idle: int = 0
    most_slow: int = 0
    attacks: int = 0
    rounds: dict[str, int] = {}
    done: dict[str, int] = {}
    answers: dict[str, int] = {}
    served: list[str] = []


class StrangerProcess(ManagedProcess):
    """The process, and its newest report."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "plan.json"
        path.write_bytes(msgspec.json.encode(plan))
        super().__init__(
            [sys.executable, "-m", "tests.support.stranger", str(path)], name="stranger", directory=directory
        )

    def newest(self) -> Report:
        """The newest report; an empty one before the first."""
        lines = self.output(20_000).splitlines()
        whole = [line for line in lines if line.startswith("{") and line.endswith("}")]
        return msgspec.json.decode(whole[-1], type=Report) if whole else Report()


class Stranger:
    """What the process does."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.report = Report()
        self._done: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        self._rounds: Counter[str] = Counter()
        self._sources = itertools.cycle([s for other in plan.sources[1:] for s in (plan.sources[0], other)])

    async def run(self) -> None:
        """Does everything at once until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            ports = itertools.cycle(self.plan.ports)
            for number in range(max(self.plan.idle, self.plan.slow)):
                if number < self.plan.idle:
                    tasks.create_task(self._hold("idle", next(ports), number))
                if number < self.plan.slow:
                    tasks.create_task(self._hold("slow", next(ports), number))
            for kind in sorted({port.kind for port in self.plan.ports}):
                own = self._of(kind)
                tasks.create_task(self._fuzz(kind, own))
                tasks.create_task(self._attack(kind, own))
            tasks.create_task(self._exhaust())
            tasks.create_task(self._tell())

    def _of(self, kind: str) -> list[Port]:
        return [port for port in self.plan.ports if port.kind == kind]

    # ---- connections

    @asynccontextmanager
    async def _connection(
        self, port: Port
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        host, number = split_address(port.address)
        reader, writer = await asyncio.open_connection(host, number, local_addr=(next(self._sources), 0))
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _hold(self, what: str, port: Port, number: int) -> None:
        """Keeps one connection that costs the peer a place."""
        await asyncio.sleep(number * 0.005)
        while True:
            with contextlib.suppress(OSError):
                async with self._connection(port) as (reader, writer):
                    self._count(what, 1)
                    try:
                        await (self._idle(reader) if what == "idle" else self._trickle(reader, writer))
                    finally:
                        self._count(what, -1)
            self._done[f"{what} connection ended at {port.kind}"] += 1
            await asyncio.sleep(AGAIN_S)

    def _count(self, what: str, change: int) -> None:
        report = self.report
        if what == "idle":
            report.idle += change
            report.most_idle = max(report.most_idle, report.idle)
        else:
            report.slow += change
            report.most_slow = max(report.most_slow, report.slow)

    async def _idle(self, reader: asyncio.StreamReader) -> None:
        while await reader.read(1 << 16):
            pass

    async def _trickle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Sends a byte every second; ends when the peer has closed."""
        for byte in itertools.chain(LARGE, itertools.repeat(0x7B)):
            writer.write(bytes([byte]))
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TRICKLE_S):
                    if not await reader.read(1 << 16):
                        return

    # ---- fuzz

    def _pieces(self, kind: str) -> Iterator[bytes]:
        """What is sent over one connection each."""
        seed, raft = self.plan.seed, self.plan.target.raft_group
        peers = ["n0", "n1", "n2", "n9"]
        sources: list[Iterator[bytes]] = []
        if kind in REMOTING:
            codes = {
                "broker": [*BROKER_CODES, *sorted(BROKER_REQUESTS)],
                "nameserver": NAMESERVER_CODES,
                "controller": sorted(CONTROLLER_REQUESTS),
                "dledger": sorted(RAFT_REQUESTS),
            }[kind]
            sources.append(_joined(one.data for one in BadFrames(seed, codes)))
            sources.append(iter(ProofFrames(seed, codes)))
        if kind in ("controller", "dledger"):
            sources.append(_joined(iter(RaftFrames(seed, raft, peers, reckless=True))))
        if kind == "ha":
            sources.append(iter(HAFrames(seed, [1, 2, 3, -1, 2**63 - 1], proofs=True)))
        if kind == "sidecar":
            sources.append(_joined(one.data for one in BadFrames(seed, BROKER_CODES)))
        for source in itertools.cycle(sources):
            yield next(source)

    async def _fuzz(self, kind: str, ports: list[Port]) -> None:
        targets = itertools.cycle(ports)
        for piece in self._pieces(kind):
            with contextlib.suppress(OSError, TimeoutError):
                async with self._connection(next(targets)) as (reader, writer):
                    writer.write(piece)
                    while True:
                        async with asyncio.timeout(QUIET_S):
                            if not await reader.read(1 << 16):
                                break
            self._done[f"pieces of fuzz at {kind}"] += 1
            await asyncio.sleep(self.plan.pause_s)

    # ---- attacks

    async def _attack(self, kind: str, ports: list[Port]) -> None:
        """Makes every attack on every port of this kind, again and again."""
        catalogue = attacks_on(kind, self.plan.target)

        async def work(port: Port, attacks: Iterator[tuple[str, bytes]]) -> None:
            for name, data in attacks:
                await self._attack_once(port, name, data)
                await asyncio.sleep(self.plan.pause_s)

        for port in itertools.cycle(ports):
            attacks = iter(catalogue)
            await asyncio.gather(*(work(port, attacks) for _ in range(ATTACKERS)))
            self._rounds[kind] += 1

    async def _attack_once(self, port: Port, name: str, data: bytes) -> None:
        answer = "closed"
        try:
            async with self._connection(port) as (reader, writer), asyncio.timeout(ANSWER_S):
                writer.write(data)
                answer = await _answer(port.kind, reader)
        except TimeoutError:
            answer = "no answer"
        except (OSError, EOFError):
            pass
        self.report.attacks += 1
        self._answers[answer] += 1
        if answer in ("0", "200", "data"):
            self.report.served = [*self.report.served, f"{name} at {port.kind} {port.address}: {answer}"][:50]

    async def _exhaust(self) -> None:
        """Takes memory and turns of one port after the other, each of another kind than the one before."""
        kinds: dict[str, Iterator[Port]] = {}
        for port in self.plan.ports:
            kinds.setdefault(port.kind, itertools.cycle(self._of(port.kind)))
        for kind in itertools.cycle(kinds):
            port = next(kinds[kind])
            for name, method in (("hoard", self._hoard), ("flood", self._flood), ("greed", self._greed)):
                with contextlib.suppress(OSError, TimeoutError, EOFError):
                    async with asyncio.timeout(ANSWER_S):
                        await method(port)
                self._done[f"{name} at {port.kind}"] += 1
                await asyncio.sleep(self.plan.pause_s)

    async def _hoard(self, port: Port) -> None:
        """Unfinished frames of the greatest length, all at a time."""

        async def fill() -> None:
            with contextlib.suppress(OSError):
                async with self._connection(port) as (_, writer):
                    writer.write(LARGE)
                    for _ in range(HOARD_BYTES >> 16):
                        writer.write(bytes(1 << 16))
                        await writer.drain()
                    await asyncio.sleep(KEPT_S)

        await asyncio.gather(*(fill() for _ in range(self.plan.crowd)))

    async def _flood(self, port: Port) -> None:
        """Connections that are closed at once."""
        for _ in range(FLOODED * self.plan.crowd):
            with contextlib.suppress(OSError):
                async with self._connection(port):
                    pass

    async def _greed(self, port: Port) -> None:
        """Requests whose responses nobody reads."""
        code = RequestCode.GET_NAMESRV_CONFIG if port.kind == "nameserver" else RequestCode.GET_BROKER_CONFIG

        async def ask() -> None:
            with contextlib.suppress(OSError, TimeoutError):
                async with self._connection(port) as (_, writer), asyncio.timeout(ANSWER_S / 10):
                    writer.transport.pause_reading()  # type: ignore[attr-defined]
                    for number in range(0, UNREAD, UNREAD_PIECE):
                        some = range(number, number + UNREAD_PIECE)
                        writer.write(b"".join(frame(code, opaque=opaque) for opaque in some))
                        await writer.drain()
                    await asyncio.sleep(KEPT_S)

        await asyncio.gather(*(ask() for _ in range(self.plan.crowd)))

    async def _tell(self) -> None:
        while True:
            self.report.done, self.report.answers = dict(self._done), dict(self._answers)
            self.report.rounds = dict(self._rounds)
            print(json.dumps(msgspec.to_builtins(self.report)), flush=True)
            await asyncio.sleep(REPORT_S)


def _joined(frames: Iterator[bytes]) -> Iterator[bytes]:
    """The frames of each connection in one piece."""
    while True:
        yield b"".join(itertools.islice(frames, PIECE))


async def _answer(kind: str, reader: asyncio.StreamReader) -> str:
    """What a port answers to an attack: a response code, a status, `closed`, or `data` from an HA port."""
    if kind == "sidecar":
        line = await reader.readline()
        return line.split()[1].decode() if line.startswith(b"HTTP/") else "closed"
    if kind == "ha":
        return "data" if await reader.read(1 << 16) else "closed"
    (length,) = struct.unpack(">I", await reader.readexactly(4))
    data = await reader.readexactly(length)
    header = json.loads(data[4 : 4 + (int.from_bytes(data[:4]) & 0xFFFFFF)])
    return str(header["code"])


async def _main(plan: Plan) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await Stranger(plan).run()


if __name__ == "__main__":
    # A stranger has a machine of its own. Here it must not take the processor from those whom it attacks,
    # even when the test runs with real-time priority.
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(19)
    asyncio.run(_main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)))
