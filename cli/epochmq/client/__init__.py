"""A small producer and consumer over RocketMQ's remoting protocol, for `epochmq produce` and `epochmq
consume`. Scripts with an event loop can use them, too."""

from __future__ import annotations

from epochmq.client.consumer import Consumer, ReceivedMessage
from epochmq.client.producer import Producer, SendResult, SendStatus

__all__ = ["Consumer", "Producer", "ReceivedMessage", "SendResult", "SendStatus"]
