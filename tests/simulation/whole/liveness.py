"""What a group must do while some of its members are missing: accept messages, or name a reason.

A majority of the controllers, enough brokers, the nameserver and a client run, and each of them reaches all
the others. Then the group accepts a message within LIVE_WITHIN_S of the last fault. Otherwise the state of a
controller or of a broker names what it waits for, so that a person knows what to do.
"""

from __future__ import annotations

from itertools import combinations
from unittest.mock import patch

from epochmq_broker.admin import operations
from epochmq_broker.admin.broker_view import BrokerView
from epochmq_controller.controller.admin_api import ControllerAdminApi
from epochmq_protocol.admin_api.operations import ReadinessLimits
from tests.simulation.whole.group import PROBE, Group
from tests.simulation.whole.workload import PromiseBrokenError

LIVE_WITHIN_S = 45.0
"""A master that reaches the controllers, but not enough replicas, gives way after 10 s, and its successor
after another 20 s."""


async def check_live(group: Group) -> None:
    """Checks it after the last fault, while some outages last. PromiseBrokenError: no message was accepted,
    and no reason is named."""
    able = able_members(group)
    if not able:
        group.site.trace.tell("too few members reach each other")
        return
    if await group.accepts(LIVE_WITHIN_S):
        return
    reasons = named_reasons(group)
    group.site.trace.tell(f"{able} reach each other, and the group waits: {reasons}")
    group.excused += 1
    if not reasons:
        raise PromiseBrokenError(
            f"{able} reach each other, and no message was acknowledged within {LIVE_WITHIN_S:g} s; masters: "
            f"{group.masters()}, writers: {group.writers()}, {group.describe()}; {described_states(group)}"
        )


def able_members(group: Group) -> list[str]:
    """The largest set of members that suffices, each of which reaches all the others; empty without any."""
    site = group.site
    cuts = site.network.cuts
    running = {
        name
        for name, process in site.processes.items()
        if process.alive and not process.paused and process.host.has_power
    } | {PROBE}

    def connected(names: tuple[str, ...]) -> bool:
        return running.issuperset(names) and not any(
            (one, other) in cuts or (other, one) in cuts for one, other in combinations(names, 2)
        )

    clients = (group.nameserver, PROBE)
    least = 1 if len(group.brokers) == 1 else len(group.brokers) // 2 + 1
    quorum = len(group.controllers) // 2 + 1 if group.controllers else 0
    for size in range(len(group.brokers), least - 1, -1):
        for brokers in combinations(group.brokers, size):
            for controllers in combinations(group.controllers, quorum):
                if connected((*brokers, *controllers, *clients)):
                    return [*brokers, *controllers, *clients]
    return []


def named_reasons(group: Group) -> list[str]:
    """What controllers and brokers say that the group waits for, or that a person must decide."""
    found = []
    for name in group.controllers:
        server = group.controller(name)
        if server is None or not server.controller.leads:
            continue
        for one in ControllerAdminApi(controller=server.controller, calls=server.calls).state().groups:
            found += [f"{name}: {one.waits}"] if one.waits else []
            found += [f"{name} refuses {refused.broker_id}: {refused.reason}" for refused in one.refused]
    for name, view in _views(group).items():
        facts = view.readiness()
        found += [f"{name}: {fault}" for fault in facts.store_faults]
        found += [f"{name} follows no master: {facts.divergence}"] if facts.divergence else []
        if facts.dledger is not None and facts.dledger.problem:
            found.append(f"{name}: {facts.dledger.problem}")
    return found


def described_states(group: Group) -> str:
    """Why brokers say that they are not ready."""
    limits = ReadinessLimits()
    return "; ".join(f"{name}: {view.state(limits).not_ready}" for name, view in _views(group).items())


def _views(group: Group) -> dict[str, BrokerView]:
    with patch.object(operations, "AdminSocketServer"):  # nobody connects to it
        return {
            name: service._make_admin_api()._view
            for name in group.brokers
            if (service := group.service(name)) is not None
        }
