# pure: whether a broker is ready
"""Whether a broker does what its role asks of it.

- A master takes messages: it has a lease, where leases are granted, as many replicas as `minInSyncReplicas`
  asks for, a store that can be written, and a nameserver that knows it.
- A replica can become master without a loss: it is in the SyncStateSet, follows, and lacks little. One that
  is a learner by configuration only has to follow.
- Who has no role is not ready; nor is who was fenced, or drained, or whose log may lack messages.

That a port is open means nothing.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from epochmq_protocol.admin_api.operations import ReadinessLimits


class ReadinessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a broker. `may_write`: as far as leases go. `flaws`: what ails the store. `step`:
    where a replica is on its way to following. `registered`: by a nameserver; None when there is none. Lags
    are None while they are not known."""

    role: Literal["master", "replica", "none"]
    controlled: bool
    broker_id: int | None
    sync_state_set: frozenset[int]
    min_in_sync_replicas: int = 1
    may_write: bool = True
    replicas_enough: bool = True
    fenced: bool = False
    drained: bool = False
    learner: bool = False
    in_doubt: bool = False
    flaws: tuple[str, ...] = ()
    leading_controller: str | None = None
    following: bool = False
    step: str = ""
    registered: bool | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None


def not_ready_reasons(facts: ReadinessFacts, limits: ReadinessLimits) -> list[str]:
    """Why the broker is not ready; nothing when it is."""
    reasons = list(facts.flaws)
    if facts.fenced:
        reasons.append("it was fenced, and takes no messages until it is unfenced")
    if facts.drained:
        reasons.append("it was drained, and takes no part until it is undrained")
    if facts.in_doubt:
        reasons.append(
            "its log may lack acknowledged messages (power lost, a failed disk, or a restored volume) "
            "until it has caught up with a master"
        )
    if facts.role == "master":
        reasons += _master(facts)
    elif facts.role == "replica":
        reasons += _replica(facts, limits)
    elif facts.controlled:
        leader = facts.leading_controller
        reasons.append(
            "no leading controller is known"
            if leader is None
            else f"the leading controller {leader} has named no master yet"
        )
    else:
        reasons.append("it has not started")
    return reasons


def _master(facts: ReadinessFacts) -> list[str]:
    reasons = []
    if not facts.may_write:
        reasons.append("the master has no write lease")
    elif not facts.replicas_enough:
        reasons.append(
            f"{len(facts.sync_state_set)} replicas are in sync, "
            f"minInSyncReplicas={facts.min_in_sync_replicas} are needed"
        )
    if facts.registered is False:
        reasons.append("no nameserver knows it yet")
    return reasons


def _replica(facts: ReadinessFacts, limits: ReadinessLimits) -> list[str]:
    reasons = []
    if facts.controlled and not facts.learner and facts.broker_id not in facts.sync_state_set:
        lack = "" if facts.lag_bytes is None else f"; it lacks {facts.lag_bytes} bytes"
        reasons.append(f"it is not in the SyncStateSet {sorted(facts.sync_state_set)}{lack}")
    if not facts.following:
        reasons.append(f"it does not follow a master: it {facts.step or 'has none'}")
        return reasons
    if facts.lag_bytes is None or facts.lag_ms is None:
        reasons.append("how much it lacks is not known")
        return reasons
    if facts.lag_bytes > limits.max_lag_bytes:
        reasons.append(f"it lacks {facts.lag_bytes} bytes, at most {limits.max_lag_bytes} are allowed")
    if facts.lag_ms > limits.max_lag_ms:
        reasons.append(f"it has been behind for {facts.lag_ms} ms, at most {limits.max_lag_ms} are allowed")
    return reasons
