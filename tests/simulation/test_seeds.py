"""The consensus core, the controllers, the groups and DLedger brokers keep their promises under faults of
networks, disks, clocks and machines. Seeds decide what happens. The report of a failing seed contains the
smallest plan that still breaks the promise."""

from __future__ import annotations

import pytest

from tests.simulation.campaign import Tally, hold

# What every run of the tests has time for. The soak runs the long ones.
RAFT_SEEDS = 140
CONTROLLER_SEEDS = 100
DEPARTURE_SEEDS = 20
STORE_SEEDS = 60
GROUP_SEEDS = 70
BLOCK_SEEDS = 160

LONG_RAFT_SEEDS = 6000
LONG_CONTROLLER_SEEDS = 2700
LONG_DEPARTURE_SEEDS = 660
LONG_STORE_SEEDS = 2700
LONG_GROUP_SEEDS = 1600
LONG_BLOCK_SEEDS = 10_000

TROUBLES = (
    "dropped",
    "delayed",
    "reordered",
    "duplicated",
    "cut one way",
    "cut both ways",
    "pauses",
    "kills",
    "blackouts",
    "unsynced entries lost",
    "syncs failed",
    "slow disks",
    "stuck disks",
    "writes to a full disk",
    "clock leaps",
)
"""Faults that must happen often in a campaign; otherwise it proves nothing."""

CLOCKS = ("frozen clocks", "two leaps within a lease")
DISKS = (
    "power losses of brokers",
    "power losses of a group",
    "broker pages lost",
    "broker flushes failed",
    "broker calls failed (EIO)",
    "broker calls failed (ENOSPC)",
    "slow broker disks",
    "epochs given up",
    "doubts settled",
)
"""The same for worlds of groups."""


def counted(tally: Tally) -> dict[str, int]:
    """The counts of a campaign. Checks that every fault happened."""
    assert tally.counts is not None
    for trouble in TROUBLES:
        assert tally.counts[trouble] >= tally.seeds / 10, trouble
    return tally.counts


@pytest.mark.timeout(2700)
def test_peers_keep_raft_s_promises() -> None:
    """Election safety, log matching, leader completeness, state machine safety, durability at a quorum,
    linearizable reads; and after the faults a leader, prompt reads, and equal logs with every acknowledged
    proposal. Three worlds in ten run on the production store, whose disks tear writes, lose
    unsynced sectors, are full or fail in any call, change bits, and lie."""
    counts = counted(hold("raft", range(RAFT_SEEDS)))
    assert counts["acknowledged"] > 100 * RAFT_SEEDS
    assert counts["reads"] > 20 * RAFT_SEEDS
    assert counts["leaderships"] > 5 * RAFT_SEEDS
    assert counts["proposals written together"] > 20 * RAFT_SEEDS
    for of_stores in ("torn writes", "sectors lost", "truncations of a stored log"):
        assert counts[of_stores] > RAFT_SEEDS / 10, of_stores
    for of_disks in (
        "little room",
        "disks failed",
        "bits rotten",
        "damage noticed",
        "votes lost",
        "rejoined",
    ):
        assert counts[of_disks] > RAFT_SEEDS / 40, of_disks


@pytest.mark.timeout(2700)
def test_closed_connections_break_no_promise() -> None:
    """Followers whose leader's connection closed start an election at once. Whether the leader is dead or
    not, no term has two leaders."""
    counts = hold("departures", range(DEPARTURE_SEEDS)).counts
    assert counts is not None
    assert counts["disconnects noticed"] > 10 * DEPARTURE_SEEDS
    assert counts["acknowledged"] > 100 * DEPARTURE_SEEDS


