"""A pull gets no record that is known to be broken on the disk; it succeeds when the record is repaired."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_protocol.codes import ResponseCode
from epochmq_store.log.damaged_ranges import DamagedRange
from tests.unit.broker.kit import pull_command, running, send_command

TOPIC = "TBW102"


@pytest.mark.parametrize("ordinary", [False, True], ids=["fast path", "ordinary"])
async def test_a_broken_record_is_not_served_until_it_is_repaired(tmp_path: Path, ordinary: bool) -> None:
    async with running(tmp_path) as bench:
        for number in range(40):
            sent = bench.peer().call(send_command(TOPIC, b"text-%d" % number, queue_id=0))
            assert sent.code == ResponseCode.SUCCESS
        store, peer = bench.broker.store, bench.peer(ordinary=ordinary)

        async def pulled(offset: int) -> int:
            return (await peer.answer(peer.send(pull_command(TOPIC, offset)))).code

        assert await pulled(35) == ResponseCode.SUCCESS  # its block is known to be in memory now
        queue = store.lookup.existing_queue(TOPIC, 0)
        assert queue is not None
        unit = queue.unit(36)
        assert unit is not None
        broken = DamagedRange(unit[0], unit[0] + unit[1], "the checksum of a body is wrong")
        store.damage.replace_within(broken.start, broken.end, [broken])
        assert await pulled(36) == ResponseCode.SYSTEM_ERROR
        assert bench.broker.cold_reads.failures == 1
        assert await pulled(37) == ResponseCode.SUCCESS
        store.damage.replace_within(broken.start, broken.end, [])
        assert await pulled(36) == ResponseCode.SUCCESS


async def test_a_record_that_differs_elsewhere_is_served(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        assert bench.peer().call(send_command(TOPIC, b"text", queue_id=0)).code == ResponseCode.SUCCESS
        end = bench.broker.store.max_phy_offset
        differing = DamagedRange(0, end, "another replica has other records there", repairable=False)
        bench.broker.store.damage.replace_within(0, end, [differing])
        peer = bench.peer()
        assert (await peer.answer(peer.send(pull_command(TOPIC, 0)))).code == ResponseCode.SUCCESS
