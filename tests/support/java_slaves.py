"""Slaves of RocketMQ for the tests' pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.interop.java_env import JavaProcess, compile_java
from tests.support.process import ManagedProcess


def java_slave(config: Path, *, jvm: Sequence[str] = ()) -> ManagedProcess:
    """RocketMQ's slave, with a short interval between copies. `jvm`: further options."""
    return JavaProcess(
        "EagerSlave",
        ["-c", str(config)],
        home=config.parent,
        classes=compile_java("EagerSlave.java"),
        jvm=["-XX:MaxDirectMemorySize=512m", *jvm],
    )
