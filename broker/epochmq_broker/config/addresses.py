"""Resolves the IP address of this broker that records and message ids contain."""

from __future__ import annotations

import contextlib
import logging
import socket

from epochmq_broker.config.broker_config import BrokerConfig, advertised_address

log = logging.getLogger(__name__)


def client_ip_address(config: BrokerConfig) -> str:
    """The IP address under which clients reach the broker. A pod's name may not be in the DNS yet; then the
    address under which others reach this host."""
    host = config.client_ip
    with contextlib.suppress(OSError):
        return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]  # type: ignore[return-value]
    address = advertised_address(config.bind_address)
    log.warning("could not resolve %s; message ids contain %s instead", host, address)
    return address
