"""Serves the requests about message request modes: which queues a consumer gets, by pull or by POP (400), and
setting the mode (401), as RocketMQ's QueryAssignmentProcessor does."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable, Mapping

from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.services.pop.assignment import STRATEGIES, allocate_for_pop
from epochmq_broker.writing.topic_routes import TopicRoutes
from epochmq_protocol.bodies import (
    MessageModel,
    MessageQueue,
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
    from_request,
    to_json,
)
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.topics import LMQ_QUEUE_ID, is_lmq, is_retry_topic
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

log = logging.getLogger(__name__)


class MessageRequestModeProcessor:
    """Sets how a group gets the messages of a topic, and assigns queues to its consumers."""

    def __init__(self, context: ProcessorContext, *, routes: TopicRoutes) -> None:
        self._live = context.live
        self._modes = context.tables.request_modes
        self._topics = context.tables.topics
        self._groups = context.tables.groups
        self._clients = context.tables.clients
        self._routes = routes

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.QUERY_ASSIGNMENT: self.query_assignment,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
        }

    def set_mode(self, connection: RemotingConnection, command: Command) -> Command:
        """Sets the mode of a group on a topic."""
        body = from_request(SetMessageRequestModeRequestBody, command.body)
        _require({"topic": body.topic, "consumerGroup": body.consumer_group})
        if is_retry_topic(body.topic):
            raise RequestError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if body.topic not in self._topics:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{body.topic}] not exist")
        if self._groups.find(body.consumer_group) is None:
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        self._modes.set_mode(body)
        return response(command, ResponseCode.SUCCESS)

    def query_assignment(self, connection: RemotingConnection, command: Command) -> Awaitable[Command]:
        """Assigns queues to one client."""
        query = from_request(QueryAssignmentRequestBody, command.body)
        model = query.message_model
        _require(
            {
                "topic": query.topic,
                "consumerGroup": query.consumer_group,
                "messageModel": model and model.name,
            }
        )
        return self._query(command, query)

    async def _query(self, command: Command, query: QueryAssignmentRequestBody) -> Command:
        mode = self._mode(query.topic, query.consumer_group)
        queues = await self._queues(query, mode)
        if queues is None:  # the client keeps what it has
            return response(command, ResponseCode.SUCCESS, body=b"{}")
        body = QueryAssignmentResponseBody(
            message_queue_assignments=[
                MessageQueueAssignment(message_queue=queue, mode=mode.mode) for queue in sorted(set(queues))
            ]
        )
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    def _mode(self, topic: str, group: str) -> SetMessageRequestModeRequestBody:
        """The mode of a group on a topic. Retry topics are pulled."""
        found = self._modes.find(topic, group)
        if found is not None:
            return found
        config = self._live.current
        mode = MessageRequestMode.PULL
        if not is_retry_topic(topic):
            mode = MessageRequestMode(config.default_message_request_mode)
        share = config.default_pop_share_queue_num if mode is MessageRequestMode.POP else 0
        return SetMessageRequestModeRequestBody(
            topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=share
        )

    async def _queues(
        self, query: QueryAssignmentRequestBody, mode: SetMessageRequestModeRequestBody
    ) -> Iterable[MessageQueue] | None:
        """The client's queues; None if they are unknown."""
        if is_lmq(query.topic) and query.message_model is MessageModel.CLUSTERING:
            name = self._live.current.broker_name
            queues: frozenset[MessageQueue] | None = frozenset(
                [MessageQueue(query.topic, name, LMQ_QUEUE_ID)]
            )
        else:
            queues = await self._routes.readable_queues(query.topic)
        if queues is None or query.message_model is None:
            return None
        if query.message_model is MessageModel.BROADCASTING:
            return queues
        if not self._live.current.server_load_balancer_enable:
            return queues
        group = self._clients.group(query.consumer_group)
        if group is None:
            log.warning("no queues are assigned to %s: its group is not online", query.client_id)
            return None
        strategy = STRATEGIES.get(query.strategy_name or "")
        if strategy is None:
            log.warning(
                "no queues are assigned to %s: its strategy %s is unknown; expected %s",
                query.client_id,
                query.strategy_name,
                " or ".join(STRATEGIES),
            )
            return None
        every, clients = sorted(queues), sorted(group.client_ids)
        if mode.mode is MessageRequestMode.POP:
            return allocate_for_pop(strategy, query.client_id, every, clients, mode.pop_share_queue_num)
        return strategy(query.client_id, every, clients)


def _require(fields: Mapping[str, str | None]) -> None:
    """Raises RequestError INVALID_PARAMETER for a field that a request lacks. RocketMQ answers with the text
    of a NullPointerException."""
    for name, value in fields.items():
        if not (value or "").strip():
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"{name}: missing, expected a text")
