"""Takes the settings of the broker's ports from its configuration."""

from __future__ import annotations

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_protocol.transport.settings import ServerSettings
from epochmq_protocol.transport.trusted_proxies import (
    TRUST_EVERYBODY,
    TrustedProxies,
    parse_trusted_proxies,
)


def port_settings(config: BrokerConfig) -> ServerSettings:
    """The settings of every port: of clients, and of the peers of a DLedger group."""
    return ServerSettings(
        idle_timeout_ms=config.server_channel_max_idle_time_seconds * 1000,
        max_header_bytes=config.max_header_size,
        max_received_bytes=config.max_received_bytes,
        frame_timeout_ms=config.frame_timeout_millis,
        max_connections_per_address=config.max_connections_per_address,
        max_new_connections_per_address=config.max_new_connections_per_address,
        trusted_proxies=_trusted_proxies(config),
    )


def _trusted_proxies(config: BrokerConfig) -> TrustedProxies:
    """Without the key: nobody where an ACL may depend on the address of a client, otherwise everybody, as in
    RocketMQ."""
    if config.proxy_protocol_from:
        return parse_trusted_proxies(config.proxy_protocol_from)
    checks = config.authentication_enabled or config.authorization_enabled
    return TrustedProxies() if checks and config.acl_strict else TRUST_EVERYBODY
