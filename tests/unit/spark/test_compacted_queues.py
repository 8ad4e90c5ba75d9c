"""The audit reads the files of compaction topics: it finds each kind of damage to them and nothing else, and
nothing in a healthy store."""

from __future__ import annotations

import asyncio
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark.store_layout import AuditedReplica
from tests.spark.damage_kit import overwrite
from tests.support.compaction_bench import SETTINGS, create, queue_of, send
from tests.unit.broker.kit import running
from tests.unit.spark import inprocess

pytestmark = pytest.mark.filterwarnings("ignore")

UNIT_BYTES = 46
LOG, QUEUE = "compaction/compactionLog/compacted/0", "compaction/compactionCq/compacted/0"


async def write(directory: Path) -> None:
    """A queue that was compacted, and has several files after that."""
    async with running(directory, SETTINGS) as bench:
        await create(bench)
        await send(bench, 0, 30)
        await bench.broker.compaction.compact(queue_of(bench))
        await send(bench, 30, 20)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("healthy") / "store"
    asyncio.run(write(directory))
    return directory


@pytest.fixture
def copy(healthy: Path, tmp_path: Path) -> Path:
    shutil.copytree(healthy, tmp_path / "store")
    return tmp_path / "store"


def found_in(directory: Path) -> list[dict[str, Any]]:
    found = inprocess.of_one_replica(inprocess.run([AuditedReplica("broker-a", "a", str(directory))]))
    return inprocess.without_notes(found)


def nth(directory: Path, folder: str, number: int) -> Path:
    return sorted(path for path in (directory / folder).iterdir() if path.is_file())[number]


def test_a_healthy_store_has_no_findings(healthy: Path) -> None:
    assert len(list((healthy / LOG).iterdir())) > 2
    assert found_in(healthy) == []


def log_file_lost(directory: Path) -> None:
    nth(directory, LOG, 1).unlink()


def queue_file_lost(directory: Path) -> None:
    nth(directory, QUEUE, 0).unlink()


def unit_repeated(directory: Path) -> None:
    path = nth(directory, QUEUE, 1)
    overwrite(path, UNIT_BYTES, path.read_bytes()[:UNIT_BYTES])


def unit_of_another_file(directory: Path) -> None:
    overwrite(nth(directory, QUEUE, 0), 0, struct.pack(">q", 1 << 40))


def body_changed(directory: Path) -> None:
    path = nth(directory, LOG, 1)
    overwrite(path, path.read_bytes().index(b"body3"), b"x")


def record_zeroed(directory: Path) -> None:
    overwrite(nth(directory, LOG, 0), 0, bytes(50))


def unit_of_another_message(directory: Path) -> None:
    path = nth(directory, QUEUE, 1)
    base = struct.unpack_from(">q", path.read_bytes(), 28)[0]
    last = struct.unpack_from(">q", nth(directory, QUEUE, 0).read_bytes(), 28 + 3 * UNIT_BYTES)[0]
    assert last < base - 1
    overwrite(path, 28, struct.pack(">q", base - 1))


def position_beyond_the_end(directory: Path) -> None:
    path = directory / "compaction/position-checkpoint"
    path.write_text('{"empty":false,"queueOffsetMap":{"compacted_0":50}}')


def positions_torn(directory: Path) -> None:
    path = directory / "compaction/position-checkpoint"
    path.write_bytes(path.read_bytes()[:-4])


DAMAGES: dict[str, tuple[Callable[[Path], None], ...]] = {
    "compaction.missing-file": (log_file_lost, queue_file_lost),
    "compaction.wrong-unit": (unit_repeated, unit_of_another_file),
    "compaction.no-record": (body_changed, record_zeroed),
    "compaction.position-ahead": (position_beyond_the_end,),
    "state.unreadable": (positions_torn,),
}


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        pytest.param(kind, damage, id=damage.__name__)
        for kind, damages in DAMAGES.items()
        for damage in damages
    ],
)
def test_damage_is_named(kind: str, damage: Callable[[Path], None], copy: Path) -> None:
    damage(copy)
    found = found_in(copy)
    assert {row["kind"] for row in found} == {kind}, found
    if kind.startswith("compaction.") and kind != "compaction.position-ahead":
        assert {(row["topic"], row["queue_id"]) for row in found} == {("compacted", 0)}


def test_the_files_of_a_running_broker_are_not_compared(copy: Path) -> None:
    (copy / "abort").touch()
    body_changed(copy)
    (copy / LOG / "compacting").mkdir()
    (copy / LOG / "compacting" / ("0" * 20)).touch()
    assert found_in(copy) == []
