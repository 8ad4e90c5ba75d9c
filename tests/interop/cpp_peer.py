"""Starts RocketMQ's C++ client (`cpp_client.py`) in processes of its own and reads their output. They are
killed at the end, because no other way is safe with this client."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from tests.interop.plan_peer import Line, PlanPeer
from tests.support.cluster import Cluster

PROGRAM = Path(__file__).with_name("cpp_client.py")


def missing_cpp_client() -> str | None:
    """Names the binding when it is not installed (it exists for Linux only)."""
    if importlib.util.find_spec("rocketmq") is None:
        return "missing: the `rocketmq` package, the C++ client's binding"
    return None


class CppPeer(PlanPeer):
    """One C++ client carrying out one plan."""

    def __init__(self, cluster: Cluster | str, plan: Line, home: Path) -> None:
        super().__init__(cluster, [sys.executable, str(PROGRAM)], plan, home)


def run_plan(cluster: Cluster | str, plan: Line, home: Path) -> list[Line]:
    """Runs a plan to its end and returns the printed lines."""
    with CppPeer(cluster, plan, home) as peer:
        return peer.finish()
