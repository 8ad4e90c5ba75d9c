"""A batch of many messages is stored in parts, each in a turn of the event loop, and still as one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from epochmq_broker.requests.processors import held_queues
from epochmq_broker.requests.processors.send import PartsSafety
from epochmq_broker.writing import batches
from epochmq_broker.writing.batches import BATCH_AT_ONCE
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command
from epochmq_protocol.message import BatchElement, encode_batch
from epochmq_store.running.running_state import RunningFlags
from epochmq_store.statuses import PutStatus
from tests.unit.broker import dledger_bench
from tests.unit.broker.kit import UNIQ_KEY, Bench, Peer, running, send_command
from tests.unit.broker.services.transactions.support import end_command, send_half

TOPIC = "BenchmarkTest"
COUNT = 6 * BATCH_AT_ONCE + 1


def batch(count: int = COUNT, *, name: str = "b", topic: str = TOPIC, queue_id: int = 0) -> Command:
    body = encode_batch(BatchElement(b"%b-%d" % (name.encode(), n), b"TAGS\x01t", n) for n in range(count))
    properties = {"UNIQ_KEY": UNIQ_KEY, "WAIT": "true"}
    code = RequestCode.SEND_BATCH_MESSAGE
    return send_command(topic, body, properties, code=code, batch=True, queue_id=queue_id)


def texts(bench: Bench, topic: str = TOPIC, queue_id: int = 0) -> list[str]:
    return [
        bench.record(topic, queue_id, offset).body.decode() for offset in range(bench.count(topic, queue_id))
    ]


def names(name: str = "b", count: int = COUNT) -> list[str]:
    return [f"{name}-{n}" for n in range(count)]


async def next_turns(condition: Callable[[], object]) -> None:
    """Returns in the turn in which the condition has come about."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition did not come about")


async def begin(bench: Bench, peer: Peer, topic: str = TOPIC) -> int:
    """Sends a batch, and returns when some of its messages are stored."""
    opaque = peer.send(batch(topic=topic))
    await next_turns(lambda: bench.count(topic))
    assert bench.count(topic) < COUNT
    return opaque


