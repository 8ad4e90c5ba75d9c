"""The error tree of the wire, split by what the caller should do.

- `LocalProtocolError`: our own side asked for something the protocol cannot say; a bug or a bad argument
  here.
- `RemoteProtocolError`: the peer's bytes are not the protocol; close the connection, there is nothing to
  answer.
- `RequestError`: the frame is fine but the request is not; answer it with this response code and remark.
- `ConfigError`: a setting a person has to correct; names the key, the value and what was expected.
- `Retryable` (`CallTimeout`, `ConnectFailed`, `ConnectionClosed`): the call may be tried again, elsewhere or
  later. After a time-out or a closed connection the peer may have acted: the outcome is unknown, not
  negative.
"""

from __future__ import annotations


class EpochMQError(Exception):
    """Root of every error this project raises on purpose."""


class ProtocolError(EpochMQError):
    """Bytes that are not the protocol. Raise one of the two subclasses, which say whose fault it is."""


class LocalProtocolError(ProtocolError):
    """This side tried to write something that the format cannot carry."""


class RemoteProtocolError(ProtocolError):
    """The peer (or the file) holds bytes that are not the format. The connection is not usable any more."""


class RequestError(EpochMQError):
    """A request that is refused with a response code of RocketMQ's table and a remark for people."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark

    def __reduce__(self) -> tuple[type[RequestError], tuple[int, str]]:
        return type(self), (self.code, self.remark)


class BodyError(RemoteProtocolError, RequestError):
    """A body that is not what its command carries. The frame around it was fine: as a request it is answered
    with SYSTEM_ERROR and the connection goes on; as an answer it is the peer's fault."""

    def __init__(self, remark: str) -> None:
        RequestError.__init__(self, 1, remark)

    def __reduce__(self) -> tuple[type[BodyError], tuple[str]]:  # type: ignore[override]
        return type(self), (self.remark,)


class ConfigError(EpochMQError):
    """A setting with a value that cannot be: `key=value: expected …`."""

    def __init__(self, key: str, value: object, expected: str) -> None:
        super().__init__(f"{key}={value}: expected {expected}")
        self.key = key
        self.value = value
        self.expected = expected

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        return type(self), (self.key, self.value, self.expected)


class Retryable(EpochMQError):  # noqa: N818 (says what to do)
    """A call that did not get its answer; trying again may help."""


class CallTimeout(Retryable):
    """No answer within the deadline. The peer may still act on the request."""


class ConnectFailed(Retryable):
    """No connection could be made; the peer has seen nothing."""


class ConnectionClosed(Retryable):
    """The connection ended before the answer came. The peer may have acted on the request."""


class FallBack(EpochMQError):  # noqa: N818 (a way taken, not a fault)
    """Raised by a fast path that meets a request it was not made for; the ordinary path then takes the same
    frame."""
