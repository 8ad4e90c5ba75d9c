"""Holds what the worker for one resource remembers between two reconciliations."""

from __future__ import annotations

import asyncio
import time

from epochmq_operator.plans.objects import Ref


class WorkerState:
    """The state of one worker. `rejection` is the API server's response to the last write, if that was
    rejected. No decision depends on the other fields: they only say when the worker reconciles again, and
    which objects it loads before."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.pause_s = 1.0
        self.failures = 0
        self.rejection = ""
        self.confirmed_s = time.monotonic()
        self.unlabelled_objects: set[Ref] = set()
