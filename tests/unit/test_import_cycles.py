"""No two files of the product import each other, directly or through other files.

The test reads every import with `ast`, also imports inside functions and below TYPE_CHECKING. `from package
import name` counts as an import of the submodule `name` if there is one, else of the package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from tools.rooms import import_graph, imports_of


def find_cycle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """The modules of one import cycle, the first one again at the end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_two_files_import_each_other() -> None:
    graph = import_graph()
    assert len(graph) > 300
    assert find_cycle(graph) == []


def test_the_search_finds_cycles_of_any_length() -> None:
    assert find_cycle({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}}) == []
    found = find_cycle({"a": {"b"}, "b": {"c"}, "c": {"d", "a"}, "d": set()})
    assert found[0] == found[-1]
    assert set(found) == {"a", "b", "c"}


def test_imports_for_type_checking_and_inside_functions_count() -> None:
    source = """
from typing import TYPE_CHECKING
import p.a
from p import b, name
if TYPE_CHECKING:
    from p.c import Name
def function():
    from p import d
"""
    assert imports_of(source, ["p", "p.a", "p.b", "p.c", "p.d", "p.e"]) == {"p", "p.a", "p.b", "p.c", "p.d"}
