"""A plain checkpoint is stored exactly as the message writer and the timer's hook store it."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from epochmq_broker.services.pop.checkpoints import PopCheckPoint
from epochmq_broker.services.pop.revive_log import ReviveLog
from epochmq_protocol.topics import TIMER_TOPIC
from epochmq_store.statuses import PutStatus
from tests.unit.broker.kit import Bench, running
from tests.unit.broker.services.pop.support import pop, send
from tests.unit.broker.services.pop.test_pop_ack_fast import stored_since

ROUNDS = 200
PLAIN_NAMES = ["g", "group-2", "", "two words", "%RETRY%g_T"]
NAMES = [*PLAIN_NAMES * 3, 'quote"', "back\\slash", "ü"]
INVISIBLE_MS = [3_600_000, 60_000, 5000, 120_000, 1500, 1000, 0, -60_000, 10_000_000_000]


def some_checkpoint(chance: random.Random) -> PopCheckPoint:
    """A checkpoint of up to 32 messages. Some are due already, some later than the timer accepts."""
    diffs = sorted(chance.sample(range(60), chance.randrange(33)))
    return PopCheckPoint(
        count=len(diffs),
        pop_time=time.time_ns() // 1_000_000,
        invisible_time=chance.choice(INVISIBLE_MS),
        bit_map=chance.choice([0, 0, 5, -1]),
        start_offset=chance.choice([0, 17, 1 << 40]),
        revive_offset=chance.choice([0, 9]),
        group=chance.choice(NAMES),
        topic=chance.choice(NAMES),
        queue_id=chance.randrange(9),
        diffs=chance.choice([diffs, diffs, diffs, None]),
        broker_name=chance.choice(["broker-a", "broker-a", "broker-a", 'quote"', None]),
        re_put_times=chance.choice([None, None, None, "1"]),
    )


async def test_both_ways_store_the_same_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as bench:
        revive_log, plain = bench.broker.pop.revive_log, 0
        for seed in range(ROUNDS):
            chance = random.Random(seed)
            checkpoint, revive_queue_id = some_checkpoint(chance), chance.choice([0, 1, 7, 7, 7, -1])
            found = []
            for is_plain in (True, False):
                start = bench.broker.store.max_phy_offset
                with monkeypatch.context() as patch:
                    if not is_plain:
                        patch.setattr(ReviveLog, "_put_plain", lambda *_: None)
                    stored = revive_log.put_checkpoint(checkpoint, revive_queue_id)
                said = (stored.status, stored.topic, stored.queue_id, stored.size, stored.count)
                found.append((said, stored_since(bench, start)))
            assert found[0] == found[1], checkpoint
            plain += revive_log._put_plain(checkpoint, revive_queue_id) is not None
        assert ROUNDS / 20 < plain < ROUNDS


def plain_result(bench: Bench) -> PutStatus | None:
    """What becomes of a checkpoint that is plain; None: it is not stored as a plain one."""
    present = time.time_ns() // 1_000_000
    checkpoint = PopCheckPoint(
        pop_time=present, invisible_time=60_000, topic="T", group="g", broker_name="broker-a", diffs=[0]
    )
    stored = bench.broker.pop.revive_log._put_plain(checkpoint, 0)
    return None if stored is None else stored.status


async def test_a_checkpoint_that_may_be_rejected_is_not_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as bench:
        writer, before = bench.broker.writer, bench.count(TIMER_TOPIC)
        with monkeypatch.context() as patch:
            patch.setattr(writer, "may_reject", True)
            patch.setattr(writer, "rejection", lambda _wait: PutStatus.SERVICE_NOT_AVAILABLE)
            assert plain_result(bench) is None
        with monkeypatch.context() as patch:
            patch.setattr(writer, "timer_hook", None)
            assert plain_result(bench) is None
        assert bench.count(TIMER_TOPIC) == before
        assert plain_result(bench) is PutStatus.PUT_OK
        assert bench.count(TIMER_TOPIC) == before + 1


async def test_no_message_is_handed_out_without_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as bench:
        send(bench, 2)
        failed = (PutStatus.OS_PAGE_CACHE_BUSY, -1, -1, 0)
        with monkeypatch.context() as patch:
            patch.setattr(bench.broker.store, "append", lambda *_arguments, **_fields: failed)
            assert (await pop(bench, invisible_time=60_000))[0] == []
        messages, _ = await pop(bench, invisible_time=60_000)
        assert len(messages) == 2
