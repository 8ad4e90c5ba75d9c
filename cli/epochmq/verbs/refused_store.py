"""Implements `epochmq replica adopt` and `discard`: decisions about a store that the controllers refuse."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from epochmq.exits import ExitCode
from epochmq.verbs.promote_fence_drain import running_directory
from epochmq_operator.local import refused_stores


def settle(state: Path, name: str, pod: str | None, timeout_s: float, *, adopt: bool, as_json: bool) -> int:
    """Adopts the refused store for the broker id GROUP/ID, or takes the id from it."""
    settled = asyncio.run(refused_stores.settle(running_directory(state), name, pod, timeout_s, adopt=adopt))
    text = (
        f"{settled.pod} is broker {settled.broker_id} again; it catches up with the master"
        if adopt
        else f"{settled.pod} is broker {settled.broker_id} now; it joins the group as a new replica"
    )
    print(json.dumps({"pod": settled.pod, "brokerId": settled.broker_id}) if as_json else text)
    return ExitCode.OK
