"""A broker whose configuration makes it the master or a slave."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker.kit import pull_command, running, send_command

STORED, AHEAD = 3, 7


async def store_and_commit_ahead(directory: Path) -> None:
    """Leaves the files of a broker that lost power when its offset file was synced and its log was not."""
    async with running(directory) as bench:
        for _ in range(STORED):
            assert bench.peer().call(send_command("orders")).code == 0
        bench.broker.offsets.commit("readers", "orders", 0, AHEAD)
        bench.broker.offsets.commit("readers", "orders", 1, 1)


async def test_a_master_that_starts_skips_no_message_that_it_stores_where_its_log_was_lost(
    tmp_path: Path,
) -> None:
    await store_and_commit_ahead(tmp_path)
    async with running(tmp_path) as bench:
        assert bench.broker.offsets.table == {"orders@readers": {0: STORED, 1: 0}}
        assert bench.peer().call(send_command("orders", b"later")).code == 0
        offset = bench.broker.offsets.table["orders@readers"][0]
        assert b"later" in (bench.peer().call(pull_command("orders", offset, group="readers")).body or b"")
    async with running(tmp_path) as bench:
        assert bench.broker.offsets.table == {"orders@readers": {0: STORED, 1: 0}}


@pytest.mark.parametrize("acting", ["true", "false"])
async def test_a_slave_that_starts_keeps_offsets_that_its_log_has_not_reached(
    tmp_path: Path, acting: str
) -> None:
    """It stores nothing of its own in these queues, and gets the messages before them from the master."""
    await store_and_commit_ahead(tmp_path)
    slave = {"brokerId": "1", "brokerRole": "SLAVE", "enableSlaveActingMaster": acting}
    async with running(tmp_path, slave) as bench:
        assert bench.broker.offsets.table == {"orders@readers": {0: AHEAD, 1: 1}}
