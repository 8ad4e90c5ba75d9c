"""Gives peers ports that the kernel gives to no outgoing connection before they listen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.support.net import free_port


@pytest.fixture
def unused_tcp_port_factory() -> Callable[[], int]:
    """Replaces the fixture of pytest-asyncio, whose ports another process may get."""
    return partial(free_port, "127.0.0.1", beside=())


@pytest.fixture
def unused_tcp_port(unused_tcp_port_factory: Callable[[], int]) -> int:
    return unused_tcp_port_factory()
