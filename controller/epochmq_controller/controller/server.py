"""Runs a controller with its port: in a process of its own, or beside a nameserver."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path

from epochmq_controller.controller import lease_file
from epochmq_controller.controller.config import LoadedControllerConfig
from epochmq_controller.controller.controller import Controller
from epochmq_controller.controller.lease_renewals import LeaseRenewals
from epochmq_controller.controller.notifier import RoleChangeNotifier
from epochmq_controller.controller.processor import ControllerProcessor
from epochmq_dledger.processor import DLedgerProcessor
from epochmq_protocol.durable_files import make_directory
from epochmq_protocol.errors import ConfigError
from epochmq_protocol.member_requests import CONTROLLER_REQUESTS
from epochmq_protocol.transport import RemotingClient, RemotingServer
from epochmq_protocol.transport.in_process_calls import InProcessCalls
from epochmq_protocol.transport.member_authentication import guarded
from epochmq_protocol.transport.outgoing_tls import ClientCertificates

log = logging.getLogger(__name__)


class ControllerServer:
    """One controller with its port, which serves peers, brokers and administrators: construct it, `start`,
    `stop`."""

    def __init__(self, loaded: LoadedControllerConfig, *, on_fatal: Callable[[Exception], None]) -> None:
        """`on_fatal` is called after a disk error that stops this controller for good. ConfigError if the TLS
        files, or the secrets of the members, cannot be used."""
        config = loaded.config
        self.failed: Exception | None = None
        self._on_fatal = on_fatal
        self._folder = DirectoryLock(config.store_path())
        members = config.members()
        self.outgoing = ClientCertificates.of_member(loaded.outgoing_tls)
        self._client = RemotingClient(members=members, tls=self.outgoing)
        self._notifier = RoleChangeNotifier(self._client)
        self.controller = Controller(config, self._client, notify=self._notifier.notify, on_fatal=self._fail)
        processor = ControllerProcessor(self.controller, dict(loaded.extra))
        handlers = processor.handlers()
        self.calls = InProcessCalls(handlers)
        fast = LeaseRenewals(self.controller).handlers()
        self.server = RemotingServer(
            guarded(
                members,
                {**DLedgerProcessor(self.controller.peer).handlers(), **handlers},
                CONTROLLER_REQUESTS,
            ),
            settings=config.server_settings(),
            fast=fast if members is None else members.guard_fast(fast),
            tls=loaded.tls,
            on_close=self.controller.channel_closed,
        )
        self.controller.read_renewals_with(self.server.delay_reads)
        self.address = self.controller.addresses[config.controller_d_leger_self_id or ""]

    async def start(self) -> None:
        """Recovers, joins the Raft group and listens. OSError if it cannot, ConfigError if the directory does
        not fit the settings. Call `stop` in both cases, too."""
        config = self.controller.config
        self._folder.acquire()
        try:
            await lease_file.wait_for_longer_lease(self._folder.folder, config.write_lease_ms)
            self.controller.start()
        except ValueError as error:
            raise ConfigError(
                "controllerStorePath", str(self._folder.folder), f"a directory of this controller ({error})"
            ) from None
        await self.server.start(config.bind_address, config.listen_port)
        log.info("controller %s listens on %s", self.controller.peer.settings.self_id, self.address)

    async def stop(self) -> None:
        """Completes the pending requests, then stops."""
        await self.server.stop(self.controller.config.stop_grace_s())
        await self.controller.stop()
        await self._notifier.stop()
        await self._client.close()
        self._folder.release()

    def _fail(self, error: Exception) -> None:
        self.failed = error
        self._on_fatal(error)


class DirectoryLock:
    """An exclusive lock on a directory, by a file `lock` in it. The kernel releases it when the process
    ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._handle: int | None = None

    def acquire(self) -> None:
        """Creates the directory if needed, and locks it. OSError if that fails, or another process holds the
        lock."""
        make_directory(self.folder)
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise OSError(error.errno, "in use by another process", str(self.folder)) from None
        self._handle = handle

    def release(self) -> None:
        """Releases the lock."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
