"""A send that waits for the disk counts as in flight until its response, so that a stop waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker.kit import running, send_command


@pytest.mark.parametrize("ordinary", [False, True])
async def test_a_send_is_in_flight_until_its_response(tmp_path: Path, *, ordinary: bool) -> None:
    async with running(tmp_path, {"flushDiskType": "SYNC_FLUSH"}) as bench:
        peer = bench.peer(ordinary=ordinary)
        opaque = peer.send(send_command("orders"))
        assert peer.connection.in_flight == 1
        assert (await peer.answer(opaque)).code == 0
        assert peer.connection.in_flight == 0
