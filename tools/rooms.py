"""Prints the rooms of the product as its imports make them: how many there are, on how many floors they
stand, how many arrows connect them, and whether an arrow leads upward.

    python -m tools.rooms            one line for each package, and the packages themselves
    python -m tools.rooms PACKAGE    the rooms of a package or of a room, floor by floor, with what they use

A room is a child of a package: a module or a package. An arrow says that a module of one room imports one of
another; imports inside functions and for type checking count. The lowest floor imports no other room. An
arrow is upward if the rooms form a circle, so that no order of floors exists."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@cache
def source_roots(root: Path = ROOT) -> tuple[str, ...]:
    """The source roots, as pyproject.toml lists them; each holds one import package."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    return tuple(settings["tool"]["hatch"]["build"]["dev-mode-dirs"])


@cache
def product_modules(root: Path = ROOT) -> Mapping[str, Path]:
    """Every module of the product by its dotted name; a package has the name of its folder."""
    modules: dict[str, Path] = {}
    for source_root in source_roots(root):
        for path in sorted((root / source_root).glob("epochmq*/**/*.py")):
            parts = path.relative_to(root / source_root).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def imports_of(source: str, modules: Iterable[str]) -> set[str]:
    """The modules among `modules` that a source file imports. `from package import name` counts as an import
    of the submodule `name` if there is one, else of the package."""
    known = modules if isinstance(modules, Mapping | set | frozenset) else set(modules)
    imported: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                imported.add(submodule if submodule in known else str(node.module))
    return {name for name in imported if name in known}


@cache
def import_graph(root: Path = ROOT) -> Mapping[str, frozenset[str]]:
    """Module → the other modules of the product that it imports."""
    modules = product_modules(root)
    return {name: frozenset(imports_of(path.read_text(), modules) - {name}) for name, path in modules.items()}


@dataclass(frozen=True)
class Rooms:
    """The rooms of a package. `uses`: room → the rooms that it imports. `floors`: the rooms of each floor,
    from the lowest; empty if `circle`, the rooms of one circle, is not."""

    uses: Mapping[str, frozenset[str]]
    floors: tuple[tuple[str, ...], ...]
    circle: tuple[str, ...]

    @property
    def arrows(self) -> int:
        """How many pairs of rooms an import connects."""
        return sum(len(used) for used in self.uses.values())


def room_of(module: str, package: str) -> str | None:
    """The child of the package in which a module is; None for the package's own `__init__` and for modules
    outside. The empty package's children are the import packages."""
    if not package:
        return module.split(".")[0]
    if not module.startswith(f"{package}."):
        return None
    return module.removeprefix(f"{package}.").split(".")[0]


def rooms_of(package: str, graph: Mapping[str, Iterable[str]]) -> Rooms:
    """The rooms of a package by the imports of its modules."""
    uses: dict[str, set[str]] = defaultdict(set)
    for module, imported in graph.items():
        if (room := room_of(module, package)) is None:
            continue
        others = {room_of(name, package) for name in imported} - {room, None}
        uses[room] |= {other for other in others if other is not None}
    return _stacked({room: frozenset(used) for room, used in uses.items()})


def _stacked(uses: Mapping[str, frozenset[str]]) -> Rooms:
    sorter = TopologicalSorter(uses)
    try:
        sorter.prepare()
    except CycleError as error:
        return Rooms(uses, (), tuple(reversed(error.args[1])))
    floors: list[tuple[str, ...]] = []
    while sorter.is_active():
        ready = sorter.get_ready()
        floors.append(tuple(sorted(ready)))
        sorter.done(*ready)
    return Rooms(uses, tuple(floors), ())


def packages_with_rooms(graph: Iterable[str]) -> list[str]:
    """The packages of the product and the packages in them that hold modules."""
    names = list(graph)
    return [name for name in names if any(other.startswith(f"{name}.") for other in names)]


def summary(package: str, rooms: Rooms) -> str:
    """One line about a package."""
    order = (
        f"circle: {' -> '.join(rooms.circle)}"
        if rooms.circle
        else f"{len(rooms.floors):2} floors, no circle, no arrow upward"
    )
    return f"{package or 'the product':40} {len(rooms.uses):3} rooms, {rooms.arrows:3} arrows, {order}"


def main() -> int:
    graph = import_graph()
    if len(sys.argv) == 2 and sys.argv[1] in packages_with_rooms(graph):
        rooms = rooms_of(sys.argv[1], graph)
        print(summary(sys.argv[1], rooms))
        for number, floor in reversed(list(enumerate(rooms.floors, 1))):
            for room in floor:
                print(f"{number:3}  {room:24} -> {', '.join(sorted(rooms.uses[room])) or '-'}")
    elif len(sys.argv) == 1:
        for package in ("", *packages_with_rooms(graph)):
            print(summary(package, rooms_of(package, graph)))
    else:
        print("usage: python -m tools.rooms [PACKAGE]", file=sys.stderr)
        return 2
    return 1 if any(rooms_of(package, graph).circle for package in packages_with_rooms(graph)) else 0


if __name__ == "__main__":
    sys.exit(main())
