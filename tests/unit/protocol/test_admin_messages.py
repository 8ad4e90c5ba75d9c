"""Messages of the admin socket are bounded, and errors name the field, its value and the expected one."""

from __future__ import annotations

import contextlib
import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochmq_protocol.admin_api import messages
from epochmq_protocol.admin_api.messages import AdminError, AdminRequest, FaultKind
from epochmq_protocol.admin_api.operations import ChangeConfigArguments, PromoteArguments, ReadinessLimits
from epochmq_protocol.errors import RemoteProtocolError


def body_of(message: bytes) -> bytes:
    size = messages.body_size(message[: messages.PREFIX_BYTES], messages.RESPONSE_MAX_BYTES)
    assert len(message) == messages.PREFIX_BYTES + size
    return message[messages.PREFIX_BYTES :]


def test_requests_round_trip() -> None:
    arguments = msgspec.Raw(msgspec.json.encode(PromoteArguments(broker_id=2)))
    request = messages.decode_request(body_of(messages.encode(AdminRequest("promote", arguments, 700))))
    assert (request.operation, request.timeout_ms) == ("promote", 700)
    assert messages.decode_arguments(request, PromoteArguments) == PromoteArguments(broker_id=2)


def test_a_response_is_a_result_or_a_fault() -> None:
    assert messages.decode_result(body_of(messages.encode_result({"a": 1}))) == b'{"a":1}'
    fault = messages.encode_fault(AdminError(FaultKind.REFUSED, "not now"))
    with pytest.raises(AdminError, match="not now") as caught:
        messages.decode_result(body_of(fault))
    assert caught.value.kind is FaultKind.REFUSED


def test_an_admin_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(AdminError(FaultKind.BUSY, "later")))
    assert (error.kind, str(error)) == (FaultKind.BUSY, "later")


@pytest.mark.parametrize("prefix", [b"\0\0\0\0", b"\xff\xff\xff\xff", b"GET ", b""])
def test_a_length_out_of_bounds_is_rejected_before_the_message_is_read(prefix: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="expected 1 to 65536"):
        messages.body_size(prefix, messages.REQUEST_MAX_BYTES)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"{", "the request"),
        (b"[]", "the request: Expected `object`"),
        (b'{"operation":1}', r"Expected `str`, got `int` - at `\$.operation`"),
        (b'{"operation":"state","more":1}', "unknown field `more`"),
        (b'{"operation":"state","timeoutMs":0}', "timeoutMs=0: expected 1 to 120000"),
        (b'{"operation":"state","timeoutMs":120001}', "timeoutMs=120001: expected 1 to 120000"),
        (b'{"operation":"\xff"}', "the request"),
        (b"[" * 10_000, "the request"),
    ],
)
def test_the_error_of_a_malformed_request_names_the_cause(body: bytes, cause: str) -> None:
    with pytest.raises(AdminError, match=cause) as caught:
        messages.decode_request(body)
    assert caught.value.kind is FaultKind.INVALID


@pytest.mark.parametrize(
    ("kind", "arguments", "cause"),
    [
        (ReadinessLimits, b'{"maxLagBytes":-1}', "maxLagBytes"),
        (ReadinessLimits, b'{"lag":1}', "unknown field `lag`"),
        (PromoteArguments, b'{"brokerId":0}', "brokerId"),
        (ChangeConfigArguments, b'{"changes":{}}', "changes"),
        (ChangeConfigArguments, b'{"changes":{"a":1}}', "changes"),
    ],
)
def test_an_error_names_arguments_that_the_operation_does_not_have(
    kind: type[msgspec.Struct], arguments: bytes, cause: str
) -> None:
    with pytest.raises(AdminError, match=cause):
        messages.decode_arguments(AdminRequest("x", msgspec.Raw(arguments)), kind)


def test_a_malformed_response_is_a_protocol_error() -> None:
    for body in (b"{}", b"null", b"<html>", b'{"fault":{"kind":"odd","message":""}}'):
        with pytest.raises(RemoteProtocolError):
            messages.decode_result(body)


def test_a_response_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(AdminError, match="at most"):
        messages.encode_result("x" * messages.RESPONSE_MAX_BYTES)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_request_or_an_admin_error(body: bytes) -> None:
    with contextlib.suppress(AdminError):
        assert isinstance(messages.decode_request(body), AdminRequest)
