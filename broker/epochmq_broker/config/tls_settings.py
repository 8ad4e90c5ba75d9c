"""TLS by the broker's keys: of its ports, and of the connections that it opens to other members."""

from __future__ import annotations

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_protocol.transport.tls import ClientAuth, TlsMode, TlsSettings


def server_tls(config: BrokerConfig) -> TlsSettings:
    """The TLS of the broker's ports, with the mode of the main port."""
    return TlsSettings(
        mode=TlsMode(config.tls_server_mode),
        cert_path=config.tls_server_cert_path or None,
        key_path=config.tls_server_key_path or None,
        trust_path=config.tls_server_trust_cert_path or None,
        client_auth=ClientAuth(config.tls_server_need_client_auth),
    )


def outgoing_tls(config: BrokerConfig) -> TlsSettings | None:
    """The TLS of the connections that the broker opens; None: plain ones."""
    return client_tls(config) if config.use_tls else None


def client_tls(config: BrokerConfig) -> TlsSettings:
    """What the broker presents to other members, and the authorities by which it verifies them."""
    return TlsSettings(
        cert_path=config.tls_client_cert_path or None,
        key_path=config.tls_client_key_path or None,
        trust_path=config.tls_client_trust_cert_path or None,
        auth_server=config.tls_client_auth_server,
    )
