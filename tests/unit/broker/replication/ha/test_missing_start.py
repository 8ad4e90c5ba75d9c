"""A replica that has lost the first files of its log is in doubt until its master lacks them, too: a log that
begins later equals the master's as far as the two can be compared."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from epochmq_broker.replication.ha.client import HAClient, HAClientPhase
from tests.unit.broker.replication.ha.broker_node import LOG_FILE, BrokerNode, until
from tests.unit.broker.replication.ha.following_nodes import nodes, same


def log_files(node: BrokerNode) -> list[Path]:
    return sorted((node.directory / "commitlog").iterdir())


async def without_first_file(master: BrokerNode, replica: BrokerNode) -> None:
    """Ends a replica that has what its master has, and removes the first file of its log."""
    await replica.follow(await master.lead(1, {1, 2}), 1, master)
    assert master.put(500) > 2 * LOG_FILE
    await same(master, replica)
    await replica.close()
    log_files(replica)[0].unlink()


@contextlib.asynccontextmanager
async def reopened(node: BrokerNode) -> AsyncIterator[BrokerNode]:
    back = await BrokerNode(node.directory, node.id).open()
    try:
        yield back
    finally:
        await back.close()


async def test_a_log_without_its_first_file_stays_in_doubt_while_the_master_has_it(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as (master, replica):
        await without_first_file(master, replica)
        for _ in range(2):  # also after a restart
            async with reopened(replica) as back:
                assert back.ha.doubt.may_lack_acknowledged
                await back.follow(master.address, 1, master)
                client = back.ha.client
                assert client is not None
                await until(partial(has_diverged, client), "the replica says what it lacks")
                assert f"begins at {LOG_FILE}" in client.divergence
                assert "from 0 on" in client.divergence
                assert "empty its store" in client.divergence
                assert back.ha.doubt.may_lack_acknowledged


async def test_the_doubt_ends_when_the_master_has_deleted_the_missing_files_too(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as (master, replica):
        await without_first_file(master, replica)
        master.store.log.files.files.pop(0).delete()
        assert master.store.min_phy_offset == LOG_FILE
        async with reopened(replica) as back:
            await back.follow(master.address, 1, master)
            await until(lambda: not back.ha.doubt.may_lack_acknowledged, "the log is not in doubt")
            assert back.log_bytes() == master.log_bytes()


def has_diverged(client: HAClient) -> bool:
    return client.phase is HAClientPhase.DIVERGED
