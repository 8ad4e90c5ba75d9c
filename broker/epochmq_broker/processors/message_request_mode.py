"""Serves the request that sets a message request mode (401), as RocketMQ's QueryAssignmentProcessor does."""

from __future__ import annotations

from collections.abc import Mapping

from epochmq_broker.message_request_modes import MessageRequestModeTable
from epochmq_broker.subscription_groups import SubscriptionGroupTable
from epochmq_broker.topics import TopicTable
from epochmq_protocol.bodies import MessageRequestMode, SetMessageRequestModeRequestBody, from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.topics import is_retry_topic
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler


class MessageRequestModeProcessor:
    """Sets how a group gets the messages of a topic. This broker supports pull only."""

    def __init__(
        self, modes: MessageRequestModeTable, topics: TopicTable, groups: SubscriptionGroupTable
    ) -> None:
        self._modes = modes
        self._topics = topics
        self._groups = groups

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode}

    def set_mode(self, connection: RemotingConnection, command: Command) -> Command:
        """Sets the mode of a group on a topic. Rejects pop, which no client could use."""
        body = from_json(SetMessageRequestModeRequestBody, command.body)
        if is_retry_topic(body.topic):
            raise RequestError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if body.topic not in self._topics:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{body.topic}] not exist")
        if self._groups.find(body.consumer_group) is None:
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        if body.mode is MessageRequestMode.POP:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "mode=POP: expected PULL, because this broker does not support pop"
            )
        self._modes.set_mode(body)
        return response(command, ResponseCode.SUCCESS)
