"""Controllers of RocketMQ for the tests' groups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.interop.java_env import JavaProcess
from tests.support.group_processes import Factory, our_controller
from tests.support.process import ManagedProcess


def java_controller(config: Path) -> ManagedProcess:
    """RocketMQ's controller, with its files in the folder of its configuration."""
    return JavaProcess(
        "org.apache.rocketmq.controller.ControllerStartup",
        ["-c", str(config)],
        home=config.parent,
        name="java controller",
        heap_mb=128,
    )


OURS: Sequence[Factory] = [our_controller] * 3
