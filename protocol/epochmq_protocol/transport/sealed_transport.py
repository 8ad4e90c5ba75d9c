"""Seals what a connection of two members sends (`member_proofs`): a transport above another one."""

from __future__ import annotations

from typing import Any, Protocol

from epochmq_protocol.member_proofs import RecordSealer


class ConnectionTransport(Protocol):
    """What a connection needs of its transport: an `asyncio.Transport`, or the TLS layer above one."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_extra_info(self, name: str, default: Any = None) -> Any: ...


class SealedTransport:
    """Writes records. Everything else is the transport's below."""

    def __init__(self, below: ConnectionTransport, sealer: RecordSealer) -> None:
        self._below = below
        self._seal = sealer.seal

    def write(self, data: bytes) -> None:
        """Sends the bytes, sealed."""
        self._below.write(self._seal(data))

    def close(self) -> None:
        """Sends the unsent bytes, then closes."""
        self._below.close()

    def abort(self) -> None:
        """Closes at once."""
        self._below.abort()

    def pause_reading(self) -> None:
        """Stops reading."""
        self._below.pause_reading()

    def resume_reading(self) -> None:
        """Reads again."""
        self._below.resume_reading()

    def get_write_buffer_size(self) -> int:
        """The unsent bytes."""
        return self._below.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Sets the unsent bytes above which the connection is paused, and below which it is resumed."""
        self._below.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the transport below says."""
        return self._below.get_extra_info(name, default)
