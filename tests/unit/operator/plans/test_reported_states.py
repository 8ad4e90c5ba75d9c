"""What the operator makes of the answer of a sidecar."""

from __future__ import annotations

import pytest

from epochmq_operator.plans.reported_states import ReportedControllerState, decode_state
from epochmq_protocol.errors import RemoteProtocolError


def test_a_state_is_decoded_by_its_component() -> None:
    state = decode_state(b'{"component": "controller", "role": "leader", "committedIndex": 7}')
    assert isinstance(state, ReportedControllerState)
    assert (state.role, state.committed_index) == ("leader", 7)


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"component": "controller", "role": "king"}']
)
def test_anything_else_is_an_error(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="the response is not a replica's state: "):
        decode_state(body)
