"""POP consumers of a compaction topic get what its files have: the newest message of each key, also when the
log does not have it any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_broker.services.compaction.compacted_queue import CompactedQueue
from epochmq_broker.services.compaction.compacted_reads import KEPT_MAX, CompactedReads, MessagesNotReadError
from epochmq_protocol.bodies import to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_client import PeekMessageRequestHeader
from epochmq_protocol.message import decode_records
from epochmq_protocol.subscription_groups import SubscriptionGroupConfig
from tests.support.compaction_bench import SETTINGS, TOPIC, create, queue_of, send
from tests.unit.broker.kit import Bench, until
from tests.unit.broker.services.pop import support as pop

KEYS = 4
SENT = 400
RETRY_TOPIC = f"%RETRY%g_{TOPIC}"
POLL_MS = 30_000


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with pop.popping(tmp_path / "store", SETTINGS) as made:
        await create(made)
        yield made


async def send_and_compact(bench: Bench) -> set[int]:
    """Sends messages and compacts their queue. Returns the queue offsets of what remains."""
    await send(bench, 0, SENT, KEYS)
    outcome = await bench.broker.compaction.compact(queue_of(bench))
    assert outcome is not None
    assert outcome.messages_after < outcome.messages_before
    return set(offsets_of(queue_of(bench), bench))


def offsets_of(queue: CompactedQueue, bench: Bench) -> list[int]:
    """The queue offsets of a compacted queue's messages."""
    found: list[int] = []
    offset = 0
    while offset < queue.max_offset:
        result = queue.get(offset, bench.broker.compaction.limits(32))
        found += [record.queue_offset for record in decode_records(result.body)]
        offset = result.next_offset
    return found


async def pop_all(bench: Bench, **fields: int) -> list[int]:
    """POPs until nothing is left, without acknowledgements. Returns the queue offsets."""
    found: list[int] = []
    while True:
        messages, _ = await pop.pop(bench, TOPIC, **fields)
        if not messages:
            return found
        found += [message.queue_offset for message in messages if message.queue_id == 0]


def forget_log_before(bench: Bench, offset: int) -> None:
    """Makes the log begin at the message with this queue offset, as after an expiry."""
    store = bench.broker.store
    queue = store.queue(TOPIC, 0)
    unit = queue.unit(offset)
    assert unit is not None
    queue.correct_min_offset(unit[0])
    assert queue.min_offset == offset


async def test_pops_get_what_remains_after_a_compaction(bench: Bench) -> None:
    remaining = await send_and_compact(bench)
    found = await pop_all(bench)
    assert set(found) == remaining
    assert len(found) == len(remaining)
    assert len(remaining) < SENT


async def test_an_orderly_pop_gets_it_too(bench: Bench) -> None:
    remaining = await send_and_compact(bench)
    messages, _ = await pop.pop(bench, TOPIC, order=True)
    assert [message.queue_offset for message in messages] == sorted(remaining)[: len(messages)]
    assert messages


async def test_a_waiting_pop_gets_the_next_message(bench: Bench) -> None:
    await send(bench, 0, KEYS)
    await pop_all(bench)
    peer = bench.peer()
    opaque = peer.send(pop.pop_command(TOPIC, poll_time=POLL_MS))
    await send(bench, KEYS, 1)
    response = await peer.answer(opaque)
    assert [message.queue_offset for message in decode_records(response.body)] == [KEYS]


async def test_a_new_group_begins_with_messages_that_the_log_does_not_have(bench: Bench) -> None:
    remaining = await send_and_compact(bench)
    forget_log_before(bench, SENT - 1)
    assert set(await pop_all(bench)) == remaining


