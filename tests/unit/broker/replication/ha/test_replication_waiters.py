"""Tests how many logs a send waits for, which status it gets, and that sends do not delay each other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from epochmq_broker.replication.ha.ack_quorum import required_copies
from epochmq_broker.replication.ha.replication_waiters import ALL_MEMBERS, ReplicationWaiters
from epochmq_broker.replication.ha.settings import HASettings
from epochmq_broker.replication.ha.sync_state import SyncState
from epochmq_store.statuses import PutStatus
from tests.unit.broker.kit import Bench, running, send_command, until

OK, LATE = PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT


def state(
    members: set[int], acks: dict[int, int], *, end: int = 1000, learners: tuple[int, ...] = ()
) -> SyncState:
    sync = SyncState(
        self_id=1,
        epoch_start=0,
        members=frozenset(members),
        set_epoch=1,
        confirm_offset=0,
        end=end,
        not_caught_up_max_ms=15_000,
        since_ms=0,
        all_ack=True,
    )
    for one, offset in acks.items():
        sync.replica_connected(one, async_learner=one in learners)
        sync.replica_acknowledged(one, offset, 0)
    return sync


def settings(**values: Any) -> HASettings:
    return HASettings(**{"broker_role": "SYNC_MASTER"} | values)


ACTING: dict[str, Any] = {"enable_slave_acting_master": True, "in_sync_replicas": 3}
DEGRADES: dict[str, Any] = ACTING | {"enable_auto_in_sync_replicas": True}


@pytest.mark.parametrize(
    ("wanted", "values", "controlled", "alive", "acks"),
    [
        pytest.param(1, {"broker_role": "ASYNC_MASTER", "in_sync_replicas": 3}, False, None, {}, id="async"),
        pytest.param(1, {}, False, None, {}, id="the default waits for nobody"),
        pytest.param(2, {"in_sync_replicas": 2}, False, None, {}, id="a number is waited for, there or not"),
        pytest.param(2, {"in_sync_replicas": 2}, True, None, {2: 1000}, id="with a controller, too"),
        pytest.param(ALL_MEMBERS, {"all_ack_in_sync_state_set": True}, True, None, {}, id="the whole set"),
        pytest.param(None, {"min_in_sync_replicas": 4}, True, None, {}, id="a set too small"),
        pytest.param(None, ACTING, False, None, {2: 900}, id="too few near"),
        pytest.param(2, DEGRADES, False, None, {2: 900}, id="degrades to those that are near"),
        pytest.param(
            None,
            DEGRADES | {"min_in_sync_replicas": 2, "ha_max_gap_not_in_sync": 50},
            False,
            None,
            {2: 900},
            id="but not below the least",
        ),
        pytest.param(1, DEGRADES, False, 1, {2: 1000}, id="nor to those the nameserver has lost"),
    ],
)
def test_how_many_logs_a_send_needs(
    wanted: int | None, values: dict[str, Any], controlled: bool, alive: int | None, acks: dict[int, int]
) -> None:
    assert (
        required_copies(settings(**values), state({1, 2, 3}, acks), controlled=controlled, alive=alive)
        == wanted
    )


def test_learners_and_brokers_outside_the_set_do_not_count() -> None:
    sync = state({1, 2}, {2: 400, 3: 900, 4: 1000}, learners=(4,))
    assert sync.offset_reached_by(2) == 900
    assert sync.offset_reached_by(3) == 400
    assert sync.offset_reached_by(4) == -1
    assert sync.offset_reached_by_all() == 400
    sync.proposal_sent(frozenset({1, 2, 5}))
    assert sync.offset_reached_by_all() == -1


async def test_each_send_is_answered_as_soon_as_its_own_bytes_are_replicated() -> None:
    sync = state({1, 2}, {2: 100})
    acks = ReplicationWaiters(
        sync,
        settings(in_sync_replicas=2, slave_timeout=60),
        asyncio.get_running_loop(),
        controlled=False,
        end=lambda: 1000,
    )
    results: list[tuple[int, PutStatus]] = []
    for end in (50, 300, 500, 900):
        acks.when_replicated(end, lambda status, end=end: results.append((end, status)))  # type: ignore[misc]
    assert results == [(50, OK)]
    sync.replica_acknowledged(2, 500, 0)
    acks.answer_replicated()
    assert results == [(50, OK), (300, OK), (500, OK)]
    await until(lambda: len(results) == 4)
    assert results[-1] == (900, LATE)
    acks.when_replicated(950, lambda status: results.append((950, status)))
    acks.stop()
    assert results[-1] == (950, LATE)
    acks.when_replicated(960, lambda status: results.append((960, status)))
    assert results[-1] == (960, LATE)


async def test_rejections_follow_the_set_and_the_settings() -> None:
    sync = state({1}, {})
    acks = ReplicationWaiters(
        sync, settings(min_in_sync_replicas=2), asyncio.get_running_loop(), controlled=True, end=lambda: 1000
    )
    assert acks.rejection() is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    sync.proposal_sent(frozenset({1, 2}))
    assert acks.rejection() is None
    sync.proposal_rejected()
    assert acks.rejection() is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    assert sync.adopt(frozenset({1, 2}), 2)
    assert acks.rejection() is None
    acks.configure(settings(min_in_sync_replicas=3))
    assert acks.rejection() is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH


def bench_state(bench: Bench, values: dict[str, Any], *, controlled: bool, members: set[int]) -> SyncState:
    """Adds replication to the bench's sends, without any HA connection."""
    store = bench.broker.store
    sync = state(members, {}, end=0)
    acks = ReplicationWaiters(
        sync,
        settings(slave_timeout=100, **values),
        asyncio.get_running_loop(),
        controlled=controlled,
        end=lambda: store.max_phy_offset,
    )
    bench.broker.writer.set_replica_acks(acks)
    bench.sync, bench.acks = sync, acks  # type: ignore[attr-defined]
    return sync


