"""Runs a DLedger peer as a process with DLedger's own settings
(`io.openmessaging.storage.dledger.cmdline.BossCommand server`): for groups that only replicate a log, and for
groups with Java peers."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
from pathlib import Path

from epochmq_dledger.core.types import RaftSettings
from epochmq_dledger.peer import DLedgerPeer
from epochmq_dledger.peer_addresses import parse_peers
from epochmq_dledger.processor import DLedgerProcessor
from epochmq_protocol.transport.client import RemotingClient, split_address
from epochmq_protocol.transport.server import RemotingServer


def run(settings: RaftSettings, addresses: dict[str, str], folder: Path, *, flush_async: bool = False) -> int:
    """Runs a peer until SIGTERM or SIGINT. Returns 0 after an orderly stop, 1 if its disk failed."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.run(_serve(settings, addresses, folder, flush_async))
    return asyncio.run(_serve(settings, addresses, folder, flush_async))


async def _serve(settings: RaftSettings, addresses: dict[str, str], folder: Path, flush_async: bool) -> int:
    stopping = asyncio.Event()
    broken: list[Exception] = []

    def on_fatal(error: Exception) -> None:
        broken.append(error)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    client = RemotingClient()
    peer = DLedgerPeer(
        settings,
        addresses,
        folder,
        client,
        apply=lambda _: None,
        on_fatal=on_fatal,
        flush_async=flush_async,
    )
    server = RemotingServer(DLedgerProcessor(peer).handlers())
    peer.start()
    await server.start(*split_address(addresses[settings.self_id]))
    logging.getLogger(__name__).info("peer %s listens on %s", settings.self_id, addresses[settings.self_id])
    await stopping.wait()
    await server.stop()
    await peer.stop()
    await client.close()
    return 1 if broken else 0


def main() -> int:
    """Parses `-g GROUP -i ID -p PEERS -s DIR`, the options of BossCommand, and runs the peer."""
    parser = argparse.ArgumentParser(prog="epochmq_dledger", description=__doc__)
    parser.add_argument("-g", "--group", default="default", help="name of the group")
    parser.add_argument("-i", "--id", default="n0", help="this peer's id")
    parser.add_argument("-p", "--peers", default="n0-localhost:20911", help="id-host:port;id-host:port;…")
    parser.add_argument(
        "-s", "--store-base-dir", required=True, type=Path, help="directory that holds dledger-<id>"
    )
    parser.add_argument(
        "--file-size", type=int, default=1 << 30, help="bytes of a data file, equal on all peers"
    )
    parser.add_argument(
        "--heartbeat-ms", type=int, default=2000, help="interval of the leader's heartbeats, milliseconds"
    )
    parser.add_argument(
        "--flush",
        choices=["sync", "async"],
        default="sync",
        help="acknowledge entries when they are durable (sync), or when they are written (async, as Java)",
    )
    options = parser.parse_args()
    try:
        addresses = parse_peers(options.peers)
    except ValueError as error:
        parser.error(f"--peers: {error}")
    if options.id not in addresses:
        parser.error(f"--id: {options.id}, expected one of {', '.join(addresses)}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings = RaftSettings(
        group=options.group,
        self_id=options.id,
        peers=tuple(addresses),
        file_size=options.file_size,
        heartbeat_interval_ms=options.heartbeat_ms,
    )
    return run(
        settings,
        addresses,
        options.store_base_dir / f"dledger-{options.id}",
        flush_async=options.flush == "async",
    )


if __name__ == "__main__":
    raise SystemExit(main())
