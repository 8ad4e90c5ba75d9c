"""`epochmq promote`, `fence` and `drain`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from epochmq.exits import ExitCode
from epochmq.verbs.target import KubernetesTarget
from epochmq_operator.local import replica_control
from epochmq_operator.local.state_directory import StateDirectory
from epochmq_operator.local.status import ReplicaStatus


def promote(
    state: Path, cluster: KubernetesTarget | None, name: str, timeout_s: float, *, as_json: bool
) -> int:
    """Makes a replica the master."""
    if cluster is not None:
        from epochmq.verbs.kubernetes_cluster import promote as on_cluster

        done = on_cluster(cluster, name, timeout_s)
    else:
        done = asyncio.run(replica_control.promote(_running_directory(state), name, timeout_s))
    return _print(_describe(done), _document(done), as_json=as_json)


def fence(state: Path, cluster: KubernetesTarget | None, name: str, *, on: bool, as_json: bool) -> int:
    """Stops a replica from taking messages, or lets it again."""
    if cluster is not None:
        from epochmq.verbs.kubernetes_cluster import fence as on_cluster

        replica = on_cluster(cluster, name, on=on)
    else:
        replica = asyncio.run(replica_control.fence(_running_directory(state), name, on=on))
    role = f" ({replica.role})" if replica.role else ""
    said = f"{replica.pod}{role} {'takes no messages until it is unfenced' if on else 'takes messages again'}"
    return _print(said, {**_named(replica), "fenced": on}, as_json=as_json)


def drain(
    state: Path,
    cluster: KubernetesTarget | None,
    name: str,
    timeout_s: float,
    *,
    on: bool,
    as_json: bool,
) -> int:
    """Takes a replica out of the SyncStateSet, or back in."""
    moved = None
    if cluster is not None:
        from epochmq.verbs.kubernetes_cluster import drain as on_cluster

        replica = on_cluster(cluster, name, timeout_s, on=on)
    else:
        replica, moved = asyncio.run(replica_control.drain(_running_directory(state), name, timeout_s, on=on))
    lines = [_describe(moved)] if moved is not None else []
    lines.append(
        f"{replica.pod} is {'out of' if on else 'in'} the SyncStateSet"
        + ("; it may be stopped now" if on else "")
    )
    document = {**_named(replica), "drained": on, "promoted": _document(moved) if moved else None}
    return _print("\n".join(lines), document, as_json=as_json)


def _print(said: str, document: dict[str, object], *, as_json: bool) -> int:
    print(json.dumps(document) if as_json else said)
    return ExitCode.OK


def _named(replica: ReplicaStatus) -> dict[str, object]:
    return {"pod": replica.pod, "brokerId": replica.broker_id, "role": replica.role}


def _document(done: replica_control.PromotionResult) -> dict[str, object]:
    return {"pod": done.pod, "brokerId": done.broker_id, "masterEpoch": done.epoch, "heldMs": done.held_ms}


def _running_directory(state: Path) -> StateDirectory:
    directory = StateDirectory(state)
    if not directory.exists():
        raise replica_control.ReplicaControlError(
            f"nothing runs in {state}; start something with: epochmq up -f FILE"
        )
    return directory


def _describe(done: replica_control.PromotionResult) -> str:
    if done.held_ms is None:
        return f"{done.pod} (id {done.broker_id}) is the master already, of epoch {done.epoch}"
    return (
        f"{done.pod} (id {done.broker_id}) is the master of epoch {done.epoch}; "
        f"sends were held {done.held_ms} ms"
    )
