"""Runs a broker without its ports: requests go in as bytes over a connection whose other end is the test."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from epochmq_broker.broker import Broker
from epochmq_broker.config.broker_config import from_properties
from epochmq_broker.requests.fast_handler import FastHandler, GateName, Port
from epochmq_broker.requests.pipeline import RequestPipeline
from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.frame import Command, FrameSplitter, decode, encode, request
from epochmq_protocol.headers_base import Header
from epochmq_protocol.headers_client import PullMessageRequestHeader, SendMessageRequestHeaderV2
from epochmq_protocol.message import MessageExt
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_protocol.transport.request_dispatcher import RequestDispatcher
from epochmq_protocol.transport.settings import ServerSettings

HOST = "127.53.7.1"
PEER = ("127.53.7.2", 40_000)
BORN_MS = 1_700_000_000_000
UNIQ_KEY = "7F0000016B5C18B4AAC2000000010000"

SMALL = {
    "brokerName": "broker-a",
    "brokerClusterName": "TestCluster",
    "bindAddress": HOST,
    "brokerIP1": HOST,
    "mappedFileSizeCommitLog": str(8 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 1000),
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "maxMessageSize": str(1 << 20),
}


class Wire:
    """The transport of a connection; records what is written."""

    def __init__(self, peer: tuple[str, int] = PEER) -> None:
        self.peer = peer
        self.written: list[bytes] = []
        self.wrote = asyncio.Event()

    def write(self, data: bytes) -> None:
        """asyncio.Transport.write."""
        self.written.append(data)
        self.wrote.set()

    def write_views(self, pieces: Iterable[bytes | memoryview], size: int) -> None:
        """EpollTransport.write_views."""
        data = b"".join(pieces)
        assert len(data) == size
        self.write(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """asyncio.Transport.get_extra_info."""
        return {"peername": self.peer, "sockname": (HOST, 10911)}.get(name, default)

    def get_write_buffer_size(self) -> int:
        """Nothing waits: the test takes all bytes at once."""
        return 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_kwargs: None


class Peer:
    """One client: sends commands, collects responses by opaque, and records the broker's requests."""

    def __init__(self, dispatcher: RequestDispatcher, peer: tuple[str, int] = PEER) -> None:
        self.wire = Wire(peer)
        self.connection = RemotingConnection(dispatcher, ServerSettings())
        self.connection.connection_made(self.wire)
        self._opaques = itertools.count(1)
        self._splitter = FrameSplitter()
        self.answers: dict[int, Command] = {}
        self.requests: list[Command] = []

    def next_opaque(self) -> int:
        """The opaque of a further request."""
        return next(self._opaques)

    def send(self, command: Command) -> int:
        """Sends a command. Returns its opaque."""
        command.opaque = self.next_opaque()
        self.connection.data_received(encode(command))
        return command.opaque

    def call(self, command: Command) -> Command:
        """Sends a command and returns its immediate response."""
        opaque = self.send(command)
        self.collect()
        return self.answers.pop(opaque)

    async def answer(self, opaque: int, timeout_s: float = 120) -> Command:
        """Waits for the response to a command sent before."""
        async with asyncio.timeout(timeout_s):
            while True:
                self.collect()
                if opaque in self.answers:
                    return self.answers.pop(opaque)
                self.wire.wrote.clear()
                await self.wire.wrote.wait()

    def collect(self) -> None:
        """Sorts the written frames into responses and requests."""
        for data in self.wire.written:
            for frame in self._splitter.feed(data):
                command = decode(frame)
                if command.is_response:
                    self.answers[command.opaque] = command
                else:
                    self.requests.append(command)
        self.wire.written.clear()

    def close(self) -> None:
        """Closes the connection."""
        self.connection.connection_lost(None)


def without_isolation(pipeline: RequestPipeline) -> RequestPipeline:
    """The pipeline of a broker that is not isolated."""
    return RequestPipeline(
        [gate for gate in pipeline.gates if gate.name is not GateName.ISOLATION],
        common=pipeline.served[Port.VIP],
        main_only=pipeline.served[Port.MAIN],
        fast=pipeline.fast,
        default=pipeline.default,
    )


