"""Stores with equal logs whose scrubs ask each other without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from epochmq_broker.config.broker_config import LiveConfig, from_properties
from epochmq_broker.replication.scrub.log_scrub import LogScrub
from epochmq_broker.replication.scrub.peer_copies import PeerCopies
from epochmq_broker.requests.processors.log_parts import LogPartsProcessor
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError
from epochmq_protocol.frame import Command, response
from epochmq_store.message_store import MessageStore

SETTINGS = {
    "brokerName": "a",
    "scrubFirstDelayMs": "0",
    "scrubPassIntervalMs": "1",
    "scrubBytesPerSecond": str(1 << 30),
}


class Replica:
    """One broker's store and scrub."""

    def __init__(self, name: str, store: MessageStore, group: Group) -> None:
        live = LiveConfig(from_properties(SETTINGS).config)
        peers = PeerCopies(live, group, lambda: group.others(name))
        self.store = store
        self.scrub = LogScrub(live, store, confirmed=lambda: 1 << 40, peers=peers)
        self.handlers = LogPartsProcessor(live, self.scrub.served).handlers()
        self.original = [bytes(file.map) for file in store.log.files.files]

    @property
    def files(self) -> list[bytes]:
        """The bytes of the files now."""
        return [bytes(file.map) for file in self.store.log.files.files]

    def flip(self, file: int, position: int) -> None:
        target = self.store.log.files.files[file]
        target.write(position, memoryview(bytes([target.map[position] ^ 1])))

    def passed(self, count: int = 2) -> Callable[[], bool]:
        """Whether so many passes have ended since now."""
        wanted = self.scrub.passes + count
        return lambda: self.scrub.passes >= wanted


class Group:
    """Replicas with equal logs, which ask each other without a network. `silent` ones do not answer, those
    of `java` do not know the requests."""

    def __init__(self) -> None:
        self.replicas: dict[str, Replica] = {}
        self.silent: set[str] = set()
        self.java: set[str] = set()

    async def others(self, name: str) -> list[str]:
        return sorted(set(self.replicas) - {name})

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        if address in self.silent:
            raise EpochMQError(f"{address} does not answer")
        if address in self.java:
            return response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        handler = self.replicas[address].handlers[command.code]
        try:
            answer = handler(None, command)  # type: ignore[arg-type]  # the handlers do not use the connection
            assert not isinstance(answer, Command | None)
            found = await answer
        except RequestError as error:
            return response(command, error.code, error.remark)
        assert isinstance(found, Command)
        return found


@asynccontextmanager
async def scrubbing(group: Group, *names: str) -> AsyncIterator[Mapping[str, Replica]]:
    """Runs the scrubs of these replicas; the others only answer."""
    for name, replica in group.replicas.items():
        if name not in names:
            replica.scrub._live.update({"scrubBytesPerSecond": "0"})
        replica.scrub.start()
    try:
        yield group.replicas
    finally:
        for replica in group.replicas.values():
            await replica.scrub.stop()
