"""No two files of the product import each other, directly or through other files.

The test reads every import with `ast`, also imports inside functions and below TYPE_CHECKING. `from package
import name` counts as an import of the submodule `name` if there is one, else of the package."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("protocol", "dledger", "controller", "broker", "operator", "spark", "cli")


def product_modules() -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    found: dict[str, Path] = {}
    for source_root in SOURCE_ROOTS:
        for path in (ROOT / source_root).glob("epochmq*/**/*.py"):
            parts = path.relative_to(ROOT / source_root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(source: str, modules: Iterable[str]) -> set[str]:
    """The modules among `modules` that a source file imports."""
    known = set(modules)
    imported: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                imported.add(submodule if submodule in known else str(node.module))
    return imported & known


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one import cycle, the first one again at the end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_two_files_import_each_other() -> None:
    modules = product_modules()
    assert len(modules) > 300
    graph = {name: imports_of(path.read_text(), modules) - {name} for name, path in modules.items()}
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
