"""Measures the CPU time of the broker's own code for a send, a pull, a pull with an SQL92 expression, the two
requests of a transaction, the acknowledgement of a popped message, a timer message and a send that waits for
two replicas, in microseconds, without the kernel.

`python -m tests.benchmarks.hot_path` passes frames to a connection whose transport discards the responses. It
measures everything from the bytes of a read to the bytes of a write (frame, header, record, consume queue,
index, response), but neither the network nor, with the store on /dev/shm, the disk. It prints the fastest of
many short rounds."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from epochmq_broker.broker import Broker
from epochmq_broker.config.broker_config import from_properties
from epochmq_broker.config.clock import boot_ms
from epochmq_broker.membership.controlled.write_lease import WriteLease
from epochmq_broker.replication.ha.replication_waiters import ReplicationWaiters
from epochmq_broker.replication.ha.settings import HASettings
from epochmq_broker.replication.ha.sync_state import SyncState
from epochmq_protocol.message import MessageExt
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_protocol.transport.loop import run
from epochmq_protocol.transport.settings import ServerSettings
from epochmq_store.files.page_residency import NotResidentError, warm
from tests.support.net import free_port, loopback
from tests.support.remoting import frame

OCTET = 57
BROKER_NAME = "broker-a"
QUEUES = 8
BODY = bytes(range(256)) * 4
ROUNDS = 24
FRAMES = 3200  # in a round
PULLS = 480
PULL_BATCH = 32
HEAD_BYTES = 300
WARM_UP_TIMEOUT_S = 10.0
SHARED_MEMORY = Path("/dev/shm")
SEND_MESSAGE_V2, PULL_MESSAGE, UPDATE_AND_CREATE_TOPIC = 310, 11, 17
END_TRANSACTION, POP_MESSAGE, ACK_MESSAGE = 37, 200050, 200051
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
HOUR_MS = INVISIBLE_MS = 3_600_000
REPLICAS = (2, 3)


class DiscardingTransport:
    """The transport of a connection; it discards all data but the head of the last write."""

    def __init__(self) -> None:
        self.head = b""
        self.responded = asyncio.Event()

    def write(self, data: bytes) -> None:
        """asyncio.Transport.write."""
        self.head = bytes(data[:HEAD_BYTES])
        self.responded.set()

    def writelines(self, pieces: Sequence[bytes | memoryview]) -> None:
        """asyncio.Transport.writelines."""
        self.head = bytes(pieces[0][:HEAD_BYTES])
        self.responded.set()

    def write_views(self, pieces: Sequence[bytes | memoryview], size: int) -> None:
        """The same as `writelines`: the kernel would copy the pieces."""
        self.writelines(pieces)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """asyncio.Transport.get_extra_info."""
        return ("127.0.0.1", 40_000)

    def get_write_buffer_size(self) -> int:
        """The buffer is always empty."""
        return 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_arguments, **_options: None


def send(number: int, more: str = "", sys_flag: int = 0) -> bytes:
    """The frame of a send, as RocketMQ's client encodes it."""
    properties = f"UNIQ_KEY\x017F00000112341234{number:016d}\x02WAIT\x01true\x02TAGS\x01TagA{more}"
    header = {"a": "bench", "b": "hot", "c": "TBW102", "d": "8", "e": str(number % QUEUES)}
    header |= {
        "f": str(sys_flag),
        "g": "1763720000000",
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
        "n": BROKER_NAME,
    }
    return frame(SEND_MESSAGE_V2, header, BODY, opaque=number)


def send_digit(number: int) -> bytes:
    """The frame of a send with the property `a`, a digit."""
    return send(number, f"\x02a\x01{number // QUEUES % 10}")


def timer_send(number: int) -> bytes:
    """The frame of a send of a message that is due tomorrow."""
    return send(number, f"\x02TIMER_DELAY_MS\x01{24 * INVISIBLE_MS}")


def half(number: int) -> bytes:
    """The frame of a send in a transaction."""
    return send(number, "\x02TRAN_MSG\x01true\x02PGROUP\x01bench", 4)


def commit(broker: Broker, number: int) -> bytes:
    """The frame of the commit of a half message, by its number in the half queue."""
    queue = broker.store.lookup.existing_queue(HALF_TOPIC, 0)
    unit = None if queue is None else queue.unit(number)
    assert unit is not None, number
    header = {
        "bname": BROKER_NAME,
        "commitLogOffset": str(unit[0]),
        "commitOrRollback": "8",
        "fromTransactionCheck": "false",
        "msgId": "",
        "producerGroup": "bench",
        "topic": "hot",
        "tranStateTableOffset": str(number),
    }
    return frame(END_TRANSACTION, header, opaque=number)


