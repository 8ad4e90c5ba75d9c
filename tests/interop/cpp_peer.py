"""Starts RocketMQ's C++ client (`cpp_client.py`) in processes of its own and reads their output. They are
killed at the end, because no other way is safe with this client."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

from tests.interop.plan_peer import Line, PlanPeer

PROGRAM = Path(__file__).with_name("cpp_client.py")


def missing_cpp_client() -> str | None:
    """Names the binding when it is not installed (it exists for Linux only)."""
    if importlib.util.find_spec("rocketmq") is None:
        return "missing: the `rocketmq` package, the C++ client's binding"
    return None


class CppPeer(PlanPeer):
    """One C++ client carrying out one plan."""

    def __init__(self, nameserver: str, plan: Line, home: Path) -> None:
        super().__init__([sys.executable, str(PROGRAM), nameserver, json.dumps(plan)], home)


def run_plan(nameserver: str, plan: Line, home: Path) -> list[Line]:
    """Runs a plan to its end and returns the printed lines."""
    with CppPeer(nameserver, plan, home) as peer:
        return peer.finish()
