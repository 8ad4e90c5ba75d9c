"""Creates the healthy groups to which the drawn damages are done: under controllers, with the files of all
features, and with DLedger logs. The directories of a group are a, b and c."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from epochmq_broker.config.clock import now_ms
from tests.spark import dledger_groups, seeded_groups
from tests.support import compaction_bench
from tests.unit.broker.kit import Bench, running, send_command, until
from tests.unit.broker.requests import test_batch_topics as batches
from tests.unit.spark import feature_store

NAMES = ("a", "b", "c")
ELECTED_FOR_MESSAGES = (170, 190, 150)
"""How many messages each master of the controlled group writes: several segments, and three epochs."""


def copy(source: Path, target: Path) -> Path:
    """Copies a store. Its wheel of 38 MB, which is nearly empty, stays sparse."""
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)
    return target


def write_identity(store: Path, number: int) -> None:
    """Writes the file that says which replica of the group the store belongs to."""
    (store / "brokerIdentity").write_text(f"DefaultCluster#{seeded_groups.NAME}#{number}")


def create_controlled(root: Path) -> list[Path]:
    """Three replicas under controllers after two switchovers."""
    group = seeded_groups.SeededGroup(root, 77)

    async def run() -> None:
        for node in group.nodes:
            await node.open()
        try:
            for node, count in zip(group.nodes, ELECTED_FOR_MESSAGES, strict=True):
                await group.elect(node)
                group.write(node, count)
                await group.wait_in_sync()
        finally:
            for node in group.nodes:
                await node.close()

    asyncio.run(run())
    seeded_groups.write_consumer_offsets(root, group)
    return _named(root)


def create_dledger(root: Path) -> list[Path]:
    """Three peers after some elections."""
    dledger_groups.create_healthy_group(root, 3)
    return _named(root)


def _named(root: Path) -> list[Path]:
    return [path.rename(root / name) for name, path in zip(NAMES, sorted(root.iterdir()), strict=True)]


def create_with_features(root: Path) -> list[Path]:
    """A master with the files of all features, and two slaves that have copied everything."""
    first = root / NAMES[0]
    root.mkdir()
    asyncio.run(_use_features(first))
    for number, name in enumerate(NAMES):
        if number:
            copy(first, root / name)
        write_identity(root / name, number)
    return [root / name for name in NAMES]


async def _use_features(store: Path) -> None:
    await feature_store.create(store)
    async with running(store, feature_store.SETTINGS | compaction_bench.SETTINGS) as bench:
        assert (await batches.create(bench)).code == 0
        for count in (1, 3, 2, 4):
            answer = bench.peer().call(batches.batch(count))
            assert answer.code == 0, answer.remark
        await compaction_bench.create(bench)
        await compaction_bench.send(bench, 0, 30)
        await bench.broker.compaction.compact(compaction_bench.queue_of(bench))
        await compaction_bench.send(bench, 30, 20)
        await _send_delayed(bench)


async def _send_delayed(bench: Bench) -> None:
    """Some messages that are delivered at once, and some that wait for two hours."""
    for number in range(6):
        level = 1 if number < 3 else 18
        properties = {"UNIQ_KEY": f"delayed-{number}", "DELAY": str(level)}
        command = send_command("delayed", b"%d" % number, properties, born_timestamp=now_ms())
        assert bench.peer().call(command).code == 0
    await until(lambda: bench.count("delayed") == 3)


GROUPS: Final[Mapping[str, Callable[[Path], list[Path]]]] = {
    "controlled": create_controlled,
    "features": create_with_features,
    "dledger": create_dledger,
}
"""The groups by their kind. A `pair` is the first two of `features`."""
