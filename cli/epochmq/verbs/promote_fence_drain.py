"""Implements `epochmq promote`, `fence` and `drain`: changes what a replica of a group does, on this machine
or on a cluster."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from epochmq.exits import ExitCode
from epochmq.verbs.target import KubernetesTarget
from epochmq_operator.local import replica_requests
from epochmq_operator.local.state_directory import StateDirectory
from epochmq_operator.named_replica import PromotionResult, ReplicaControlError
from epochmq_operator.status_model import ReplicaStatus


def promote(
    state: Path, target: KubernetesTarget | None, name: str, timeout_s: float, *, as_json: bool
) -> int:
    """Makes a replica the master."""
    if target is not None:
        from epochmq.verbs.kubernetes_cluster import promote as promote_on_cluster

        result = promote_on_cluster(target, name, timeout_s)
    else:
        result = asyncio.run(replica_requests.promote(running_directory(state), name, timeout_s))
    return _print(promotion_text(result), _promotion_document(result), as_json=as_json)


def fence(state: Path, target: KubernetesTarget | None, name: str, *, on: bool, as_json: bool) -> int:
    """Fences a replica, so that it accepts no messages, or unfences it."""
    if target is not None:
        from epochmq.verbs.kubernetes_cluster import fence as fence_on_cluster

        replica = fence_on_cluster(target, name, on=on)
    else:
        replica = asyncio.run(replica_requests.fence(running_directory(state), name, on=on))
    role = f" ({replica.role})" if replica.role else ""
    state_text = "accepts no messages until it is unfenced" if on else "accepts messages again"
    return _print(
        f"{replica.pod}{role} {state_text}", {**_replica_document(replica), "fenced": on}, as_json=as_json
    )


def drain(
    state: Path,
    target: KubernetesTarget | None,
    name: str,
    timeout_s: float,
    *,
    on: bool,
    as_json: bool,
) -> int:
    """Drains a replica, so that it leaves the SyncStateSet, or undrains it."""
    promotion = None
    if target is not None:
        from epochmq.verbs.kubernetes_cluster import drain as drain_on_cluster

        replica = drain_on_cluster(target, name, timeout_s, on=on)
    else:
        directory = running_directory(state)
        replica, promotion = asyncio.run(replica_requests.drain(directory, name, timeout_s, on=on))
    lines = [promotion_text(promotion)] if promotion is not None else []
    if replica.dledger_address is not None:
        lines.append(f"{replica.pod} {_DRAINED_PEER if on else 'may become the master again'}")
    elif on:
        lines.append(f"{replica.pod} has left the SyncStateSet; it may be stopped now")
    else:
        lines.append(f"{replica.pod} is in the SyncStateSet")
    document = {
        **_replica_document(replica),
        "drained": on,
        "promoted": _promotion_document(promotion) if promotion else None,
    }
    return _print("\n".join(lines), document, as_json=as_json)


_DRAINED_PEER = "leaves the leadership to other replicas until it is undrained; it may be stopped now"


def _print(text: str, document: dict[str, object], *, as_json: bool) -> int:
    print(json.dumps(document) if as_json else text)
    return ExitCode.OK


def _replica_document(replica: ReplicaStatus) -> dict[str, object]:
    return {"pod": replica.pod, "brokerId": replica.broker_id, "role": replica.role}


def _promotion_document(result: PromotionResult) -> dict[str, object]:
    return {
        "pod": result.pod,
        "brokerId": result.broker_id,
        "masterEpoch": result.epoch,
        "heldMs": result.held_ms,
    }


def running_directory(state: Path) -> StateDirectory:
    """The state directory of a run. ReplicaControlError if nothing runs there."""
    directory = StateDirectory(state)
    if not directory.exists():
        raise ReplicaControlError(f"nothing runs in {state}; start something with: epochmq up -f FILE")
    return directory


def promotion_text(result: PromotionResult) -> str:
    """What a promotion has done, in a line."""
    if result.held_ms is None:
        return f"{result.pod} (id {result.broker_id}) is already the master, of epoch {result.epoch}"
    held = "rejected" if result.rejects else "held"
    return (
        f"{result.pod} (id {result.broker_id}) is the master of epoch {result.epoch}; "
        f"sends were {held} {result.held_ms} ms"
    )
