"""Which pod restarts next, and what it waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from epochmq_operator.plans.restarts import next_ready_pod


def pod(name: str, *, ready: bool = True, outdated: bool = False) -> Any:
    return cast(
        Any, SimpleNamespace(name=name, ready=ready, outdated=outdated, unready_reason="is not ready")
    )


def test_a_restart_waits_for_all_other_pods() -> None:
    pods = {
        "b-3": pod("b-3", outdated=True),
        "b-2": None,
        "b-1": pod("b-1", ready=False),
        "b-0": pod("b-0"),
    }
    found = next_ready_pod(pods, frozenset({"b-3"}), "b-3")
    assert found.pod is pods["b-3"]
    assert found.waits_for == "b-2 does not exist; b-1 is not ready; b-0 is not in sync"
