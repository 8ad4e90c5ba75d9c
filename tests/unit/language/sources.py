"""Reads the Python sources of the product: the classes that they define."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tools.rooms import source_roots

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = source_roots()


@cache
def source_files(*folders: str) -> tuple[Path, ...]:
    """The Python files below the folders, as paths from the root of the project."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return tuple(sorted(path.relative_to(ROOT) for path in found))


@cache
def classes_of(path: Path) -> tuple[str, ...]:
    """The names of the classes that a source file defines at any level."""
    tree = ast.parse((ROOT / path).read_text(), str(path))
    return tuple(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
