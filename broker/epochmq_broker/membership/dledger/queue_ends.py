"""Takes the ends of queues from the master, for a peer whose log began after messages had expired.

Such a peer has never seen a message of a queue whose messages have all expired. It would begin the queue at
offset 0, and as the leader assign offsets again that other messages had. So it does not lead before it has
taken the ends. They are in the file `queue-ends` of the peer's directory, because an empty queue has no file
that names its end. The peer writes that file, without ends, when it starts with an empty log, and with no
missing end once it has committed the first entry of the group, as every peer of a new group does.

RocketMQ's brokers begin such queues at 0 in every mode. They serve the requests that give the ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from epochmq_broker.replication.slave_sync import SlaveSync
from epochmq_broker.tables.topics import TopicTable
from epochmq_protocol.bodies import KVTable, TopicStatsTable, from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.durable_files import replace_file
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.transport.request_client import RequestClient
from epochmq_store.message_store import MessageStore

log = logging.getLogger(__name__)

FILE: Final = "queue-ends"
CALL_TIMEOUT_MS: Final = 3000
CATCH_UP_S: Final = 60.0
"""How long one attempt waits until this broker has dispatched what the master had. The next one follows."""
POLL_INTERVAL_S: Final = 0.05

Ends = dict[str, dict[int, int]]


class SavedEnds(msgspec.Struct, frozen=True):
    """The content of the file. `ends`: topic → queue id → next offset; None while they are not taken."""

    ends: Ends | None = None


class QueueEnds:
    """The ends of one peer's queues. `begins_late`: whether the committed log lacks the first entry of the
    group, None if nothing is committed."""

    def __init__(self, folder: Path, begins_late: Callable[[], bool | None]) -> None:
        self._path = folder / FILE
        self._begins_late = begins_late
        self._saved: SavedEnds | None = None
        self._task: asyncio.Task[None] | None = None

    def load(self, *, is_empty: bool, is_alone: bool) -> None:
        """Reads the file at a start. `is_empty`: the log has no entry; `is_alone`: the group has one peer.
        Raises OSError; ValueError if the file is damaged."""
        if is_empty and not is_alone:
            self._save(SavedEnds())
            return
        try:
            self._saved = msgspec.json.decode(self._path.read_bytes(), type=SavedEnds)
        except FileNotFoundError:
            return  # the log was written by RocketMQ or an earlier release
        except msgspec.DecodeError as error:
            raise ValueError(f"{self._path} is damaged ({error}). Restore it from a backup") from error

    @property
    def are_missing(self) -> bool:
        """Whether this peer must not lead, because it does not know the ends of all queues."""
        return self._saved is not None and self._saved.ends is None and self._begins_late() is True

    def apply(self, store: MessageStore) -> None:
        """Lets the queues that have never had a message here begin at their ends, after a start."""
        ends = self._saved.ends if self._saved is not None else None
        for topic, queues in (ends or {}).items():
            for queue_id, end in queues.items():
                store.queues[topic, queue_id].begin_at(end)

    def take_soon(
        self, client: RequestClient, store: MessageStore, topics: TopicTable, sync: SlaveSync
    ) -> None:
        """Starts to take the ends if they are missing, the master is known, and its topics are copied. Notes
        that none is missing if the log has the first entry of the group."""
        if self._saved is None or self._saved.ends is not None:
            return
        begins_late = self._begins_late()
        if begins_late is None or (self._task is not None and not self._task.done()):
            return
        if not begins_late:
            work = self._note_none_missing()
        elif sync.master is not None and sync.rounds:
            work = self._take(client, sync.master, store, list(topics.table))
        else:
            return
        self._task = asyncio.get_running_loop().create_task(work, name="take the ends of queues")

    async def stop(self) -> None:
        """Ends a running attempt."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _take(self, client: RequestClient, master: str, store: MessageStore, topics: list[str]) -> None:
        try:
            ends = await _ends_of(client, master, topics)
            # A queue that is empty when everything up to here is dispatched has no message left in the log.
            await _wait_dispatched(client, master, store)
            missing = _without_messages(store, ends)
            saved = SavedEnds(missing)
            await asyncio.to_thread(self._write, saved)
        except (EpochMQError, OSError, TimeoutError) as error:
            log.warning(
                "cannot take the ends of the queues from %s, and does not lead yet: %s", master, error
            )
            return
        # In one turn of the event loop: a peer that no longer lacks the ends may lead.
        self._saved = saved
        self.apply(store)
        log.info("took the ends of %d queues from %s", sum(map(len, missing.values())), master)

    async def _note_none_missing(self) -> None:
        try:
            await asyncio.to_thread(self._save, SavedEnds({}))
        except OSError as error:
            log.warning("cannot write %s: %s", self._path, error)

    def _save(self, saved: SavedEnds) -> None:
        self._write(saved)
        self._saved = saved

    def _write(self, saved: SavedEnds) -> None:
        replace_file(self._path, msgspec.json.encode(saved))


async def _ask(client: RequestClient, master: str, command: Command) -> Command | None:
    """The response, None if the topic does not exist."""
    answer = await client.call(master, command, CALL_TIMEOUT_MS)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise EpochMQError(f"{master} responded with code {answer.code}: {answer.remark or 'no remark'}")
    return answer


async def _ends_of(client: RequestClient, master: str, topics: list[str]) -> Ends:
    ends: Ends = {}
    for topic in topics:
        answer = await _ask(client, master, request(RequestCode.GET_TOPIC_STATS_INFO, ext={"topic": topic}))
        if answer is None:
            continue
        for queue, offsets in from_json(TopicStatsTable, answer.body).offset_table.items():
            if offsets.max_offset > 0:
                ends.setdefault(topic, {})[queue.queue_id] = offsets.max_offset
    return ends


async def _wait_dispatched(client: RequestClient, master: str, store: MessageStore) -> None:
    """Waits until this broker has dispatched the messages that the master shows now."""
    answer = await _ask(client, master, request(RequestCode.GET_BROKER_RUNTIME_INFO))
    assert answer is not None
    text = from_json(KVTable, answer.body).table.get("commitLogMaxOffset", "")
    if not text.isdecimal():
        raise EpochMQError(f"the master's commitLogMaxOffset is {text!r}, expected a number of bytes")
    async with asyncio.timeout(CATCH_UP_S):
        while True:
            if store.dispatcher.position >= int(text):
                return
            await asyncio.sleep(POLL_INTERVAL_S)


def _without_messages(store: MessageStore, ends: Ends) -> Ends:
    """The ends of the queues that have never had a message here."""
    found: Ends = {}
    for topic, queues in ends.items():
        for queue_id, end in queues.items():
            if not store.queues[topic, queue_id].max_offset:
                found.setdefault(topic, {})[queue_id] = end
    return found