@pytest.mark.parametrize("ordinary", [False, True])
async def test_the_producer_gets_the_right_status(tmp_path: Path, ordinary: bool) -> None:
    async with running(tmp_path) as bench:
        peer = bench.peer(ordinary=ordinary)
        assert peer.call(send_command("TBW102")).code == 0
        sync = bench_state(bench, {"all_ack_in_sync_state_set": True}, controlled=True, members={1, 2})
        opaque = peer.send(send_command("TBW102"))
        assert opaque not in peer.answers
        free = {"UNIQ_KEY": "7F0000016B5C18B4AAC2000000010001", "WAIT": "false"}
        assert peer.call(send_command("TBW102", properties=free)).code == 0  # it does not want to wait
        late = await peer.answer(opaque)
        assert late.code == 12
        assert late.ext is not None
        assert late.ext["queueOffset"] == "1"
        sync.replica_connected(2, async_learner=False)
        opaque = peer.send(send_command("TBW102"))
        sync.log_appended(bench.broker.store.max_phy_offset)
        sync.replica_acknowledged(2, bench.broker.store.max_phy_offset, 0)
        bench.acks.answer_replicated()  # type: ignore[attr-defined]
        assert (await peer.answer(opaque)).code == 0


@pytest.mark.parametrize("ordinary", [False, True])
async def test_with_too_few_replicas_a_send_is_rejected_before_it_is_stored(
    tmp_path: Path, ordinary: bool
) -> None:
    async with running(tmp_path) as bench:
        bench_state(bench, {"min_in_sync_replicas": 3}, controlled=True, members={1, 2})
        peer = bench.peer(ordinary=ordinary)
        response = peer.call(send_command("TBW102"))
        assert (response.code, response.remark) == (1, "in-sync replicas not enough")
        assert bench.broker.store.max_phy_offset == 0
        free = {"UNIQ_KEY": "7F0000016B5C18B4AAC2000000010001", "WAIT": "false"}
        assert peer.call(send_command("TBW102", properties=free)).code == 0


async def test_disk_and_replicas_are_both_waited_for(tmp_path: Path) -> None:
    async with running(tmp_path, {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": "60000"}) as bench:
        sync = bench_state(bench, {"in_sync_replicas": 2}, controlled=False, members={1})
        sync.replica_connected(2, async_learner=False)
        peer = bench.peer()
        opaque = peer.send(send_command("TBW102"))
        assert (await peer.answer(opaque)).code == 12  # the disk was in time, the replica was not
        opaque = peer.send(send_command("TBW102"))
        end = bench.broker.store.max_phy_offset
        sync.log_appended(end)
        sync.replica_acknowledged(2, end, 0)
        bench.acks.answer_replicated()  # type: ignore[attr-defined]
        assert (await peer.answer(opaque)).code == 0
