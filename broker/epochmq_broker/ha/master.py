"""Serves the log to replicas: takes their connections, wakes their senders, and looks after the silent ones
(the accepting half of `DefaultHAService` and `AutoSwitchHAService`).

It exists while this broker is a master: a replica has nothing to serve, and listens to nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from epochmq_broker.ha.epoch_file import EpochFile
from epochmq_broker.ha.link import Master, Phase, ReplicaLink
from epochmq_broker.ha.settings import HASettings
from epochmq_broker.ha.sync_state import SyncState
from epochmq_broker.store.commit_log import CommitLog

log = logging.getLogger(__name__)

LINKS_MAX: Final = 64
ACCEPTS: Final = 16  # connections taken in one round of the loop
THREADS: Final = 2  # that read what lies on disk
TICK_S: Final = 0.1
BACKLOG: Final = 64
SERIALS: Final = 1 << 40
"""Ids of replicas that have none of their own (without a controller) begin here."""


class HAMaster:
    """The connections of one mastership. `on_progress` is called after every acknowledgement that may change
    what is confirmed or who is waiting; `on_members` when it may change who should be in the SyncStateSet."""

    def __init__(
        self,
        commit_log: CommitLog,
        sync: SyncState,
        epochs: EpochFile | None,
        settings: HASettings,
        *,
        on_progress: Callable[[], None],
        on_members: Callable[[], None],
        on_links: Callable[[Callable[[], None] | None], None],
    ) -> None:
        """`epochs` is None without a controller. `on_links` is told what to call when the log has grown, None
        while nobody is connected."""
        self.links: list[ReplicaLink] = []
        self.sync = sync
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="ha-send")
        self._shared = Master(commit_log, sync, epochs, settings, loop, self._executor)
        self._shared.on_introduced = self._introduced
        self._shared.on_ack = self._acked
        self._shared.on_gone = self._gone
        self._on_progress = on_progress
        self._on_members = on_members
        self._on_links = on_links
        self._serials = itertools.count(SERIALS)
        self._listener: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._stopped = False

    def start(self, host: str, port: int) -> int:
        """Listens; the port. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise OSError(error.errno, f"HA port {host}:{port}: {error.strerror}") from error
        self._listener = listener
        self._loop.add_reader(listener.fileno(), self._accept)
        self._timer = self._loop.call_later(TICK_S, self._tick)
        bound: int = listener.getsockname()[1]
        log.info("replicas are served at %s:%d", host, bound)
        return bound

    async def stop(self) -> None:
        """Closes every connection and listens no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        jobs = [link.job for link in self.links if link.job is not None]
        for link in list(self.links):
            link.close("we serve no replicas any more")
        if jobs:
            await asyncio.gather(*jobs, return_exceptions=True)
            await asyncio.sleep(0)  # what the links do when their run has ended
        self._executor.shutdown(wait=False)

    def configure(self, settings: HASettings) -> None:
        """Takes over new settings."""
        self._shared.settings = settings

    def appended(self) -> None:
        """The log has grown: replicas get it in the next round of the loop, however many messages it is."""
        if not self._scheduled and self.links:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def epochs_changed(self) -> None:
        """This mastership goes on under another epoch."""
        for link in list(self.links):
            link.epochs_changed()

    def _pump(self) -> None:
        self._scheduled = False
        self.sync.appended(self._shared.log.max_offset)
        for link in list(self.links):
            link.pump()

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            if self._listener is None:
                return
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                log.error("a replica's connection was not taken: %s", error)
                return
            if len(self.links) >= LINKS_MAX:
                log.error("a replica at %s is refused: %d are connected", address[0], len(self.links))
                sock.close()
                continue
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            remote = f"{address[0]}:{address[1]}"
            self.links.append(ReplicaLink(sock, remote, self._shared, next(self._serials)))
            self._on_links(self.appended)

    def _introduced(self, link: ReplicaLink) -> None:
        """A replica that comes again has lost its former connection, whether we have noticed or not."""
        for other in list(self.links):
            if other is not link and other.broker_id == link.broker_id:
                other.close("the replica has connected again")

    def _acked(self, link: ReplicaLink) -> None:
        self._on_progress()
        if link.broker_id not in self.sync.members:
            self._on_members()

    def _gone(self, link: ReplicaLink) -> None:
        if link in self.links:
            self.links.remove(link)
        if not self._stopped:
            if not self.links:
                self._on_links(None)
            self._on_progress()
            self._on_members()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        before = self.sync.confirm_offset
        self.sync.appended(self._shared.log.max_offset)
        if self.sync.confirm_offset != before:
            self._on_progress()
        for link in list(self.links):
            try:
                link.tick()
            except Exception:
                # One replica's fault must be neither the others' nor ours for ever.
                log.exception("%r failed", link)
                link.close("we failed")

    @property
    def following(self) -> list[ReplicaLink]:
        """Connections whose replica has said where it is."""
        return [link for link in self.links if link.phase is Phase.FOLLOW]
