"""Runs each seed in a process of its own, forked from one that has imported everything.

A simulation replaces functions of the interpreter, and never collects what a killed process has left. Both
end with the process. All of them have the same hash seed and memory layout, so the order of sets is the
same, too.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ADDR_NO_RANDOMIZE = 0x0040000
"""personality(2): the addresses of objects are the same in every run."""
MEMORY = Path("/dev/shm")


@dataclass
class Outcome:
    """What one seed has led to. `failure` is empty if every promise was kept."""

    seed: int
    failure: str = ""
    digest: int = 0
    events: int = 0
    iterations: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)


Simulation = Callable[[int, Path], Outcome]


def run_fixed(module: str, arguments: list[str]) -> None:
    """Replaces this process by one with a fixed hash seed and memory layout, unless it has them."""
    if os.environ.get("PYTHONHASHSEED") == "0":
        return
    ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE)
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    os.execve(sys.executable, [sys.executable, "-m", module, *arguments], environment)


def run_seeds(simulation: Simulation, seeds: Iterable[int], *, processes: int = 1) -> Iterator[Outcome]:
    """Runs seeds, so many at a time, and yields what they led to."""
    running: dict[int, tuple[int, int]] = {}  # by process id: seed, and the pipe
    waiting = iter(seeds)
    exhausted = False
    while running or not exhausted:
        while not exhausted and len(running) < processes:
            seed = next(waiting, None)
            if seed is None:
                exhausted = True
            else:
                running.update(_fork(simulation, seed))
        if running:
            yield _collect(running)


def _fork(simulation: Simulation, seed: int) -> dict[int, tuple[int, int]]:
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return {child: (seed, reader)}
    os.close(reader)
    status = 1
    directory = Path(tempfile.mkdtemp(prefix="epochmq-whole-", dir=MEMORY if MEMORY.is_dir() else None))
    close = os._exit
    write = os.write
    try:
        try:
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 — what the processes print
            outcome = simulation(seed, directory)
        except BaseException:
            outcome = Outcome(seed, failure=traceback.format_exc())
        data = pickle.dumps(outcome)
        while data:
            data = data[write(writer, data) :]
        status = 0
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        close(status)
    raise AssertionError("not reached")


def _collect(running: dict[int, tuple[int, int]]) -> Outcome:
    """Waits for the oldest process."""
    child = next(iter(running))
    seed, reader = running.pop(child)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    if not data:
        return Outcome(seed, failure="the process of this seed ended without a result")
    outcome = pickle.loads(data)
    assert isinstance(outcome, Outcome)
    return outcome
