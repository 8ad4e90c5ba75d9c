"""`epochmq promote`, `fence` and `drain`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from epochmq.exits import Exit
from epochmq_operator.local import steering
from epochmq_operator.local.state import StateDirectory


def promote(state: Path, name: str, timeout_s: float) -> int:
    """Makes a replica the master."""
    done = asyncio.run(steering.promote(_there(state), name, timeout_s))
    print(_said(done))
    return Exit.OK


def fence(state: Path, name: str, *, on: bool) -> int:
    """Stops a replica from taking messages, or lets it again."""
    replica = asyncio.run(steering.fence(_there(state), name, on=on))
    role = f" ({replica.role})" if replica.role else ""
    print(f"{replica.pod}{role} {'takes no messages until it is unfenced' if on else 'takes messages again'}")
    return Exit.OK


def drain(state: Path, name: str, timeout_s: float, *, on: bool) -> int:
    """Takes a replica out of the SyncStateSet, or back in."""
    replica, moved = asyncio.run(steering.drain(_there(state), name, timeout_s, on=on))
    if moved is not None:
        print(_said(moved))
    print(
        f"{replica.pod} is {'out of' if on else 'in'} the SyncStateSet"
        + ("; it may be stopped now" if on else "")
    )
    return Exit.OK


def _there(state: Path) -> StateDirectory:
    directory = StateDirectory(state)
    if not directory.exists():
        raise steering.SteeringError(f"nothing runs in {state}; start something with: epochmq up -f FILE")
    return directory


def _said(done: steering.Promoted) -> str:
    if done.held_ms is None:
        return f"{done.pod} (id {done.broker_id}) is the master already, of epoch {done.epoch}"
    return (
        f"{done.pod} (id {done.broker_id}) is the master of epoch {done.epoch}; "
        f"sends were held {done.held_ms} ms"
    )
