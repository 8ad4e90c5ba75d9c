"""Listens for replicas and drives their HA connections (the accepting half of `DefaultHAService` and
`AutoSwitchHAService`).

A broker has an `HAServer` only while it is a master. A replica does not listen on the HA port.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from epochmq_broker.replication.ha.connection import HAConnection, HAConnectionContext, HAConnectionPhase
from epochmq_broker.replication.ha.epoch_file import EpochFile
from epochmq_broker.replication.ha.settings import HASettings
from epochmq_broker.replication.ha.sync_state import SyncState
from epochmq_broker.replication.ha.tls import HATls, TlsArrivals
from epochmq_protocol.transport.member_authentication import MemberAuthentication
from epochmq_store.log.commit_log import CommitLog
from epochmq_store.log.damaged_ranges import DamagedRanges

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 64
WAITING_MAX: Final = 16
"""Connections that have not reported an offset yet, or not proven yet that they are a member's. They take no
place of a replica. For one more, the oldest of the address with the most of them is closed."""
KNOWN_HOSTS_MAX: Final = 256
ACCEPTS_PER_TURN: Final = 16  # connections accepted in one iteration of the event loop
SENDER_THREADS: Final = 2  # threads that send bytes which have to be read from disk
TICK_S: Final = 0.1
BACKLOG: Final = 64
FIRST_SERIAL: Final = 1 << 40
"""Without a controller replicas have no id of their own. The ids that a master gives them start here."""


class HAServer:
    """The HA connections of one mastership. `on_progress` is called after every acknowledgement that may
    change the confirmed offset or satisfy a waiting send. `on_members` is called when the set of replicas
    that are in sync may have changed."""

    def __init__(
        self,
        *,
        commit_log: CommitLog,
        damage: DamagedRanges,
        sync: SyncState,
        epochs: EpochFile | None,
        settings: HASettings,
        on_progress: Callable[[], None],
        on_members: Callable[[], None],
        on_connections: Callable[[Callable[[], None] | None], None],
        members: MemberAuthentication | None = None,
        tls: HATls | None = None,
    ) -> None:
        """`damage`: what must not be sent. `epochs` is None without a controller. `on_connections` gets the
        function to call after each append to the log, or None while no replica is connected. `members`: None
        where nobody proves a membership. `tls`: None for plain connections only."""
        self.connections: list[HAConnection] = []
        self.known_hosts: dict[str, None] = {}
        """The IP addresses from which replicas have connected, the latest at the end."""
        self.sync = sync
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._executor = ThreadPoolExecutor(SENDER_THREADS, thread_name_prefix="ha-send")
        self._context = HAConnectionContext(
            commit_log=commit_log,
            damage=damage,
            sync=sync,
            epochs=epochs,
            settings=settings,
            loop=loop,
            executor=self._executor,
            on_handshake=self._handshake_received,
            on_ack=self._report_received,
            on_closed=self._connection_closed,
            members=members,
            has_proven=self._has_proven,
        )
        self._on_progress = on_progress
        self._on_members = on_members
        self._on_connections = on_connections
        self._serials = itertools.count(FIRST_SERIAL)
        self._arrivals = None if tls is None else TlsArrivals(tls, self._admit)
        self._listener: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._stopped = False

    def start(self, host: str, port: int) -> int:
        """Starts to listen; returns the port. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise OSError(
                error.errno, f"cannot listen on the HA port {host}:{port}: {error.strerror}"
            ) from error
        self._listener = listener
        self._loop.add_reader(listener.fileno(), self._accept)
        self._timer = self._loop.call_later(TICK_S, self._tick)
        bound: int = listener.getsockname()[1]
        log.info("the master listens for replicas at %s:%d", host, bound)
        return bound

    async def stop(self) -> None:
        """Stops listening and closes every connection."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        if self._arrivals is not None:
            self._arrivals.stop()
        jobs = [connection.job for connection in self.connections if connection.job is not None]
        for connection in list(self.connections):
            connection.close("this broker stops being the master")
        if jobs:
            await asyncio.gather(*jobs, return_exceptions=True)
            await asyncio.sleep(0)  # lets the connections handle the end of their background runs
        self._executor.shutdown(wait=False)

    def configure(self, settings: HASettings) -> None:
        """Uses new settings."""
        self._context.configure(settings)

    def log_appended(self) -> None:
        """Sends appended bytes to the replicas in the next iteration of the event loop, once for many
        appends."""
        if not self._scheduled and self.connections:
            self._scheduled = True
            self._loop.call_soon(self._send_pending)

    def epochs_changed(self) -> None:
        """Tells every connection that this mastership continues under another epoch."""
        for connection in list(self.connections):
            connection.epochs_changed()

    def _send_pending(self) -> None:
        self._scheduled = False
        self.sync.log_appended(self._context.log.max_offset)
        for connection in list(self.connections):
            connection.send_pending()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._listener is None:
                return
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                log.error("the master could not accept a replica's connection: %s", error)
                return
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            remote = f"{address[0]}:{address[1]}"
            if self._arrivals is None:
                self._admit(sock, remote)
            else:
                self._arrivals.take(sock, remote)

    def _admit(self, sock: socket.socket, remote: str) -> None:
        """Takes a connection of a replica at host:port `remote`, if there is a place for it."""
        host = remote.rpartition(":")[0]
        waiting = [one for one in self.connections if one.is_waiting]
        if len(waiting) >= WAITING_MAX:
            _victim(waiting).close(f"{WAITING_MAX} connections have not reported an offset yet")
        if len(self.connections) - len(waiting) >= CONNECTIONS_MAX:
            log.error(
                "the master rejected the replica at %s: %d replicas are connected already",
                host,
                len(self.connections),
            )
            sock.close()
            return
        if self._context.members is None:
            self._remember_host(host)
        self.connections.append(HAConnection(sock, remote, self._context, next(self._serials)))
        self._on_connections(self.log_appended)

    def _remember_host(self, host: str) -> None:
        self.known_hosts.pop(host, None)
        self.known_hosts[host] = None
        if len(self.known_hosts) > KNOWN_HOSTS_MAX:
            del self.known_hosts[next(iter(self.known_hosts))]

    def _handshake_received(self, connection: HAConnection) -> None:
        """Closes the former connection of a replica that has connected again."""
        if self._context.members is not None:
            self._remember_host(connection.remote.rpartition(":")[0])
        for other in list(self.connections):
            if other is not connection and other.broker_id == connection.broker_id:
                other.close("the replica has connected again")

    def _has_proven(self, broker_id: int) -> bool:
        return any(one.is_proven and one.broker_id == broker_id for one in self.connections)

    def _report_received(self, connection: HAConnection) -> None:
        self._on_progress()
        if connection.broker_id not in self.sync.members:
            self._on_members()

    def _connection_closed(self, connection: HAConnection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
        if not self._stopped:
            if not self.connections:
                self._on_connections(None)
            self._on_progress()
            self._on_members()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        before = self.sync.confirm_offset
        self.sync.log_appended(self._context.log.max_offset)
        if self.sync.confirm_offset != before:
            self._on_progress()
        for connection in list(self.connections):
            try:
                connection.tick()
            except Exception:
                # A fault on one connection must not end the others.
                log.exception("the connection of %r failed", connection)
                connection.close("an internal error of the master")

    @property
    def transferring(self) -> list[HAConnection]:
        """The connections whose replica has reported its end offset."""
        return [
            connection for connection in self.connections if connection.phase is HAConnectionPhase.TRANSFER
        ]


def _victim(waiting: Sequence[HAConnection]) -> HAConnection:
    """The oldest connection of the address with the most of them: a stranger evicts its own."""
    hosts = [one.remote.rpartition(":")[0] for one in waiting]
    return waiting[hosts.index(max(dict.fromkeys(hosts), key=hosts.count))]
