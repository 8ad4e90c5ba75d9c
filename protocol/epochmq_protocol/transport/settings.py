"""What a connection, a server and a client may be told, each with its unit and why its default.

RocketMQ's keys that map here: `com.rocketmq.remoting.frameMaxLength`, `serverChannelMaxIdleTimeSeconds`,
`clientChannelMaxIdleTimeSeconds`, `connectTimeoutMillis`, `writeBufferHighWaterMark`,
`writeBufferLowWaterMark`, `serverSocketBacklog`, `clientAsyncSemaphoreValue`.
"""

from __future__ import annotations

import msgspec


class ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for both ends of a connection."""

    max_frame_bytes: int = 16_777_216
    """The longest frame taken, its 4 length bytes included (Java's limit). A longer one closes the
    connection."""
    idle_timeout_ms: int = 120_000
    """A connection over which nothing came or went for this long is closed; 0 never closes one (Java: 120
    s)."""
    write_high_water_bytes: int = 1_048_576
    """More than this unsent, and no further request of that peer is read: it must take its answers first."""
    write_low_water_bytes: int = 262_144
    """Less than this unsent, and the peer is read again."""
    write_buffer_max_bytes: int = 67_108_864
    """More than this unsent (answers to held requests and pushes still come while reading is paused): the
    peer is dead or stuck, and the connection is dropped."""
    max_calls: int = 65_535
    """Calls of ours that may await their answer on one connection (Java: `clientAsyncSemaphoreValue`)."""
    max_in_flight: int = 131_072
    """Requests taken and not yet answered, over all connections. One more is answered SYSTEM_BUSY."""
    max_in_flight_per_connection: int = 16_384
    """The same for one connection, so that one client cannot take all. A Java client shares one connection
    among all its queues and threads: some thousands of held pulls are usual."""


class ServerSettings(ConnectionSettings, frozen=True, kw_only=True):
    """A listening side."""

    max_connections: int = 65_536
    """Connections held at a time; one more is closed at once. RLIMIT_NOFILE may allow fewer: see
    `descriptors.py`."""
    unsent_max_bytes: int = 536_870_912
    """More than this unsent over all connections: the connection with the most is dropped, until it fits."""
    opening_timeout_ms: int = 10_000
    """From the first byte of a PROXY preamble or TLS handshake to its end."""
    backlog: int = 1024
    """Connections the kernel may hold for us before we take them (Java: `serverSocketBacklog`)."""


class ClientSettings(ConnectionSettings, frozen=True, kw_only=True):
    """A calling side."""

    connect_timeout_ms: int = 3000
    """To connect, TLS handshake included (Java: 3 s)."""
    max_peers: int = 16_384
    """Addresses to which a connection is held at a time."""
