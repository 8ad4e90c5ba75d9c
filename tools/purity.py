"""Checks that pure modules do no I/O: a module that is marked as pure, or that is in a package listed here,
must not import asyncio, socket, os, time, random or similar modules. State machines take input and time and
return effects; their drivers do the I/O."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from tools.rooms import source_roots

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
)

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


def imports(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, top-level module) of every import in the tree."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name.split(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append((node.lineno, node.module.split(".")[0]))
    return found


def main() -> int:
    faults = []
    checked = modules()
    for path in checked:
        if not path.exists():
            faults.append(f"{path.relative_to(ROOT)}: listed as pure in tools/purity.py, but missing")
            continue
        for line, name in imports(ast.parse(path.read_text(encoding="utf-8"))):
            if name in FORBIDDEN:
                faults.append(f"{path.relative_to(ROOT)}:{line}: a pure module imports {name}")
    print(
        "\n".join(faults) if faults else f"purity: {len(checked)} pure modules, none imports a module for I/O"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
