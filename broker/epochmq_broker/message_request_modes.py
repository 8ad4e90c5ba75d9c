"""How a group gets the messages of a topic: by pull, the only way this broker knows yet, or by pop. Set (401)
as by RocketMQ's QueryAssignmentProcessor and MessageRequestModeManager, kept in
`config/messageRequestMode.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from epochmq_broker.store.config_files import read_config, write_config
from epochmq_broker.subscription_groups import SubscriptionGroupTable
from epochmq_broker.topics import TopicTable
from epochmq_protocol import fastjson
from epochmq_protocol.bodies import (
    MessageRequestMode,
    MessageRequestModeSerializeWrapper,
    SetMessageRequestModeRequestBody,
    from_json,
    to_json,
)
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.topics import is_retry_topic
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

FILE = "messageRequestMode.json"


class MessageRequestModeTable:
    """(topic, group) -> mode, and the requests about it."""

    def __init__(
        self,
        directory: Path,
        topics: TopicTable,
        groups: SubscriptionGroupTable,
        write: Callable[[Path, bytes], None] = write_config,
    ) -> None:
        """`write` writes the file; where an event loop runs, on another thread."""
        self._write_file = write
        self._path = directory / FILE
        self._topics = topics
        self._groups = groups
        self._modes = MessageRequestModeSerializeWrapper()
        self.changes = 0

    def load(self) -> None:
        """Reads the file, or its backup. Raises when both are broken."""
        found = read_config(self._path, lambda data: from_json(MessageRequestModeSerializeWrapper, data))
        if found is not None:
            self._modes = found

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
        }

    def set_mode(self, connection: RemotingConnection, command: Command) -> Command:
        """Sets the mode of a group on a topic; pop is refused, for nobody could pop."""
        body = from_json(SetMessageRequestModeRequestBody, command.body)
        if is_retry_topic(body.topic):
            raise RequestError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if body.topic not in self._topics:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{body.topic}] not exist")
        if self._groups.find(body.consumer_group) is None:
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        if body.mode is MessageRequestMode.POP:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "mode=POP: expected PULL, this broker has no pop yet"
            )
        self._modes.message_request_mode_map.setdefault(body.topic, {})[body.consumer_group] = body
        self._write()
        return response(command, ResponseCode.SUCCESS)

    def encode(self) -> bytes:
        """The whole table, for slaves."""
        return to_json(self._modes)

    def follow(self, modes: MessageRequestModeSerializeWrapper) -> None:
        """Becomes a copy of a master's table. Raises OSError."""
        if modes != self._modes:
            self._modes = modes
            self._write()

    def _write(self) -> None:
        self.changes += 1
        self._write_file(self._path, fastjson.dumps(self._modes, pretty=True))
