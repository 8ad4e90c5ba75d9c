"""Defines the settings of a process's port and its connections: RocketMQ's keys (NettyServerConfig).

RocketMQ's keys of threads and socket buffers are keys without effect here, because one event loop serves all
connections. `mqadmin getNamesrvConfig` and `getControllerConfig` show them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from epochmq_protocol.errors import ConfigError
from epochmq_protocol.transport.member_authentication import MemberAuthentication
from epochmq_protocol.transport.settings import ServerSettings
from epochmq_protocol.transport.trusted_proxies import EVERYBODY, parse_trusted_proxies

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]

STOP_GRACE_S = 3.0
FIXED_PORT_KEYS = frozenset(
    {"maxHeaderSize", "maxReceivedBytes", "frameTimeoutMillis"}
    | {"maxConnectionsPerAddress", "maxNewConnectionsPerAddress", "proxyProtocolFrom"}
    | {"memberSecretPath", "allowUnauthenticatedMembers"}
)
"""Keys of `PortSettings` that cannot change while the process runs."""


class PortSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The settings of a process that listens on a port. Defaults are those of RocketMQ 5.3.3."""

    bind_address: str = "0.0.0.0"
    listen_port: Port = 0
    server_worker_threads: Count = 8
    server_callback_executor_threads: Count = 0
    server_selector_threads: Count = 3
    server_oneway_semaphore_value: Count = 256
    server_async_semaphore_value: Count = 64
    server_channel_max_idle_time_seconds: Count = 120
    server_socket_snd_buf_size: Count = 0
    server_socket_rcv_buf_size: Count = 0
    write_buffer_high_water_mark: Count = 0
    """Unsent bytes above which the server stops reading from a connection. 0: the transport's default."""
    write_buffer_low_water_mark: Count = 0
    server_socket_backlog: Positive = 1_024
    server_netty_worker_group_enable: bool = True
    server_pooled_byte_buf_allocator_enable: bool = True
    enable_shutdown_gracefully: bool = False
    shutdown_wait_time_seconds: Count = 30
    """The time that pending requests get at a stop if `enable_shutdown_gracefully` is set. Without it they
    get `STOP_GRACE_S`."""
    use_epoll_native_selector: bool = False
    admin_socket_path: str | None = None
    """A key of EpochMQ's own: the path of the admin socket. None: no socket, and no command shows the key."""

    max_header_size: Annotated[int, Meta(ge=65_536, le=16_777_216)] = 262_144
    """A key of EpochMQ's own, like the next four: the longest header of a request, in bytes."""
    max_received_bytes: Count = 0
    """Bytes of unfinished frames that the process holds. 0: a quarter of its memory limit."""
    frame_timeout_millis: Count = 120_000
    """Time for a frame, from its first byte to its last one. 0: no limit."""
    max_connections_per_address: Count = 16_384
    """Open connections of one address. 0: no limit."""
    max_new_connections_per_address: Count = 1_000
    """Connections that one address opens in a second, on average. 0: no limit."""

    proxy_protocol_from: str = EVERYBODY
    """A key of EpochMQ's own: addresses whose PROXY protocol headers count."""

    member_secret_path: str = ""
    """A key of EpochMQ's own, like the next one: the file of the secrets by which members authenticate each
    other. Empty: nobody proves anything."""
    allow_unauthenticated_members: bool = False
    """Accept members without a proof: RocketMQ's, and those that have no secret yet."""

    def members(self) -> MemberAuthentication | None:
        """The membership of this process. ConfigError: the file of the secrets cannot be used."""
        return MemberAuthentication.of(
            self.member_secret_path, allow_unauthenticated=self.allow_unauthenticated_members
        )

    def server_settings(self) -> ServerSettings:
        """The settings of the transport."""
        defaults = ServerSettings()
        high = self.write_buffer_high_water_mark or defaults.write_high_water_bytes
        low = self.write_buffer_low_water_mark or min(defaults.write_low_water_bytes, high // 4)
        return msgspec.structs.replace(
            defaults,
            max_header_bytes=self.max_header_size,
            max_received_bytes=self.max_received_bytes,
            frame_timeout_ms=self.frame_timeout_millis,
            max_connections_per_address=self.max_connections_per_address,
            max_new_connections_per_address=self.max_new_connections_per_address,
            trusted_proxies=parse_trusted_proxies(self.proxy_protocol_from),
            idle_timeout_ms=self.server_channel_max_idle_time_seconds * 1000,
            write_high_water_bytes=high,
            write_low_water_bytes=low,
            backlog=self.server_socket_backlog,
        )

    def stop_grace_s(self) -> float:
        """How long pending requests may take at a stop, seconds."""
        return self.shutdown_wait_time_seconds if self.enable_shutdown_gracefully else STOP_GRACE_S

    def check_port(self) -> None:
        """Checks the rules that no type says. ConfigError: the water marks contradict each other, or an
        address is none."""
        parse_trusted_proxies(self.proxy_protocol_from)
        high, low = self.write_buffer_high_water_mark, self.write_buffer_low_water_mark
        if high and low > high:
            raise ConfigError("writeBufferLowWaterMark", low, f"at most writeBufferHighWaterMark ({high})")
