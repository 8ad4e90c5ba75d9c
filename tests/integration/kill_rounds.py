"""Kills a broker under load, restarts it, and checks that everything acknowledged is there.

A ledger records by message id what was sent, what was acknowledged and at which offset. A send without a
response is indeterminate: it may be stored once, or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.pipeline import Pipeline
from tests.support.records import Record, encode_batch, parse_records
from tests.support.remoting import Response

SEND_MESSAGE_V2, SEND_BATCH_MESSAGE, PULL_MESSAGE = 310, 320, 11
QUERY_MESSAGE, QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET = 12, 14, 15
GET_MAX_OFFSET, GET_MIN_OFFSET, VIEW_MESSAGE_BY_ID = 30, 31, 33
SUCCESS, SYSTEM_BUSY, FLUSH_DISK_TIMEOUT, TOPIC_NOT_EXIST, QUERY_NOT_FOUND = 0, 2, 10, 17, 22
SUBSCRIPTION_FLAG = 4

QUEUES = 4
CONNECTIONS = 4
IN_FLIGHT = 16
BATCH_MAX = 8
BODY_MAX = 3000
ID_LENGTH = 32
SAMPLE = 20
PULL_BATCH = 32
GROUP = "kill-group"

QueueKey = tuple[str, int]


@dataclass(frozen=True)
class Sent:
    """A message that was sent: its queue and the CRC of its body."""

    queue: QueueKey
    crc: int
    queryable: bool  # by its own id: elements of a batch carry the batch's


@dataclass
class Ledger:
    """What was sent to the broker, and what it answered."""

    sent: dict[str, Sent] = field(default_factory=dict)
    acked: dict[QueueKey, dict[int, str]] = field(default_factory=dict)
    physical: dict[str, int] = field(default_factory=dict)
    committed: dict[QueueKey, int] = field(default_factory=dict)
    found: dict[QueueKey, list[str]] = field(default_factory=dict)
    ever_found: set[str] = field(default_factory=set)
    acks: int = 0
    indeterminate: int = 0  # answered, but not with SEND_OK
    goal: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    def new_message(self, rng: random.Random, queue: QueueKey, *, queryable: bool) -> tuple[str, bytes]:
        """A new id, and a body that begins with it."""
        message_id = f"{len(self.sent):08X}".rjust(ID_LENGTH, "A")
        body = message_id.encode() + rng.randbytes(rng.randrange(BODY_MAX))
        self.sent[message_id] = Sent(queue, zlib.crc32(body), queryable)
        return message_id, body

    def acknowledge(self, queue: QueueKey, offset: int, message_id: str) -> None:
        """Records an acknowledgement, and asserts that no offset is given twice."""
        given = self.acked.setdefault(queue, {})
        assert offset not in given, f"{queue} offset {offset} was given to {given[offset]} and {message_id}"
        given[offset] = message_id
        self.acks += 1
        if self.acks >= self.goal:
            self.reached.set()


def _send_header(queue: QueueKey, properties: str, *, batch: bool) -> dict[str, str]:
    return {
        "a": "kill-producer",
        "b": queue[0],
        "c": "TBW102",
        "d": str(QUEUES),
        "e": str(queue[1]),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "true" if batch else "false",
    }


def _properties(message_id: str) -> str:
    return f"UNIQ_KEY\x01{message_id}\x02KEYS\x01key-{message_id}\x02WAIT\x01true\x02"


def _acknowledged(ledger: Ledger, response: Response) -> bool:
    """Whether a send was acknowledged. On a busy disk the flush may time out or the broker be busy; every
    other response is an error."""
    assert response.code in (SUCCESS, FLUSH_DISK_TIMEOUT, SYSTEM_BUSY), f"a send was answered {response}"
    ledger.indeterminate += response.code != SUCCESS
    return response.code == SUCCESS


async def _send_one(client: Pipeline, ledger: Ledger, rng: random.Random, queue: QueueKey) -> None:
    message_id, body = ledger.new_message(rng, queue, queryable=True)
    header = _send_header(queue, _properties(message_id), batch=False)
    response = await client.call(SEND_MESSAGE_V2, header, body)
    if not _acknowledged(ledger, response):
        return
    ledger.acknowledge(queue, int(response.ext["queueOffset"]), message_id)
    ledger.physical[message_id] = int(response.ext["msgId"][-16:], 16)


async def _send_batch(client: Pipeline, ledger: Ledger, rng: random.Random, queue: QueueKey) -> None:
    messages = [ledger.new_message(rng, queue, queryable=False) for _ in range(rng.randint(2, BATCH_MAX))]
    body = encode_batch([(body, b"TAGS\x01batch\x02") for _, body in messages])
    header = _send_header(queue, f"UNIQ_KEY\x01{messages[0][0]}\x02WAIT\x01true\x02", batch=True)
    response = await client.call(SEND_BATCH_MESSAGE, header, body)
    if not _acknowledged(ledger, response):
        return
    first = int(response.ext["queueOffset"])
    for number, (message_id, _) in enumerate(messages):
        ledger.acknowledge(queue, first + number, message_id)


async def _commit(client: Pipeline, ledger: Ledger, queue: QueueKey) -> None:
    """Commits for the group the offset after the newest acknowledged message of the queue."""
    offset = max(ledger.acked.get(queue, {-1: ""})) + 1
    header = {
        "consumerGroup": GROUP,
        "topic": queue[0],
        "queueId": str(queue[1]),
        "commitOffset": str(offset),
    }
    ledger.committed[queue] = max(offset, ledger.committed.get(queue, 0))
    await client.call(UPDATE_CONSUMER_OFFSET, header)


async def _worker(client: Pipeline, ledger: Ledger, rng: random.Random, topics: list[str]) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            queue = (rng.choice(topics), rng.randrange(QUEUES))
            kind = rng.random()
            if kind < 0.75:
                await _send_one(client, ledger, rng, queue)
            elif kind < 0.97:
                await _send_batch(client, ledger, rng, queue)
            else:
                await _commit(client, ledger, queue)


async def load_until_killed(
    address: str,
    ledger: Ledger,
    rng: random.Random,
    topics: list[str],
    kill: Callable[[], None],
    acks: int,
) -> None:
    """Sends over several connections, many in flight on each, and calls `kill` once `acks` more messages are
    acknowledged (or a connection is lost before). Returns when every connection is gone."""
    clients = [await Pipeline.connect(address) for _ in range(CONNECTIONS)]
    ledger.goal, ledger.reached = ledger.acks + acks, asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        workers = [
            tasks.create_task(_worker(client, ledger, random.Random(rng.random()), topics))
            for client in clients
            for _ in range(IN_FLIGHT)
        ]
        enough = tasks.create_task(ledger.reached.wait())
        await asyncio.wait([enough, *workers], return_when=asyncio.FIRST_COMPLETED)
        kill()
        enough.cancel()
    for client in clients:
        await client.close()


async def _offset_of(client: Pipeline, code: int, queue: QueueKey) -> int | None:
    """Minimum or maximum offset of a queue; None when the broker does not know the topic."""
    response = await client.call(code, {"topic": queue[0], "queueId": str(queue[1])})
    if response.code == TOPIC_NOT_EXIST:
        return None
    assert response.code == SUCCESS, f"{code} for {queue} answered {response}"
    return int(response.ext["offset"])


async def _pull(client: Pipeline, queue: QueueKey, offset: int) -> Response:
    header = {
        "consumerGroup": GROUP,
        "topic": queue[0],
        "queueId": str(queue[1]),
        "queueOffset": str(offset),
        "maxMsgNums": str(PULL_BATCH),
        "sysFlag": str(SUBSCRIPTION_FLAG),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return await client.call(PULL_MESSAGE, header)


def _check_record(ledger: Ledger, queue: QueueKey, offset: int, record: Record) -> str:
    """Asserts that the record at an offset of a queue was sent there and is intact; returns its id."""
    assert (record.topic, record.queue_id, record.queue_offset) == (*queue, offset)
    message_id = record.body[:ID_LENGTH].decode(errors="replace")
    sent = ledger.sent.get(message_id)
    assert sent is not None, f"{queue} offset {offset} holds {message_id!r}, which was not sent"
    assert (sent.queue, sent.crc) == (queue, zlib.crc32(record.body)), (
        f"{message_id} differs from what was sent"
    )
    return message_id


async def _check_queue(client: Pipeline, ledger: Ledger, queue: QueueKey, start: int) -> None:
    """Asserts that the offsets from `start` to the queue's maximum are dense and hold each sent message at
    most once, and every acknowledged message at its offset."""
    acked = ledger.acked.get(queue, {})
    end = await _offset_of(client, GET_MAX_OFFSET, queue)
    if end is None:
        assert not acked, f"the broker forgot {queue[0]} with {len(acked)} acknowledged messages in a queue"
        return
    assert await _offset_of(client, GET_MIN_OFFSET, queue) == 0
    assert end > max(acked, default=-1), f"{queue} ends at {end}, offset {max(acked, default=-1)} was acked"
    found = ledger.found.setdefault(queue, [])
    for lost in found[start:]:
        ledger.ever_found.discard(lost)
    before = found[start:]
    del found[start:]
    while len(found) < end:
        response = await _pull(client, queue, len(found))
        assert response.code == SUCCESS, f"{queue} offset {len(found)} of {end}: {response}"
        for record in parse_records(response.body):
            message_id = _check_record(ledger, queue, len(found), record)
            assert message_id not in ledger.ever_found, f"{message_id} is stored twice"
            ledger.ever_found.add(message_id)
            found.append(message_id)
        assert int(response.ext["nextBeginOffset"]) == len(found)
    assert found[start : start + len(before)] == before, f"{queue}: a message that was read before is gone"
    for offset, message_id in acked.items():
        assert found[offset] == message_id, f"{queue} offset {offset}: {found[offset]}, acked {message_id}"


async def _check_consumer_offset(client: Pipeline, ledger: Ledger, queue: QueueKey) -> None:
    header = {"consumerGroup": GROUP, "topic": queue[0], "queueId": str(queue[1])}
    response = await client.call(QUERY_CONSUMER_OFFSET, header)
    if response.code == QUERY_NOT_FOUND:
        return
    assert response.code == SUCCESS, f"offset of {GROUP} in {queue}: {response}"
    offset, end = int(response.ext["offset"]), len(ledger.found.get(queue, []))
    assert offset <= end, f"{GROUP} is at {offset} of {queue}, which ends at {end}"
    assert offset <= ledger.committed.get(queue, 0), f"{GROUP} is at {offset} of {queue}, never committed"


async def _check_lookups(client: Pipeline, ledger: Ledger, rng: random.Random) -> None:
    """Asserts that a sample of acknowledged messages is found by key, unique key and message id."""
    for message_id in rng.sample(sorted(ledger.physical), min(SAMPLE, len(ledger.physical))):
        header = {"offset": str(ledger.physical[message_id]), "topic": ledger.sent[message_id].queue[0]}
        response = await client.call(VIEW_MESSAGE_BY_ID, header)
        assert response.code == SUCCESS, f"{message_id} by offset: {response}"
        (record,) = parse_records(response.body)
        assert record.body[:ID_LENGTH].decode() == message_id
        for key in (message_id, f"key-{message_id}"):
            header = {
                "topic": ledger.sent[message_id].queue[0],
                "key": key,
                "maxNum": "32",
                "beginTimestamp": "0",
                "endTimestamp": str(2**62),
            }
            response = await client.call(QUERY_MESSAGE, header)
            assert response.code == SUCCESS, f"{message_id} by key {key}: {response}"
            assert message_id in [r.body[:ID_LENGTH].decode() for r in parse_records(response.body)]


async def check(address: str, ledger: Ledger, rng: random.Random, *, whole: bool) -> None:
    """Compares the restarted broker with the ledger: from the end of the last check or, with `whole`, from
    the start."""
    client = await Pipeline.connect(address)
    try:
        queues = sorted({sent.queue for sent in ledger.sent.values()})
        for queue in queues:
            await _check_queue(client, ledger, queue, 0 if whole else len(ledger.found.get(queue, [])))
            await _check_consumer_offset(client, ledger, queue)
        await _check_lookups(client, ledger, rng)
    finally:
        await client.close()
