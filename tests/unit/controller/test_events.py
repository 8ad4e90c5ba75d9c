"""No body of a committed entry ends a controller: what holds no event is rejected, and changes nothing."""

from __future__ import annotations

import pytest

from epochmq_controller.replica_groups import events
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.integers import LONG_MAX

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
