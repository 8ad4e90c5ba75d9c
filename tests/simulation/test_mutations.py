"""The simulator finds mistakes: each of `mutations` changes the source and must break a promise."""

from __future__ import annotations

import pytest

from tests.simulation.mutation import Mutation
from tests.simulation.mutations import MUTATIONS, find, remembered

WINDOW = 150
"""The number of seeds to try, from the last one that found the mistake. Small changes of a core or of the
simulator change what a seed does."""


def name(mutation: Mutation) -> str:
    return mutation.mistake


def test_there_are_many_mistakes_and_each_was_found() -> None:
    assert len(MUTATIONS) >= 60
    assert {one.mistake for one in MUTATIONS} == remembered().keys()


@pytest.mark.parametrize("mutation", [one for one in MUTATIONS if not one.rare], ids=name)
def test_a_mistake_is_found(mutation: Mutation) -> None:
    first = remembered()[mutation.mistake]
    found = find(mutation, range(first, first + WINDOW))
    assert found is not None, (
        f"seeds {first} to {first + WINDOW - 1} do not find it; `python -m tests.simulation mutations 1000` "
        "searches more seeds and saves the one that finds it"
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=name)
def test_a_mistake_is_found_from_the_first_seed_on(mutation: Mutation) -> None:
    assert find(mutation, range(1000)) is not None
