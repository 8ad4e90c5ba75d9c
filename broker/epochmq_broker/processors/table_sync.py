"""Whole tables for slaves and exports: topics (21), consumer offsets (43), delay offsets (45), groups (201)
and message request modes (402), as RocketMQ's AdminBrokerProcessor and QueryAssignmentProcessor answer them.

Ours is asked for them every second by each of its slaves, and a table may have tens of thousands of entries.
So a slave of ours sends along the state of the table it copied last (ext field `knownState`), and is told
`unchanged=true`, without a body, while the table is still in that state; other answers to it carry `state`. A
body is written once for each state, and a large one in slices, so that senders get their turn.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from json.encoder import encode_basestring

from epochmq_broker.message_request_modes import MessageRequestModeTable
from epochmq_broker.processors.mqadmin_dependencies import MqadminDependencies
from epochmq_protocol.bodies import SubscriptionGroupWrapper, TopicConfigSerializeWrapper, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command, response
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

KNOWN_STATE, STATE, UNCHANGED = "knownState", "state", "unchanged"
SLICE = 1000
"""Entries of the offset table that are written in one go: half a millisecond."""


class TableSyncProcessor:
    """Answers for one broker."""

    def __init__(self, parts: MqadminDependencies, request_modes: MessageRequestModeTable) -> None:
        self._parts = parts
        self._modes = request_modes
        self._life = secrets.token_hex(4)  # states are counted anew in each life of the broker
        self._bodies: dict[int, tuple[str, bytes]] = {}

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        parts = self._parts
        topics, groups = parts.topics, parts.groups
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: self._kept(
                lambda: f"{topics.generation}.{topics.data_version}", self.topics_body
            ),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._kept(
                lambda: f"{groups.generation}.{groups.data_version}", self.groups_body
            ),
            RequestCode.GET_ALL_DELAY_OFFSET: self._kept(
                lambda: f"{parts.delays.offsets}.{parts.delays.data_version}", parts.delays.encode
            ),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self._kept(
                lambda: str(self._modes.changes), self._modes.encode
            ),
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
        }

    def topics_body(self) -> bytes:
        """The topics with their version."""
        topics = self._parts.topics
        return to_json(
            TopicConfigSerializeWrapper(
                topic_config_table=dict(topics.table), data_version=topics.data_version
            )
        )

    def groups_body(self) -> bytes:
        """The groups, what they may not read, and their version."""
        groups = self._parts.groups
        return to_json(
            SubscriptionGroupWrapper(
                subscription_group_table=dict(groups.table),
                forbidden_table={group: dict(bits) for group, bits in groups.forbidden_table.items()},
                data_version=groups.data_version,
            )
        )

    def _kept(self, state_of: Callable[[], str], encode: Callable[[], bytes]) -> RequestHandler:
        def answer(connection: RemotingConnection, command: Command) -> Command:
            state = f"{self._life}.{state_of()}"
            if _knows(command, state):
                return _unchanged(command)
            kept = self._bodies.get(command.code)
            if kept is None or kept[0] != state:
                kept = self._bodies[command.code] = (state, encode())
            return _answer(command, *kept)

        return answer

    def all_offsets(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """The consumers' offsets. When there are many, the entries are of slightly different times; each was
        right when it was written, and offsets move all the time."""
        offsets = self._parts.offsets
        state = f"{self._life}.{offsets.changes}.{offsets.data_version}"
        if _knows(command, state):
            return _unchanged(command)
        version, rows = to_json(offsets.data_version), sorted(offsets.table.items())
        if len(rows) > SLICE:
            return self._many_offsets(command, state, version, rows)
        return _answer(command, state, _offsets_body(version, [_offsets_entry(*row) for row in rows]))

    async def _many_offsets(
        self, command: Command, state: str, version: bytes, rows: list[tuple[str, Mapping[int, int]]]
    ) -> Command:
        entries: list[str] = []
        for start in range(0, len(rows), SLICE):
            entries += [_offsets_entry(*row) for row in rows[start : start + SLICE]]
            await asyncio.sleep(0)
        return _answer(command, state, _offsets_body(version, entries))


def _offsets_body(version: bytes, entries: list[str]) -> bytes:
    return b'{"dataVersion":%b,"offsetTable":{%b}}' % (version, ",".join(entries).encode())


def _offsets_entry(key: str, queues: Mapping[int, int]) -> str:
    inner = ",".join([f"{queue_id}:{offset}" for queue_id, offset in sorted(queues.items())])
    return f"{encode_basestring(key)}:{{{inner}}}"


def _knows(command: Command, state: str) -> bool:
    return (command.ext or {}).get(KNOWN_STATE) == state


def _unchanged(command: Command) -> Command:
    return response(command, ResponseCode.SUCCESS, ext={UNCHANGED: "true"})


def _answer(command: Command, state: str, body: bytes) -> Command:
    asked = KNOWN_STATE in (command.ext or {})
    return response(command, ResponseCode.SUCCESS, body=body, ext={STATE: state} if asked else None)
