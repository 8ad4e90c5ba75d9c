"""Groups of whole processes keep their promises under drawn faults, and each seed is one run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulation.whole.mutations import MISTAKES, Mistake

CONTROLLED_SEEDS = 18
DISK_SEEDS = 12
DLEDGER_SEEDS = 3
ACTING_SEEDS = 6
SEQUENCE_SEEDS = 6
ONE_SEEDS = 6
BLOCK = 6
WINDOW = 60
"""The number of seeds to try for a mistake, from the last one that found it."""
TIMEOUT_S = 540


def simulate(*arguments: str) -> str:
    """Runs `python -m tests.simulation.whole`, whose hash seed and memory layout are fixed. AssertionError: a
    promise was broken."""
    command = [sys.executable, "-m", "tests.simulation.whole", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5000:]
    return done.stdout


@pytest.mark.parametrize("first", range(0, CONTROLLED_SEEDS, BLOCK))
def test_groups_under_controllers_keep_their_promises(first: int) -> None:
    """Whatever happens to brokers, controllers, clients, links and disks: nothing acknowledged is lost, at
    most one broker acknowledges, and consumers see each message in its place. The group accepts messages
    while enough of its members reach each other, and afterwards; then its replicas are equal."""
    said = simulate("controlled", "--seeds", f"{first}-{first + BLOCK - 1}", "--processes", "1")
    assert "no promise broken" in said


@pytest.mark.parametrize("first", range(0, DISK_SEEDS, BLOCK))
def test_groups_on_bad_disks_keep_their_promises(first: int) -> None:
    """The same, while the disk of one broker is replaced, restored from an older copy, cloned or damaged. A
    person discards the stores that controllers refuse, and replaces disks on which no broker starts."""
    said = simulate("disks", "--seeds", f"{first}-{first + BLOCK - 1}", "--processes", "1")
    assert "no promise broken" in said


def test_groups_on_a_dledger_log_keep_their_promises() -> None:
    """The same for brokers that elect their leader themselves, and for the loss of one disk."""
    assert "no promise broken" in simulate("dledger", "--seeds", f"0-{DLEDGER_SEEDS - 1}")


def test_groups_with_an_acting_master_keep_their_promises() -> None:
    """The same for a master without controllers: while it is away, a slave serves what it has, and what is
    due leaves for another group."""
    assert "no promise broken" in simulate("acting", "--seeds", f"0-{ACTING_SEEDS - 1}")


def test_sequences_of_faults_lose_nothing_and_stop_no_group() -> None:
    """Faults in an order that has lost messages, or stopped groups, before."""
    assert "no promise broken" in simulate("sequences", "--seeds", f"0-{SEQUENCE_SEEDS - 1}")


def test_a_broker_without_replicas_keeps_its_promises() -> None:
    """The same for one broker, which serves again after kills, stops, and with SYNC_FLUSH losses of power."""
    assert "no promise broken" in simulate("one", "--seeds", f"0-{ONE_SEEDS - 1}")


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.name)
def test_a_mistake_is_found(mistake: Mistake) -> None:
    """A mistake in production's code breaks a promise."""
    seeds = f"{mistake.seed}-{mistake.seed + WINDOW - 1}"
    said = simulate("mutations", "--seeds", seeds, "--processes", "1", "--only", mistake.name)
    assert "not found" not in said


def test_a_seed_is_one_run() -> None:
    """Two runs of a seed have the same events, in the same order, at the same times."""
    simulate("controlled", "--seeds", "3", "--twice", "--processes", "1")
