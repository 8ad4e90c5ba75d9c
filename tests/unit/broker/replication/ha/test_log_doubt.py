"""Tests logs in doubt: a broker whose log may have lost its end leads only under a new epoch, and reports the
doubt until it has caught up with a living master or has become one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_broker.replication.ha.log_doubt import (
    HEARTBEAT_SUSPENSION_MS,
    LogDoubt,
    doubt_after_start,
    given_up,
    has_caught_up,
    may_lead,
    no_doubt,
    protected_until,
    suspends_heartbeats,
    verified_until,
    written_epoch,
)
from epochmq_broker.replication.ha.log_doubt_tracker import FILE, LogDoubtFile
from epochmq_formats.abort_file import TailState
from epochmq_protocol.epoch_entries import EpochEntry
from epochmq_protocol.errors import EpochMQError
from tests.unit.broker.replication.ha.broker_node import BrokerNode, until
from tests.unit.broker.replication.ha.following_nodes import ALL_ACK, nodes, same
from tests.unit.store.support import adopt_abort_file, copy_after_crash

SOUND = LogDoubt()
ASYNC = {**ALL_ACK, "flushDiskType": "ASYNC_FLUSH"}


@pytest.mark.parametrize(
    ("tail", "lacks", "found"),
    [
        (TailState.INTACT, False, SOUND),
        (TailState.UNFLUSHED_LOST, False, LogDoubt(gives_up=True, unflushed_from=70)),
        (TailState.UNFLUSHED_LOST, True, LogDoubt(gives_up=True, in_doubt=True, unflushed_from=70)),
        (TailState.UNKNOWN, True, LogDoubt(gives_up=True, in_doubt=True, verify_all=True)),
    ],
)
def test_the_doubt_after_a_start(tail: TailState, lacks: bool, found: LogDoubt) -> None:
    assert (
        doubt_after_start(SOUND, tail, may_lack_acknowledged=lacks, confirmed=90, end=100, recovery_start=70)
        == found
    )
    # A doubt of earlier starts remains, after an orderly stop, too.
    assert (
        doubt_after_start(found, TailState.INTACT, may_lack_acknowledged=False, confirmed=90, end=100)
        == found
    )


def test_a_log_that_ends_before_the_confirmed_offset_is_in_doubt() -> None:
    found = doubt_after_start(SOUND, TailState.INTACT, may_lack_acknowledged=False, confirmed=101, end=100)
    assert found == LogDoubt(gives_up=True, in_doubt=True, verify_all=True)
    # With SYNC_FLUSH what is confirmed is flushed: a loss of power does not explain that it is gone.
    lost = doubt_after_start(
        SOUND, TailState.UNFLUSHED_LOST, may_lack_acknowledged=False, confirmed=101, end=100
    )
    assert lost == LogDoubt(gives_up=True, in_doubt=True, verify_all=True, unflushed_from=0)
    lost = doubt_after_start(
        SOUND, TailState.UNFLUSHED_LOST, may_lack_acknowledged=True, confirmed=101, end=100
    )
    assert lost == LogDoubt(gives_up=True, in_doubt=True, unflushed_from=0)


def test_a_given_up_mastership_is_not_taken_again() -> None:
    lost = LogDoubt(gives_up=True, in_doubt=True)
    assert not may_lead(lost, 99), "which mastership is the old one is not known yet"
    doubt = given_up(lost, 5)
    assert [epoch for epoch in range(4, 8) if may_lead(doubt, epoch)] == [6, 7]
    assert doubt.in_doubt
    assert no_doubt() == SOUND
    assert given_up(doubt, 3).given_up_epoch == 5


def test_a_replica_has_caught_up_when_it_has_what_its_master_had_and_has_confirmed() -> None:
    assert has_caught_up(reported=100, master_end=100, confirmed=90)
    assert not has_caught_up(reported=99, master_end=100, confirmed=90), "the confirmed offset may lag behind"
    assert not has_caught_up(reported=100, master_end=90, confirmed=101)


def test_up_to_where_a_log_needs_no_comparison() -> None:
    assert verified_until(SOUND, 90, 100) == 90
    assert verified_until(SOUND, 110, 100) == 100
    assert verified_until(LogDoubt(verify_all=True), 90, 100) == 0
    assert verified_until(LogDoubt(unflushed_from=70), 90, 100) == 70
    assert verified_until(LogDoubt(unflushed_from=95), 90, 100) == 90


def test_only_confirmed_bytes_that_may_be_lost_may_be_truncated() -> None:
    assert protected_until(SOUND, 90) == 90
    assert protected_until(LogDoubt(verify_all=True), 90) == 90
    assert protected_until(LogDoubt(unflushed_from=70), 90) == 70
    # The first loss of power counts until the log was compared.
    again = doubt_after_start(
        LogDoubt(unflushed_from=70),
        TailState.UNFLUSHED_LOST,
        may_lack_acknowledged=False,
        confirmed=90,
        end=100,
        recovery_start=80,
    )
    assert again.unflushed_from == 70


def test_an_epoch_without_a_byte_makes_no_log_newer() -> None:
    entries = [EpochEntry(5, 0), EpochEntry(7, 100)]
    assert [written_epoch(entries, end) for end in (0, 90, 100, 101)] == [-1, 5, 5, 7]


@pytest.mark.parametrize(
    ("grants", "in_doubt", "gives_up_epoch", "since_ms", "quiet"),
    [
        (True, True, 5, 0, False),
        (False, False, None, 0, False),
        (False, False, 5, 10 * HEARTBEAT_SUSPENSION_MS, True),
        (False, True, None, 0, True),
        (False, True, None, HEARTBEAT_SUSPENSION_MS, False),
        (None, True, None, 0, True),
        (None, False, None, 0, False),
    ],
)
def test_when_a_broker_suspends_its_heartbeats_under_rocketmq_s_controllers(
    grants: bool | None, in_doubt: bool, gives_up_epoch: int | None, since_ms: int, quiet: bool
) -> None:
    assert (
        suspends_heartbeats(
            grants=grants, in_doubt=in_doubt, gives_up_epoch=gives_up_epoch, since_start_ms=since_ms
        )
        is quiet
    )


def test_the_doubt_file_is_durable_and_an_unreadable_one_is_the_worst_case(tmp_path: Path) -> None:
    file = LogDoubtFile(tmp_path / "new" / FILE)
    file.load()
    assert file.content == SOUND
    file.save(LogDoubt(in_doubt=True, given_up_epoch=7))
    again = LogDoubtFile(file.path)
    again.load()
    assert again.content == LogDoubt(in_doubt=True, given_up_epoch=7)
    file.path.write_bytes(b"")
    again.load()
    assert again.content == LogDoubt(in_doubt=True, gives_up=True, verify_all=True)
    again.save(SOUND)
    assert not file.path.exists()


# With stores


async def after_power_loss(node: BrokerNode, directory: Path, **changes: object) -> BrokerNode:
    """Opens the node on a copy of what was on its disk; `adopt_abort_file` adapts the abort file to the
    copy."""
    copy_after_crash(node.store, directory)
    adopt_abort_file(directory, **({"boot_id": "another boot"} | changes))
    return await BrokerNode(directory, node.id, ASYNC).open()


async def test_a_master_that_lost_power_does_not_resume_its_epoch(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, ASYNC) as (a,):
        await a.lead(5)
        a.put(10)
        back = await after_power_loss(a, tmp_path / "back")
        try:
            assert back.ha.doubt.may_lack_acknowledged
            with pytest.raises(EpochMQError, match="given up"):
                await back.lead(5)
            await back.ha.give_up(5)
            with pytest.raises(EpochMQError, match="given up"):
                await back.lead(5)
            assert back.ha.doubt.may_lack_acknowledged
            await back.lead(6)
            assert back.epochs[-1] == (6, back.end)
            assert not back.ha.doubt.may_lack_acknowledged
            assert not (back.directory / FILE).exists()
        finally:
            await back.close()


async def test_a_master_that_was_killed_resumes_its_epoch(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, ASYNC) as (a,):
        await a.lead(5)
        end = a.put(10)
        copy_after_crash(a.store, tmp_path / "back")
        adopt_abort_file(tmp_path / "back")
        back = await BrokerNode(tmp_path / "back", 1, ASYNC).open()
        try:
            assert not back.ha.doubt.may_lack_acknowledged
            await back.lead(5)
            assert (back.epochs, back.end) == ([(5, 0)], end)
        finally:
            await back.close()


async def test_doubt_survives_an_orderly_stop_and_a_second_crash(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, ASYNC) as (a,):
        await a.lead(5)
        a.put(10)
        back = await after_power_loss(a, tmp_path / "back")
    await back.ha.give_up(5)
    await back.close()
    again = await BrokerNode(tmp_path / "back", 1, ASYNC).open()
    assert again.store.tail.state is TailState.INTACT
    assert again.ha.doubt.current == LogDoubt(in_doubt=True, given_up_epoch=5, unflushed_from=0)
    killed = await after_power_loss(again, tmp_path / "killed", boot_id="a third boot")
    assert killed.ha.doubt.current == LogDoubt(
        in_doubt=True, gives_up=True, given_up_epoch=5, unflushed_from=0
    )
    for node in (again, killed):
        await node.close()


async def test_a_replica_s_doubt_ends_when_it_has_what_its_master_had(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2, ASYNC) as (a, b):
        address = await a.lead(5)
        await b.follow(address, 5)
        a.put(10)
        await same(a, b)
        settled_at: list[int] = []
        back = await after_power_loss(b, tmp_path / "back")
        try:
            back.ha.doubt.on_cleared.append(lambda: settled_at.append(back.end))
            assert back.ha.doubt.may_lack_acknowledged
            end = a.put(10)
            await back.follow(address, 5)
            await until(lambda: settled_at == [end])
            assert not back.ha.doubt.may_lack_acknowledged
            assert not (back.directory / FILE).exists()
            assert back.store.abort is not None
        finally:
            await back.close()
        once_more = await BrokerNode(tmp_path / "back", 2, ASYNC).open()
        assert once_more.ha.doubt.current == SOUND
        await once_more.close()


async def test_epochs_after_the_recovered_end_are_removed(tmp_path: Path) -> None:
    """An epoch is on disk before its first byte. Its number must not win an election for a log without that
    byte."""
    async with nodes(tmp_path, 1, ASYNC) as (a,):
        await a.lead(5)
        end = a.put(10)
        a.ha.epochs.append(EpochEntry(6, end))
        a.ha.epochs.append(EpochEntry(7, end + 100))
        assert a.ha.doubt.written_epoch == 5
        back = await after_power_loss(a, tmp_path / "back")
        try:
            assert back.epochs == [(5, 0), (6, end)]
            assert back.ha.doubt.written_epoch == 5
        finally:
            await back.close()


def test_a_failed_disk_puts_the_log_in_doubt_at_once(tmp_path: Path) -> None:
    node = BrokerNode(tmp_path, 1, ASYNC)
    node.store.load()
    node.ha.load()
    assert not node.ha.doubt.may_lack_acknowledged
    node.store.state.report_fsync_failure(OSError(5, "the disk failed"))
    assert node.ha.doubt.may_lack_acknowledged
    node.store.stop()
