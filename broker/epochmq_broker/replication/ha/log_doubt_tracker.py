"""Keeps what this broker's log may lack: determines it at the start, saves it, and ends it (`log_doubt`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from epochmq_broker.replication.ha import log_doubt
from epochmq_broker.replication.ha.epoch_file import EpochFile
from epochmq_broker.replication.ha.log_doubt import LogDoubt
from epochmq_formats.abort_file import TailState
from epochmq_protocol.durable_files import make_directory, replace_file, sync_directory
from epochmq_store.message_store import MessageStore
from epochmq_store.statuses import RunningFlags

log = logging.getLogger(__name__)

FILE = "logDoubt.json"


class LogDoubtFile:
    """The file that keeps the doubt of one broker over restarts. It exists only while there is a doubt to
    keep. `content` is its present content. `load` and `save` block on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content = LogDoubt()

    def load(self) -> None:
        """Reads the file; one that cannot be decoded counts as the worst case. Raises OSError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            self.content = LogDoubt()
            return
        try:
            self.content = msgspec.json.decode(data, type=LogDoubt)
        except msgspec.MsgspecError as error:
            log.error(
                "%s cannot be decoded (%s): the broker assumes that its log lacks acknowledged messages",
                self.path,
                error,
            )
            self.content = LogDoubt(in_doubt=True, gives_up=True, verify_all=True)

    def save(self, doubt: LogDoubt) -> None:
        """Writes the doubt durably. Raises OSError; the file and `content` are then unchanged."""
        if doubt == self.content:
            return
        if doubt == LogDoubt():
            self.path.unlink(missing_ok=True)
            sync_directory(self.path.parent)
        else:
            make_directory(self.path.parent)
            replace_file(self.path, msgspec.json.encode(doubt))
        self.content = doubt


class LogDoubtTracker:
    """The doubt of one broker's log. The listeners `on_cleared` are called when it has ended."""

    def __init__(self, store: MessageStore, epochs: EpochFile) -> None:
        self.current = LogDoubt()
        self.on_cleared: list[Callable[[], None]] = []
        self._store = store
        self._epochs = epochs
        self._file = LogDoubtFile(epochs.path.with_name(FILE))
        self._clearing: asyncio.Task[None] | None = None

    def load(self) -> None:
        """Determines what the log may lack, from this start and from the doubt on disk. The result is on disk
        before the store's abort record is cleared. Raises OSError if the file cannot be read."""
        store, file = self._store, self._file
        file.load()
        self.current = log_doubt.doubt_after_start(
            file.content,
            store.tail.state,
            may_lack_acknowledged=store.tail.may_lack_acknowledged,
            confirmed=store.confirm_offset_at_load,
            end=store.max_phy_offset,
            recovery_start=store.recovery_start,
            missing_from=store.missing_from,
        )
        if self.current.is_open:
            log.warning("the log ends at %d and may lack messages: %s", store.max_phy_offset, self.current)
        try:
            # An epoch is on disk before its first byte, so it may start after the end that recovery found.
            self._epochs.truncate_suffix(store.max_phy_offset + 1)
            file.save(self.current)
            if store.tail.state is not TailState.INTACT:
                store.clear_log_doubt()
        except OSError as error:
            log.error("%s could not be written: %s", file.path, error)
        self._epochs.epochs.check_invariants(store.max_phy_offset)

    async def stop(self) -> None:
        """Waits until a doubt that is being cleared has ended."""
        if self._clearing is not None:
            await asyncio.gather(self._clearing, return_exceptions=True)

    @property
    def may_lack_acknowledged(self) -> bool:
        """Whether the log is in doubt now, or will be after a restart."""
        return self.current.in_doubt or bool(self._store.state.flags & RunningFlags.FLUSH_FAILED)

    @property
    def written_epoch(self) -> int:
        """The epoch of the log's last byte; -1 if the log is empty."""
        return log_doubt.written_epoch(self._epochs.epochs.entries, self._store.max_phy_offset)

    async def give_up(self, epoch: int) -> None:
        """Gives up the mastership of this epoch, which is from before the log lost its end. Raises OSError if
        that cannot be saved."""
        self.current = log_doubt.given_up(self.current, max(epoch, self._epochs.epochs.last_epoch))
        await asyncio.to_thread(self._file.save, self.current)

    async def distrust(self) -> None:
        """Puts the log in doubt as that of a restored volume. Raises OSError if that cannot be saved."""
        self.current = log_doubt.distrusted(self.current)
        await asyncio.to_thread(self._file.save, self.current)

    def put_in_doubt(self) -> bool:
        """Puts the log in doubt, so that this broker is not elected; False if it is already."""
        if self.current.in_doubt:
            return False
        self.current = msgspec.structs.replace(self.current, in_doubt=True)
        return True

    def clear_soon(self) -> None:
        """Clears the doubt in a task."""
        self._clearing = asyncio.create_task(self.clear(), name="clear the log's doubt")

    async def clear(self) -> None:
        """Ends the doubt: the log was compared with a living master's and lacks nothing, or it is the log of
        a new master."""
        if LogDoubt() == self.current == self._file.content:
            return
        no_doubt = log_doubt.no_doubt()
        try:
            await asyncio.to_thread(self._file.save, no_doubt)
            await asyncio.to_thread(self._store.clear_log_doubt)
        except OSError as error:
            log.error("the end of the doubt could not be saved in %s: %s", self._file.path, error)
        self.current = no_doubt
        log.info("the log is no longer in doubt, up to %d", self._store.max_phy_offset)
        for listener in self.on_cleared:
            listener()
