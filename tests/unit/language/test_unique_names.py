"""A name means one thing: classes are unique in the product, and modules in their package.

`shared_names.tsv` lists the exceptions: kind (`class` or `module`), name, reason. An entry that is no longer
needed fails, too."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from tests.unit.language.sources import PRODUCT, classes_of, source_files

TABLE = Path(__file__).with_name("shared_names.tsv")


def shared_names(kind: str) -> dict[str, str]:
    """The exceptions of a kind with their reasons."""
    rows = [line.split("\t") for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    assert all(len(row) == 3 and all(row) for row in rows)
    return {name: reason for row_kind, name, reason in rows if row_kind == kind}


def test_a_class_name_is_used_once() -> None:
    """Private classes are exempt: only their own module uses them."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in source_files(*PRODUCT):
        for name in classes_of(path):
            if not name.startswith("_"):
                places[name].append(str(path))
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert shared.keys() == shared_names("class").keys(), shared


def test_a_module_name_is_used_once_in_a_package() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in source_files(*PRODUCT):
        if not path.stem.startswith("__"):
            places[f"{path.parts[1]}:{path.stem}"].append(str(path))
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert shared.keys() == shared_names("module").keys(), shared
