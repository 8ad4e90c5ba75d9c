"""Brokers of a DLedger group in one process, and what is sent to them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from epochmq_broker.membership.dledger.commit_log_peer import CommitLogPeer
from epochmq_broker.membership.modes.dledger import DLedgerMode
from tests.support.net import free_port
from tests.unit.broker.kit import HOST, Bench, send_command, until

TOPIC = "TBW102"
"""It exists at every start."""


def peers_of(count: int) -> str:
    return ";".join(f"n{number}-{HOST}:{free_port(HOST)}" for number in range(count))


def settings_of(peers: str, number: int = 0, **more: str) -> dict[str, str]:
    return {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "group-a",
        "dLegerPeers": peers,
        "dLegerSelfId": f"n{number}",
        "flushDiskType": "SYNC_FLUSH",
        "listenPort": str(11_000 + 10 * number),
        **more,
    }


def dledger_of(bench: Bench) -> CommitLogPeer:
    assert isinstance(bench.broker.mode, DLedgerMode)
    return bench.broker.mode.commit_log


@contextlib.asynccontextmanager
async def running(directory: Path, settings: dict[str, str]) -> AsyncIterator[Bench]:
    """Runs a broker and its peer, without the other ports."""
    bench = Bench(directory, settings)
    try:
        await bench.broker.start_without_ports()
        await dledger_of(bench).start()
        yield bench
    finally:
        await bench.broker.stop()


async def ready(*benches: Bench) -> Bench:
    """Waits until one of these brokers accepts messages, and returns it."""
    await until(lambda: any(dledger_of(one).is_ready for one in benches))
    return next(one for one in benches if dledger_of(one).is_ready)


async def send(bench: Bench, *texts: str, queue_id: int = 0) -> list[int]:
    """Sends messages in one turn of the event loop. Returns the codes of the responses."""
    peer = bench.peer()
    opaques = [peer.send(send_command(TOPIC, text.encode(), queue_id=queue_id)) for text in texts]
    return [(await peer.answer(opaque)).code for opaque in opaques]


def texts_of(bench: Bench, queue_id: int = 0) -> list[str]:
    return [
        bench.record(TOPIC, queue_id, offset).body.decode() for offset in range(bench.count(TOPIC, queue_id))
    ]


def numbered(count: int, first: int = 0) -> list[str]:
    return [f"text-{number}" for number in range(first, first + count)]
