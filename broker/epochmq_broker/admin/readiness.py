# pure: rules over values
"""Decides whether a broker is ready, that is, does what its role demands.

- A master stores messages: it has a lease, where leases are granted, `minInSyncReplicas` replicas, a store
  that can be written, and a nameserver that knows it.
- A replica can become master without losing a message: it is in the SyncStateSet, follows the master, and its
  lag is small. A configured learner only has to follow.
- An acting master (RIP-32) serves consumers: a nameserver knows it.
- In a DLedger group the leader is ready when it accepts messages, and a follower when it could take over the
  leadership.
- A broker without a role is not ready; nor is one that is isolated (it has not gone through pre-online),
  fenced or drained, whose log is in doubt, or whose broker id belongs to another store.

An open port alone says nothing.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from epochmq_broker.config import refusals
from epochmq_protocol.admin_api.operations import TAKEOVER_ENTRIES_MAX, ReadinessLimits
from epochmq_protocol.admin_api.results import DLedgerState, MemberGroupState


class ReadinessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of the decision. `may_write`: as far as leases and promises go. `waits_for`: what a master
    that may not write waits for. `step`: the replica's progress towards
    following. `registered`: with a nameserver; None if none is configured. Lags are None while unknown.
    `group`: None unless the broker belongs to a group with an acting master. `dledger`: None unless the
    commit log is a DLedger log. `refusal`: why the controllers refuse the store; None if they do not."""

    role: Literal["master", "replica", "none"]
    controlled: bool
    broker_id: int | None
    sync_state_set: frozenset[int]
    min_in_sync_replicas: int = 1
    may_write: bool = True
    waits_for: str | None = None
    replicas_enough: bool = True
    fenced: bool = False
    drained: bool = False
    learner: bool = False
    in_doubt: bool = False
    refusal: str | None = None
    divergence: str = ""
    """Why a replica follows no master until a person decides."""
    store_faults: tuple[str, ...] = ()
    leading_controller: str | None = None
    following: bool = False
    step: str = ""
    registered: bool | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None
    group: MemberGroupState | None = None
    dledger: DLedgerState | None = None


def not_ready_reasons(facts: ReadinessFacts, limits: ReadinessLimits) -> list[str]:
    """Returns the reasons why the broker is not ready; none if it is."""
    reasons = list(facts.store_faults)
    if facts.fenced:
        reasons.append(refusals.fenced_reason())
    if facts.drained and facts.dledger is not None:
        reasons.append("it is drained: it leaves the leadership to other replicas until it is undrained")
    elif facts.drained:
        reasons.append("it is drained: it stays out of the SyncStateSet until it is undrained")
    if facts.refusal is not None:
        return [*reasons, refusals.store_refused(facts.refusal).cause]
    if facts.in_doubt:
        reasons.append(refusals.IN_DOUBT.cause)
    if facts.group is not None and facts.group.role == "isolated":
        step = facts.group.isolated_because
        reasons.append("it is isolated: it " + (step or "has not begun to go online"))
    elif facts.group is not None and facts.group.role == "acting":
        if facts.registered is False:
            reasons.append("it is not registered with a nameserver yet")
    elif facts.dledger is not None:
        reasons += _dledger(facts, facts.dledger)
    elif facts.role == "master":
        reasons += _master(facts)
    elif facts.role == "replica":
        reasons += _replica(facts, limits)
    elif facts.controlled:
        reasons.append(refusals.no_master_yet(facts.leading_controller))
    else:
        reasons.append("it has not started")
    return reasons


def _dledger(facts: ReadinessFacts, peer: DLedgerState) -> list[str]:
    reasons = [] if peer.problem is None else [peer.problem]
    if peer.role == "leader" and not peer.serves:
        reasons.append(f"it leads term {peer.term}, but its log is not committed and dispatched yet")
    elif peer.leader is None:
        reasons.append("the group has no leader, as far as it knows")
    elif peer.behind is None and peer.problem is None:
        reasons.append(f"its leader {peer.leader} has not reached its log yet")
    elif peer.behind is not None and peer.behind > TAKEOVER_ENTRIES_MAX:
        reasons.append(
            f"it lacks {peer.behind} committed entries, and could take over the leadership with at most "
            f"{TAKEOVER_ENTRIES_MAX}"
        )
    if peer.lacks_queue_ends:
        reasons.append("it does not know the ends of queues whose messages have expired")
    if facts.registered is False:
        reasons.append("it is not registered with a nameserver yet")
    return reasons


def _master(facts: ReadinessFacts) -> list[str]:
    reasons = []
    if not facts.may_write:
        reasons.append(refusals.no_lease(facts.waits_for).cause)
    elif not facts.replicas_enough:
        few = refusals.few_replicas(len(facts.sync_state_set), facts.min_in_sync_replicas)
        reasons.append(few.cause)
    if facts.registered is False:
        reasons.append("it is not registered with a nameserver yet")
    return reasons


def _replica(facts: ReadinessFacts, limits: ReadinessLimits) -> list[str]:
    reasons = []
    if facts.controlled and not facts.learner and facts.broker_id not in facts.sync_state_set:
        lack = "" if facts.lag_bytes is None else f"; it lacks {facts.lag_bytes} bytes"
        reasons.append(f"it is not in the SyncStateSet {sorted(facts.sync_state_set)}{lack}")
    if facts.divergence:
        reasons.append(f"it follows no master: {facts.divergence}")
        return reasons
    if not facts.following:
        reasons.append(f"it does not follow a master: it {facts.step or 'has none'}")
        return reasons
    if facts.lag_bytes is None or facts.lag_ms is None:
        reasons.append("its lag is unknown")
        return reasons
    if facts.lag_bytes > limits.max_lag_bytes:
        reasons.append(f"it lacks {facts.lag_bytes} bytes, more than the limit {limits.max_lag_bytes}")
    if facts.lag_ms > limits.max_lag_ms:
        reasons.append(f"it has been behind for {facts.lag_ms} ms, longer than the limit {limits.max_lag_ms}")
    return reasons
