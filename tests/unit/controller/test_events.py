"""No body of a committed entry ends a controller: what holds no event is rejected, and changes nothing."""

from __future__ import annotations

import pytest

from epochmq_controller.replica_groups import events
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.integers import INT_MAX, LONG_MAX

APPLY_BROKER_ID = b"\0\2"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"no json",
        b"[" * 5000,
        b'{"brokerName":"\xff"}',
        b'{"brokerName":"\\ud800"}',
        b'{"brokerName":"a","newBrokerId":%d}' % (LONG_MAX + 1),
        b'{"brokerName":"a","newBrokerId":1e300}',
        b'{"brokerName":7}',
    ],
)
def test_a_body_that_holds_no_event_is_rejected(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        events.decode(APPLY_BROKER_ID + text)


def test_a_body_shorter_than_its_type_is_rejected() -> None:
    with pytest.raises(RemoteProtocolError):
        events.decode(b"x")


ALTER_SYNC_STATE_SET = b"\0\1"


@pytest.mark.parametrize("number", [INT_MAX + 1, LONG_MAX + 1, 10**30])
def test_a_number_of_replicas_beyond_its_range_is_rejected(number: int) -> None:
    """A snapshot could not carry it."""
    text = b'{"brokerName":"a","newSyncStateSet":[1],"minInSyncReplicas":%d}'
    assert events.decode(ALTER_SYNC_STATE_SET + text % 1) is not None
    with pytest.raises(RemoteProtocolError):
        events.decode(ALTER_SYNC_STATE_SET + text % number)
