"""A broker with a DLedger commit log takes over the plain commit log in its directory, and keeps it as the
read-only old part."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from epochmq_broker.config.broker_config import BrokerConfig, from_properties
from epochmq_broker.membership.dledger import log_upgrade
from epochmq_broker.membership.dledger.log_folders import data_folder
from epochmq_broker.membership.dledger.plain_log import UpgradeRejectedError, check_equal, inspect
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.epoch_entries import EpochEntry, format_epoch_file
from epochmq_store.files.mapped_file import StoreDamagedError
from tests.unit.broker import kit
from tests.unit.broker.dledger_bench import (
    TOPIC,
    dledger_of,
    numbered,
    peers_of,
    ready,
    running,
    send,
    settings_of,
    texts_of,
)
from tests.unit.broker.kit import SMALL, Bench

FILE_SIZE = 1 << 17
PLAIN = {"mappedFileSizeCommitLog": str(FILE_SIZE), "maxMessageSize": "30000"}


def upgraded(peers: str, number: int = 0, **more: str) -> dict[str, str]:
    return settings_of(peers, number, **(PLAIN | more))


def config_of(directory: Path, settings: dict[str, str]) -> BrokerConfig:
    return from_properties(SMALL | {"storePathRootDir": str(directory)} | settings).config


@contextlib.asynccontextmanager
async def plain(directory: Path, **more: str) -> AsyncIterator[Bench]:
    async with kit.running(directory, PLAIN | more) as bench:
        yield bench


async def fill_plain(directory: Path, texts: list[str], queue_id: int = 0) -> None:
    async with plain(directory) as bench:
        assert set(await send(bench, *texts, queue_id=queue_id)) == {ResponseCode.SUCCESS}


def long_texts(count: int, first: int = 0) -> list[str]:
    """Texts of which a few fill a file."""
    return [f"{number}-" + "x" * 20_000 for number in range(first, first + count)]


def plain_files(directory: Path) -> list[Path]:
    """The plain files that have records, without those that a broker has created in advance, or removes
    now."""
    found = []
    for path in sorted((directory / "commitlog").iterdir()):
        with contextlib.suppress(FileNotFoundError):
            if any(path.read_bytes()[:8]):
                found.append(path)
    return found


def data_files(directory: Path) -> list[Path]:
    return sorted((directory / "dledger-n0" / "data").iterdir())


def changes_of(directory: Path) -> dict[Path, int]:
    """When each file was changed."""
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*")}


def contents(directory: Path) -> dict[str, bytes]:
    """The files of plain log and queues."""
    found = [*plain_files(directory), *(directory / "consumequeue").rglob("*")]
    return {str(path.relative_to(directory)): path.read_bytes() for path in found if path.is_file()}


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
async def test_queues_span_the_boundary(tmp_path: Path, *, killed: bool) -> None:
    directory = tmp_path / "store"
    async with plain(directory) as bench:
        await send(bench, *long_texts(20))
        await send(bench, *numbered(5), queue_id=1)
        if killed:
            shutil.copytree(directory, tmp_path / "copy")
    directory = tmp_path / "copy" if killed else directory
    settings = upgraded(peers_of(1))
    async with running(directory, settings) as bench:
        assert texts_of(bench) == long_texts(20)
        await ready(bench)
        await send(bench, *long_texts(20, 20))
        await send(bench, *numbered(5, 5), queue_id=2)
        assert texts_of(bench) == long_texts(40)
        assert bench.broker.store.min_phy_offset == 0
    divided = int(plain_files(directory)[-1].name) + FILE_SIZE
    assert int(data_files(directory)[0].name) == divided
    for _ in range(2):
        async with running(directory, settings) as bench:
            assert texts_of(bench) == long_texts(40)
            assert texts_of(bench, 1) == numbered(5)
            assert texts_of(bench, 2) == numbered(5, 5)
            await ready(bench)


async def test_the_queues_of_both_parts_are_built_again(tmp_path: Path) -> None:
    await fill_plain(tmp_path, long_texts(10))
    settings = upgraded(peers_of(1))
    async with running(tmp_path, settings) as bench:
        await ready(bench)
        await send(bench, *long_texts(10, 10))
    for name in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / name)
    (tmp_path / "abort").touch()
    async with running(tmp_path, settings) as bench:
        assert texts_of(bench) == long_texts(20)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 30))])
async def test_random_histories_across_the_boundary(tmp_path: Path, seed: int) -> None:
    """A plain broker and then one with a DLedger log, each stopped or killed at random."""
    rng = random.Random(seed)
    directory = tmp_path / "store"
    expected: list[list[str]] = [[], [], []]
    settings = upgraded(peers_of(1))
    for life in range(5):
        context = plain(directory) if life < 2 else running(directory, settings)
        async with context as bench:
            if life >= 2:
                await ready(bench)
            for number in range(rng.randrange(20)):
                queue_id = rng.randrange(3)
                text = f"{life}-{number}-" + "y" * rng.choice([1, 200, 9000, 25_000])
                await send(bench, text, queue_id=queue_id)
                expected[queue_id].append(text)
            assert [texts_of(bench, queue_id) for queue_id in range(3)] == expected
            if killed := rng.random() < 0.5:
                copy = tmp_path / f"store-{life}"
                shutil.copytree(directory, copy)
        if killed:
            directory = copy


async def test_the_plain_part_expires_first_and_as_a_whole(tmp_path: Path) -> None:
    await fill_plain(tmp_path, long_texts(20))
    settings = upgraded(peers_of(1), deleteFileBatchMax="50")
    async with running(tmp_path, settings) as bench:
        await ready(bench)
        await send(bench, *long_texts(20, 20))
        store = bench.broker.store
        for path in plain_files(tmp_path):
            os.utime(path, (1, 1))
        store.log_expiry.request_expiry()
        assert store._maintenance is not None
        log = bench.broker.mode.commit_log._log
        durable, log.durable_index = log.durable_index, -1
        store._maintenance._tick_expiry()
        assert store.min_phy_offset == 0  # a power failure could take all entries
        log.durable_index = durable
        store._maintenance._tick_expiry()
        divided = int(data_files(tmp_path)[0].name)
        assert store.min_phy_offset == divided
        queue = store.queue(TOPIC, 0)
        await kit.until(lambda: queue.min_offset > 0)
        assert bench.record(TOPIC, 0, queue.min_offset).body.decode() == long_texts(40)[queue.min_offset]
        await kit.until(lambda: not plain_files(tmp_path))
    async with running(tmp_path, settings) as bench:
        await ready(bench)
        assert bench.broker.store.min_phy_offset == divided
        await send(bench, "next")
        assert bench.record(TOPIC, 0, 40).body == b"next"


async def test_a_group_begins_with_equal_plain_files(tmp_path: Path) -> None:
    await fill_plain(tmp_path / "0", long_texts(10))
    for number in (1, 2):
        shutil.copytree(tmp_path / "0", tmp_path / str(number))
    peers = peers_of(3)
    async with contextlib.AsyncExitStack() as stack:
        benches = [
            await stack.enter_async_context(running(tmp_path / str(number), upgraded(peers, number)))
            for number in range(3)
        ]
        leader = await ready(*benches)
        assert set(await send(leader, *long_texts(10, 10))) == {ResponseCode.SUCCESS}
        for one in benches:
            await kit.until(lambda one=one: one.count(TOPIC) == 20)  # type: ignore[misc] # bound at once
            assert texts_of(one) == long_texts(20)
        # While all run: a peer that remains when the leader stops may begin a term of its own.
        folders = [tmp_path / str(number) / f"dledger-n{number}" / "data" for number in range(3)]
        await kit.until(
            lambda: len({tuple(path.read_bytes() for path in sorted(one.iterdir())) for one in folders}) == 1
        )


async def test_the_command_can_be_killed_at_every_step_and_repeated(tmp_path: Path) -> None:
    await fill_plain(tmp_path / "plain", long_texts(10))
    settings = upgraded(peers_of(1))
    shutil.copytree(tmp_path / "plain", tmp_path / "whole")
    steps: list[str] = []
    log_upgrade.upgrade(config_of(tmp_path / "whole", settings), on_step=steps.append)
    expected = contents(tmp_path / "whole")
    (first,) = data_files(tmp_path / "whole")
    assert len(steps) == 3
    for step in range(3):
        source, directory = tmp_path / f"source-{step}", tmp_path / f"killed-{step}"
        shutil.copytree(tmp_path / "plain", source)
        done: list[str] = []

        def copy(text: str, source: Path = source, directory: Path = directory, at: int = step) -> None:
            done.append(text)  # noqa: B023 # used within this round
            if len(done) == at + 1:  # noqa: B023
                shutil.copytree(source, directory)

        log_upgrade.upgrade(config_of(source, settings), on_step=copy)
        config = config_of(directory, settings)
        assert log_upgrade.needs_upgrade(config)
        log_upgrade.upgrade(config)
        assert contents(directory) == expected
        assert [path.name for path in data_files(directory)] == [first.name]
        # A plain broker starts after each step, too.
        (directory / "abort").touch()
        async with plain(directory) as bench:
            assert texts_of(bench) == long_texts(10)


async def test_the_way_back_restores_the_files(tmp_path: Path) -> None:
    await fill_plain(tmp_path, long_texts(10))
    before = contents(tmp_path)
    settings = upgraded(peers_of(1))
    config = config_of(tmp_path, settings)
    assert not log_upgrade.undo(config)
    log_upgrade.upgrade(config)
    assert contents(tmp_path) != before
    assert log_upgrade.undo(config)
    assert contents(tmp_path) == before
    assert not data_files(tmp_path)
    async with plain(tmp_path) as bench:
        await send(bench, "more")
        assert texts_of(bench) == [*long_texts(10), "more"]


async def test_the_way_back_ends_with_the_first_entry(tmp_path: Path) -> None:
    await fill_plain(tmp_path, long_texts(3))
    settings = upgraded(peers_of(1))
    async with running(tmp_path, settings) as bench:
        await ready(bench)
    with pytest.raises(UpgradeRejectedError, match="has entries"):
        log_upgrade.undo(config_of(tmp_path, settings))
    with pytest.raises(StoreDamagedError, match="enableDLegerCommitLog=true"):
        async with plain(tmp_path):
            pass


async def test_what_cannot_be_upgraded_is_rejected(tmp_path: Path) -> None:
    await fill_plain(tmp_path / "store", long_texts(20))
    settings = upgraded(peers_of(1))

    def copied(name: str) -> tuple[BrokerConfig, Path]:
        directory = tmp_path / name
        shutil.copytree(tmp_path / "store", directory)
        return config_of(directory, settings), directory

    config, directory = copied("gap")  # a file is missing
    plain_files(directory)[1].unlink()
    with pytest.raises(UpgradeRejectedError, match="files are missing in between"):
        inspect(config)

    config, directory = copied("size")  # a file has another size
    os.truncate(plain_files(directory)[1], 4096)
    with pytest.raises(UpgradeRejectedError, match="has 4096 bytes, but mappedFileSizeCommitLog is"):
        inspect(config)

    config, directory = copied("damaged")  # bytes behind the first record of the last file are damaged
    with plain_files(directory)[-1].open("rb+") as file:
        file.seek(200)
        file.write(b"\xff" * 10)
    with pytest.raises(UpgradeRejectedError, match="is damaged: there is no whole record at"):
        inspect(config)

    config, directory = copied("epochs")  # the last epoch begins after the end of the log
    (directory / "epochFileCheckpoint").write_text(format_epoch_file([EpochEntry(3, 99_999_999)]))
    with pytest.raises(UpgradeRejectedError, match="this replica lacks messages"):
        inspect(config)

    config, directory = copied("space")  # the disk is too small
    with pytest.MonkeyPatch.context() as patch:
        real = os.statvfs

        class Full:
            f_bavail, f_frsize = 1, 4096

        patch.setattr(os, "statvfs", lambda path: Full() if Path(path) == directory else real(path))
        with pytest.raises(UpgradeRejectedError, match="has 4096 bytes left"):
            inspect(config)

    config, directory = copied("other")  # a replica whose log is shorter
    same = inspect(config_of(tmp_path / "store", settings))
    with plain_files(directory)[-1].open("rb+") as file:
        file.write(bytes(FILE_SIZE))
    other = inspect(config)
    assert same is not None
    assert other is not None
    check_equal([same, same])
    with pytest.raises(UpgradeRejectedError, match="the replicas have different logs"):
        check_equal([same, other])


@pytest.fixture
def lock_directory(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Lets another process take the lock of the directory."""
    children: list[subprocess.Popen[bytes]] = []

    def lock() -> None:
        program = (
            "import pathlib, signal, sys; from epochmq_store.files.lock_file import LockFile; "
            "held = LockFile(pathlib.Path(sys.argv[1])); print(flush=True); signal.pause()"
        )
        words = [sys.executable, "-c", program, str(tmp_path / "lock")]
        children.append(subprocess.Popen(words, stdout=subprocess.PIPE))
        assert children[0].stdout is not None
        assert children[0].stdout.readline()

    yield lock
    for child in children:
        child.kill()
        child.communicate()


