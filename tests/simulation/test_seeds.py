"""Whatever the network, the disks, the clocks and the machines do: the consensus core and the controllers
keep their promises. Seeds decide what happens; a failing one is reported with the least trouble that still
breaks the promise, and what then happens."""

from __future__ import annotations

import pytest

from tests.simulation.campaign import hold

RAFT_SEEDS = 600
CONTROLLER_SEEDS = 400
LONG = 10


@pytest.mark.timeout(900)
def test_peers_keep_raft_s_promises() -> None:
    """Election safety, log matching, leader completeness, state machine safety, durability at a quorum,
    linearizable reads; and once the troubles end, equal logs with every acknowledged proposal."""
    tally = hold("raft", range(RAFT_SEEDS))
    assert tally.counts is not None
    assert tally.counts["acknowledged"] > 100 * RAFT_SEEDS
    assert tally.counts["reads"] > 20 * RAFT_SEEDS
    assert tally.counts["leaderships"] > 5 * RAFT_SEEDS


@pytest.mark.timeout(900)
def test_controllers_keep_one_writing_master_and_every_acknowledged_write() -> None:
    """At most one master may write at any instant, epochs never go back, SyncStateSets change only as the
    rules allow, whoever is elected has every acknowledged write, all tables are equal; and once the troubles
    end, every group has a writing master, and a dead one is replaced in time."""
    tally = hold("controllers", range(CONTROLLER_SEEDS))
    assert tally.counts is not None
    assert tally.counts["elections"] > 4 * CONTROLLER_SEEDS
    assert tally.counts["leases"] > 100 * CONTROLLER_SEEDS
    assert tally.counts["acknowledged"] > 200 * CONTROLLER_SEEDS


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("kind", "seeds"),
    [
        ("raft", range(RAFT_SEEDS, LONG * RAFT_SEEDS)),
        ("controllers", range(CONTROLLER_SEEDS, LONG * CONTROLLER_SEEDS)),
    ],
)
def test_more_seeds(kind: str, seeds: range) -> None:
    """The same, for ten times as many seeds."""
    hold(kind, seeds)
