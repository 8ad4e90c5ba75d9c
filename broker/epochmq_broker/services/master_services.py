"""Runs the services that only the master runs (RocketMQ: BrokerController.changeSpecialServiceStatus)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class MasterService(Protocol):
    """A service of the master, such as the delivery of delayed messages."""

    def start(self) -> None:
        """Starts the service on the running event loop: this broker became the master."""

    def stop(self) -> None:
        """Stops the service and writes its state: another broker became the master, or this one stops."""


class MasterServices:
    """All services that run on the master only. They start and stop together, and may start again."""

    def __init__(
        self,
        *services: MasterService,
        before_fence: Sequence[Callable[[], None]] = (),
        when_replicated: Sequence[Callable[[], None]] = (),
    ) -> None:
        """`services` start in this order, and stop in reverse.

        `before_fence` is called before this master is fenced, while it may still write: each stores in the
        log what its service has in memory only. `when_replicated` is called before this master is fenced,
        when the new master has the whole log: each advances the consumer offsets that waited for the log to
        be safe."""
        self._services = services
        self._before_fence = before_fence
        self._when_replicated = when_replicated
        self._running = False

    def start(self) -> None:
        """Starts the services, unless they run."""
        if not self._running:
            self._running = True
            for service in self._services:
                service.start()

    def prepare_fence(self) -> None:
        """Stores in the log what the services have in memory only, if they run."""
        if self._running:
            for store_state in self._before_fence:
                store_state()

    def commit_replicated(self) -> None:
        """Advances the consumer offsets that waited for the log to be safe, if the services run."""
        if self._running:
            for commit in self._when_replicated:
                commit()

    def stop(self) -> None:
        """Stops the services, if they run."""
        if self._running:
            self._running = False
            for service in reversed(self._services):
                service.stop()
