"""Defines the settings of remoting connections, servers and clients, each with its unit.

RocketMQ's keys that map here: `com.rocketmq.remoting.frameMaxLength`, `serverChannelMaxIdleTimeSeconds`,
`clientChannelMaxIdleTimeSeconds`, `connectTimeoutMillis`, `writeBufferHighWaterMark`,
`writeBufferLowWaterMark`, `serverSocketBacklog`, `clientAsyncSemaphoreValue`.
"""

from __future__ import annotations

import msgspec

from epochmq_protocol.transport.trusted_proxies import TRUST_EVERYBODY, TrustedProxies


class ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of both ends of a connection."""

    max_frame_bytes: int = 16_777_216
    """The longest frame that this side accepts, its 4 length bytes included (Java's limit). A longer frame
    closes the connection."""
    max_header_bytes: int = 262_144
    """The longest header that this side decodes. A message's properties, the largest field of RocketMQ's
    headers, have at most 32,767 bytes; escaped as JSON, 196,602. A request with a longer header gets
    SYSTEM_ERROR."""
    idle_timeout_ms: int = 120_000
    """A connection without reads and writes for this long is closed; 0 never closes one (Java: 120 s)."""
    write_high_water_bytes: int = 1_048_576
    """With more unsent bytes the connection stops reading: the peer must take its responses first."""
    write_low_water_bytes: int = 262_144
    """With fewer unsent bytes the connection reads again."""
    write_buffer_max_bytes: int = 67_108_864
    """With more unsent bytes the connection is aborted: the peer is dead or stuck. While reading is
    paused, unsent bytes still grow: by responses to deferred requests, and by requests of this side."""
    max_calls: int = 65_535
    """Requests of this side that may wait for a response on one connection (Java:
    `clientAsyncSemaphoreValue`)."""
    max_in_flight: int = 131_072
    """Requests in flight on all connections. One more gets SYSTEM_BUSY."""
    max_in_flight_per_connection: int = 16_384
    """The same for one connection, so that one client cannot use up the bound of all. A Java client shares
    one connection among all its queues and threads: some thousands of deferred pulls are usual."""


class ServerSettings(ConnectionSettings, frozen=True, kw_only=True):
    """Settings of a server."""

    max_connections: int = 65_536
    """Open connections at a time; one more is closed at once. RLIMIT_NOFILE may allow fewer: see
    `descriptors.py`."""
    unsent_max_bytes: int = 0
    """With more unsent bytes on all connections together, the connection with the most is aborted;
    then the next one, until the sum is within the limit. 0: a quarter of the memory limit, from 64 to 512 MiB
    (`epoll_server`)."""
    handshake_timeout_ms: int = 10_000
    """Time from the first byte of a PROXY protocol header or TLS handshake to its end."""
    max_received_bytes: int = 0
    """Bytes of unfinished frames that all connections of this process together hold. Above it the connection
    whose frame began first is aborted. 0: a quarter of the memory limit (`unfinished_frames`)."""
    frame_timeout_ms: int = 120_000
    """Time from the first byte of a frame to its last one; 0: no limit. By default the longest frame needs a
    line of 140 kB/s."""
    max_connections_per_address: int = 16_384
    """Open connections of one address; one more is closed at once. 0: no limit. Behind a load balancer all
    clients have one address."""
    max_new_connections_per_address: int = 1_000
    """Connections per second that one address may open, on average over some seconds. 0: no limit."""
    trusted_proxies: TrustedProxies = TRUST_EVERYBODY
    """Whose PROXY protocol headers count. A connection of others that begins with one is closed."""
    backlog: int = 1024
    """Connections that wait in the kernel until the server accepts them (Java: `serverSocketBacklog`)."""


class ClientSettings(ConnectionSettings, frozen=True, kw_only=True):
    """Settings of a client."""

    connect_timeout_ms: int = 3000
    """Time to connect, TLS handshake included (Java: 3 s)."""
    max_addresses: int = 16_384
    """Remote addresses to which connections are open at a time, or being opened."""
