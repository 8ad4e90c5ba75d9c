"""Holds the flusher of queues back."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.unit.store.started_stores import DEADLINE_S


class Gate:
    """Blocks the calls of one function until `free` is set, fails them with `error`, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.free = threading.Event()
        self.error: Exception | None = None
        self.entered = 0
        real = getattr(owner, name)

        def waiting(*args: Any, **kwargs: Any) -> Any:
            self.entered += 1
            assert self.free.wait(DEADLINE_S)
            if self.error is not None:
                raise self.error
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, waiting)
