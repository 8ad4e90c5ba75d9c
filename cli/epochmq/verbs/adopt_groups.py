"""Implements `epochmq controllers adopt`: rebuilds the groups that the controllers have forgotten from what
their brokers know."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec

from epochmq.exits import ExitCode, UsageError
from epochmq.verbs.promote_fence_drain import running_directory
from epochmq_operator.local import group_adoption
from epochmq_operator.local.group_adoption import GroupMembersToAsk
from epochmq_protocol.replica_control import AdoptedGroup
from epochmq_protocol.transport.member_authentication import members_of_environment
from epochmq_protocol.transport.outgoing_tls import tls_of_environment


def run(
    state: Path,
    controllers: list[str],
    brokers: list[str],
    timeout_s: float,
    *,
    dry_run: bool,
    accept_missing: bool,
    as_json: bool,
) -> int:
    """Rebuilds every forgotten group of a run or, with addresses, the group of these brokers. With `dry_run`
    it prints what it would do."""
    if bool(controllers) is not bool(brokers):
        raise UsageError("give --controller and --broker together, or neither")
    plans = asyncio.run(_adopt(state, controllers, brokers, timeout_s, dry_run, accept_missing))
    if as_json:
        print(json.dumps([msgspec.to_builtins(plan) for plan in plans]))
        return ExitCode.OK
    for plan in plans:
        print(_describe(plan, dry_run=dry_run))
    if not plans:
        print("the controllers know all groups; there is nothing to adopt")
    return ExitCode.OK


async def _adopt(
    state: Path,
    controllers: list[str],
    brokers: list[str],
    timeout_s: float,
    dry_run: bool,
    accept_missing: bool,
) -> list[AdoptedGroup]:
    if controllers:
        groups = [
            GroupMembersToAsk(
                controllers,
                {f"the broker {n}": a for n, a in enumerate(brokers, 1)},
                members=members_of_environment(),
                tls=tls_of_environment(),
            )
        ]
    else:
        groups = await group_adoption.forgotten_groups(running_directory(state))
    plans = [await group_adoption.plan_of(group, accept_missing=accept_missing) for group in groups]
    if not dry_run:
        for group, plan in zip(groups, plans, strict=True):
            await group_adoption.carry_out(group, plan, timeout_s)
    return plans


def _describe(plan: AdoptedGroup, *, dry_run: bool) -> str:
    replicas = ", ".join(f"{one.broker_id} at {one.address}" for one in plan.replicas)
    verb = "would be" if dry_run else "is"
    return (
        f"{plan.broker_name}: broker {plan.master_broker_id} {verb} the master of epoch "
        f"{plan.master_epoch + 1}; replicas: {replicas}"
    )
