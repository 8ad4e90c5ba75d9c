"""Mistakes in production's code that the simulator of whole processes must find.

Where a second line of defence hides a mistake, both are made.
"""

from __future__ import annotations

from dataclasses import dataclass

from epochmq_broker.membership.dledger.commit_log_peer import CommitLogPeer
from epochmq_broker.replication.ha import missing_start
from epochmq_broker.replication.ha.client import HAClient
from epochmq_broker.replication.ha.service import ReplicaConfirmOffset
from epochmq_broker.replication.ha.sync_state import SyncState
from epochmq_broker.replication.slave_sync import SlaveSync
from epochmq_broker.writing.escape import rules as escape_rules
from epochmq_controller.replica_groups import incarnations
from epochmq_controller.replica_groups.controller_tables import ControllerTables
from epochmq_controller.replica_groups.short_sets import ShortSets
from epochmq_dledger.recovery import PeerRecovery
from epochmq_store.appending.received_records import ReceivedRecords
from epochmq_store.message_store import MessageStore
from tests.simulation.mutation import Mutation
from tests.simulation.mutations import MUTATIONS

NO_REFUSAL = Mutation(
    "controllers refuse no store",
    "whole",
    incarnations,
    "judge",
    "own = newest(lineage)",
    "return IncarnationVerdict.REGISTERED\n    own = newest(lineage)",
)
NO_PROTECTION = Mutation(
    "a replica truncates what a shorter master lacks",
    "whole",
    HAClient,
    "_check_acknowledged",
    "if point >= acknowledged:",
    "if True:",
)
FORGOTTEN_CONFIRMED = Mutation(
    "a group without a master forgets the confirmed offset",
    "whole",
    ControllerTables,
    "with_confirmed_offset",
    "or event.new_master_elected",
    "or True",
)
NO_DOUBT_ABOUT_FILES = Mutation(
    "a start does not notice missing files",
    "whole",
    MessageStore,
    "_assess_missing_files",
    "if extent is None:",
    "if True:",
)


@dataclass(frozen=True)
class Mistake:
    """Mutations that are made together, the scenario that must find them, and a seed that did. Small changes
    of production or of the simulator change what a seed does."""

    name: str
    scenario: str
    mutations: tuple[Mutation, ...]
    seed: int


def known(mistake: str, scenario: str, seed: int) -> Mistake:
    """A mistake that the simulators of single parts find, too."""
    (mutation,) = (one for one in MUTATIONS if one.mistake == mistake)
    return Mistake(mistake, scenario, (mutation,), seed)


def _single(mistake: str, owner: object, function: str, before: str, after: str, *, seed: int) -> Mistake:
    """A mistake of one change, which a sequence of faults must find."""
    return Mistake(mistake, "sequences", (Mutation(mistake, "whole", owner, function, before, after),), seed)


MISTAKES = (
    known("a send is acknowledged once the master has it", "controlled", 8),
    known("a promise counts from the arrival of the replica's request", "controlled", 3),
    known("an empty replica gets the last file only, unasked", "controlled", 4),
    Mistake(
        "received records are not checked",
        "disks",
        (
            Mutation(
                "received records are not checked",
                "whole",
                ReceivedRecords,
                "advance",
                "log = self._log\n",
                "log = self._log\n    self.position = log.max_offset\n    return False\n",
            ),
        ),
        seed=15,
    ),
    Mistake(
        "replicas truncate what a shorter master lacks, and restored volumes are trusted",
        "disks",
        (NO_REFUSAL, NO_PROTECTION, FORGOTTEN_CONFIRMED),
        seed=10,
    ),
    Mistake("controllers refuse no store", "disks", (NO_REFUSAL,), seed=77),
    Mistake("missing files raise no doubt", "disks", (NO_DOUBT_ABOUT_FILES,), seed=12),
    Mistake(
        "a log without its first files ends its doubt",
        "disks",
        (
            Mutation(
                "a log without its first files ends its doubt",
                "whole",
                missing_start,
                "check_missing_start",
                "if missing is None or first <= missing:",
                "if True:",
            ),
        ),
        seed=12,
    ),
    _single(
        "a peer votes although it lost what it had not flushed",
        CommitLogPeer,
        "_doubt",
        "if state is TailState.UNFLUSHED_LOST and self._flush_async:",
        "if False:",
        seed=0,
    ),
    _single(
        "a peer with an empty directory votes",
        PeerRecovery,
        "_mark_new_directory",
        "if not (is_empty and is_founder) or self._accepted:",
        "if True:",
        seed=6,
    ),
    _single(
        "a replica that controllers reject blocks every change of the SyncStateSet",
        SyncState,
        "proposal_rejected",
        "if refused is not None and refused not in self.members:",
        "if False:",
        seed=1,
    ),
    _single(
        "a master that reaches no replica never gives way",
        ShortSets,
        "masters_to_replace",
        "elif now_ms - known.since_ms >= known.patience_ms:",
        "elif False:",
        seed=2,
    ),
    _single(
        "a message has left when a page cache has it",
        escape_rules,
        "remote_form",
        'const.PROPERTY_WAIT_STORE_MSG_OK: "true"',
        'const.PROPERTY_WAIT_STORE_MSG_OK: "false"',
        seed=3,
    ),
    _single(
        "offsets ahead of the log stay after a power loss",
        SlaveSync,
        "lower_offsets_to_log",
        "lowered = self._offsets.clamp(end)",
        "lowered = 0",
        seed=4,
    ),
    Mistake(
        "a part of a record counts as confirmed",
        "sequences",
        (
            Mutation(
                "a master confirms a part of a record",
                "whole",
                SyncState,
                "_advance",
                "self._record_ends.advance(min(self.confirm_offset, copied))",
                "min(self.confirm_offset, copied)",
            ),
            Mutation(
                "a replica acknowledges a part of a record",
                "whole",
                HAClient,
                "_reported_end",
                "max(self._received.position, self._transfer_start)",
                "store.max_phy_offset",
            ),
            Mutation(
                "a replica reports a part of a record as confirmed",
                "whole",
                ReplicaConfirmOffset,
                "note_dispatched",
                "min(max(self.records, known), self.value)",
                "self.value",
            ),
        ),
        seed=5,
    ),
)
