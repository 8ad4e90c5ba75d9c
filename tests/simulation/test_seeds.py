"""Whatever the network, the disks, the clocks and the machines do: the consensus core and the controllers
keep their promises. Seeds decide what happens; a failing one is reported with the least trouble that still
breaks the promise, and what then happens."""

from __future__ import annotations

import pytest

from tests.simulation.campaign import Tally, hold

# 1,000 in all, and the store's own.
RAFT_SEEDS = 560
CONTROLLER_SEEDS = 250
DEPARTURE_SEEDS = 60
STORE_SEEDS = 250
GROUP_SEEDS = 150
LONG = 10

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
"""What must befall the worlds of a campaign in plenty, or it shows nothing."""

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
"""The same of worlds of groups."""


def counted(tally: Tally) -> dict[str, int]:
    """What was counted; every trouble was there."""
    assert tally.counts is not None
    for trouble in TROUBLES:
        assert tally.counts[trouble] >= tally.seeds / 10, trouble
    return tally.counts


@pytest.mark.timeout(900)
def test_peers_keep_raft_s_promises() -> None:
    """Election safety, log matching, leader completeness, state machine safety, durability at a quorum,
    linearizable reads; and once the troubles end, a leader and prompt reads, and equal logs with every
    acknowledged proposal. Three worlds in ten run on the production store, whose disks tear writes, lose
    unsynced sectors, are full or fail in any call, change bits, and lie."""
    counts = counted(hold("raft", range(RAFT_SEEDS)))
    assert counts["acknowledged"] > 100 * RAFT_SEEDS
    assert counts["reads"] > 20 * RAFT_SEEDS
    assert counts["leaderships"] > 5 * RAFT_SEEDS
    assert counts["proposals written together"] > 20 * RAFT_SEEDS
    for of_stores in ("torn writes", "sectors lost", "cuts of a stored log"):
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


@pytest.mark.timeout(900)
def test_a_closed_connection_is_news_that_costs_no_promise() -> None:
    """Followers whose leader's connection closed stand at once. Whether it has ended or not, nobody leads
    beside another."""
    counts = hold("departures", range(DEPARTURE_SEEDS)).counts
    assert counts is not None
    assert counts["departures noticed"] > 10 * DEPARTURE_SEEDS
    assert counts["acknowledged"] > 100 * DEPARTURE_SEEDS


@pytest.mark.timeout(900)
def test_the_log_store_keeps_what_was_synced_and_brings_nothing_back() -> None:
    """After any history of writes, cuts, kills and power failures the log is the one that was there, up to an
    entry no older than the last one synced: nothing is torn, nothing that was cut is back."""
    counts = hold("store", range(STORE_SEEDS)).counts
    assert counts is not None
    for of_stores in ("power failures", "kills", "cuts", "torn writes", "unsynced entries lost"):
        assert counts[of_stores] > STORE_SEEDS, of_stores
    assert counts["resets"] > STORE_SEEDS / 10


@pytest.mark.timeout(900)
def test_controllers_keep_one_writing_master_and_every_acknowledged_write() -> None:
    """At most one master may write at any instant, epochs never go back, SyncStateSets change only as the
    rules allow, whoever is elected has every acknowledged write, all tables are equal; while enough is well
    there is a writing master, and renewals of leases are answered, in time; and once the troubles end, every
    group has a writing master, and a dead one is replaced in time. Some controllers run on the production
    store, on disks that tear writes and lose what was not synced."""
    counts = counted(hold("controllers", range(CONTROLLER_SEEDS)))
    assert counts["elections"] > 4 * CONTROLLER_SEEDS
    assert counts["leases"] > 100 * CONTROLLER_SEEDS
    assert counts["acknowledged"] > 200 * CONTROLLER_SEEDS
    assert counts["brokers killed"] > CONTROLLER_SEEDS
    assert counts["answers within the bound"] > 10 * CONTROLLER_SEEDS
    for trouble in (*CLOCKS, "sectors lost"):
        assert counts[trouble] > CONTROLLER_SEEDS / 10, trouble


@pytest.mark.timeout(900)
def test_groups_lose_nothing_that_was_acknowledged() -> None:
    """Controllers, brokers that decide as production does, clients. Whoever becomes master has every message
    that was acknowledged or shown to a consumer; logs are byte-identical up to what is confirmed; queue
    offsets are dense and none is given to another message later; what was truncated does not come back; and
    once the troubles end the logs are equal and consumers have had everything. With SYNC_FLUSH all of that
    holds whichever machines lose power, with ASYNC_FLUSH for what any member of the SyncStateSet still
    has."""
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
        ("raft", range(RAFT_SEEDS, (LONG + 1) * RAFT_SEEDS)),
        ("controllers", range(CONTROLLER_SEEDS, (LONG + 1) * CONTROLLER_SEEDS)),
        ("groups", range(GROUP_SEEDS, (LONG + 1) * GROUP_SEEDS)),
        ("store", range(STORE_SEEDS, (LONG + 1) * STORE_SEEDS)),
        ("departures", range(DEPARTURE_SEEDS, (LONG + 1) * DEPARTURE_SEEDS)),
    ],
)
def test_ten_thousand_more(kind: str, seeds: range) -> None:
    """The same, for ten times as many seeds: 10,000 of peers, controllers and groups."""
    hold(kind, seeds)
