"""A small producer and a small consumer over RocketMQ's remoting protocol: what `epochmq produce` and
`epochmq consume` need, usable from scripts that run an event loop."""

from __future__ import annotations

from epochmq.client.consumer import Consumer, ReceivedMessage
from epochmq.client.producer import Producer, SendResult, SendStatus

__all__ = ["Consumer", "Producer", "ReceivedMessage", "SendResult", "SendStatus"]
