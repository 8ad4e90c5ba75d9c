"""Keeps the confirm offset of a broker that is not master, and its copy in the store's checkpoint."""

from __future__ import annotations

from epochmq_store.message_store import MessageStore


class ReplicaConfirmOffset:
    """The confirm offset of one broker. `value` is limited to the end of its log."""

    def __init__(self, store: MessageStore, *, controlled: bool) -> None:
        """`controlled`: controllers decide the role; only then the offset is saved."""
        self.value = 0
        self._store = store
        self._controlled = controlled

    def load(self) -> None:
        """Takes the offset of the checkpoint, and shows consumers the messages up to it."""
        store = self._store
        self.value = min(store.confirm_offset_at_load, store.max_phy_offset)
        self.save(self.value)
        store.visibility.set_confirm_offset(self.value)

    def limit_to_log(self) -> None:
        """Lowers the offset to the end of a truncated log."""
        self.value = min(self.value, self._store.max_phy_offset)

    def set_by_master(self, offset: int) -> None:
        """Takes the offset that the master reports, and shows consumers the messages up to it."""
        self.value = offset
        self._store.visibility.set_confirm_offset(offset)
        # Only complete records: a partial one does not survive a kill, and its loss is no damage.
        self._store.checkpoint.confirm_phy_offset = min(offset, self._store.replica_log.dispatched_offset)

    def save(self, offset: int) -> None:
        """Takes the offset of a role that has ended, and puts it into the checkpoint."""
        self.value = offset
        if self._controlled:
            self._store.checkpoint.confirm_phy_offset = offset
