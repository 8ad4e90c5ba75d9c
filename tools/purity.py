"""Checks that pure modules do no I/O: a module that is marked as pure, or that is in a package listed here,
must not import asyncio, socket, os, time, random or similar modules. Of the project it may import pure
modules only, and the packages around these must be pure or import nothing. State machines take input and time
and return effects; their drivers do the I/O.

Imports below `if TYPE_CHECKING` do nothing at run time and do not count."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from tools.rooms import product_modules, source_roots

ROOT = Path(__file__).resolve().parent.parent

FORBIDDEN = frozenset(
    {
        "asyncio",
        "concurrent",
        "mmap",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "secrets",
        "select",
        "selectors",
    }
    | {"shutil", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time", "uuid", "uvloop"}
)

# Packages and modules that are entirely pure. Paths are relative to the root of the repository.
PURE = (
    "protocol/epochmq_protocol",
    "formats/epochmq_formats",
    "dledger/epochmq_dledger/core",
    "controller/epochmq_controller/nameserver/routes.py",
    "operator/epochmq_operator/resources",
    "operator/epochmq_operator/pod_rendering.py",
    "operator/epochmq_operator/pods.py",
    "operator/epochmq_operator/quorum_steps.py",
)
# Modules inside a pure package that do I/O.
DRIVERS = (
    "protocol/epochmq_protocol/transport",
    "protocol/epochmq_protocol/durable_files.py",
    "protocol/epochmq_protocol/log_lines.py",
    "protocol/epochmq_protocol/memory_limit.py",
)

# Packages around pure modules that do more than to import pure modules, and why.
EXCUSED_PACKAGES = {
    "epochmq.client": "it names the producer and the consumer for scripts that use them",
    "epochmq_spark.decode": "it names numba's folder for compiled code before a module imports numba",
}

MARKER = "# pure:"  # a line that starts so marks a module as pure


def modules() -> list[Path]:
    """All pure modules."""
    chosen: set[Path] = set()
    for entry in PURE:
        path = ROOT / entry
        chosen.update([path] if path.suffix == ".py" else path.rglob("*.py"))
    for root in source_roots():
        for path in (ROOT / root).rglob("*.py"):
            if any(line.startswith(MARKER) for line in path.read_text(encoding="utf-8").splitlines()):
                chosen.add(path)
    drivers = [ROOT / entry for entry in DRIVERS]
    return sorted(path for path in chosen if not any(path.is_relative_to(driver) for driver in drivers))


def _run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a tree but those below `if TYPE_CHECKING`."""
    yield node
    is_typing = isinstance(node, ast.If) and ast.unparse(node.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )
    children = node.orelse if is_typing and isinstance(node, ast.If) else ast.iter_child_nodes(node)
    for child in children:
        yield from _run_time_nodes(child)


def imports(source: str, known: Set[str] = frozenset()) -> list[tuple[int, str]]:
    """(line, module) of every import of a file that counts at run time. `from package import name` counts as
    an import of the submodule `name` if that is among the `known` modules, else of the package."""
    found: list[tuple[int, str]] = []
    for node in _run_time_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.append((node.lineno, submodule if submodule in known else node.module))
    return list(dict.fromkeys(found))


def _packages_around(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def faults_of(name: str, sources: Mapping[str, str], pure: Set[str]) -> list[tuple[int, str]]:
    """(line, fault) for each import that the pure module `name` must not have. `sources` are the texts of all
    modules of the project."""
    faults: list[tuple[int, str]] = []
    around = dict.fromkeys(_packages_around(name), 1)
    for line, imported in imports(sources[name], sources.keys()):
        if imported.split(".")[0] in FORBIDDEN:
            faults.append((line, f"a pure module imports {imported}"))
        elif imported in sources:
            if imported not in pure and imports(sources[imported]):
                faults.append((line, f"a pure module imports {imported}, which is not pure"))
            for package in _packages_around(imported):
                around.setdefault(package, line)
    for package, line in around.items():
        is_excused = package in pure or package in EXCUSED_PACKAGES or package not in sources
        if not is_excused and imports(sources[package], sources.keys()):
            faults.append((line, f"the package {package} around a pure module is not pure"))
    return faults


def main() -> int:
    """Prints the faults; 1 if there are any."""
    names = {path: name for name, path in product_modules().items()}
    sources = {name: path.read_text(encoding="utf-8") for path, name in names.items()}
    checked = modules()
    faults = [
        f"{path.relative_to(ROOT)}: listed as pure in tools/purity.py, but missing"
        for path in checked
        if not path.exists()
    ]
    pure = {names[path] for path in checked if path.exists()}
    for path in checked:
        if path.exists():
            faults += [
                f"{path.relative_to(ROOT)}:{line}: {fault}"
                for line, fault in faults_of(names[path], sources, pure)
            ]
    good = f"purity: {len(checked)} pure modules, none imports a module for I/O, or one that is not pure"
    print("\n".join(faults) if faults else good)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
