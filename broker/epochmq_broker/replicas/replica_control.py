"""Whether a replica takes messages, and whether it takes part in elections, as people have said; kept in
`config/steering.json`, so that it holds after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from epochmq_broker.config import LiveConfig
from epochmq_broker.store.config_files import read_config, write_config
from epochmq_broker.store.message_store import MessageStore
from epochmq_broker.store.statuses import RunningFlags

FILE = "steering.json"


class ReplicaControlState(msgspec.Struct, frozen=True):
    """What was said last; see `protocol.replica_control.ReplicaControlStateHeader`."""

    fenced: bool = False
    drained: bool = False


class ReplicaControl:
    """One replica's."""

    def __init__(self, live: LiveConfig, store: MessageStore) -> None:
        self.now = ReplicaControlState()
        self._live = live
        self._store = store
        self._lock = asyncio.Lock()
        self._path: Path = live.current.config_dir / FILE

    def load(self) -> None:
        """Before the broker serves. Raises when the file and its backup are broken."""
        found = read_config(self._path, lambda data: msgspec.json.decode(data, type=ReplicaControlState))
        if found is not None:
            self._apply(found)

    async def steer(self, *, fenced: bool | None, drained: bool | None) -> None:
        """None leaves as it is. Durable when it returns. Raises OSError, and then nothing has changed."""
        async with self._lock:
            now = self.now
            wanted = ReplicaControlState(
                now.fenced if fenced is None else fenced, now.drained if drained is None else drained
            )
            if wanted != now:
                await asyncio.to_thread(write_config, self._path, msgspec.json.encode(wanted))
                self._apply(wanted)

    def _apply(self, wanted: ReplicaControlState) -> None:
        before, self.now = self.now, wanted
        if wanted.fenced != before.fenced:
            self._store.state.set_flag(RunningFlags.FENCED, wanted.fenced)
        if wanted.drained != before.drained:
            # A learner copies the log and is in no SyncStateSet. The master hears of it in the handshake.
            self._live.update({"asyncLearner": str(wanted.drained).lower()})
