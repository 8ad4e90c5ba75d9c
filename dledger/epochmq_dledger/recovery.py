"""Recovers a peer's directory at its start: vote, log, snapshot and state machine.

Recovery finds out whether the disk has lost entries or votes that this peer had acknowledged. If so, it
preserves the evidence. The peer then rejoins without a vote (`core.rejoin`), or does not start and says what
to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from epochmq_dledger.core.types import RaftSettings, SavedMembership, Snapshot
from epochmq_dledger.state_machine import StateMachine
from epochmq_dledger.store import damage_evidence, state_files
from epochmq_dledger.store.damage_evidence import RejoinMark
from epochmq_dledger.store.file_log import FileLog
from epochmq_dledger.store.segments import is_disk_full, sync_and_close
from epochmq_dledger.store.snapshot_file import SnapshotFile, open_snapshot
from epochmq_dledger.store.state_files import SavedVote
from epochmq_protocol.dledger import MEMBERS_CHANNEL, DLedgerEntry, decode_members

log = logging.getLogger(__name__)


@dataclass
class RecoveredPeer:
    """The result of a recovery. `memberships` are the log's membership entries after the snapshot, or
    `saved_memberships` those that a peer with a block log has saved."""

    vote: SavedVote
    committed: int
    snapshot: Snapshot | None
    applied_index: int
    memberships: list[DLedgerEntry]
    saved_memberships: list[SavedMembership]
    rejoin: RejoinMark | None


class PeerRecovery:
    """One recovery. Its functions wait for the disk."""

    def __init__(
        self,
        settings: RaftSettings,
        folder: Path,
        entries: FileLog,
        snapshots: SnapshotFile,
        *,
        reads_entries: bool = True,
    ) -> None:
        """`reads_entries`: the log has a state machine, so recovery reads each entry after the snapshot.
        Without one it reads only what opening the log reads, and the memberships that were saved."""
        self._reads_entries = reads_entries
        self.settings = settings
        self.folder = folder
        self.entries = entries
        self.snapshots = snapshots
        self._accepted = False
        self._saved: list[SavedMembership] = []

    def run(
        self,
        machine: StateMachine | None,
        apply: Callable[[DLedgerEntry], None],
        doubt: RejoinMark | None = None,
    ) -> RecoveredPeer:
        """Recovers, and applies the entries that are known to be committed. `doubt`: what the peer's owner
        knows that this disk may have lost. ValueError if the directory
        belongs to another peer, or is too damaged to use."""
        self._accepted = damage_evidence.take_accept_loss_mark(self.folder)
        self._saved = [] if self._reads_entries else state_files.load_memberships(self.folder)
        checkpoint = state_files.load_committed(self.folder)
        committed = -1 if checkpoint is None else checkpoint
        covered = self._snapshot_index()
        stopped_end = state_files.load_stopped_end(self.folder)
        self.entries.open(
            -1 if checkpoint is not None and committed <= covered else checkpoint,
            stopped_end if stopped_end is not None and stopped_end > covered else None,
        )
        if checkpoint is None:
            self._mark_new_directory(covered)
            self._save_first_checkpoint()
        vote = self._vote()
        self._check_end_term(vote)
        if self.entries.damage is not None:
            self._handle_loss(self.entries.damage.text)
        elif doubt is not None:
            self._mark_doubt(doubt)
        if stopped_end is not None:
            self._withdraw_stop(checkpoint)
        snapshot = open_snapshot(self.entries, self.snapshots, has_state_machine=machine is not None)
        self._sync()
        if not self._reads_entries and self.entries.begin_index > 0:
            committed = max(committed, self.entries.begin_index)  # earlier files expired after this was
        committed = min(committed, self.entries.end_index)
        applied = max(self.entries.begin_index - 1, -1)
        if snapshot is not None:
            committed = max(committed, snapshot.index)
            if machine is not None:
                machine.restore(self.snapshots.read(0, snapshot.size))
                applied = snapshot.index
        memberships = self._replay(applied + 1, committed, apply)
        committed = min(committed, self.entries.end_index)
        return RecoveredPeer(
            vote,
            committed,
            snapshot,
            max(applied, committed),
            memberships,
            self._saved,
            damage_evidence.load_rejoin_mark(self.folder),
        )

    def _mark_new_directory(self, covered: int) -> None:
        """Lets a founder without any file begin without a vote: its group is new, or this peer was a member
        and has lost everything (`core.rejoin`). The mark is durable before any other file."""
        entries, folder = self.entries, self.folder
        is_empty = entries.end_index < 0 and entries.damage is None and covered < 0 and not self._saved
        is_founder = not self.settings.joining and len(self.settings.peers) > 1
        if not (is_empty and is_founder) or self._accepted:
            return
        if any((folder / name).exists() for name in (*state_files.STATE_FILE_NAMES, damage_evidence.REJOIN)):
            return
        damage_evidence.save_rejoin_mark(folder, RejoinMark(vote_lost=True, is_new_directory=True))
        log.warning(
            "%s: %s was empty, because the group is new or this peer has lost its disk. The peer has no vote "
            "until enough of the others have responded to tell which, and after a loss until it has its "
            "leader's log; see docs/durability.md",
            self.settings.self_id,
            folder,
        )

    def _mark_doubt(self, doubt: RejoinMark) -> None:
        """Lets this peer rejoin, because its disk may have lost what it had acknowledged."""
        if self._accepted or self._voters() <= {self.settings.self_id}:
            return  # no other peer has what is lost
        known = damage_evidence.load_rejoin_mark(self.folder) or doubt
        mark = RejoinMark(
            known.vote_lost or doubt.vote_lost,
            known.is_new_directory,
            known.only_unflushed and doubt.only_unflushed,
        )
        damage_evidence.save_rejoin_mark(self.folder, mark)
        log.warning(
            "%s: the disk of %s may have lost entries%s that this peer had acknowledged. It has no vote "
            "until it has its leader's log%s; see docs/durability.md",
            self.settings.self_id,
            self.folder,
            ", after a power failure, that were not flushed," if mark.only_unflushed else " and votes",
            ", or all peers elect the same leader" if mark.only_unflushed else "",
        )

    def _save_first_checkpoint(self) -> None:
        """Saves a checkpoint for a log without entries, before the first one is written. Without a
        checkpoint, torn writes of a power failure may look like damage (`BlockLog`)."""
        if self.entries.end_index < 0 and self.entries.damage is None:
            state_files.save_checkpoint(self.folder, -1, -1)

    def _withdraw_stop(self, checkpoint: int | None) -> None:
        """Lets the checkpoint no longer say that the peer has stopped, before it truncates its log."""
        committed = state_files.load_committed(self.folder)
        if committed is None:
            committed = -1 if checkpoint is None else checkpoint
        try:
            state_files.save_checkpoint(self.folder, self.entries.end_index, committed)
        except OSError as error:
            if not is_disk_full(error):
                raise
            # At worst the peer rejoins, if it truncates its log and is killed before the next checkpoint.
            log.warning("%s: cannot write the checkpoint: %s", self.folder, error)

    def _snapshot_index(self) -> int:
        """The last entry that the snapshot includes, -1 without one. `open_snapshot` handles a damaged
        one."""
        try:
            self.snapshots.open()
        except ValueError:
            return -1
        return self.snapshots.current.index if self.snapshots.current is not None else -1

    def _sync(self) -> None:
        """Syncs entries that a killed process has written, before they count."""
        sync_and_close(self.entries.take_unsynced())
        self.entries.durable_index = self.entries.end_index

    def _vote(self) -> SavedVote:
        vote = state_files.load_vote(self.folder)
        is_new = self.entries.end_index < 0 and self.entries.damage is None
        is_missing = not (self.folder / state_files.CURRTERM).exists()
        if vote.is_lost or (is_missing and vote == SavedVote() and not is_new):
            self._handle_loss(
                f"{self.folder / state_files.CURRTERM} is missing, empty or damaged", vote_lost=True
            )
            state_files.save_vote(self.folder, vote.term, None)
        elif is_missing and is_new:
            # A peer may follow the leader of term 0 without a vote. A missing file means a loss from now on.
            state_files.save_vote(self.folder, vote.term, vote.voted_for)
        return vote

    def _check_end_term(self, vote: SavedVote) -> None:
        """Ends the log before last entries whose term is doubtful, in a group that elects by it."""
        entries = self.entries
        term_max = None if vote.is_lost or vote == SavedVote() else vote.term
        while fault := entries.end_doubt(term_max):
            if self._voters() <= {self.settings.self_id}:
                return
            entries.mark_unreadable(entries.end_index, fault)

    def _replay(
        self, first: int, committed: int, apply: Callable[[DLedgerEntry], None]
    ) -> list[DLedgerEntry]:
        """Applies the committed entries. Returns the membership entries of the log after the snapshot."""
        found: list[DLedgerEntry] = []
        if not self._reads_entries:
            return found
        for index in range(first, self.entries.end_index + 1):
            entry = self.entries.entry(index)
            if entry is None:
                self.entries.mark_unreadable(index)
                assert self.entries.damage is not None
                self._handle_loss(self.entries.damage.text)
                self._sync()
                break
            if entry.channel == MEMBERS_CHANNEL:
                found.append(entry)
            elif index <= committed:
                apply(entry)
        return found

    # Losses -------------------------------------------------------------------------------------------------

    def _handle_loss(self, text: str, *, vote_lost: bool = False) -> None:
        """Preserves the evidence, and ends the log before the lost entries. DamagedFolderError: this peer
        must not start."""
        if not self._accepted and self._voters() <= {self.settings.self_id}:
            raise damage_evidence.DamagedFolderError(
                f"{text}. This peer is the only voter of its group, so no other peer has the lost entries. "
                f"Restore {self.folder} from a backup; or make an empty file "
                f"{self.folder / damage_evidence.ACCEPT_LOSS} and start again: the log then ends before the "
                "lost entries for good"
            )
        place = damage_evidence.preserve_evidence(self.folder, self.entries, text)
        if not self._accepted:
            mark = damage_evidence.load_rejoin_mark(self.folder) or RejoinMark(vote_lost=False)
            mark = RejoinMark(vote_lost or mark.vote_lost, mark.is_new_directory)
            damage_evidence.save_rejoin_mark(self.folder, mark)
        if self.entries.damage is not None and not vote_lost:
            self.entries.erase_after_end()
            self.entries.damage = None
            end = self.entries.end_index
            committed = state_files.load_committed(self.folder)
            state_files.save_checkpoint(self.folder, end, -1 if committed is None else min(committed, end))
        log.error(
            "%s: %s. The evidence is in %s; this peer continues after entry %d%s",
            self.settings.self_id,
            text,
            place,
            self.entries.end_index,
            "" if self._accepted else ", without a vote until this peer has caught up with its leader",
        )

    def _voters(self) -> set[str]:
        """The voters that this directory names."""
        entries, current = self.entries, self.snapshots.current
        first = max(entries.begin_index, 0) if self._reads_entries else entries.end_index + 1
        for index in range(entries.end_index, first - 1, -1):
            entry = entries.entry(index)
            if entry is not None and entry.channel == MEMBERS_CHANNEL:
                return set(decode_members(entry))
        if current is not None and current.members is not None:
            return set(current.members)
        named = next((one.peers for one in reversed(self._saved) if one.peers is not None), None)
        return set(self.settings.peers if named is None else named)