async def test_it_gets_one_response_and_each_turn_stores_a_part(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        peer = bench.peer()
        opaque = peer.send(batch())
        steps = [0]
        while bench.count(TOPIC) < COUNT:
            await asyncio.sleep(0)
            steps.append(bench.count(TOPIC) - sum(steps))
        assert max(steps) <= BATCH_AT_ONCE
        answer = await peer.answer(opaque)
        assert answer.code == 0
        assert texts(bench) == names()
        stored = [bench.record(TOPIC, 0, offset) for offset in range(COUNT)]
        assert (answer.ext or {})["msgId"] == ",".join(one.msg_id for one in stored)
        assert (answer.ext or {})["queueOffset"] == "0"
        assert (answer.ext or {})["transactionId"] == UNIQ_KEY
        assert [one.flag for one in stored] == list(range(COUNT))


async def test_a_batch_that_is_not_large_is_answered_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        assert bench.peer().call(batch(BATCH_AT_ONCE)).code == 0
        assert texts(bench) == names(count=BATCH_AT_ONCE)


@pytest.mark.parametrize("ordinary", [False, True])
async def test_other_messages_for_its_queue_come_after_it(tmp_path: Path, *, ordinary: bool) -> None:
    async with running(tmp_path) as bench:
        half = send_half(bench, topic=TOPIC, queue_id=0)
        first = bench.peer()
        opaque = await begin(bench, first)
        others = [bench.peer(ordinary=ordinary) for _ in range(3)]
        waiting = [
            others[0].send(send_command(TOPIC, b"single")),
            others[1].send(batch(3, name="small")),
            others[2].send(end_command(half)),
        ]
        second = bench.peer()
        large = second.send(batch(name="second"))
        assert (await first.answer(opaque)).code == 0
        for peer, number in zip(others, waiting, strict=True):
            assert (await peer.answer(number)).code == 0
        assert (await second.answer(large)).code == 0
        stored = texts(bench)
        assert stored[:COUNT] == names()
        at = stored.index("second-0")
        assert stored[at : at + COUNT] == names("second")
        del stored[at : at + COUNT]
        assert stored[COUNT:] == ["single", "small-0", "small-1", "small-2", "half"]


async def test_other_queues_do_not_wait_for_it(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        peer = bench.peer()
        opaque = await begin(bench, peer)
        assert bench.peer().call(send_command(TOPIC, b"single", queue_id=1)).code == 0
        assert bench.count(TOPIC) < COUNT
        assert (await peer.answer(opaque)).code == 0
        assert texts(bench) == names()


async def test_requests_that_follow_on_its_connection_come_after_it(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        peer = bench.peer()
        opaque = peer.send(batch())
        then = peer.send(send_command(TOPIC, b"single"))
        assert (await peer.answer(opaque)).code == 0
        assert (await peer.answer(then)).code == 0
        assert texts(bench) == [*names(), "single"]


async def test_nothing_is_stored_of_a_batch_whose_last_message_is_not_legal(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        malformed, long = batch(), batch()
        malformed.body = malformed.body[:-3]
        long.body += encode_batch([BatchElement(b"", b"x" * 32_767, 0)])
        for command in (malformed, long):
            peer = bench.peer()
            assert (await peer.answer(peer.send(command))).code == ResponseCode.MESSAGE_ILLEGAL
        assert bench.count(TOPIC) == 0
        assert bench.peer().call(send_command(TOPIC, b"single")).code == 0


async def test_it_is_refused_when_too_many_requests_are_in_flight(tmp_path: Path) -> None:
    """Before anything is stored; the connection serves further requests."""
    async with running(tmp_path) as bench:
        peer = bench.peer()
        bench.fast.in_flight += 1000
        assert (await peer.answer(peer.send(batch()))).code == ResponseCode.SYSTEM_BUSY
        bench.fast.in_flight -= 1000
        assert (await peer.answer(peer.send(send_command(TOPIC, b"single")))).code == 0
        assert texts(bench) == ["single"]


async def test_a_store_that_stops_accepting_messages_ends_it(tmp_path: Path) -> None:
    """Also if it accepts messages again before the next part: another master may have written."""
    async with running(tmp_path) as bench:
        peer = bench.peer()
        opaque = await begin(bench, peer)
        bench.broker.store.state.set_flag(RunningFlags.REPLICA, True)
        stored = bench.count(TOPIC)
        bench.broker.store.state.set_flag(RunningFlags.REPLICA, False)
        assert (await peer.answer(opaque)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert bench.count(TOPIC) == stored
        assert bench.peer().call(send_command(TOPIC, b"single")).code == 0


async def test_the_end_of_its_topic_ends_it(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        peer = bench.peer()
        opaque = await begin(bench, peer)
        bench.broker.store.queue(TOPIC, 0).destroy()
        assert (await peer.answer(opaque)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert bench.count(TOPIC) == 0


async def test_it_is_acknowledged_when_all_of_it_is_on_the_disk(tmp_path: Path) -> None:
    async with running(tmp_path, {"flushDiskType": "SYNC_FLUSH"}) as bench:
        peer = bench.peer()
        answer = await peer.answer(peer.send(batch()))
        assert answer.code == 0
        last = bench.record(TOPIC, 0, COUNT - 1)
        assert bench.broker.store.flushed_where >= last.physical_offset + last.store_size
        assert peer.connection.in_flight == 0
        assert len((answer.ext or {})["msgId"].split(",")) == COUNT


async def test_a_dledger_leader_stores_it_and_acknowledges_it_once_committed(tmp_path: Path) -> None:
    settings = dledger_bench.settings_of(dledger_bench.peers_of(1))
    async with dledger_bench.running(tmp_path, settings) as bench:
        await dledger_bench.ready(bench)
        peer, other = bench.peer(), bench.peer()
        opaque = peer.send(batch(topic=dledger_bench.TOPIC))
        queue = bench.broker.store.queue(dledger_bench.TOPIC, 0)
        await next_turns(lambda: bench.broker.store.appender.is_held(queue))
        single = other.send(send_command(dledger_bench.TOPIC, b"single"))
        assert (await peer.answer(opaque)).code == 0
        assert dledger_bench.texts_of(bench)[:COUNT] == names()
        assert (await other.answer(single)).code == 0
        assert dledger_bench.texts_of(bench) == [*names(), "single"]


async def test_the_end_of_a_dledger_leadership_ends_it(tmp_path: Path) -> None:
    settings = dledger_bench.settings_of(dledger_bench.peers_of(1))
    async with dledger_bench.running(tmp_path, settings) as bench:
        await dledger_bench.ready(bench)
        peer = bench.peer()
        opaque = peer.send(batch(topic=dledger_bench.TOPIC))
        queue, appender = bench.broker.store.queue(dledger_bench.TOPIC, 0), bench.broker.store.appender
        await next_turns(lambda: appender.next_offset(queue))
        assert appender.next_offset(queue) < COUNT
        dledger_bench.dledger_of(bench)._lose_batch()
        assert (await peer.answer(opaque)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        await dledger_bench.ready(bench)
        assert await dledger_bench.send(bench, "single") == [0]
        assert dledger_bench.texts_of(bench)[-1] == "single"


async def test_a_request_does_not_wait_forever_for_its_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_queues, "BUSY_MAX_S", 0.01)
    monkeypatch.setattr(batches, "BUSY_MAX_S", 0.01)
    async with running(tmp_path) as bench:
        holds = bench.broker.writer.holds
        assert holds.take(bench.broker.store.queue(TOPIC, 0))
        peer, other = bench.peer(), bench.peer()
        assert (await peer.answer(peer.send(send_command(TOPIC)))).code == ResponseCode.SYSTEM_BUSY
        assert (await other.answer(other.send(batch()))).code == ResponseCode.SYSTEM_BUSY
        assert holds.waiting_bytes == 0


async def test_the_bytes_of_requests_that_wait_for_its_queue_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_queues, "WAITING_BYTES_MAX", 10)
    async with running(tmp_path) as bench:
        queue = bench.broker.store.queue(TOPIC, 0)
        assert bench.broker.writer.holds.take(queue)
        peer, other = bench.peer(), bench.peer()
        first = peer.send(send_command(TOPIC, bytes(8)))
        await asyncio.sleep(0)
        assert (await other.answer(other.send(send_command(TOPIC, bytes(8))))).code == (
            ResponseCode.SYSTEM_BUSY
        )
        bench.broker.writer.holds.end(queue)
        assert (await peer.answer(first)).code == 0


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        (["PUT_OK", "PUT_OK"], "PUT_OK"),
        (["PUT_OK", "FLUSH_DISK_TIMEOUT", "PUT_OK"], "FLUSH_DISK_TIMEOUT"),
        (["FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT"], "FLUSH_DISK_TIMEOUT"),
        (["FLUSH_DISK_TIMEOUT", "SERVICE_NOT_AVAILABLE", "PUT_OK"], "SERVICE_NOT_AVAILABLE"),
    ],
)
def test_the_result_of_a_batch_is_that_of_its_worst_part(parts: list[str], whole: str) -> None:
    safety, results = PartsSafety(), list[PutStatus]()
    ends = [safety.begin_part() for _ in parts]
    safety.when_safe(results.append)
    for end, part in zip(ends, parts, strict=True):
        assert results == []
        end(PutStatus[part])
    assert results == [PutStatus[whole]]
