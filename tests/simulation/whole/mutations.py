"""Mistakes in production's code that the simulator of whole processes must find.

Where a second line of defence hides a mistake, both are made.
"""

from __future__ import annotations

from dataclasses import dataclass

from epochmq_broker.replication.ha import missing_start
from epochmq_broker.replication.ha.client import HAClient
from epochmq_controller.replica_groups import incarnations
from epochmq_controller.replica_groups.controller_tables import ControllerTables
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
)