def ack(number: int) -> bytes:
    """The frame of the acknowledgement of a popped message."""
    queue, offset = number % QUEUES, number // QUEUES % FRAMES
    info = f"{offset} {int(time.time() * 1000)} {INVISIBLE_MS} {number % 8} 0 {BROKER_NAME} {queue} {offset}"
    header = {"bname": BROKER_NAME, "consumerGroup": "bench", "extraInfo": info, "offset": str(offset)}
    return frame(ACK_MESSAGE, header | {"queueId": str(queue), "topic": "hot"}, opaque=number)


def pull(number: int) -> bytes:
    """The frame of a pull of 32 messages."""
    header = {
        "consumerGroup": "bench",
        "topic": "hot",
        "queueId": str(number % QUEUES),
        "queueOffset": str(number * PULL_BATCH % (ROUNDS * FRAMES // QUEUES - PULL_BATCH)),
        "maxMsgNums": str(PULL_BATCH),
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return frame(PULL_MESSAGE, header, opaque=number)


def pop() -> bytes:
    """The frame of a POP of 32 messages. Its birth lies in the future, so that no slow broker finds it too
    old."""
    header = {
        "bname": BROKER_NAME,
        "bornTime": str(int(time.time() * 1000) + HOUR_MS),
        "consumerGroup": "bench",
        "exp": "*",
        "expType": "TAG",
        "initMode": "0",
        "invisibleTime": str(INVISIBLE_MS),
        "maxMsgNums": str(PULL_BATCH),
        "order": "false",
        "pollTime": "0",
        "queueId": "-1",
        "topic": "hot",
    }
    return frame(POP_MESSAGE, header)


def acks_of(response: Mapping[str, str], messages: Sequence[MessageExt]) -> list[bytes]:
    """The frames of the acknowledgements of the messages of a POP. `response`: the fields of its response."""
    starts = {
        int(queue): start
        for _, queue, start in (entry.split(" ") for entry in response["startOffsetInfo"].split(";"))
    }
    frames = []
    for number, message in enumerate(messages):
        queue, offset = message.queue_id, message.queue_offset
        origin = f"{starts[queue]} {response['popTime']} {response['invisibleTime']} {response['reviveQid']}"
        header = {"bname": BROKER_NAME, "consumerGroup": "bench", "offset": str(offset), "topic": "hot"}
        header |= {"extraInfo": f"{origin} 0 {BROKER_NAME} {queue} {offset}", "queueId": str(queue)}
        frames.append(frame(ACK_MESSAGE, header, opaque=number))
    return frames


def sql_pull(number: int, first: int = ROUNDS * FRAMES // QUEUES) -> bytes:
    """The frame of a pull of 32 messages by an expression that selects 30 % of the messages of `send_digit`,
    which begin at the offset `first`: behind those of `send`."""
    messages = ROUNDS * FRAMES // QUEUES - 4 * PULL_BATCH
    header = {
        "consumerGroup": "bench",
        "topic": "hot",
        "queueId": str(number % QUEUES),
        "queueOffset": str(first + number // QUEUES * 4 * PULL_BATCH % messages),
        "maxMsgNums": str(PULL_BATCH),
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "a BETWEEN 0 AND 2",
        "subVersion": "0",
        "expressionType": "SQL92",
    }
    return frame(PULL_MESSAGE, header, opaque=number)


def fill_wheel(broker: Broker) -> float:
    """The CPU time for each timer message that enters the wheel, in µs."""
    timer = broker.timer
    assert timer is not None
    started = time.process_time()
    for wait in timer.enqueuer.work():
        if wait is not None:
            assert isinstance(wait, NotResidentError), wait
            warm(wait)
    took = time.process_time() - started
    assert timer.enqueuer.taken > ROUNDS * FRAMES, f"{timer.enqueuer.taken} messages entered the wheel"
    return took / timer.enqueuer.taken * 1e6


async def warm_up(
    connection: RemotingConnection, transport: DiscardingTransport, make: Callable[[int], bytes]
) -> None:
    """Sends one request for each queue, and waits for its response: the first pull of a queue maps its
    file."""
    for number in range(QUEUES):
        transport.responded.clear()
        connection.data_received(make(number))
        await asyncio.wait_for(transport.responded.wait(), WARM_UP_TIMEOUT_S)


def wait_for_replicas(broker: Broker) -> Callable[[], None]:
    """Lets sends wait for two replicas, as in a group with controllers and `allAckInSyncStateSet`. Returns a
    function by which both replicas report the whole log."""
    end, loop = broker.store.log.max_offset, asyncio.get_running_loop()
    sync = SyncState(
        self_id=1,
        epoch_start=end,
        members=frozenset({1, *REPLICAS}),
        set_epoch=1,
        confirm_offset=end,
        end=end,
        not_caught_up_max_ms=HOUR_MS,
        since_ms=0,
        all_ack=True,
    )
    for replica in REPLICAS:
        sync.replica_connected(replica, async_learner=False)
    lease = WriteLease()
    lease.begin(1)
    lease.record_grant(1, boot_ms(), HOUR_MS)

    def is_leased() -> bool:
        return lease.is_open(boot_ms())

    waiters = ReplicationWaiters(
        sync,
        HASettings(all_ack_in_sync_state_set=True, min_in_sync_replicas=2),
        loop,
        controlled=True,
        end=lambda: broker.store.log.max_offset,
        may_acknowledge=is_leased,
    )
    broker.live.standing.lease_changed(lease.open_until_ms())
    broker.writer.set_replica_acks(waiters)

    def report() -> None:
        for replica in REPLICAS:
            sync.log_appended(broker.store.log.max_offset)
            assert sync.replica_acknowledged(replica, broker.store.log.max_offset, int(loop.time() * 1000))
            waiters.answer_replicated()

    return report


async def measure(
    connection: RemotingConnection,
    transport: DiscardingTransport,
    make: Callable[[int], bytes],
    frames: int,
    in_a_read: int,
    after_read: Callable[[], None] = lambda: None,
) -> float:
    """The CPU time for each frame in µs, with `in_a_read` frames in one read. Every request must succeed."""
    best = float("inf")
    for number in range(ROUNDS):
        first = number * frames
        reads = [
            b"".join(make(first + at + k) for k in range(in_a_read)) for at in range(0, frames, in_a_read)
        ]
        started = time.process_time()
        for data in reads:
            connection.data_received(data)
            after_read()
        best = min(best, (time.process_time() - started) / (len(reads) * in_a_read) * 1e6)
        assert b'"code":0' in transport.head, f"a request failed: {transport.head!r}"
        await asyncio.sleep(0)  # lets the broker run its own tasks between rounds
    return best


async def main(directory: Path) -> None:
    """Prints the table."""
    host = loopback(OCTET)
    settings = {
        "brokerName": BROKER_NAME,
        "storePathRootDir": str(directory),
        "bindAddress": host,
        "brokerIP1": host,
        "listenPort": str(free_port(host)),
        "mappedFileSizeCommitLog": str(256 << 20),
        "enablePropertyFilter": "true",
        "timerStopEnqueue": "true",
    }
    broker = Broker(from_properties(settings))
    await broker.start()
    try:
        connection = RemotingConnection(broker.ports.main.dispatcher, ServerSettings())
        transport = DiscardingTransport()
        connection.connection_made(transport)
        topic = {"topic": "hot", "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "perm": "6"}
        topic |= {
            "writeQueueNums": str(QUEUES),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        connection.data_received(frame(UPDATE_AND_CREATE_TOPIC, topic))
        for name, make, frames, in_a_read in (
            ("send, 16 in a read", send, FRAMES, 16),
            ("pull, 1 in a read", pull, PULLS, 1),
            ("pull, 8 in a read", pull, PULLS, 8),
            ("send of a digit, 16 in a read", send_digit, FRAMES, 16),
            ("SQL92 pull, 1 in a read", sql_pull, PULLS, 1),
            ("timer send, 16 in a read", timer_send, FRAMES, 16),
            ("half message, 16 in a read", half, FRAMES, 16),
            ("commit, 16 in a read", partial(commit, broker), FRAMES, 16),
            ("ack, 16 in a read", ack, FRAMES, 16),
        ):
            await warm_up(connection, transport, make)
            took = await measure(connection, transport, make, frames, in_a_read)
            print(f"{name:30} {took:6.2f} µs for each request", flush=True)
        print(
            f"{'timer message, into the wheel':30} {fill_wheel(broker):6.2f} µs for each message", flush=True
        )
        report = wait_for_replicas(broker)
        took = await measure(connection, transport, send, FRAMES, 16, report)
        print(f"{'replicated send, 16 in a read':30} {took:6.2f} µs for each request", flush=True)
    finally:
        await broker.stop()


if __name__ == "__main__":
    parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=parent, prefix="epochmq-hot-path-") as scratch:
        run(main(Path(scratch)))
