"""The audit names each of a hundred drawn damages at its place and nothing else, and finds nothing in the
groups to which they are done."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from tests.spark import seeded_groups
from tests.unit.spark import drawn_groups, inprocess
from tests.unit.spark.drawn_damages import DAMAGES, judge

pytestmark = pytest.mark.filterwarnings("ignore")

GroupOf = Callable[[str], list[Path]]


@pytest.fixture(scope="module")
def group_of(tmp_path_factory: pytest.TempPathFactory) -> GroupOf:
    """The directories of a healthy group, created once."""
    made: dict[str, list[Path]] = {}
    root = tmp_path_factory.mktemp("drawn")

    def of(name: str) -> list[Path]:
        if name == "pair":
            return of("features")[:2]
        if name not in made:
            made[name] = drawn_groups.GROUPS[name](root / name)
        return made[name]

    return of


@pytest.mark.parametrize("name", [*drawn_groups.GROUPS, "pair"])
def test_the_groups_are_healthy(name: str, group_of: GroupOf) -> None:
    found = inprocess.run(inprocess.replicas_of(group_of(name), seeded_groups.NAME))
    assert inprocess.without_notes(found) == []


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damage_is_named_at_its_place(name: str, group_of: GroupOf, tmp_path: Path) -> None:
    damage = DAMAGES[name]
    stores = [drawn_groups.copy(store, tmp_path / store.name) for store in group_of(damage.group)]
    found = damage.inject(stores)
    places = found if isinstance(found, list) else [found]
    rows = inprocess.run(inprocess.replicas_of(stores, seeded_groups.NAME))
    assert judge(damage, places, rows) == "exact"
    shutil.rmtree(tmp_path)
