"""A group of three replicas that keeps users, and its dead letters: for tests of what people change."""

from __future__ import annotations

from epochmq.client import Producer
from tests.integration.up_run import THREE_REPLICAS
from tests.support.process import PATIENCE_S

PROVIDER = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"
WITH_USERS = THREE_REPLICAS.replace(
    "config: {",
    f"config: {{authenticationMetadataProvider: {PROVIDER.format('authentication', 'Authentication')}, "
    f"authorizationMetadataProvider: {PROVIDER.format('authorization', 'Authorization')}, ",
)


async def produce_dead_letters(nameservers: list[str]) -> None:
    """Stores three messages where brokers put those that the group billing has rejected too often."""
    producer = Producer(nameservers, "dead", timeout_ms=PATIENCE_S * 1000)
    try:
        for number in range(3):
            properties = {"RETRY_TOPIC": "sales", "DLQ_ORIGIN_TOPIC": "sales"}
            await producer.send("%DLQ%billing", f"dead {number}".encode(), properties=properties)
    finally:
        await producer.close()