async def test_every_request_names_the_first_offset_of_the_files(bench: Bench) -> None:
    first = min(await send_and_compact(bench))
    forget_log_before(bench, SENT - 1)
    assert first < SENT - 1
    peer, queue = bench.peer(), {"topic": TOPIC, "queueId": "0"}
    lowest = peer.call(request(RequestCode.GET_MIN_OFFSET, ext=queue))
    assert lowest.ext == {"offset": str(first)}
    by_time = peer.call(request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext=queue | {"timestamp": "1000"}))
    assert by_time.ext == {"offset": str(first)}
    stats = peer.call(request(RequestCode.GET_TOPIC_STATS_INFO, ext={"topic": TOPIC}))
    assert f'"minOffset":{first}'.encode() in stats.body
    group = request(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        body=to_json(SubscriptionGroupConfig(group_name="g")),
    )
    assert peer.call(group).code == ResponseCode.SUCCESS
    reset = {"topic": TOPIC, "group": "g", "timestamp": "1000", "isForce": "true"}
    moved = peer.call(request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext=reset))
    assert f":{first}".encode() in moved.body
    waits = {"topic": TOPIC, "consumerGroup": "new", "queueId": "0", "pollTime": "0", "bornTime": "0"}
    notified = await peer.answer(peer.send(request(RequestCode.NOTIFICATION, ext=waits)))
    assert notified.ext is not None
    assert notified.ext["hasMsg"] == "true"


async def test_a_message_that_only_the_files_have_is_acknowledged_or_comes_again(bench: Bench) -> None:
    remaining = sorted(await send_and_compact(bench))
    forget_log_before(bench, SENT - 1)
    messages, header = await pop.pop(bench, TOPIC, max_msg_nums=2, invisible_time=2000)
    first, second = messages
    assert [first.queue_offset, second.queue_offset] == remaining[:2]
    peer = bench.peer()
    info = pop.extra_info(header, first, remaining[0])
    answer = await peer.answer(peer.send(pop.ack_command(info, first, TOPIC)))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    await until(lambda: bench.broker.pop.revives.revived == 1)
    found = bench.broker.store.get(bench.broker.store.queue(RETRY_TOPIC, 0), 0, 32)
    assert [record.body for record in decode_records(found.body)] == [second.body]


async def test_a_message_that_a_newer_one_has_replaced_does_not_come_again(bench: Bench) -> None:
    await send(bench, 0, KEYS)
    await pop.pop(bench, TOPIC, invisible_time=2000)
    await send(bench, KEYS, SENT, KEYS)
    outcome = await bench.broker.compaction.compact(queue_of(bench))
    assert outcome is not None
    forget_log_before(bench, SENT)
    await until(lambda: bench.broker.pop.revives.pending_checkpoints > 0)
    await until(lambda: bench.broker.pop.revives.pending_checkpoints == 0)
    assert bench.broker.pop.revives.revived == 0


async def test_a_peek_shows_what_a_pop_would_get(bench: Bench) -> None:
    remaining = await send_and_compact(bench)
    header = PeekMessageRequestHeader(consumer_group="g", topic=TOPIC, queue_id=0, max_msg_nums=8)
    peer = bench.peer()
    answer: Command = await peer.answer(peer.send(request(RequestCode.PEEK_MESSAGE, header)))
    shown = [one.queue_offset for one in decode_records(answer.body)]
    assert shown
    assert shown == sorted(remaining)[: len(shown)]


async def test_results_that_nobody_takes_are_dropped(bench: Bench) -> None:
    await send(bench, 0, KEPT_MAX + 2)
    reads = CompactedReads(bench.broker.compaction, bench.broker.store)
    queue = queue_of(bench)
    reader = bench.broker.store.reader
    reader.resident_only = reader.residency
    try:
        for offset in range(KEPT_MAX + 1):
            with pytest.raises(MessagesNotReadError) as missing:
                reads.get(queue, offset, 1)
            missing.value.load()
        with pytest.raises(MessagesNotReadError) as dropped:
            reads.get(queue, 0, 1)
        # A request must not wait for the read of another one, whose result it would not get.
        assert not dropped.value.blocks() & missing.value.blocks()
        assert [one.queue_offset for one in decode_records(reads.get(queue, KEPT_MAX, 1).body)] == [KEPT_MAX]
        with pytest.raises(MessagesNotReadError):
            reads.get(queue, KEPT_MAX, 1)
    finally:
        reader.resident_only = None


async def test_a_queue_that_is_not_open_yet_rejects_pops(bench: Bench) -> None:
    await send(bench, 0, KEYS)
    bench.broker.compaction._states[TOPIC, 0].is_loaded = False
    with pytest.raises(RequestError) as rejected:
        bench.broker.pop.compacted.get(queue_of(bench), 0, 1)
    assert rejected.value.code == ResponseCode.SYSTEM_BUSY
