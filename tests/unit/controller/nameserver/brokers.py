"""Registrations as brokers send them, for the tests of the nameserver."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from epochmq_controller.nameserver.routes import BrokerRegistration, BrokerUnregistration
from epochmq_protocol.topics import DataVersion, TopicConfig, TopicConfigSerializeWrapper

CLUSTER, NAME = "c", "broker-a"
TOPICS = ("T1", "T2")


def wrapper(
    topics: Iterable[str | TopicConfig] = TOPICS, *, counter: int = 1, state: int = 0
) -> TopicConfigSerializeWrapper:
    """A topic table. Its data version consists of `counter` and `state`."""
    configs = [TopicConfig(topic_name=topic) if isinstance(topic, str) else topic for topic in topics]
    return TopicConfigSerializeWrapper(
        topic_config_table={config.topic_name: config for config in configs},
        data_version=DataVersion(counter=counter, state_version=state, timestamp=1),
    )


def registration(
    broker_id: int = 0,
    address: str | None = None,
    topics: TopicConfigSerializeWrapper | None = None,
    *,
    name: str = NAME,
    cluster: str = CLUSTER,
    acting: bool | None = False,
    timeout_ms: int | None = None,
    channel: Hashable = None,
    zone: str | None = None,
) -> BrokerRegistration:
    """A broker's registration. Its id determines its address."""
    address = address if address is not None else address_of(broker_id, name)
    return BrokerRegistration(
        cluster=cluster,
        broker_name=name,
        broker_id=broker_id,
        address=address,
        ha_address=f"ha-{address}",
        topics=topics if topics is not None else wrapper(),
        filter_servers=[],
        zone_name=zone,
        heartbeat_timeout_ms=timeout_ms,
        enable_acting_master=acting,
        channel=channel if channel is not None else f"channel of {address}",
    )


def address_of(broker_id: int, name: str = NAME) -> str:
    return f"{name}-{broker_id}:10911"


def unregistration(
    broker_id: int = 0, address: str | None = None, *, name: str = NAME
) -> BrokerUnregistration:
    return BrokerUnregistration(
        CLUSTER, name, broker_id, address if address is not None else address_of(broker_id, name)
    )
