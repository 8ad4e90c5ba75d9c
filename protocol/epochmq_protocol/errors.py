"""Defines the exceptions of the protocol package, by what the caller should do.

- `LocalProtocolError`: this side tried to encode something that the format cannot hold. A bug or a bad
  argument here.
- `RemoteProtocolError`: the peer sent bytes that do not follow the format. Close the connection; there is no
  request to respond to.
- `RequestError`: the frame is valid but the request is not. Respond with this response code and remark.
- `ConfigError`: a person must correct a setting. Names the key, the value and what was expected.
- `RetryableError` (`CallTimeoutError`, `ConnectError`, `ConnectionClosedError`): try the call again,
  elsewhere or later. After a timeout or a closed connection the outcome is unknown: the peer may have handled
  the request.
- `InvariantError`: the state of an object contradicts a rule that its class states. A bug here, or damaged
  memory: do not continue with that object.
"""

from __future__ import annotations


class EpochMQError(Exception):
    """Root of every exception that EpochMQ defines."""


class ProtocolError(EpochMQError):
    """Bytes do not follow the format. Raise one of the two subclasses, which say whose fault it is."""


class LocalProtocolError(ProtocolError):
    """This side tried to encode something that the format cannot hold."""


class RemoteProtocolError(ProtocolError):
    """Received or stored bytes do not follow the format. The connection is not usable any more."""


class OversizedError(RemoteProtocolError):
    """The header of a frame is too large to be decoded, while the frame around it is valid."""


class RequestError(EpochMQError):
    """A request is rejected with one of RocketMQ's response codes and a remark for people."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark

    def __reduce__(self) -> tuple[type[RequestError], tuple[int, str]]:
        return type(self), (self.code, self.remark)


class BodyError(RemoteProtocolError, RequestError):
    """A body does not follow the format of its command. The frame around it is valid: a request gets
    SYSTEM_ERROR and the connection stays open; in a response it is the peer's fault."""

    def __init__(self, remark: str) -> None:
        RequestError.__init__(self, 1, remark)

    def __reduce__(self) -> tuple[type[BodyError], tuple[str]]:  # type: ignore[override]
        return type(self), (self.remark,)


class ConfigError(EpochMQError):
    """A setting has an invalid value: `key=value: expected …`."""

    def __init__(self, key: str, value: object, expected: str) -> None:
        super().__init__(f"{key}={value}: expected {expected}")
        self.key = key
        self.value = value
        self.expected = expected

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        return type(self), (self.key, self.value, self.expected)


class RetryableError(EpochMQError):
    """A call got no response. Trying again may help."""


class CallTimeoutError(RetryableError):
    """No response within the deadline. The peer may still handle the request."""


class ConnectError(RetryableError):
    """No connection was made; the peer has not received the request."""


class ConnectionClosedError(RetryableError):
    """The connection was lost before the response. The peer may have handled the request."""


class InvariantError(EpochMQError, AssertionError):
    """The state of an object contradicts a rule that its class states beside the field
    (`check_invariants`).

    Such checks are assertions that production keeps on, at role changes and after recovery: a broker that is
    about to lead with a wrong state must not. `owner` names the class, `invariant` the rule, and `values` the
    fields that break it."""

    def __init__(self, owner: str, invariant: str, /, **values: object) -> None:
        super().__init__(owner, invariant)
        self.owner = owner
        self.invariant = invariant
        self.values = values

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"{self.owner}: {self.invariant}; found {shown}"

    def __reduce__(self) -> tuple[object, ...]:
        return _restored_invariant_error, (self.owner, self.invariant, self.values)


def _restored_invariant_error(owner: str, invariant: str, values: dict[str, object]) -> InvariantError:
    return InvariantError(owner, invariant, **values)


class FastPathMiss(EpochMQError):  # noqa: N818 (a signal, not an error)
    """A fast path cannot handle a request. The ordinary path then handles the same frame."""
