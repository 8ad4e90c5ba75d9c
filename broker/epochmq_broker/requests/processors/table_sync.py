"""Serves whole tables to slaves and exports: topics (21), consumer offsets (43), delay offsets (45), the
timer's checkpoint and metrics (60, 61), groups (201) and message request modes (402), as RocketMQ's
AdminBrokerProcessor and QueryAssignmentProcessor do.

Each EpochMQ slave requests them every second, and a table may have tens of thousands of entries. So such a
slave sends the state of the table that it copied last (ext field `knownState`). While the table is still in
that state, the response is `unchanged=true` without a body; otherwise it carries the new `state`. A body is
encoded once per state, and a large one in slices, so that sends are not delayed.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from json.encoder import encode_basestring

from epochmq_broker.replication.table_state import KNOWN_STATE, KNOWN_UNTIL, STATE, UNCHANGED
from epochmq_broker.requests.processors.mqadmin_dependencies import MqadminDependencies
from epochmq_broker.tables.message_request_modes import MessageRequestModeTable
from epochmq_protocol.bodies import SubscriptionGroupWrapper, TopicConfigSerializeWrapper, to_json
from epochmq_protocol.bodies_in_turns import map_entry, with_items
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_protocol.transport.turns import STEPS_MIN, Turns, in_turns
from epochmq_store.state_files.rendered_table import RenderedTable

SLICE = 100
"""Entries of the offset table that are encoded between two looks at the clock."""


class TableSyncProcessor:
    """Serves the tables of one broker."""

    def __init__(self, components: MqadminDependencies, request_modes: MessageRequestModeTable) -> None:
        self._components = components
        self._modes = request_modes
        self._incarnation = secrets.token_hex(4)  # each start of the broker counts states from 0
        self._bodies: dict[int, tuple[str, bytes]] = {}
        self._topic_entries = RenderedTable(_quoted_entry)
        self._group_entries = RenderedTable(_entry)
        components.topics.on_change.append(self._topic_entries.changed)
        components.groups.on_change.append(self._group_entries.changed)

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        components = self._components
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.GET_ALL_DELAY_OFFSET: self._cached(
                lambda: f"{components.delays.offsets}.{components.delays.data_version}",
                components.delays.encode,
            ),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self._cached(
                lambda: str(self._modes.changes), self._modes.encode
            ),
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.GET_TIMER_CHECK_POINT: self.timer_checkpoint,
            RequestCode.GET_TIMER_METRICS: self.timer_metrics,
        }

    def timer_checkpoint(self, connection: RemotingConnection, command: Command) -> Command:
        """Serves the timer's checkpoint."""
        timer = self._components.timer
        if timer is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        body = timer.checkpoint_body()
        state = f"{self._incarnation}.{body.hex()}"
        return _unchanged(command) if _is_current(command, state) else _table_response(command, state, body)

    def timer_metrics(self, connection: RemotingConnection, command: Command) -> Command:
        """Serves the numbers of pending timer messages."""
        timer = self._components.timer
        if timer is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
        state = f"{self._incarnation}.{timer.metrics.data_version}"
        if _is_current(command, state):
            return _unchanged(command)
        return _table_response(command, state, timer.metrics.encode())

    def all_topics(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Serves the topics. The response tells a slave up to which message they are complete."""
        return in_turns(self._all_topics(command, Turns()))

    async def _all_topics(self, command: Command, turns: Turns) -> Command:
        topics = self._components.topics
        if not self._is_current(command, self._topics_state()):
            await turns.run(self._topic_entries.refresh(topics.table))
        answer = self._table(command, self._topics_state(), self.topics_body)
        if answer.ext is not None and topics.known_until is not None:
            answer.ext[KNOWN_UNTIL] = str(topics.known_until)
        return answer

    def _topics_state(self) -> str:
        topics, static = self._components.topics, self._components.static_topics
        return f"{topics.generation}.{topics.data_version}.{static.generation}"

    def topics_body(self) -> bytes:
        """Encodes the topics with their mappings, which tools skip, and data versions."""
        topics, static = self._components.topics, self._components.static_topics
        rest = TopicConfigSerializeWrapper(
            data_version=topics.data_version,
            topic_queue_mapping_detail_map=dict(static.table),
            mapping_data_version=static.data_version,
        )
        table = self._topic_entries.join(topics.table)
        return with_items(to_json(rest, quotes_keys=True), "topicConfigTable", b"{%b}" % table)

    def all_groups(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Serves the groups."""
        return in_turns(self._all_groups(command, Turns()))

    async def _all_groups(self, command: Command, turns: Turns) -> Command:
        if not self._is_current(command, self._groups_state()):
            await turns.run(self._group_entries.refresh(self._components.groups.table))
        return self._table(command, self._groups_state(), self.groups_body)

    def _groups_state(self) -> str:
        groups = self._components.groups
        return f"{groups.generation}.{groups.data_version}"

    def groups_body(self) -> bytes:
        """Encodes the groups, their forbidden topics and the data version."""
        groups = self._components.groups
        rest = SubscriptionGroupWrapper(
            forbidden_table={group: dict(bits) for group, bits in groups.forbidden_table.items()},
            data_version=groups.data_version,
        )
        table = self._group_entries.join(groups.table)
        return with_items(to_json(rest), "subscriptionGroupTable", b"{%b}" % table)

    def _is_current(self, command: Command, state: str) -> bool:
        return _is_current(command, f"{self._incarnation}.{state}")

    def _cached(self, state_of: Callable[[], str], encode: Callable[[], bytes]) -> RequestHandler:
        def handle(connection: RemotingConnection, command: Command) -> Command:
            return self._table(command, state_of(), encode)

        return handle

    def _table(self, command: Command, state: str, encode: Callable[[], bytes]) -> Command:
        state = f"{self._incarnation}.{state}"
        if _is_current(command, state):
            return _unchanged(command)
        cached = self._bodies.get(command.code)
        if cached is None or cached[0] != state:
            cached = self._bodies[command.code] = (state, encode())
        return _table_response(command, *cached)

    def all_offsets(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Serves the consumer offsets. The entries of a large table are of slightly different times; each was
        correct when it was encoded."""
        offsets = self._components.offsets
        state = f"{self._incarnation}.{offsets.changes}.{offsets.data_version}"
        if _is_current(command, state):
            return _unchanged(command)
        return in_turns(self._all_offsets(command, state, Turns()))

    async def _all_offsets(self, command: Command, state: str, turns: Turns) -> Command:
        offsets = self._components.offsets
        version, light = to_json(offsets.data_version), _light_offsets(offsets.light_table)
        entries: list[str] = []
        keys = sorted(offsets.table)
        for start in range(0, len(keys), SLICE):
            await turns.pause(STEPS_MIN // 2)
            for key in keys[start : start + SLICE]:
                queues = offsets.table.get(key)
                if queues is not None:
                    entries.append(_offsets_entry(key, queues))
        if len(keys) > SLICE:
            await turns.end()
        body = _offsets_body(version, entries, light)
        if len(keys) > SLICE:
            await turns.end()
        return _table_response(command, state, body)


def _entry(name: str, value: object) -> bytes:
    return map_entry(name, value)


def _quoted_entry(name: str, value: object) -> bytes:
    return b"%b:%b" % (to_json(name), to_json(value, quotes_keys=True))


def _offsets_body(version: bytes, entries: list[str], light: bytes = b"") -> bytes:
    return b'{"dataVersion":%b%b,"offsetTable":{%b}}' % (version, light, ",".join(entries).encode())


def _light_offsets(table: Mapping[str, int] | None) -> bytes:
    """The field with the offsets of light groups; empty without enableLmq."""
    return b"" if table is None else b',"lmqOffsetTable":%b' % to_json(dict(table))


def _offsets_entry(key: str, queues: Mapping[int, int]) -> str:
    inner = ",".join([f"{queue_id}:{offset}" for queue_id, offset in sorted(queues.items())])
    return f"{encode_basestring(key)}:{{{inner}}}"


def _is_current(command: Command, state: str) -> bool:
    return (command.ext or {}).get(KNOWN_STATE) == state


def _unchanged(command: Command) -> Command:
    return response(command, ResponseCode.SUCCESS, ext={UNCHANGED: "true"})


def _table_response(command: Command, state: str, body: bytes) -> Command:
    asked = KNOWN_STATE in (command.ext or {})
    return response(command, ResponseCode.SUCCESS, body=body, ext={STATE: state} if asked else None)
