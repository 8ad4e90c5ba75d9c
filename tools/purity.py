"""Holds the pure modules pure: a module that declares itself pure, or lies in a package listed here, must
not import asyncio, socket, os, time, random or anything else that does I/O. The rule is the first of the
house style: cores take input and time and return effects, drivers do the rest."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

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

# Packages and modules that are pure as a whole. Paths are relative to the repository's root.
PURE = (
    "protocol/epochmq_protocol",
    "dledger/epochmq_dledger/core",
    "controller/epochmq_controller/nameserver/routes.py",
    "operator/epochmq_operator/resources",
    "operator/epochmq_operator/pod_rendering.py",
)
# The drivers inside a pure package.
DRIVERS = ("protocol/epochmq_protocol/transport", "protocol/epochmq_protocol/durable_files.py")

MARKER = "# pure:"  # a module elsewhere puts itself under the rule by a line that starts so


def modules() -> list[Path]:
    """All Python files under the rule."""
    chosen: set[Path] = set()
    for entry in PURE:
        path = ROOT / entry
        chosen.update([path] if path.suffix == ".py" else path.rglob("*.py"))
    for room in ("protocol", "dledger", "controller", "broker", "operator", "cli", "spark"):
        for path in (ROOT / room).rglob("*.py"):
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
            faults.append(f"{path.relative_to(ROOT)}: listed as pure in tools/purity.py but missing")
            continue
        for line, name in imports(ast.parse(path.read_text(encoding="utf-8"))):
            if name in FORBIDDEN:
                faults.append(f"{path.relative_to(ROOT)}:{line}: a pure module imports {name}")
    print("\n".join(faults) if faults else f"purity: {len(checked)} pure modules, none does I/O")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