async def test_a_directory_in_use_is_rejected(tmp_path: Path, lock_directory: Callable[[], None]) -> None:
    await fill_plain(tmp_path, long_texts(3))
    config = config_of(tmp_path, upgraded(peers_of(1)))
    lock_directory()
    with pytest.raises(UpgradeRejectedError, match="is in use by a broker"):
        inspect(config)
    with pytest.raises(UpgradeRejectedError, match="is in use by a broker"):
        log_upgrade.undo(config)


async def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    await fill_plain(tmp_path, long_texts(10))
    settings = upgraded(peers_of(1))
    before = changes_of(tmp_path)
    found = inspect(config_of(tmp_path, settings))
    assert found is not None
    assert changes_of(tmp_path) == before
    async with plain(tmp_path) as bench:
        assert bench.broker.store.max_phy_offset == found.last.end
    assert not data_folder(config_of(tmp_path, settings)).exists()


async def test_a_data_file_that_does_not_continue_the_plain_files_is_rejected(tmp_path: Path) -> None:
    await fill_plain(tmp_path, long_texts(10))
    settings = upgraded(peers_of(1))
    async with running(tmp_path, settings) as bench:
        await ready(bench)
    plain_files(tmp_path)[-1].unlink()
    with pytest.raises(StoreDamagedError, match="but the DLedger log in"):
        async with running(tmp_path, settings):
            pass


async def test_an_upgraded_log_without_entries_keeps_its_empty_file(tmp_path: Path) -> None:
    """Without a quorum nothing is appended, over restarts."""
    await fill_plain(tmp_path, long_texts(10))
    settings = upgraded(peers_of(3))
    for _ in range(2):
        async with running(tmp_path, settings) as bench:
            assert texts_of(bench) == long_texts(10)
            assert not dledger_of(bench).is_ready
        (path,) = data_files(tmp_path)
        assert not path.read_bytes().strip(b"\0")
    assert log_upgrade.undo(config_of(tmp_path, settings))
    async with plain(tmp_path) as bench:
        assert texts_of(bench) == long_texts(10)
