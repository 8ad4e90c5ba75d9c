"""Serves SEND_REPLY_MESSAGE and its V2: the reply of a request-reply pair (RocketMQ's ReplyMessageProcessor).
The broker pushes the reply to the requester over the requester's own connection, and then stores it, unless
storeReplyMessageEnable is off."""

from __future__ import annotations

from collections.abc import Mapping

from epochmq_broker.config.clock import now_ms
from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.requests.processors.send_checks import SendChecks, SendHeader, random_queue, send_header
from epochmq_broker.writing.inner_message import InnerMessage
from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError
from epochmq_protocol.frame import Command, request, response
from epochmq_protocol.headers_client import ReplyMessageRequestHeader, SendMessageResponseHeader
from epochmq_protocol.message_const import (
    PROPERTY_MESSAGE_REPLY_TO_CLIENT,
    PROPERTY_MSG_REGION,
    PROPERTY_PUSH_REPLY_TIME,
    PROPERTY_TRACE_SWITCH,
)
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

PUSH_TIMEOUT_MS = 10_000


class ReplyProcessor:
    """Delivers replies to requesters."""

    def __init__(self, context: ProcessorContext) -> None:
        self._live = context.live
        self._writer = context.writer
        self._clients = context.tables.clients
        self._stats = context.tables.stats
        self._store_host = context.store_host
        self._checks = SendChecks(context.live, context.tables.topics)

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply,
        }

    async def reply(self, connection: RemotingConnection, command: Command) -> Command:
        """Pushes the reply first and stores it second. The response has the push's code."""
        config = self._live.current
        ext = {
            PROPERTY_MSG_REGION: config.region_id,
            PROPERTY_TRACE_SWITCH: "true" if config.trace_on else "false",
        }
        header = send_header(command)
        if not command.body:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the message has no body")
        try:
            topic = self._checks.topic(header, connection.remote)
            queue_id = header.queue_id if header.queue_id >= 0 else random_queue(topic)
        except RequestError as error:
            return response(command, error.code, error.remark, ext=ext)
        properties = records.parse_properties(header.properties or "")
        properties |= ext
        rendered = records.format_properties(properties)
        failure = await self._push(connection, header, properties, command.body)
        # Zeros, so that a client can decode the response even if the reply is not stored.
        response_header = SendMessageResponseHeader(msg_id="0", queue_id=queue_id, queue_offset=0)
        if config.store_reply_message_enable:
            self._store(connection, header, properties, rendered, command.body, queue_id, response_header)
        if failure is not None:
            return response(command, ResponseCode.SYSTEM_ERROR, failure, header=response_header, ext=ext)
        return response(command, ResponseCode.SUCCESS, header=response_header, ext=ext)

    async def _push(
        self,
        connection: RemotingConnection,
        header: SendHeader,
        properties: dict[str, str],
        body: bytes,
    ) -> str | None:
        """Sends the reply to the requester. Returns the error, or None."""
        client_id = properties.get(PROPERTY_MESSAGE_REPLY_TO_CLIENT)
        if client_id is None:
            return "reply message properties[REPLY_TO_CLIENT] is null"
        channel = self._clients.producer_channel(client_id)
        if not isinstance(channel, RemotingConnection) or channel.closed:
            return f"push reply message fail, channel of <{client_id}> not found."
        pushed_ms = now_ms()
        properties[PROPERTY_PUSH_REPLY_TIME] = str(pushed_ms)
        host, port = records.decode_host(self._store_host)
        fields = {
            name: getattr(header, name)
            for name in ReplyMessageRequestHeader.__struct_fields__
            if hasattr(header, name)
        }
        fields["properties"] = records.format_properties(properties).decode()
        push = ReplyMessageRequestHeader(
            **fields,
            born_host=connection.remote,
            store_host=f"{host}:{port}",
            store_timestamp=pushed_ms,
        )
        try:
            result = await channel.call(
                request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push, body), PUSH_TIMEOUT_MS
            )
        except EpochMQError:
            return f"push reply message to {client_id}fail."
        return None if result.code == ResponseCode.SUCCESS else f"push reply message to {client_id}fail."

    def _store(
        self,
        connection: RemotingConnection,
        header: SendHeader,
        properties: dict[str, str],
        rendered: bytes,
        body: bytes,
        queue_id: int,
        response_header: SendMessageResponseHeader,
    ) -> None:
        """Stores the reply in its topic. Only statistics show a failure."""
        stored = self._writer.put(
            InnerMessage(
                topic=header.topic,
                queue_id=queue_id,
                body=body,
                properties=properties,
                rendered=rendered,
                flag=header.flag,
                born_timestamp=header.born_timestamp,
                born_host=connection.remote_host,
                reconsume_times=header.reconsume_times or 0,
            )
        )
        if not stored.ok:
            self._stats.put_failures += 1
            return
        response_header.msg_id = records.message_id(self._store_host, stored.physical_offset)
        response_header.queue_offset = stored.queue_offset
        self._stats.put_traffic(stored.topic, stored.queue_id).receive(1, stored.size)
