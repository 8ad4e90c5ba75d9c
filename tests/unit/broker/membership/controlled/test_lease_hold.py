"""Holding requests until a new master may take messages."""

from __future__ import annotations

from typing import Any

from epochmq_broker.membership.controlled.lease_hold import LeaseHold
from epochmq_broker.membership.controlled.request_gate import GatePhase, RequestGate


def gate() -> RequestGate:
    client: Any = None  # nothing is relayed
    return RequestGate(client, "127.0.0.1:10911")


async def test_requests_are_held_until_the_master_is_ready() -> None:
    ready = False
    held = gate()
    hold = LeaseHold(held, lambda: ready)
    hold.start()
    hold.release_if_ready()
    assert held.phase is GatePhase.HOLDING
    ready = True
    hold.release_if_ready()
    assert held.phase is GatePhase.OPEN


async def test_a_gate_that_others_hold_stays_as_it_is() -> None:
    held = gate()
    hold = LeaseHold(held, lambda: True)
    held.hold()
    hold.release_if_ready()
    hold.release()
    assert held.phase is GatePhase.HOLDING