class Bench:
    """A broker and two dispatchers: `fast` as in production, `ordinary` without the fast paths. An isolated
    master serves them."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        loaded = from_properties(SMALL | {"storePathRootDir": str(directory)} | dict(settings))
        self.broker = Broker(loaded)
        pipeline = without_isolation(self.broker.pipeline)
        handlers, fast = pipeline.handlers(Port.MAIN), pipeline.fast_handlers(Port.MAIN)
        bounds: dict[str, Any] = {"max_in_flight": 1000, "max_in_flight_per_connection": 1000}
        self.fast = RequestDispatcher(handlers, default=None, fast=fast, **bounds)
        self.ordinary = RequestDispatcher(handlers, default=None, fast={}, **bounds)

    def peer(self, *, ordinary: bool = False, address: tuple[str, int] = PEER) -> Peer:
        """Returns a new client."""
        return Peer(self.ordinary if ordinary else self.fast, address)

    def fast_handler(self, code: int) -> FastHandler:
        """Returns the fast handler of a request code."""
        (found,) = (one for one in self.broker.pipeline.fast if code in one.codes)
        return found

    def record(self, topic: str, queue_id: int, offset: int) -> MessageExt:
        """Returns the record at a queue's offset."""
        queue = self.broker.store.lookup.existing_queue(topic, queue_id)
        assert queue is not None, f"{topic}-{queue_id} does not exist"
        unit = queue.unit(offset)
        assert unit is not None, f"{queue} has no {offset}"
        data = self.broker.store.read(unit[0], unit[1])
        assert data is not None
        return records.decode_record(data)

    def count(self, topic: str, queue_id: int = 0) -> int:
        """Returns the number of messages in a queue."""
        queue = self.broker.store.lookup.existing_queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset


@contextlib.asynccontextmanager
async def running(directory: Path, settings: Mapping[str, str] | None = None) -> AsyncIterator[Bench]:
    """Runs a broker with an open store and everything but ports and registration."""
    bench = Bench(directory, settings or {})
    await bench.broker.start_without_ports()
    try:
        yield bench
    finally:
        await bench.broker.stop()


def send_command(
    topic: str,
    body: bytes = b"hello",
    properties: Mapping[str, str] | None = None,
    *,
    code: int = RequestCode.SEND_MESSAGE_V2,
    queue_id: int = 0,
    **fields: Any,
) -> Command:
    """A send as a Java client makes it, with its own message id."""
    named = {"UNIQ_KEY": UNIQ_KEY, "WAIT": "true"} if properties is None else properties
    text = records.format_properties(named).decode()
    values: dict[str, Any] = {
        "producer_group": "producers",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": queue_id,
        "sys_flag": 0,
        "born_timestamp": BORN_MS,
        "flag": 0,
        "properties": text,
        "reconsume_times": 0,
        "unit_mode": False,
        "batch": False,
    }
    return request(code, SendMessageRequestHeaderV2(**(values | fields)), body)


def pull_command(
    topic: str, offset: int = 0, *, queue_id: int = 0, group: str = "group", **fields: Any
) -> Command:
    """A pull that carries its subscription and does not wait."""
    values: dict[str, Any] = {
        "consumer_group": group,
        "topic": topic,
        "queue_id": queue_id,
        "queue_offset": offset,
        "max_msg_nums": 32,
        "sys_flag": 4,
        "commit_offset": 0,
        "suspend_timeout_millis": 15_000,
        "subscription": "*",
        "sub_version": 0,
        "expression_type": "TAG",
    }
    code = fields.pop("code", RequestCode.PULL_MESSAGE)
    return request(code, PullMessageRequestHeader(**(values | fields)))


def command(code: int, header: Header | None = None, body: bytes = b"", **ext: str) -> Command:
    """Builds any request."""
    return request(code, header, body, ext or None)


async def until(condition: Callable[[], object], timeout_s: float = 120) -> None:
    """Waits until the running loop has made the condition true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        await asyncio.sleep(0.005)


def bodies(messages: Iterable[MessageExt]) -> list[bytes]:
    """Returns the bodies of records."""
    return [message.body for message in messages]
