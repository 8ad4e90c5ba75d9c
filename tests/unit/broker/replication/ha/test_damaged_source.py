"""A master sends no replica the bytes of broken records, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_store.log.damaged_ranges import DamagedRange
from tests.unit.broker.replication.ha.broker_node import until
from tests.unit.broker.replication.ha.following_nodes import ALL_ACK, nodes, same


@pytest.mark.parametrize("behind_bytes", [0, 1 << 40], ids=["in the background", "on the event loop"])
async def test_broken_records_are_not_sent_until_they_are_repaired(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    behind_bytes: int,
) -> None:
    monkeypatch.setattr("epochmq_broker.replication.ha.connection.FAR_BEHIND_BYTES", behind_bytes)
    async with nodes(tmp_path, 2, ALL_ACK) as (master, replica):
        address = await master.lead(1)
        start = master.put(20)
        end = master.put(1)
        master.put(20)
        damage = master.store.damage
        damage.replace_within(0, end, [DamagedRange(start, end, "the checksum of a body is wrong")])
        await replica.follow(address, 1, master)
        await until(lambda: f"the master's log is damaged from offset {start} to {end}" in caplog.text)
        assert replica.end == start
        damage.replace_within(0, end, [])
        await same(master, replica)


async def test_records_that_only_differ_elsewhere_are_sent(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2, ALL_ACK) as (master, replica):
        address = await master.lead(1)
        end = master.put(20)
        differing = DamagedRange(0, end, "another replica has other records there", repairable=False)
        master.store.damage.replace_within(0, end, [differing])
        await replica.follow(address, 1, master)
        await same(master, replica)
