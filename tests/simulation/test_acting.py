"""Groups with an acting master keep their promises under lost notifications, late heartbeats, flapping
masters and nameservers that disagree; a master that returns goes through pre-online each time."""

from __future__ import annotations

import pytest

from tests.simulation.campaign import hold

SEEDS = 60
MORE = 1000

TROUBLES = (
    "kills",
    "pauses",
    "flaps",
    "cut off",
    "isolated",
    "nameservers restarted",
    "heartbeats late",
    "heartbeats timed out",
    "notifications",
    "notifications lost",
    "tables taken back",
    "pre-online failed",
)


@pytest.mark.timeout(2700)
def test_one_broker_runs_the_special_services() -> None:
    """Two brokers that reach a nameserver run them together for a heartbeat interval at most; they have an
    owner again within the time-out; a slave that reaches no nameserver stops. A master goes online only with
    the tables of its slaves. After the faults the master runs the services, and every slave follows it; after
    the master's end the slave with the smallest id does; when the master returns, little comes twice."""
    counts = hold("acting", range(SEEDS)).counts
    assert counts is not None
    for trouble in TROUBLES:
        assert counts[trouble] >= SEEDS / 10, trouble
    assert counts["switches"] > 10 * SEEDS


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_thousand_more() -> None:
    """The same, for more seeds."""
    hold("acting", range(SEEDS, SEEDS + MORE))
