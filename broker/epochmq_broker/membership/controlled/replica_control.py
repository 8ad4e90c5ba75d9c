"""Keeps on disk whether an administrator has fenced or drained this replica (`config/steering.json`).

A fenced replica accepts no messages. A drained replica copies the log and takes no part in elections.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_store.message_store import MessageStore
from epochmq_store.state_files.state_file_io import read_state_file, write_state_file
from epochmq_store.statuses import RunningFlags

FILE = "steering.json"


class ReplicaControlState(msgspec.Struct, frozen=True):
    """The last order of an administrator; the fields are those of `ReplicaControlStateHeader`."""

    fenced: bool = False
    drained: bool = False


class ReplicaControl:
    """The control state of one replica."""

    def __init__(self, live: LiveConfig, store: MessageStore) -> None:
        self.state = ReplicaControlState()
        self._live = live
        self._store = store
        self._lock = asyncio.Lock()
        self._path: Path = live.current.config_dir / FILE

    def load(self) -> None:
        """Reads the file, before the broker serves. Raises if the file and its backup are broken."""
        found = read_state_file(self._path, lambda data: msgspec.json.decode(data, type=ReplicaControlState))
        if found is not None:
            self._apply(found)

    async def change_state(self, *, fenced: bool | None, drained: bool | None) -> None:
        """Changes the state durably; None leaves a field as it is. Raises OSError, with nothing changed."""
        async with self._lock:
            present = self.state
            wanted = ReplicaControlState(
                present.fenced if fenced is None else fenced, present.drained if drained is None else drained
            )
            if wanted != present:
                await asyncio.to_thread(write_state_file, self._path, msgspec.json.encode(wanted))
                self._apply(wanted)

    def _apply(self, wanted: ReplicaControlState) -> None:
        before, self.state = self.state, wanted
        if wanted.fenced != before.fenced:
            self._store.state.set_flag(RunningFlags.FENCED, wanted.fenced)
        if wanted.drained != before.drained:
            # A learner copies the log and is in no SyncStateSet. The handshake reports it to the master.
            self._live.update({"asyncLearner": str(wanted.drained).lower()})