@pytest.mark.timeout(2700)
def test_brokers_with_a_dledger_log_keep_raft_s_promises() -> None:
    """The commit log of brokers, whose files expire, on disks that tear writes, lose unsynced sectors, are
    full or fail in any call, change bits, and lie. No committed entry is lost or changed, all logs are equal,
    positions included, each term begins with its own record, and files expire only when they are
    committed."""
    counts = counted(hold("blocks", range(BLOCK_SEEDS)))
    assert counts["acknowledged"] > 40 * BLOCK_SEEDS
    assert counts["leaderships"] > 3 * BLOCK_SEEDS
    assert counts["blocks received"] > 20 * BLOCK_SEEDS
    assert counts.get("majorities without a vote", 0) <= BLOCK_SEEDS / 1000
    for often in ("files expired", "torn writes", "sectors lost", "truncations of a stored log"):
        assert counts[often] > BLOCK_SEEDS / 10, often
    for of_disks in (
        "logs begun anew",
        "little room",
        "disks failed",
        "bits rotten",
        "votes lost",
        "rejoined",
    ):
        assert counts[of_disks] > BLOCK_SEEDS / 40, of_disks


@pytest.mark.timeout(2700)
def test_the_log_store_keeps_synced_entries_and_restores_no_truncated_ones() -> None:
    """After any history of appends, truncations, kills and power failures the log has the same entries, at
    least up to the last synced one: none is torn, and no truncated one is back."""
    counts = hold("store", range(STORE_SEEDS)).counts
    assert counts is not None
    for of_stores in ("power failures", "kills", "cuts", "torn writes", "unsynced entries lost"):
        assert counts[of_stores] > STORE_SEEDS, of_stores
    assert counts["resets"] > STORE_SEEDS / 10


@pytest.mark.timeout(2700)
def test_controllers_keep_one_writing_master_and_every_acknowledged_write() -> None:
    """At most one master may write at any instant, epochs never go back, SyncStateSets change only as the
    rules allow, an elected master has every acknowledged write, and all controllers have equal groups. While
    enough is healthy, there is a writing master, and lease renewals get responses in time. After the faults
    every group has a writing master, and a dead one is replaced in time. Some controllers run on the
    production store, on disks that tear writes and lose what was not synced."""
    counts = counted(hold("controllers", range(CONTROLLER_SEEDS)))
    assert counts["elections"] > 4 * CONTROLLER_SEEDS
    assert counts["leases"] > 100 * CONTROLLER_SEEDS
    assert counts["acknowledged"] > 200 * CONTROLLER_SEEDS
    assert counts["brokers killed"] > CONTROLLER_SEEDS
    assert counts["answers within the bound"] > 10 * CONTROLLER_SEEDS
    for trouble in (*CLOCKS, "sectors lost"):
        assert counts[trouble] > CONTROLLER_SEEDS / 10, trouble


@pytest.mark.timeout(2700)
def test_groups_lose_nothing_that_was_acknowledged() -> None:
    """Controllers, brokers with production's state machine, and clients. A new master has every message that
    was acknowledged or delivered. Logs are byte-identical up to the confirm offset. Queue offsets are dense,
    and none is reused for another message. Truncated messages do not come back. After the faults the logs are
    equal, and consumers have received all messages. With SYNC_FLUSH all of that holds whichever machines lose
    power, with ASYNC_FLUSH for the messages that a member of the SyncStateSet still has."""
    counts = counted(hold("groups", range(GROUP_SEEDS)))
    assert counts["elections"] > 3 * GROUP_SEEDS
    for trouble in (*CLOCKS, *DISKS):
        assert counts[trouble] >= GROUP_SEEDS / 10, trouble
    assert counts["acknowledged"] > 200 * GROUP_SEEDS
    assert counts["consumed"] > 200 * GROUP_SEEDS
    assert counts["truncations"] > GROUP_SEEDS / 3
    assert counts["brokers killed"] > GROUP_SEEDS


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("kind", "seeds"),
    [
        ("raft", range(RAFT_SEEDS, LONG_RAFT_SEEDS)),
        ("controllers", range(CONTROLLER_SEEDS, LONG_CONTROLLER_SEEDS)),
        ("groups", range(GROUP_SEEDS, LONG_GROUP_SEEDS)),
        ("blocks", range(BLOCK_SEEDS, LONG_BLOCK_SEEDS)),
        ("store", range(STORE_SEEDS, LONG_STORE_SEEDS)),
        ("departures", range(DEPARTURE_SEEDS, LONG_DEPARTURE_SEEDS)),
    ],
)
def test_ten_thousand_more(kind: str, seeds: range) -> None:
    """The same, for many more seeds: 10,000 of peers, controllers and groups, and 10,000 of brokers with a
    DLedger log."""
    hold(kind, seeds)
